"""Products on matrix registers: shapes, every way to cut them, endless numbers, what splits."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.harness import check, from_layout, one_node, prepare, site_of
from tests.kernels.matrix_registers import can_run, load
from tests.kernels.window_cases import EPILOGUES, conv, normal
from tests.machines import machine_with
from tinsmith.codegen import matrix
from tinsmith.codegen import target as target_module
from tinsmith.codegen.builder import Module
from tinsmith.codegen.products import MATRICES
from tinsmith.codegen.products import PRODUCTS as TABLE
from tinsmith.codegen.target import ISAS, level, runnable
from tinsmith.codegen.types import BF16, F32, PTR
from tinsmith.errors import TargetError
from tinsmith.kernels._kernel import KERNELS, Skip
from tinsmith.kernels.amx import conv as conv_module
from tinsmith.kernels.amx import matmul as matmul_module
from tinsmith.kernels.amx.pack_right import pack
from tinsmith.kernels.amx.tiling import AmxPlan, Axis, best_plan, cost
from tinsmith.kernels.float_products import can_be_split, float_product
from tinsmith.kernels.trace import make_site

needs = pytest.mark.skipif(not can_run(), reason="no vectors here")
needs_tables = pytest.mark.skipif(not runnable(level("avx512")), reason="no avx512 here")
"""Of what looks functions up in tables in registers, by instructions of AVX-512."""
PAD = (1, 1, 1, 1)

SHAPES = {
    "one pixel": conv(1, 16, 16, (1, 1), (1, 1)),
    "one pixel, batch": conv(3, 64, 80, (1, 1), (1, 1)),
    "pointwise": conv(1, 64, 64, (8, 8), (1, 1)),
    "pointwise with stride": conv(2, 40, 130, (15, 14), (1, 1), stride=(2, 2)),
    "pointwise, padded": conv(1, 16, 16, (4, 4), (1, 1), pad=PAD),
    "3x3": conv(1, 64, 96, (8, 8), (3, 3), pad=PAD),
    "odd channels, batch": conv(2, 19, 37, (7, 9), (3, 3), pad=PAD),
    "stride": conv(2, 48, 33, (15, 14), (3, 3), pad=PAD, stride=(2, 2)),
    "everything odd": conv(
        1, 17, 5, (8, 8), (3, 2), stride=(2, 1), pad=(1, 0, 0, 1), dilation=(2, 1)
    ),
    "1-D": conv(1, 33, 70, (9,), (3,), pad=(1, 1)),
    "1-D pointwise": conv(2, 33, 70, (9,), (1,)),
    "large dilation": conv(
        1, 16, 16, (13, 13), (3, 3), dilation=(4, 5), pad=(4, 5, 4, 5), bias=False
    ),
    "dilation and stride": conv(1, 20, 20, (19, 23), (3, 3), dilation=(3, 2), stride=(2, 3)),
    "windows that miss the end": conv(1, 16, 16, (10, 10), (2, 2), stride=(3, 4)),
    "same padding": conv(1, 17, 31, (9, 8), (4, 3), stride=(2, 2), auto_pad="SAME_UPPER"),
    "7x7": conv(1, 32, 48, (9, 11), (7, 7), pad=(3, 3, 3, 3)),
    "long rows": conv(1, 24, 24, (3, 70), (1, 5), pad=(0, 2, 0, 2)),
}

PRODUCTS = {
    "one row too many": (normal(5, 16), normal(16, 16)),
    "all odd": (normal(7, 17), normal(17, 33)),
    "half blocks": (normal(2, 25, 40), normal(40, 70)),
    "deep": (normal(49, 300), normal(300, 64)),
    "wide": (normal(3, 11, 64), normal(64, 500)),
}

CUTS = {
    "one band": {},
    "three bands": {"bands": 3},
    "rows": {"bands": 1000},
    "packed first": {"whole": True},
    "packed first, shares": {"whole": True, "shares": 3},
}


@pytest.fixture(params=CUTS)
def cut(request, monkeypatch):
    """Every way to cut a plan, whatever it costs."""
    wanted = CUTS[request.param]

    def forced(target, draft, nbytes, threads):
        change = dict(wanted)
        rows = draft.down.out
        if "bands" in change:
            change["bands"] = min(change["bands"], rows)
        if "shares" in change:
            change["shares"] = max(1, min(change["shares"], draft.registers(rows)))
        plan = replace(draft, **change)
        return plan, cost(target, plan, nbytes, threads)

    for module in (conv_module, matmul_module):
        monkeypatch.setattr(module, "best_plan", forced)


@needs
@pytest.mark.parametrize("halo", [0, 1])
@pytest.mark.parametrize("name", SHAPES)
def test_convolutions(name, halo, cut):
    arrays, attrs = SHAPES[name]
    check(
        "Conv", arrays, attrs, kernel="conv_amx", target="amx", consts=(1, 2), rtol=3e-5,
        extra_halo=halo,
    )  # fmt: skip


@needs
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name, cut):
    check("MatMul", PRODUCTS[name], kernel="matmul_amx", target="amx", consts=(1,), rtol=2e-5)


@needs_tables
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues_of_convolutions(name, kernel, threads):
    arrays, attrs = conv(2, 20, 19, (6, 7), (kernel, kernel), pad=(kernel // 2,) * 4)
    check(
        "Conv", arrays, attrs, kernel="conv_amx", target="amx", consts=(1, 2), rtol=2e-5,
        epilogue=EPILOGUES[name], threads=threads,
    )  # fmt: skip


@needs_tables
@pytest.mark.parametrize("n", [32, 37])
def test_epilogues_of_products(n):
    for extra in (normal(1, n), normal(3, 1, n), normal(3, 9, 1), normal(3, 9, n)):
        check(
            "MatMul", (normal(3, 9, 24), normal(24, n)), kernel="matmul_amx", target="amx",
            consts=(1,), rtol=2e-5, epilogue=[("Add", extra), ("Gelu",)],
        )  # fmt: skip


@needs
def test_endless_numbers_stay_where_they_belong(cut):
    (x, w, bias), attrs = conv(1, 40, 32, (6, 7), (3, 3), pad=PAD)
    w = np.round(w * 4) / 4  # zeros, and numbers whose lo is 0
    x[0, 3, 2, 2], x[0, 17, 5, 0], x[0, 35, 0, 6] = np.inf, np.nan, -np.inf
    node = one_node("Conv", [x, w, bias], attrs, (1, 2))
    (want,) = node.op.evaluate((x, w, bias), node.attrs)
    bench = prepare(node, {"x0": x}, "conv_amx", "amx")
    bench.run()
    inside, poison, layout = bench.outputs[0]
    got = from_layout(inside, poison.shape, layout)
    assert np.isposinf(want).any() and np.isneginf(want).any() and np.isnan(want).any()
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@needs
def test_endless_numbers_in_products(cut):
    x, w = normal(40, 48), np.round(normal(48, 32) * 4) / 4
    x[3, 5], x[17, 40], x[30, 0], x[39, 47] = np.inf, np.nan, -np.inf, np.float32(3.4e38)
    node = one_node("MatMul", [x, w], {}, (1,))
    (want,) = node.op.evaluate((x, w), node.attrs)
    bench = prepare(node, {"x0": x}, "matmul_amx", "amx")
    bench.run()
    got = bench.outputs[0][0].reshape(40, 32)
    np.testing.assert_allclose(got[:39], want[:39], rtol=2e-5, atol=4e-4)
    left_out = w[47] == 0  # infinity times zero
    assert not np.isnan(got[39][~left_out]).any(), "what is too large counts as infinite"


@needs
def test_what_is_split_is_the_sum_of_its_parts():
    draws = np.random.default_rng(0)
    x = draws.standard_normal((64, 32)).astype(np.float32)
    x *= np.float32(2.0) ** draws.integers(-60, 60, x.shape).astype(np.float32)
    high, low = np.empty((64, 32), np.uint16), np.empty((64, 32), np.uint16)
    target = level("amx")
    module = Module(target)
    b = module.function("split", [("x", PTR), ("high", PTR), ("low", PTR)])
    source, outs = b.pointer("x", F32), [b.pointer(n, BF16) for n in ("high", "low")]
    with b.loop(0, 64) as i:
        found = matrix.split(b, *((source + i * 32 + k).load(16) for k in (0, 16)))
        for out, part in zip(outs, found, strict=True):
            (out + i * 32).store(part)
    b.ret()
    loaded = load({"split": module.text()}, target)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(loaded.address("split"))
    function(*(a.ctypes.data for a in (x, high, low)))
    for both in (matrix.split_array(x), (high, low)):
        parts = [(h.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for h in both]
        assert np.max(np.abs(sum(parts) - x) / np.abs(x)) <= 2.0**-17


ROWS = {
    "one part": (((0, 0),), 2e-2),
    "two parts": (((0, 1), (0, 0), (1, 0)), 2e-5),
    "two parts, all products": (((1, 1), (0, 1), (1, 0), (0, 0)), 2e-5),
    "three parts": (((0, 2), (2, 0), (1, 1), (0, 1), (1, 0), (0, 0)), 1e-6),
}
"""Rows of the table for matrix registers: terms, and the largest error of what they sum up."""


@needs
@pytest.mark.parametrize("name", ROWS)
def test_rows_of_the_table_of_products(name, monkeypatch):
    terms, error = ROWS[name]
    row = replace(TABLE["split"], name=name, terms=terms, error=0.0, rate=9.0)
    monkeypatch.setitem(TABLE, name, row)
    node = one_node("MatMul", PRODUCTS["deep"], {}, (1,))
    assert float_product(site_of(node, level("amx"), "strict"), MATRICES) is row
    known = {"target": "amx", "rtol": error, "precision": "strict"}
    check("MatMul", PRODUCTS["deep"], kernel="matmul_amx", consts=(1,), **known)
    arrays, attrs = SHAPES["dilation and stride"]
    check("Conv", arrays, attrs, kernel="conv_amx", consts=(1, 2), **known)


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_arrays_are_split_to_all_their_bits(parts):
    x = normal(100, 200)
    found = [(p.astype(np.uint32) << 16).view(np.float32) for p in matrix.split_array(x, parts)]
    rest = np.abs(np.sum(found, axis=0, dtype=np.float64) - x) / np.abs(x)
    assert rest.max() <= (0 if parts > 2 else 2.0 ** -(9 * parts - 1))


def test_weights_lie_in_the_order_of_registers():
    w = normal(48, 40, 2)
    packed = (pack(w, 2).astype(np.uint32) << 16).view(np.float32)
    size = 2 * 2 * 2 * 16 * 32  # channel blocks, taps, hi and lo, and a register
    panel = packed[: 2 * size].reshape(2, 2, 2, 2, 16, 16, 2)
    for tap, column, channel in ((0, 0, 0), (1, 3, 17), (0, 31, 39), (1, 16, 32)):
        vector, lane = divmod(column, 16)
        block, k = divmod(channel, 32)
        low, high = panel[block, tap, :, vector, k // 2, lane, k % 2]
        assert high + low == pytest.approx(w[column, channel, tap], rel=2.0**-16)
    last = packed[2 * size :].reshape(2, 2, 2, 16, 16, 2)
    assert last[0, 1, :, 5, 4, 1].sum() == pytest.approx(w[36, 11, 1], rel=2.0**-16)
    assert not last[1, :, :, 4:].any(), "channels that do not exist are zeros"


def declined(node, precision="default"):
    kernel = "conv_amx" if node.op.name == "Conv" else "matmul_amx"
    with pytest.raises(Skip) as caught:
        KERNELS[kernel].offer(site_of(node, level("amx"), precision))
    return str(caught.value)


def test_what_is_declined():
    arrays, attrs = conv(1, 32, 32, (8, 8), (3, 3), pad=PAD)
    node = one_node("Conv", arrays, attrs, (1, 2))
    assert "2^-15" in declined(node, "strict")
    assert node.op.name == "Conv"
    endless = [arrays[0], arrays[1].copy(), arrays[2]]
    endless[1][3, 4, 0, 0] = np.inf
    assert "not below 1e+33" in declined(one_node("Conv", endless, attrs, (1, 2)))
    arrays, attrs = conv(1, 32, 32, (8, 8), (3, 3), pad=PAD, group=2)
    assert "group is 2" in declined(one_node("Conv", arrays, attrs, (1, 2)))
    assert "8 input channels" in declined(one_node("Conv", *conv(1, 8, 32, (8, 8), (1, 1)), (1, 2)))
    precise = one_node("MatMul", [normal(8, 64), normal(64, 64)], {"precise": True}, (1,))
    with pytest.raises(Skip, match="precision is strict"):
        KERNELS["matmul_amx"].offer(make_site(precise, level("amx")))
    product = one_node("MatMul", [normal(4, 64), normal(64, 64)], {}, (1,))
    assert "4 rows" in declined(product)
    with pytest.raises(Skip, match="needs amx"):
        KERNELS["matmul_amx"].offer(site_of(product, level("avx512")))


def test_bands_fit_the_cache_and_threads_get_equal_shares():
    machine = machine_with(
        "amx", l2=2 << 20, l3=64 << 20, peak=170e9, l2_bandwidth=60e9, l3_bandwidth=25e9,
        dram_bandwidth=14e9,
    )  # fmt: skip
    large = AmxPlan(1, 256, 16, Axis(112, 3), Axis(112, 3))
    plan, seconds = best_plan(machine, large, 2 * 4.0 * 256 * 112 * 112, 1)
    assert 64 * plan.size < machine.l2
    assert seconds < 2.0 * 9 * 256 * 256 * 112 * 112 / machine.peak / 2
    deep = AmxPlan(1, 512, 32, Axis(7, 3), Axis(7, 3))
    plan, _ = best_plan(machine, deep, 2 * 4.0 * 512 * 49, 2)
    assert plan.tiles % 2 == 0
    wide = AmxPlan(1, 1024, 64, Axis(4096), Axis(1))
    plan, _ = best_plan(machine, wide, 4.0 * 4096 * 2048, 1)
    assert not plan.whole, "each panel would read all of the split input again"
    batch = AmxPlan(8, 512, 64, Axis(13), Axis(13))
    plan, _ = best_plan(machine, batch, 8 * 4.0 * 1512 * 169, 1)
    assert not plan.whole, "each panel would read all images again"
    assert [AmxPlan(1, 512, 4, Axis(20, k), Axis(20, k)).pieces for k in (1, 3, 5)] == [3, 16, 1]


def test_layers_are_alike_only_where_their_weights_can_be_split():
    arrays, attrs = conv(1, 32, 32, (8, 8), (3, 3), pad=PAD)
    (choice,) = KERNELS["conv_amx"].offer(
        site_of(one_node("Conv", arrays, attrs, (1, 2)), level("amx"))
    )
    fits = choice.packed[0].fits
    assert fits is can_be_split
    large = arrays[1].copy()
    large[0] = 1e34
    assert fits(arrays[1]) and not fits(large)


def test_where_the_system_refuses_the_registers(monkeypatch):
    monkeypatch.setattr(target_module, "may_use_matrices", lambda: False)
    target_module.host.cache_clear()
    try:
        assert not runnable(level("amx"))
        with pytest.raises(TargetError, match=r"Linux refuses|lacks|that is for x86_64"):
            target_module.need_runnable(level("amx"))
        assert level("host").isa != "amx"
    finally:
        target_module.host.cache_clear()


def test_the_instruction_set_is_that_of_vectors_with_more():
    assert ISAS["amx"].needs > ISAS["avx512"].needs
    assert level("amx").vectors == level("avx512").vectors == "avx512"


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_bands_are_few_but_not_one_for_each_thread(threads):
    target = machine_with("amx", l2=2 << 20)
    draft = AmxPlan(1, 256, 64, Axis(56), Axis(56))
    alone, _ = best_plan(target, draft, 1e6, 1)
    shared, seconds = best_plan(target, draft, 1e6, threads)
    assert not shared.whole and 2 * threads - 1 <= shared.bands <= 8 * threads
    assert seconds == cost(target, shared, 1e6, threads) >= cost(target, alone, 1e6, 1)


def test_what_takes_long_to_hand_over_is_split_where_it_is_multiplied():
    target = machine_with("amx", l2=2 << 20, l3=32 << 20, peak=170e9,
        l2_bandwidth=60e9, l3_bandwidth=25e9, dram_bandwidth=14e9,
    )  # fmt: skip
    draft = AmxPlan(1, 1024, 16, Axis(14), Axis(14))
    assert best_plan(target, draft, 1e6, 1)[0].tiles == 1
    assert not best_plan(target, draft, 1e6, 2)[0].whole
