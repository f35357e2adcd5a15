"""Products of bytes: machine code of every row of the table against exact sums."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

import tinsmith as ts
from tests.kernels.byte_cases import (
    BATCHES,
    CONSTANT,
    CONVS,
    RNG,
    SIGNS,
    ZEROS,
    ends,
    operands,
    zero,
)
from tests.kernels.harness import check, level_param, levels, one_node, site_of
from tests.kernels.window_cases import machine_code
from tinsmith import ops
from tinsmith.codegen import products
from tinsmith.codegen.products import PRODUCTS, product_of, spelled
from tinsmith.codegen.target import ISAS, level, runnable
from tinsmith.graph import Graph, Type
from tinsmith.kernels._kernel import KERNELS, Skip
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.window.integers_forms import FORMS, most_of_one_sign
from tinsmith.ops.interpret import run_graph


@pytest.fixture(params=["own", "vpdpbusd", "sdot"])
def rows(request, monkeypatch):
    """The rows that a machine has, or, everywhere, one of bytes by its definition."""
    if request.param != "own":
        row = PRODUCTS[request.param]
        step = spelled(row.left, row.right)
        made = replace(row, step=step, rate=9.0, needs=lambda target: True)
        monkeypatch.setitem(PRODUCTS, row.name, made)
    return request.param


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("m, k, n", [(1, 1, 1), (5, 7, 9), (33, 40, 20), (2, 129, 70)])
def test_products(m, k, n, target, rows):
    for at, (a, b) in enumerate(ZEROS * 2):
        left, right = SIGNS[at % 4]
        arrays = [ends(left, m, k), ends(right, k, n), zero(a, left, m), zero(b, right, n)]
        consts = [i for i in CONSTANT[at % 3] if arrays[i] is not None]
        check("MatMulInteger", arrays, kernel="matmul_integer", target=target, consts=consts)


@pytest.mark.parametrize("left, right", BATCHES)
def test_batches(left, right, rows):
    for at, signs in enumerate(SIGNS):
        threads, consts = 1 + at % 2, [1] * (at // 2)
        arrays = [ends(signs[0], *left), ends(signs[1], *right), ends(signs[0]), ends(signs[1])]
        check("MatMulInteger", arrays, kernel="matmul_integer", threads=threads, consts=consts)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("x, w, attrs", CONVS)
def test_convolutions(x, w, attrs, target, rows):
    for at in range(len(ZEROS)):
        arrays, consts = operands(at, x, w)
        check("ConvInteger", arrays, attrs, kernel="conv_integer", target=target, consts=consts,
              extra_halo=at % 2, threads=1 + at // 2 % 2)  # fmt: skip


@pytest.mark.parametrize("channels, size, k, near", [
    (32, 56, 3, True), (96, 28, 1, True), (512, 7, 3, False), (1024, 7, 1, False),
])  # fmt: skip
def test_threads_share_positions_or_channels(channels, size, k, near):
    """What a thread reads is mostly what it has written, and what it has not read before."""
    arrays = [ends("uint8", 1, channels, size, size), ends("int8", channels, channels, k, k)]
    site = site_of(
        one_node("ConvInteger", arrays, {"pad": (k // 2,) * 4}, [1]), level("avx512vnni")
    )
    site.threads = 2
    (choice,) = KERNELS["conv_integer"].offer(site)
    sweep, tiles = choice.phases[-1].sweep, choice.phases[-1].tiles
    assert (sweep > 1, choice.by_channels) == (near, not near)
    assert sweep % 2 == 0 and tiles >= 4


def test_weights_that_no_near_cache_holds():
    """The next panel of them is prefetched, in parts, while one is multiplied by."""
    target = level("host")
    arrays = [
        ends("uint8", 1, 600, 3, 5),
        ends("int8", 2 * target.l2 // 600 // 8 * 8 + 4, 600, 1, 1),
    ]
    check("ConvInteger", arrays, kernel="conv_integer", target=target, consts=[1])


IN_PLACE = [
    ((2, 16, 7, 9), (24, 16, 1, 1), {}, True),
    ((1, 40, 9, 8), (20, 40, 3, 3), {"pad": (1, 2, 1, 0)}, True),
    ((2, 32, 9, 9), (40, 32, 1, 1), {"stride": (2, 2)}, True),
    ((1, 32, 9, 9), (64, 16, 3, 3), {"group": 2, "dilation": (2, 2), "pad": (2, 2, 2, 2)}, True),
    ((2, 64, 6, 5), (32, 32, 2, 3), {"group": 2}, True),
    ((1, 24, 4, 5, 6), (9, 24, 2, 3, 2), {"pad": (0, 1, 1, 1, 1, 0), "stride": (1, 2, 1)}, True),
    ((1, 20, 30), (16, 20, 5), {"pad": (2, 2), "stride": (3,)}, True),
    ((1, 12, 9, 8), (20, 12, 3, 3), {}, False),
]


@pytest.mark.parametrize("target", [level_param(n) for n in ("avx512vnni", "avx512", "avx2")])
@pytest.mark.parametrize("x, w, attrs, direct", IN_PLACE)
@pytest.mark.parametrize("left", ["uint8", "int8"])
@pytest.mark.parametrize("zero", [0, 3])
def test_convolutions_in_place(x, w, attrs, direct, left, zero, target):
    """Bytes that need no other form are read where they lie, if their padding is zeros."""
    arrays = [ends(left, *x), ends("int8", *w), np.array(zero, left), None]
    choice = check("ConvInteger", arrays, attrs, kernel="conv_integer", target=target,
                   consts=[1, 2], extra_halo=zero % 2)  # fmt: skip
    wanted = direct and left == "uint8" and not (zero and "pad" in attrs)
    assert ("in place" in choice.detail) == (wanted and target == "avx512vnni")


WINOGRAD = [
    ((1, 16, 8, 8), (16, 16, 3, 3), (1, 1, 1, 1)),
    ((2, 24, 7, 9), (20, 24, 3, 3), (1, 2, 1, 0)),
    ((1, 64, 5, 5), (40, 64, 3, 3), (0, 0, 0, 0)),
    ((1, 16, 1, 30), (9, 16, 3, 3), (2, 1, 2, 1)),
    ((1, 48, 64, 64), (16, 48, 3, 3), (1, 1, 1, 1)),
]


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("x, w, pad", WINOGRAD)
@pytest.mark.parametrize("form", FORMS.values(), ids=lambda form: f"F({form.tile})")
def test_winograd_is_exact(form, x, w, pad, target):
    for at, (a, b) in enumerate(ZEROS):
        signs = SIGNS[(at + len(w) + w[1]) % 4]
        arrays = [ends(signs[0], *x), ends(signs[1], *w), None if a is None else ends(signs[0]),
                  zero(b, signs[1], w[0])]  # fmt: skip
        consts = [i for i in [(1, 3), (1, 2, 3)][at % 2] if arrays[i] is not None]
        choice = check("ConvInteger", arrays, {"pad": pad}, kernel="conv_integer_winograd",
                       target=target, consts=consts, extra_halo=at % 2, threads=1 + at // 2 % 2,
                       pick=list(FORMS).index(form.tile))  # fmt: skip
        assert choice.detail.startswith(f"F({form.tile}, 3)")


@pytest.mark.parametrize("form", FORMS.values(), ids=lambda form: f"F({form.tile})")
def test_winograd_is_exact_at_the_most_channels(form):
    """Where sums are as long as they can be: all bytes are at the same end of their range."""
    channels = next(
        c
        for c in range(16, 1 << 16, 16)
        if not form.fits(most_of_one_sign(np.full((1, 9 * c), 255)))
    )
    x = np.full((1, channels - 16, 4, 4), 255, np.uint8)
    w = np.full((8, channels - 16, 3, 3), -128, np.int8)
    zeros = [np.array(0, np.uint8), np.full(8, 127, np.int8)]
    check("ConvInteger", [x, w, *zeros], {"pad": (1, 1, 1, 1)}, kernel="conv_integer_winograd",
          target="avx2" if runnable(level("avx2")) else "host", consts=[1, 3],
          pick=list(FORMS).index(form.tile))  # fmt: skip


@pytest.mark.parametrize("planes, begin, stride", [(3, 0, 1), (1, 1, 2)])
def test_winograd_declines_several_planes(planes, begin, stride):
    """A kernel of depth 1 on a volume: it would compute the first plane alone. Padding is one."""
    arrays = [ends("uint8", 2, 64, planes, 12, 12), ends("int8", 64, 64, 1, 3, 3)]
    attrs = {"pad": (begin, 1, 1, 0, 1, 1), "stride": (stride, 1, 1)}
    site = site_of(one_node("ConvInteger", arrays, attrs, [1]), level("avx2"))
    with pytest.raises(Skip, match="several planes"):
        KERNELS["conv_integer_winograd"].offer(site)
    check("ConvInteger", arrays, attrs, kernel="conv_integer", consts=[1])


def test_weights_whose_sums_have_too_many_bits_have_no_large_tiles():
    long = np.full((3, 9 * 64), 255)
    for w, tiles in ((long, [2]), (long * RNG.choice([-1, 1], long.shape), [2, 4])):
        most = most_of_one_sign(w)
        assert most == max(np.maximum(part, 0).sum(axis=1).max() for part in (w, -w))
        assert [form.tile for form in FORMS.values() if form.fits(most)] == tiles


def test_winograd_does_not_follow_a_layer_of_smaller_weights():
    """Layers that are alike but for their weights get the same kernel, where all of them fit."""
    graph, shape = Graph("g"), (64, 256, 3, 3)
    x = graph.input("x", Type("uint8", (1, 256, 16, 16)))
    graph.outputs = [
        ops.ConvInteger(x, graph.const(np.full(shape, w, np.int8)), pad=(1, 1, 1, 1))
        for w in (1, 127)
    ]
    net = ts.compile(graph.clone(), target="avx2" if runnable(level("avx2")) else "host")
    feed = RNG.choice(np.array([0, 255], np.uint8), x.shape)
    for got, want in zip(net(feed).values(), run_graph(graph, [feed]), strict=True):
        np.testing.assert_array_equal(got, want)


DEPTHWISE = [
    ((1, 32, 9, 11), (3, 3), {"pad": (1, 1, 1, 1)}),
    ((2, 20, 10, 9), (3, 3), {"pad": (0, 1, 1, 0), "stride": (2, 2)}),
    ((1, 17, 8, 7), (5, 5), {"pad": (2, 2, 2, 2)}),
    ((1, 5, 30), (7,), {"pad": (3, 3), "stride": (3,)}),
    ((1, 16, 3, 4, 5), (1, 2, 4), {"dilation": (1, 2, 1)}),
    ((2, 40, 1, 1), (1, 1), {}),
]


@pytest.mark.parametrize("target", [level_param(n) for n in ("avx512vnni", "avxvnni")])
@pytest.mark.parametrize("x, kernel, attrs", DEPTHWISE)
@pytest.mark.parametrize("zero", [0, 200])
def test_depthwise_convolutions(x, kernel, attrs, zero, target):
    arrays = [ends("uint8", *x), ends("int8", x[1], 1, *kernel), np.array(zero, np.uint8)]
    check("ConvInteger", arrays, {**attrs, "group": x[1]}, kernel="conv_integer_depthwise",
          target=target, consts=[1, 2], extra_halo=zero % 3, threads=1 + zero % 2)  # fmt: skip


@pytest.mark.parametrize("op, shapes, kernel", [
    ("MatMulInteger", [(7, 50), (50, 20), (20,)], "matmul_integer"),
    ("ConvInteger", [(1, 20, 6, 5), (12, 20, 3, 3), (12, 1, 1)], "conv_integer"),
])  # fmt: skip
def test_what_follows_is_computed_with_the_sums(op, shapes, kernel, rows):
    left, right, columns = shapes
    factor = RNG.uniform(1e-4, 1e-3, columns).astype(np.float32)
    epilogue = [("Cast", None, {"to": "float32"}), ("Mul", factor), ("Tanh",),
                ("Mul", np.full((), 100, np.float32)), ("Round",),
                ("Cast", None, {"to": "int8"})]  # fmt: skip
    check(op, [ends("uint8", *left), ends("int8", *right)], kernel=kernel, epilogue=epilogue,
          consts=[1])  # fmt: skip


# ---- steps: one tile's innermost statement, beside the sums that it is defined to give


def stepped(row, target, lanes):
    """Sums, a, b of random groups, and what one step makes of them on a machine."""
    import ctypes

    from tinsmith.codegen.builder import Module
    from tinsmith.codegen.library import load_library
    from tinsmith.codegen.types import I32, PTR

    module = Module(target)
    b = module.function("step", [("x", PTR)])
    at = b.pointer("x", I32)
    acc, x, w = [(at + i * lanes).load(lanes) for i in range(3)]
    (at + 3 * lanes).store(row.step(acc, x, w))
    b.ret()
    kinds = {"i16": np.int16, "u8": np.uint8, "i8": np.int8}
    memory = np.zeros((4, lanes), np.int32)
    memory[0] = RNG.integers(-(2**31), 2**31, lanes)
    a, c = (ends(kinds[t.kind], lanes, row.group) for t in (row.left, row.right))
    c = c // 2 if row.prepared else c  # sums of pairs saturate
    memory[1], memory[2] = a.view(np.int32)[:, 0], c.view(np.int32)[:, 0]
    library = load_library({"step": module.text()}, target)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.address("step"))(memory.ctypes.data)
    return memory[0], a, c, memory[3]


def exact(acc, a, c):
    """In Python's own integers, modulo 2^32."""
    found = []
    for start, left, right in zip(acc.tolist(), a.tolist(), c.tolist(), strict=True):
        total = start + sum(x * y for x, y in zip(left, right, strict=True))
        found.append((total + 2**31) % 2**32 - 2**31)
    return found


INTEGERS = [
    name
    for name, row in PRODUCTS.items()
    if row.lane.kind == "i32" and row.is_whole and not row.folds
]


@pytest.mark.parametrize("isa", [level_param(isa) for isa in ISAS])
@pytest.mark.parametrize("name", INTEGERS)
def test_steps_are_the_sums_that_they_are_defined_to_be(name, isa):
    target, row = level(isa), PRODUCTS[name]
    steps = [row.step] if row.needs(target) else []
    for step, lanes in itertools.product([*steps, spelled(row.left, row.right)], (4, 8, 16)):
        if lanes > max(4, target.lanes):
            continue
        for _ in range(5):
            acc, a, c, got = stepped(replace(row, step=step), target, lanes)
            assert got.tolist() == exact(acc, a, c)


@pytest.mark.parametrize("isa, instruction", [
    ("sse2", "pmaddwd"), ("avx2", "vpmaddwd"), ("avx512", "vpmaddwd"), ("avxvnni", "vpdpbusd"),
    ("avx512vnni", "vpdpbusd"), ("amx", "vpdpbusd"), ("neondot", "sdot"), ("i8mm", "usdot"),
])  # fmt: skip
@pytest.mark.parametrize("op", ["MatMulInteger", "ConvInteger"])
def test_machines_have_their_instructions(op, isa, instruction):
    """Generated for machines that need not be here, and assembled by LLVM."""
    target = level(isa)
    for lanes, text in assembled(op, target):
        register = {4: "%xmm", 8: "%ymm", 16: "%zmm"}[lanes]
        register = "v" if target.vectors == "neon" else register
        found = [line for line in text.splitlines() if f"\t{instruction}\t" in line]
        assert any(register in line for line in found), f"no {instruction} of {register}"
        assert "call" not in text


def assembled(op, target):
    """(lanes of whole vectors, assembly) of the phase that multiplies."""
    arrays = [ends("uint8", 40, 64), ends("int8", 64, 96)]
    if op == "ConvInteger":
        arrays = [ends("uint8", 1, 64, 14, 14), ends("int8", 64, 64, 3, 3)]
    yield block_of(target), machine_code(op, arrays, {}, KERNEL[op], target, phase=-1)


KERNEL = {"MatMulInteger": "matmul_integer", "ConvInteger": "conv_integer"}
STACK = re.compile(r".*%[xyz]mm.*\(%r[sb]p.*")
FEW = [isa for isa in ISAS if level(isa).registers == 16 or level(isa).has_byte_products]


@pytest.mark.parametrize("isa", FEW)
@pytest.mark.parametrize("op", ["MatMulInteger", "ConvInteger"])
def test_no_sums_lie_on_the_stack(op, isa):
    """LLVM would add products of several k before it adds them to their sums."""
    for _, text in assembled(op, level(isa)):
        assert STACK.findall(text) == []


def test_the_fastest_row_that_a_machine_has_is_taken():
    names = {isa: product_of(level(isa), "uint8", "int8").name for isa in ISAS}
    assert names == {"scalar": "pmaddwd", "sse2": "pmaddwd", "avx2": "pmaddwd", "avx512": "pmaddwd",
                     "avxvnni": "vpdpbusd", "avx512vnni": "vpdpbusd", "avx512bf16": "vpdpbusd",
                     "amx": "vpdpbusd", "neon": "pairs", "neondot": "sdot",
                     "i8mm": "usdot"}  # fmt: skip
    assert all(product_of(level(isa), "float32", "float32") is products.FLOAT32 for isa in ISAS)


def test_lanes_are_groups_in_the_order_of_k():
    for name in INTEGERS:
        row = PRODUCTS[name]
        w = np.arange(1, 22, dtype=np.int8).reshape(7, 3)
        lanes = products.packed_lanes(w, row)
        assert lanes.shape == (row.depth(7), 3)
        back = lanes[:, :, None].copy().view(products._NUMPY[row.right.kind])
        got = back.reshape(*lanes.shape, row.group).transpose(0, 2, 1).reshape(-1, 3)
        np.testing.assert_array_equal(got[:7], w)
        assert not got[7:].any()


# ---- threads

TOGETHER = [
    ("MatMulInteger", (67, 1031), (1031, 259), {}),
    ("MatMulInteger", (1, 4099), (4099, 515), {}),
    ("MatMulInteger", (5, 165, 130), (5, 130, 177), {}),
    ("MatMulInteger", (1035, 66), (66, 133), {}),
    ("ConvInteger", (1, 19, 61, 59), (37, 19, 3, 3), {"pad": (1, 0, 0, 2), "stride": (2, 1)}),
    ("ConvInteger", (2, 30, 41, 23), (42, 10, 3, 2), {"group": 3, "dilation": (2, 1)}),
    ("ConvInteger", (1, 130, 27, 29), (70, 130, 1, 1), {}),
]


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize("case", range(len(TOGETHER)))
def test_two_threads_together(case, constant):
    """Operands are new at every call: what a thread finds of the last one is wrong."""
    op, left, right, attrs = TOGETHER[case]
    signs = SIGNS[(case + constant) % 4]
    graph, many = Graph("g"), right[-1 if op == "MatMulInteger" else 0]
    a = graph.input("a", Type(np.dtype(signs[0]), left))
    if constant:
        b = graph.const(ends(signs[1], *right), "b")
    else:
        b = graph.input("b", Type(np.dtype(signs[1]), right))
    zeros = [graph.const(z, "z") for z in (ends(signs[0]), ends(signs[1], many))]
    graph.outputs.append(getattr(ops, op)(a, b, *zeros, **attrs))
    net = ts.compile(graph.clone(), threads=2, cache=False)
    plan = net.program().plan
    (step,) = (step for step in plan.steps if step.kernel == KERNEL[op])
    assert plan.threads == 2 and max(call.tiles for call in step.calls) > 1
    for _ in range(5):
        feeds = [ends(v.dtype, *v.dims) for v in graph.inputs]
        np.testing.assert_array_equal(net(*feeds), run_graph(graph, feeds)[0])
