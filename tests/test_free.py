"""One program for many sizes: what it gives is what the reference gives, whatever the sizes.

A program that does not admit a size is followed by another one, which is right as well: how many
there are is bounded for what is general. TINSMITH_FREE=4 tries so many samples of each operator
(1 otherwise) on every instruction set.
"""

from __future__ import annotations

import os
from math import inf
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests import transformer as encoder
from tests.free import PICTURES, Single, compare, pictured, singles
from tests.fuzz import cage, together
from tests.fuzz import free as fuzzed
from tests.fuzz.judge import UNSAID
from tests.fuzz.seeds import chunks
from tests.kernels.harness import level_param
from tests.models import GRAPHS, feeds, rng
from tests.models import free as batched
from tests.shaped import CONVOLUTIONS, STRETCHED
from tinsmith.compiler.build import Compilation
from tinsmith.compiler.free import MOST
from tinsmith.conditions import Scope, by_formula, cached, estimating
from tinsmith.formulas import shown
from tinsmith.graph import Graph, Type
from tinsmith.kernels._kernel import Packed
from tinsmith.ops import OPS
from tinsmith.sizes import Size, largest, symbol

EACH = int(os.environ.get("TINSMITH_FREE", "1"))
ISAS = ("avx512", "avx2", "sse2") if EACH > 1 else ("avx2",)

# ---- whole models

TARGETS = list(map(level_param, ("sse2", "avx2", "avx512")))
TEXTS = ((2, 7), (3, 2), (2, 16), (5, 15), (2, 17), (3, 31), (2, 65))


@pytest.mark.parametrize("target", TARGETS[1:])
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name: str, target: str) -> None:
    graph, _ = pictured(name)
    names = {"n": 0, "h": 1, "w": 2, "t": 1}
    calls = [{n: sizes[k] for n, k in names.items()} for sizes in PICTURES]
    found = compare(graph, calls, lambda s: feeds(graph, **s), target=target)
    assert found.calls == len(calls) - len(found.refused) > 4
    assert not found.held or name == "residual" or name == "residual_batch", found.held


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("target", TARGETS)
def test_an_encoder(target: str, threads: int) -> None:
    graph = ts.load(encoder.transformer(layers=2))
    calls = [{"batch": n, "seq": t} for n, t in TEXTS]
    found = compare(graph, calls, lambda s: encoder.feeds(**s), target=target, threads=threads)
    assert (found.calls, found.reference, found.held) == (len(calls), [], [])
    assert found.programs == 1 or threads > 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("target", TARGETS)
def test_convolutions(target: str, threads: int) -> None:
    graph = ts.load(CONVOLUTIONS)
    calls = [{"n": n, "h": h, "w": w} for n, h, w in PICTURES]
    found = compare(graph, calls, lambda s: feeds(graph, **s), target=target, threads=threads)
    assert (found.calls, found.reference) == (len(calls), [])
    assert found.programs <= 3, found.held


def test_a_batch_and_a_length() -> None:
    graph = batched()
    calls = [{"N": n, "T": t} for n, t in TEXTS]
    found = compare(graph, calls, lambda s: feeds(graph, **s))
    assert (found.calls, found.programs) == (len(calls), 1)


def test_sizes_that_must_be_equal() -> None:
    """x + row needs them equal, or 1; the program for free sizes says so."""
    graph = ts.load(STRETCHED)
    calls = [{"n": n, "m": m} for n, m in TEXTS]
    found = compare(graph, calls, lambda s: feeds(graph, **s))
    assert found.calls == len(calls)


# ---- one operator


@pytest.mark.parametrize("isa", list(map(level_param, ISAS)))
@pytest.mark.parametrize("one", singles(EACH), ids=lambda one: str(one.sample))
def test_an_operator(one: Single, isa: str) -> None:
    found = compare(one.graph(), list(one.calls()), one.feed, target=isa)
    assert found.programs <= MOST
    if one.sample.op in GENERAL:
        assert found.programs <= 1, found.held


GENERAL = frozenset(
    [
        "Abs",
        "Add",
        "Cast",
        "Clip",
        "Div",
        "Erf",
        "Exp",
        "Gelu",
        "LayerNorm",
        "Log",
        "Mul",
        "Neg",
        "Pow",
        "Relu",
        "Sigmoid",
        "Softmax",
        "Sqrt",
        "Sub",
        "Tanh",
    ]
)
"""Operators whose first program takes all sizes."""

# ---- what is decided by sizes is recorded


def decided(what: Any) -> list[tuple[str, str]]:
    """The conditions under which a decision by sizes h = 7 and w = 5 is the same."""
    scope = Scope()
    what(symbol(scope, "h", 7, 2), symbol(scope, "w", 5, 2))
    return [(shown(form), relation) for form, relation in scope.conditions]


def estimated_first(h: Size) -> None:
    kept = cached(8)(lambda n: n % 2)
    with estimating():
        kept(h) == 1  # noqa: B015
    kept(h) == 1  # noqa: B015


def by_formula_taken(h: Size) -> None:
    with by_formula():
        range(h)


@pytest.mark.parametrize(
    ("what", "conditions"),
    [
        (lambda h, w: h < 7.5, [("h - 8", "<")]),
        (lambda h, w: h <= 7.0, [("h - 8", "<")]),
        (lambda h, w: h > 6.5, [("h - 7", ">=")]),
        (lambda h, w: h >= 7.0, [("h - 7", ">=")]),
        (lambda h, w: h < inf, []),
        (lambda h, w: h == 6.5, []),
        (lambda h, w: largest(h - 9, w - 9) >= 0, [("max(h - 9, w - 9)", "<")]),
        (lambda h, w: 12 // (h - w), [("h - w", "!=")]),
        (lambda h, w: (4 * h * w) // (4 * h * w) == 1, []),
        (lambda h, w: estimated_first(h), [("h - 2*((h)//2) - 1", "==")]),
        (lambda h, w: by_formula_taken(h), [("h - 7", "==")]),
        (lambda h, w: Packed("t", np.multiply, (np.arange(3), h)).make(),
         [("h - 7", "=="), ("2*h - 14", "==")]),
    ],
)  # fmt: skip
def test_a_decision_is_recorded(what: Any, conditions: list[tuple[str, str]]) -> None:
    assert decided(what) == conditions


# ---- sizes that nodes hold to others


def summed(*shapes: tuple[Any, ...]) -> Graph:
    graph = Graph("summed")
    values = [
        graph.input(f"x{i}", Type(np.dtype("float32"), dims)) for i, dims in enumerate(shapes)
    ]
    graph.outputs = [OPS["Add"](*values)]
    return graph


@pytest.mark.parametrize("sides", [(224, 224), (64, 64)])
def test_small_pictures_need_no_program_of_their_own(sides: tuple[int, int]) -> None:
    """Bands, shares and taps that see nothing but padding are chosen for the example alone."""
    graph, random = Graph("g"), rng()
    x = graph.input("x", Type("float32", (1, 32, "h", "w")))
    weights = random.standard_normal((64, 32, 1, 1)).astype(np.float32)
    y = OPS["Relu"](OPS["Conv"](x, weights))
    deep = random.standard_normal((64, 1, 5, 5)).astype(np.float32)
    y = OPS["Conv"](y, deep, group=64, pad=(2, 2, 2, 2), stride=(2, 2))
    rows = OPS["LayerNorm"](OPS["Transpose"](y, perm=(0, 2, 3, 1)), axis=-1)
    back = OPS["Transpose"](rows, perm=(0, 3, 1, 2))
    graph.outputs = [OPS["Conv"](back, random.standard_normal((24, 64, 1, 1)).astype(np.float32))]
    calls = [{"h": h, "w": w} for h, w in (sides, (96, 96), (64, 160), (10, 7), (4, 3), (300, 200))]

    def feed(sizes: Any) -> Any:
        shape = (1, 32, sizes["h"], sizes["w"])
        return {"x": random.standard_normal(shape).astype(np.float32)}

    found = compare(graph, calls, feed)
    assert found.calls == len(calls) and found.programs == 1, found.held


@pytest.mark.parametrize("space", [("h", "w"), ("d", "h", "w")])
def test_a_narrow_picture_that_is_pooled_and_padded(space: tuple[str, ...]) -> None:
    """Between borders a mean has lines of their own, which may be shorter than it has sums."""
    graph, random, rank = Graph("g"), rng(), len(space)
    x = graph.input("x", Type("float32", ("n", 8, *space)))
    weights = random.standard_normal((8, 8, *(3,) * rank)).astype(np.float32)
    pooled = OPS["GlobalPool"](x, kind="mean")
    graph.outputs = [OPS["Conv"](x, weights, pad=(1,) * 2 * rank), pooled]
    calls = [{"n": 2, "d": 2, "h": 2, "w": w} for w in (4, 19, 8, 1)]

    def feed(sizes: Any) -> Any:
        shape = (sizes["n"], 8, *(sizes[d] for d in space))
        return {"x": random.standard_normal(shape).astype(np.float32)}

    assert compare(graph, calls, feed).calls == len(calls)


def test_a_maximum_of_nothing_but_padding() -> None:
    graph, random = Graph("g"), rng()
    x = graph.input("x", Type("float32", (2, 16, "h", "w")))
    graph.outputs = [OPS["MaxPool"](x, kernel=(2, 3), stride=(2, 3), pad=(0, 1, 3, 3))]

    def feed(sizes: Any) -> Any:
        return {"x": random.standard_normal((2, 16, sizes["h"], sizes["w"])).astype(np.float32)}

    calls = [{"h": h, "w": w} for h, w in ((7, 9), (8, 8), (9, 31))]
    assert compare(graph, calls, feed).calls == len(calls)


def test_blocks_of_one_channel_beside_an_operand_without_channels() -> None:
    graph, random = Graph("g"), rng()
    pooled = OPS["MaxPool"](graph.input("x", Type("float32", (2, 1, "h", 9))), kernel=(4, 4))
    row = graph.const(random.standard_normal(6).astype(np.float32), "row")
    graph.outputs = [OPS["Where"](OPS["Greater"](pooled, row), row, pooled)]

    def feed(sizes: Any) -> Any:
        return {"x": random.standard_normal((2, 1, sizes["h"], 9)).astype(np.float32)}

    assert compare(graph, [{"h": 16}, {"h": 8}], feed).calls == 2


def test_a_size_that_becomes_1_gets_another_program() -> None:
    """What is broadcast in one call, and not in another."""
    graph, random = summed(("a", "b"), ("c", "b")), rng()
    net = ts.compile(graph, cache=False, shapes="free")
    for a, b, c in ((4, 6, 4), (7, 5, 7), (7, 5, 1), (1, 5, 3), (8, 16, 8), (1, 1, 9)):
        x, y = (random.standard_normal(s).astype(np.float32) for s in ((a, b), (c, b)))
        np.testing.assert_array_equal(net(x, y), x + y)


def test_equal_sizes_of_the_example_may_differ_later() -> None:
    graph = Graph("square")
    x = graph.input("x", Type(np.dtype("float32"), ("a", "b", "c")))
    graph.outputs = [OPS["Transpose"](x, perm=(2, 1, 0)), OPS["Softmax"](x, axis=1)]
    sizes = ((8, 8, 8), (8, 9, 8), (9, 8, 8), (3, 5, 7), (16, 16, 17), (2, 31, 2))
    calls = [dict(zip("abc", s, strict=True)) for s in sizes]
    found = compare(graph, calls, lambda s: feeds(graph, **s))
    assert found.calls == len(calls)


@pytest.mark.parametrize("more", [0, 1, 2])
def test_products_over_formulas(more: int) -> None:
    """Sums over 8 times a size, and a number more."""
    graph, dtype = Graph("deep"), np.dtype("float32")
    sides = []
    for name, wide in (("x", 5), ("y", 7)):
        v = graph.input(name, Type(dtype, ("n", "m", wide)))
        ends = [OPS["Slice"](v, [0], [more], [1])] if more else []
        sides.append(OPS["Concat"](*[v] * 8, *ends, axis=1))
    graph.outputs = [OPS["MatMul"](OPS["Transpose"](sides[0], perm=(0, 2, 1)), sides[1])]
    calls = [{"n": n, "m": m} for n, m in ((2, 6), (3, 2), (2, 17), (5, 3))]
    found = compare(graph, calls, lambda s: feeds(graph, **s), target="avx2")
    assert found.calls == len(calls)


@pytest.mark.parametrize("batch", ["n", 2])
def test_costs_hold_no_size_to_a_number(batch: str | int) -> None:
    graph, random = Graph("costs"), rng(3)
    y = graph.input("x", Type("float32", (batch, 64, "h", "w")))
    for _ in range(3):
        y = OPS["Relu"](OPS["Conv"](y, random.standard_normal((64, 64, 1, 1), np.float32) / 8))
    graph.outputs = [y]
    calls = [{"n": n, "h": h, "w": w} for n, h, w in ((2, 40, 40), (2, 9, 30), (2, 56, 56))]

    def feed(sizes: Any) -> dict[str, Any]:
        return {"x": random.standard_normal((sizes["n"], 64, sizes["h"], sizes["w"]), np.float32)}

    found = compare(graph, calls, feed, kernels="Conv=conv_direct")
    assert (found.calls, found.programs, found.held) == (len(calls), 1, [])


def test_a_size_that_an_operation_holds_to_a_number_is_one(monkeypatch: Any) -> None:
    """Half of the height must be 6, as is known when shapes have been followed: no code is made for
    other heights, and the width stays free."""
    made: list[Graph] = []
    build = Compilation.compile
    monkeypatch.setattr(
        Compilation,
        "compile",
        lambda self, placed, *a, **k: made.append(placed) or build(self, placed, *a, **k),
    )
    graph = Graph("held")
    x = graph.input("x", Type(np.dtype("float32"), (1, 4, "h", "w")))
    height = OPS["Div"](OPS["Slice"](OPS["Shape"](x), [2], [3]), np.array([2]))
    target = OPS["Concat"](np.array([4]), height, np.array([-1]), axis=0)
    table = rng().standard_normal((6, 1)).astype(np.float32)
    graph.outputs = [OPS["Relu"](OPS["Add"](OPS["Reshape"](x, target), table))]
    calls = [{"h": 12, "w": w} for w in (9, 5, 16)]
    found = compare(graph, calls, lambda s: feeds(graph, **s))
    assert found.calls == len(calls) and found.programs == 1 and not found.held
    assert len(made) == 1


# ---- random models


@pytest.mark.parametrize("part", chunks(40, 20), ids=str)
def test_random_models_of_free_sizes(part: range) -> None:
    found = cage.run(fuzzed.__name__, part)
    assert {s: what for s, what in found.items() if what not in ("", UNSAID)} == {}


def test_what_numpy_refuses_may_lead_to_nothing() -> None:
    """Contradicting sizes whose results have no elements, and a window over none."""
    assert [fuzzed.check(seed) for seed in (7002343, 7003714)] == ["", ""]


@pytest.mark.parametrize("part", chunks(30, 15), ids=str)
def test_chains_and_diamonds_of_free_sizes(part: range) -> None:
    found = cage.run(together.__name__, part)
    assert {s: what for s, what in found.items() if what not in (together.RIGHT, UNSAID)} == {}


# ---- what a file makes of names and formulas


def relu(*dims: str) -> Graph:
    graph = Graph("relu")
    x = graph.input("x", Type(np.dtype("float32"), dims))
    graph.outputs = [OPS["Relu"](x)]
    return graph


@pytest.mark.parametrize(
    "dims",
    [("d1", "x-y"), ("peak", "at0"), ("lambda", "max"), ("\ufb01", "fi"), ("__debug__", "s0")],
)
def test_any_names_of_sizes_are_told_apart(dims: tuple[str, str]) -> None:
    net = ts.compile(relu(*dims), shapes="free")
    for shape in ((2, 3), (4, 5), (7, 6)):
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        np.testing.assert_array_equal(net(x), np.maximum(x, 0))
    assert not net.notes and net.program().takes


def doubled(times: int) -> Graph:
    """Each node's size has the one before it twice in its formula."""
    graph = Graph("doubled")
    x = graph.input("x", Type(np.dtype("float32"), ("n", 4, "h")))
    for _ in range(times):
        third = OPS["MaxPool"](x, kernel=(3,), stride=(3,))
        half = OPS["MaxPool"](OPS["Concat"](x, third, axis=2), kernel=(2,), stride=(2,))
        x = OPS["Concat"](half, third, axis=2)
    graph.outputs = [x]
    return graph


@pytest.mark.parametrize("times", [1, 30])
def test_a_formula_that_grows_too_long_is_left(times: int) -> None:
    graph = doubled(times)
    net, reference = ts.compile(graph, shapes="free"), ts.compile(graph, backend="numpy")
    for n, h in ((2, 300), (3, 401)):
        x = np.random.default_rng(h).standard_normal((n, 4, h)).astype(np.float32)
        np.testing.assert_array_equal(net(x), reference(x))
    assert [note for note in net.notes if "a formula of" in note] == net.notes
    assert bool(net.notes) == (times > 1) == (not net.program().takes)
