"""Sums before transposes: chains of blocks keep one order, and what cannot be exchanged stays."""

from __future__ import annotations

import pytest

from tests.passes.build import Builder, check, ops_of
from tinsmith.ops import OPS
from tinsmith.passes.channels_last import rules
from tinsmith.rewrite import rewrite

O = OPS  # noqa: E741
LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def block(b, x, n=8):
    """A residual block that works channels-last."""
    y = O["Conv"](x, b.w(n, 1, 3, 3), group=n, pad=(1, 1, 1, 1))
    y = O["LayerNorm"](O["Transpose"](y, perm=LAST), b.w(n), b.w(n))
    y = O["Gelu"](O["Add"](O["MatMul"](y, b.w(n, 4 * n)), b.w(4 * n)))
    y = O["Add"](O["MatMul"](y, b.w(4 * n, n)), b.w(n))
    return O["Add"](O["Transpose"](y, perm=FIRST), x)


def test_transposes_back_cancel():
    b = Builder()
    x = b.x(1, 8, 5, 6)
    for _ in range(3):
        x = block(b, x)
    graph = b.out(O["LayerNorm"](O["Transpose"](x, perm=LAST), b.w(8), b.w(8)))
    check(graph, "machine")
    ops = ops_of(graph)
    assert "Add" not in ops
    # into the chain once; out of it once for each convolution's reading and writing
    assert ops.count("Transpose") == 1 + 2 * 3 - 1, ops


def test_the_result_keeps_its_order():
    b = Builder()
    graph = b.out(block(b, b.x(1, 8, 5, 6)))
    check(graph, "machine")
    assert graph.outputs[0].shape == (1, 8, 5, 6)


def read_twice(b):
    y = O["Transpose"](O["MatMul"](b.x(1, 3, 4, 5), b.w(5, 8)), perm=FIRST)
    return [O["Add"](b.x(1, 8, 3, 4, name="z"), y), O["Relu"](y)]


def no_product(b):
    y = O["Transpose"](O["Relu"](b.x(1, 3, 4, 8)), perm=FIRST)
    return [O["Add"](b.x(1, 8, 3, 4, name="z"), y)]


def stretched(b):
    y = O["Transpose"](O["MatMul"](b.x(1, 3, 4, 5), b.w(5, 8)), perm=FIRST)
    return [O["Add"](b.x(2, 8, 3, 4, name="z"), y)]


def a_convolution_can_finish(b):
    y = O["Transpose"](O["MatMul"](b.x(1, 3, 4, 5), b.w(5, 8)), perm=FIRST)
    return [O["Add"](O["Conv"](b.x(1, 2, 3, 4, name="z"), b.w(8, 2, 1, 1)), y)]


@pytest.mark.parametrize(
    "build", [read_twice, no_product, stretched, a_convolution_can_finish], ids=lambda f: f.__name__
)
def test_near_misses(build):
    b = Builder()
    graph = b.out(*build(b))
    report = check(graph, "machine")
    assert report.changes["sink-transposes"] == 0
    assert ops_of(graph).count("Transpose") == 1


def test_transposes_that_are_not_inverse_stay():
    b = Builder()
    x = O["Transpose"](b.x(2, 3, 4, 5), perm=FIRST)
    graph = b.out(O["Transpose"](x, perm=FIRST))
    report = check(graph, "machine")
    assert report.changes["sink-transposes"] == 0


def test_a_product_that_loses_a_reader_is_tried_again():
    b = Builder()
    y = O["MatMul"](b.x(2, 4, 4), b.w(4, 4))
    back = {"perm": (0, 2, 1)}
    total = O["Add"](O["Relu"](b.x(2, 4, 4, name="z")), O["Transpose"](y, **back))
    graph = b.out(total, O["Transpose"](O["Transpose"](y, **back), **back))
    counts = rewrite(graph, rules).counts
    assert counts == {"cancel_transposes": 1, "add_before_transpose": 1}
