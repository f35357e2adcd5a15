"""`precision="bfloat16"`: products of vectors, of matrix registers, and what declines them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.kernels.harness import check, levels, one_node, site_of
from tests.kernels.matrix_registers import can_run
from tests.kernels.window_cases import EPILOGUES, conv, machine_code, normal
from tinsmith import ops
from tinsmith.codegen.matrix import split_array
from tinsmith.codegen.products import MATRICES, PRODUCTS, VECTORS
from tinsmith.codegen.target import ISAS, level
from tinsmith.codegen.types import F32, I32
from tinsmith.graph import Graph, Type
from tinsmith.kernels._kernel import KERNELS, Skip
from tinsmith.kernels.float_products import float_product

ERROR = PRODUCTS["vdpbf16ps"].error


def spelled(acc, x, w):
    """The step of the row in instructions that any machine has: what vdpbf16ps gives, but for
    numbers below 1.2e-38, which are 0 there."""
    whole = [v.bitcast(I32.x(acc.ty.lanes)) for v in (x, w)]
    for pair in (whole, [v << 16 for v in whole]):
        a, b = ((v & -(1 << 16)).bitcast(F32.x(acc.ty.lanes)) for v in pair)
        acc = a.fma(b, acc)
    return acc.fenced()


@pytest.fixture
def everywhere(monkeypatch):
    """The row of vectors by its definition, on every machine."""
    row = PRODUCTS["vdpbf16ps"]
    monkeypatch.setitem(PRODUCTS, row.name, replace(row, step=spelled, needs=lambda target: True))


def rounded(x):
    """What bfloat16 holds of float32, as float32."""
    return (split_array(x, 1)[0].astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("m, k, n", [(1, 1, 2), (5, 7, 9), (33, 40, 20), (2, 129, 70)])
@pytest.mark.parametrize("consts", [(), (1,)])
def test_products(m, k, n, target, consts, everywhere):
    arrays = [rounded(normal(m, k)), rounded(normal(k, n))]
    known: dict[str, Any] = {"kernel": "matmul_bfloat16", "target": target, "precision": "bfloat16"}
    check("MatMul", arrays, consts=consts, rtol=1e-6, **known)
    check("MatMul", [normal(m, k), normal(k, n)], consts=consts, rtol=2 * ERROR, **known)


@pytest.mark.parametrize("left, right", [
    ((2, 3, 5, 6), (6, 7)), ((2, 3, 5, 6), (3, 6, 7)), ((5, 6), (2, 6, 7)), ((6,), (6, 7)),
    ((1, 60, 70), (1, 70, 40)),
])  # fmt: skip
def test_batches(left, right, everywhere):
    arrays = [rounded(normal(*left)), rounded(normal(*right))]
    check("MatMul", arrays, kernel="matmul_bfloat16", precision="bfloat16", threads=2, rtol=1e-6)


CONVS = {
    "three channels": conv(1, 3, 8, (9, 9), (3, 3), pad=(1, 1, 1, 1)),
    "pixels": conv(2, 20, 12, (7, 6), (1, 1)),
    "uneven padding": conv(1, 16, 20, (9, 8), (3, 3), pad=(1, 2, 1, 0)),
    "stride": conv(2, 13, 16, (5, 5), (2, 2), stride=(2, 2)),
    "groups": conv(1, 32, 64, (9, 9), (3, 3), group=2, dilation=(2, 2), pad=(2, 2, 2, 2)),
    "one row": conv(1, 16, 8, (12,), (5,)),
    "volume": conv(1, 24, 9, (4, 5, 6), (2, 3, 2), pad=(0, 1, 1, 1, 1, 0)),
}


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", CONVS)
def test_convolutions(name, target, everywhere):
    arrays, attrs = CONVS[name]
    consts = range(1, len(arrays))
    known: dict[str, Any] = {"kernel": "conv_bfloat16", "target": target, "precision": "bfloat16"}
    for bias in (arrays[2:], []):
        exact = [*map(rounded, arrays[:2]), *bias]
        check("Conv", exact, attrs, consts=consts, rtol=1e-5, threads=1 + len(bias), **known)
    check("Conv", arrays, attrs, consts=consts, rtol=2 * ERROR, extra_halo=1, **known)


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_epilogues(epilogue, everywhere):
    arrays, attrs = conv(2, 16, 19, (6, 7), (3, 3), pad=(1, 1, 1, 1))
    known: dict[str, Any] = {"kernel": "conv_bfloat16", "precision": "bfloat16", "rtol": 1e-5}
    exact = [*map(rounded, arrays[:2]), *arrays[2:]]
    check("Conv", exact, attrs, consts=(1, 2), epilogue=EPILOGUES[epilogue], **known)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_recurrent_layers(op, target, everywhere):
    """Of one step exact where all are bfloat16; rounded anew at each of several."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    known: dict[str, Any] = {"target": target, "precision": "bfloat16"}
    for steps, n, i, h in ((1, 2, 7, 21), (1, 1, 32, 64), (5, 3, 6, 70)):
        arrays = [normal(steps, n, i), normal(2, gates * h, i), normal(2, gates * h, h),
                  normal(2, 2 * gates * h), None, normal(2, n, h)]  # fmt: skip
        arrays += [normal(2, n, h)] if op == "LSTM" else []
        if steps == 1:
            arrays = [a if k in (3, 4) else rounded(a) for k, a in enumerate(arrays)]
        else:
            arrays[1:3] = [a / 20 for a in arrays[1:3]]
        attrs = {"hidden_size": h, "direction": "bidirectional", "linear_before_reset": 1}
        attrs = {k: v for k, v in attrs.items() if op == "GRU" or k != "linear_before_reset"}
        known["rtol"] = 2e-5 if steps == 1 else 5e-2
        choice = check(op, arrays, attrs, kernel=f"{op.lower()}_steps", consts=(1, 2, 3), **known)
        assert choice.detail.startswith("vdpbf16ps")


def test_recurrent_layers_of_large_or_computed_weights_stay_floats(everywhere):
    arrays = [normal(3, 1, 5), normal(1, 21, 5), normal(1, 21, 21)]
    known: dict[str, Any] = {"kernel": "rnn_steps", "precision": "bfloat16", "rtol": 2e-5}
    assert "vdpbf16ps" not in check("RNN", arrays, {"hidden_size": 21}, **known).detail
    arrays[1][0, 3, 2] = 2e33
    choice = check("RNN", arrays, {"hidden_size": 21}, consts=(1, 2), **known)
    assert "vdpbf16ps" not in choice.detail


def test_a_layer_of_large_weights_does_not_follow_one_that_is_alike(everywhere):
    """Each is asked for by itself, where numbers of arrays decide."""
    graph = Graph("g")
    value = graph.input("x", Type(np.dtype("float32"), (8, 64)))
    large = normal(64, 64)
    large[3, 5] = 2e33
    graph.outputs = [ops.MatMul(value, graph.const(w, "w")) for w in (normal(64, 64), large)]
    net = ts.compile(graph, precision="bfloat16", target="host", cache=False)
    kernels = [s.kernel for s in net.program().plan.steps if s.kernel]
    assert "matmul_bfloat16" in kernels and len(set(kernels)) == 2, kernels


@pytest.mark.skipif(not can_run(), reason="no vectors here")
def test_matrix_registers_take_one_part():
    arrays = [normal(33, 70), normal(70, 50)]
    node = one_node("MatMul", arrays, {}, (1,))
    row = float_product(site_of(node, level("amx"), "bfloat16"), MATRICES)
    assert (row.name, row.parts) == ("bfloat16", 1)
    known: dict[str, Any] = {"target": "amx", "precision": "bfloat16"}
    check("MatMul", arrays, kernel="matmul_amx", consts=(1,), rtol=2 * ERROR, **known)
    exact = [rounded(a) for a in arrays]
    check("MatMul", exact, kernel="matmul_amx", consts=(1,), rtol=1e-6, **known)
    arrays, attrs = CONVS["uneven padding"]
    check("Conv", arrays, attrs, kernel="conv_amx", consts=(1, 2), rtol=2 * ERROR, **known)


def test_who_declines():
    node = one_node("MatMul", [normal(8, 8), normal(8, 8)], {}, (1,))
    with pytest.raises(Skip, match="avx2 has no products of bfloat16 in vectors"):
        float_product(site_of(node, level("avx2"), "bfloat16"), VECTORS)
    with pytest.raises(Skip, match="precision is default: products are right to 2\\^-8 only"):
        float_product(site_of(node, level("avx512bf16")), VECTORS)
    large = one_node("MatMul", [normal(8, 8), np.full((8, 8), 2e33, np.float32)], {}, (1,))
    with pytest.raises(Skip, match="some weights are not below"):
        KERNELS["matmul_bfloat16"].offer(site_of(large, level("avx512bf16"), "bfloat16"))
    arrays, attrs = conv(2, 40, 40, (7, 6), (3, 3), group=5)
    halves = site_of(one_node("Conv", arrays, attrs, (1, 2)), level("avx512bf16"), "bfloat16")
    with pytest.raises(Skip, match="groups share blocks"):
        KERNELS["conv_bfloat16"].offer(halves)


def test_endless_numbers_stay_where_they_belong(everywhere):
    x = normal(6, 40)
    x[0, 3], x[1, 5], x[2, 7] = np.inf, -np.inf, np.nan
    graph = Graph("g")
    value = graph.input("x", Type(np.dtype("float32"), x.shape))
    w = np.abs(normal(40, 20)) + 0.1
    graph.outputs = [ops.MatMul(value, graph.const(w, "w"))]
    net = ts.compile(graph, precision="bfloat16", kernels="MatMul=matmul_bfloat16")
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(net(x), x @ w, rtol=3e-2, atol=0.1)


@pytest.mark.parametrize("isa", [n for n in ISAS if level(n).has_half_products])
@pytest.mark.parametrize("op", ["MatMul", "Conv"])
def test_machines_have_their_instruction(op, isa):
    """Generated for machines that need not be here, and assembled by LLVM."""
    arrays = [normal(40, 64), normal(64, 96)]
    if op == "Conv":
        arrays = [normal(1, 64, 14, 14), normal(64, 64, 3, 3)]
    kernel = f"{op.lower()}_bfloat16"
    text = machine_code(op, arrays, {}, kernel, isa, phase=-1, precision="bfloat16")
    assert "\tvdpbf16ps\t" in text
    assert "call" not in text


def test_a_machine_without_says_so():
    graph = Graph("g")
    value = graph.input("x", Type(np.dtype("float32"), (8, 64)))
    graph.outputs = [ops.MatMul(value, graph.const(normal(64, 64), "w"))]
    net = ts.compile(graph, precision="bfloat16", target="sse2")
    net(normal(8, 64))
    assert any("'bfloat16' had no effect: sse2" in note for note in net.notes)
    assert not ts.compile(graph, target="sse2").notes
