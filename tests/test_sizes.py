"""Sizes that depend on data, and how sizes are named."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tests.dependent import DEPENDENT, INT, B, F, model_of, node
from tests.models import agree
from tinsmith import ops
from tinsmith.conditions import Scope
from tinsmith.errors import DataError, TypeRuleError
from tinsmith.formulas import pieces_of, widths
from tinsmith.graph.text import parse_graph
from tinsmith.graph.types import Type
from tinsmith.sizes import symbol

RANDOM = np.random.default_rng(5)


@pytest.mark.parametrize("name", DEPENDENT)
def test_what_depends_on_data(name):
    graph = ts.load(DEPENDENT[name])
    net, reference = ts.compile(graph, cache=False), ts.compile(graph, backend="numpy")
    for n in (1, 4, 4, 7):
        x = RANDOM.standard_normal((n, 8), np.float32) * 1.5
        agree(net(x), reference(x))
        agree(net(-np.abs(x)), reference(-np.abs(x)))  # often nothing is left


@pytest.mark.parametrize("name", ["nonzero", "compress", "unique", "if", "loop"])
def test_parts_around_them_are_native(name):
    net = ts.compile(ts.load(DEPENDENT[name]), cache=False)
    net(RANDOM.standard_normal((4, 8), np.float32))
    assert "native" in {s.kind for s in net.program().plan.steps}, net.explain()


def test_boxes():
    """Scores and boxes are native, NonMaxSuppression chooses, Gather takes what is left."""
    weights = [("n", np.array([5])), ("iou", np.array([0.5], np.float32)),
               ("least", np.array([0.3], np.float32)), ("two", np.array([2])),
               ("m", RANDOM.standard_normal((4, 4)).astype(np.float32))]  # fmt: skip
    model = model_of(
        [node("MatMul", "boxes m", "b0"), node("Sigmoid", "b0", "b"),
         node("Sigmoid", "x", "scores"),
         node("NonMaxSuppression", "b scores n iou least", "chosen"),
         node("Gather", "chosen two", "which", axis=1), node("Reshape", "which flat", "w"),
         node("Gather", "b w", "y", axis=1)],
        [("boxes", F, ["n", "k", 4]), ("x", F, ["n", 2, "k"])], [("chosen", INT), ("y", F)],
        [*weights, ("flat", np.array([-1]))],
    )  # fmt: skip
    graph = ts.load(model)
    net, reference = ts.compile(graph, cache=False), ts.compile(graph, backend="numpy")
    for k in (3, 20, 50):
        boxes = RANDOM.standard_normal((1, k, 4), np.float32)
        x = RANDOM.standard_normal((1, 2, k), np.float32)
        agree(net(boxes, x), reference(boxes, x))
    assert "native" in {s.kind for s in net.program().plan.steps}


def test_an_axis_of_free_size_is_squeezed_only_where_it_is_1():
    graph = ts.load(
        model_of(
            [node("Squeeze", "x zero", "y")],
            [("x", F, ["n", "m"])],
            [("y", F)],
            [("zero", np.array([0]))],
        )
    )
    net, x = ts.compile(graph, cache=False), RANDOM.standard_normal((3, 4), np.float32)
    np.testing.assert_array_equal(net(x[:1]), x[0])
    assert "reference" not in {s.kind for s in net.program().plan.steps}
    with pytest.raises(TypeRuleError, match="axis 0"):
        net(x)


CROP = [node("Shape", "x", "sizes"), node("Gather", "sizes zero", "h"), node("Div", "h two", "k"),
        node("Mul", "k two", "end"), node("Slice", "x zero end zero", "y")]  # fmt: skip


def test_a_size_that_a_model_names_like_another_may_differ():
    """Exporters are told names of sizes by hand, and the same for inputs and outputs."""
    weights = [("zero", np.array([0])), ("two", np.array([2]))]
    graph = ts.load(model_of(CROP, [("x", F, ["h", 4])], [("y", F, ["h", 4])], weights))
    net, x = ts.compile(graph, cache=False), RANDOM.standard_normal((5, 4), np.float32)
    np.testing.assert_array_equal(net(x[:2]), x[:2])
    np.testing.assert_array_equal(net(x), x[:4])


def test_names_of_sizes_are_not_those_made_for_unknown_sizes():
    last = int(ops.fresh()[1:])
    names = [f"?{last + i}" for i in range(1, 9)]
    nodes = [node("Slice", f"x begin end {axis}", f"y{axis}") for axis in "01234567"]
    weights = [(str(i), np.array([i])) for i in range(8)]
    inputs = [("x", F, names), ("begin", INT, [1]), ("end", INT, [1])]
    proto = model_of(nodes, inputs, [(f"y{i}", F) for i in range(8)], weights)
    net = ts.compile(ts.load(proto), cache=False)
    x = np.arange(3**8, dtype=np.float32).reshape([3] * 8)
    for i, y in enumerate(net.run([x, np.array([1]), np.array([2])])):
        np.testing.assert_array_equal(y, np.take(x, [1], i))


def test_unknown_sizes_in_a_text_are_not_made_again():
    next_one = int(ops.fresh()[1:]) + 1
    graph = parse_graph(f"graph g (x: float32[?{next_one}]) {{ return x }}")
    assert ops.fresh() not in graph.inputs[0].shape


def test_a_declared_size_that_is_not_so_is_an_error():
    graph = ts.load(
        model_of(
            [node("Compress", "x which", "y", axis=0)],
            [("x", F, [3, 4]), ("which", B, [3])],
            [("y", F, [3, 4])],
        )
    )
    net, x = ts.compile(graph, cache=False), RANDOM.standard_normal((3, 4), np.float32)
    np.testing.assert_array_equal(net(x, np.array([True] * 3)), x)
    for which in ([False, True, False], [True, True, False]):
        with pytest.raises(DataError, match=r"Compress 'y'.*declares"):
            net(x, np.array(which))


def test_a_split_into_sizes_of_which_not_even_the_number_is_known():
    graph = ts.load(
        model_of(
            [node("Split", "x sizes", "a b", axis=1)],
            [("x", F, ["n", "m"]), ("sizes", INT, ["k"])],
            [("a", F), ("b", F)],
        )
    )
    net, x = ts.compile(graph, cache=False), RANDOM.standard_normal((3, 4), np.float32)
    agree(net(x, np.array([1, 3])), {"a": x[:, :1], "b": x[:, 1:]})


def test_automatic_pads_of_a_kernel_of_free_size():
    graph = ts.load(
        model_of(
            [node("Conv", "x w", "y", auto_pad="SAME_UPPER")],
            [("x", F, [1, 2, 5, 6]), ("w", F, [3, 2, "h", "w"])],
            [("y", F)],
        )
    )
    net, reference = ts.compile(graph, cache=False), ts.compile(graph, backend="numpy")
    for size in ((3, 3), (2, 5), (1, 1)):
        x = RANDOM.standard_normal((1, 2, 5, 6), np.float32)
        w = RANDOM.standard_normal((3, 2, *size), np.float32)
        agree(net(x, w), reference(x, w))


@pytest.mark.parametrize("most", [1, 2, 3, 4, 6, 8, 13, 26])
def test_any_length_is_cut_into_pieces_of_few_sizes(most):
    """All of it, in the fewest pieces where lengths are long or the example's."""
    for example in (1, 5, 14, 56, 197):
        sizes = widths(most, example)
        assert sizes[0] == most and sizes[-1] == 1 and len(sizes) <= 5 + most.bit_length()
        bits = sum(1 << s for s in sizes)
        for length in (*range(100), example, most * most, 1000, 1_000_003):
            counts = [pieces_of(length, bits, s) for s in sizes]
            assert min(counts) >= 0 and sum(map(int.__mul__, counts, sizes)) == length
            if length == example or length >= most * (most - 1):
                assert sum(counts) == -(-length // most)


def test_a_type_is_empty_where_a_size_is_known_to_be_0():
    n = symbol(Scope(), "n", 2)
    empty = {(0,): True, (3, 0): True, (): False, (1, 2): False, ("n", 0): False}
    assert {dims: Type("float32", dims).is_empty for dims in empty} == empty
    assert not Type("float32", None).is_empty
    assert Type("float32", (n, 0)).is_empty and not Type("float32", (n,)).is_empty
    assert not n.scope.conditions


def test_a_multiple_of_a_sum_is_divided_by_it():
    """As where a Reshape cuts the numbers of many places into rows."""
    scope = Scope()
    h, w = symbol(scope, "h", 60), symbol(scope, "w", 80)
    places = sum(((h + k - 1) // k) * ((w + k - 1) // k) for k in (4, 8, 16))
    assert str(12 * places // (3 * places)) == "4"
    assert str(places * (h + 2) // places) == str(h + 2)
    assert str((h * h - w * w) // (h + w)) == str(h - w)
    for above, below in ((places * 3 + 1, places), (places * 3, places * 2), (h * w, h + w)):
        assert "//" in str(above // below) and int(above // below) == int(above) // int(below)
