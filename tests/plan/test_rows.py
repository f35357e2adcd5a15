"""The row of the table of products by whose peak a step is rated."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from tinsmith.codegen.products import FLOAT32, VECTORS, Product, product_of
from tinsmith.codegen.target import ISAS, level
from tinsmith.graph import Graph
from tinsmith.kernels._kernel import KERNELS
from tinsmith.kernels.site import PRODUCT_ERROR
from tinsmith.kernels.trace import make_site
from tinsmith.ops import OPS
from tinsmith.plan.state import product_row

BYTES = ("int8", "uint8")
ONE = np.float32(1)


def row_of(isa: str, precision: str, op: str, *inputs: Any, **attrs: Any) -> Product:
    g = Graph("one")
    arrays = [None if a is None else g.const(np.asarray(a)) for a in inputs]
    node = g.add(OPS[op], *arrays, **attrs)
    return product_row(make_site(node, level(isa), precision))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("precision", PRODUCT_ERROR)
def test_the_fastest_row_for_what_a_node_multiplies(isa: str, precision: str) -> None:
    target, square, window = level(isa), (4, 4), (4, 4, 1, 1)
    for left, right in product(BYTES, BYTES):
        want = product_of(target, left, right, prepared=True)
        a, b = np.dtype(left).type(1), np.dtype(right).type(1)
        for shape, whole, scaled in (
            (square, "MatMulInteger", "QLinearMatMul"),
            (window, "ConvInteger", "QLinearConv"),
        ):
            x, w = np.full(shape, a), np.full(shape, b)
            assert row_of(isa, precision, whole, x, w) is want and want.is_whole
            assert row_of(isa, precision, scaled, x, ONE, a, w, ONE, b, ONE, a) is want
    want = product_of(target, "float32", "float32", PRODUCT_ERROR[precision])
    assert want.unit == VECTORS and want.error <= PRODUCT_ERROR[precision]
    floats, doubles = np.ones(window, np.float32), np.ones(window)
    assert row_of(isa, precision, "Conv", floats, floats) is want
    assert row_of(isa, precision, "MatMul", floats, floats) is want
    assert row_of(isa, precision, "MatMul", doubles, doubles) is FLOAT32
    assert row_of(isa, precision, "Softmax", floats) is FLOAT32
    assert row_of(isa, precision, "Add", np.ones(4, np.int8), np.ones(4, np.int8)) is FLOAT32


def test_bfloat16_has_a_row_of_its_own_where_it_is_allowed() -> None:
    x, isa = np.ones((4, 4), np.float32), "avx512bf16"
    rows = {p: row_of(isa, p, "MatMul", x, x).name for p in PRODUCT_ERROR}
    assert rows == dict.fromkeys(PRODUCT_ERROR, "float32") | {"bfloat16": "vdpbf16ps"}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rounded", [False, True])
def test_layers_that_round_their_inputs_to_bytes(isa: str, rounded: bool) -> None:
    x, w = np.ones((2, 1, 4), np.float32), np.ones((1, 16, 4), np.int8)
    scale = np.ones((1, 16), np.float32)
    inputs = (x, w, w, None, None, None, None, None, scale, scale)
    best = product_of(level(isa), "uint8", "int8", prepared=True)
    want = best if rounded else FLOAT32
    assert row_of(isa, "default", "LSTM", *inputs, hidden_size=4, rounded=rounded) is want


def test_operators_with_kernels_of_bytes_say_what_they_multiply() -> None:
    rows = [k for k in KERNELS.rows() if k.dtypes and k.dtypes <= set(BYTES)]
    heavy = {k.op for k in rows if "anchor" in OPS[k.op].traits}
    assert len(heavy) >= 2 and all(OPS[op].factors for op in heavy), heavy
