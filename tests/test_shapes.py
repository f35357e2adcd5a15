"""A new shape of a model: it costs little, and gives what a compilation of its own would give."""

from __future__ import annotations

import time

import numpy as np
import pytest

import tinsmith as ts
from tests.dependent import DEPENDENT, F, model_of, node
from tests.shaped import CONVOLUTIONS, RANDOM, STRETCHED, weights
from tests.transformer import feeds, transformer
from tinsmith.codegen.target import host
from tinsmith.compiler.build import Compilation
from tinsmith.compiler.cut import cut
from tinsmith.compiler.options import Options
from tinsmith.errors import TinsmithError, TypeRuleError
from tinsmith.graph.copy import Copier, shaped_types
from tinsmith.graph.verify import verify
from tinsmith.passes.manager import run_passes
from tinsmith.plan.equivalence import Answers

MODELS = {
    "transformer": (transformer(layers=2), [(2, 7), (3, 1), (1, 9), (1, 1), (2, 16)]),
    "wide transformer": (transformer(d=80, heads=2, layers=3), [(2, 5), (1, 1)]),
    "convolutions": (CONVOLUTIONS, [(1, 8, 8), (2, 9, 5), (3, 1, 1), (1, 16, 4)]),
    "stretched": (STRETCHED, [(2, 3), (1, 1), (1, 4), (5, 1)]),
}


def signature_of(name, shape):
    if "transformer" in name:
        return (shape, shape)
    if name == "convolutions":
        return ((shape[0], 3, *shape[1:]),)
    return (shape, shape[1:])


def compilation(model):
    return Compilation(ts.load(model), host(), Options(), False)


CASES = [(name, shape) for name, (_, shapes) in MODELS.items() for shape in shapes]


@pytest.fixture(scope="module")
def compilations():
    return {name: compilation(model) for name, (model, _) in MODELS.items()}


def same_weights(blobs, others):
    for a, b in zip(blobs, others, strict=True):
        assert a.rows == b.rows
        for offset, nbytes in a.rows:  # what lies between them is not set
            np.testing.assert_array_equal(
                a.data[offset : offset + nbytes], b.data[offset : offset + nbytes]
            )


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_rules_are_tried_wherever_they_may_apply(compilations, name, shape):
    """Passes over a copy that look only where a pattern matches do what passes over all do."""
    made = compilations[name]
    signature = signature_of(name, shape)
    everywhere = made.canonical.clone(shaped_types(made.canonical, signature))
    for stage in ("portable", "machine"):
        run_passes(everywhere, stage, "cpu")
    placed = made.place(signature)
    verify(placed)
    assert str(placed) == str(everywhere)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_a_later_shape_is_compiled_as_the_first_is(compilations, name, shape):
    made, fresh = compilations[name], compilation(MODELS[name][0])
    signature = signature_of(name, shape)
    late, first = (m.compile(m.place(signature)) for m in (made, fresh))
    assert late.built.codes == first.built.codes
    assert late.program.plan == first.program.plan
    same_weights(late.program.blobs, first.program.blobs)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_alike_nodes_get_what_they_would_get_alone(compilations, name, shape, monkeypatch):
    made = compilations[name]
    signature = signature_of(name, shape)
    together = made.compile(made.place(signature))
    monkeypatch.setattr(Answers, "again", lambda *_: None)
    alone = made.compile(made.place(signature))
    assert together.built.codes == alone.built.codes
    assert together.program.plan == alone.program.plan
    same_weights(together.program.blobs, alone.program.blobs)
    assert offers(together) == offers(alone)


def offers(compiled):
    """What kernels have said of each step."""
    return [
        [(c.kernel, c.tier, c.reason, c.choice and (c.choice.cost, c.choice.detail)) for c in found]
        for found in (s.candidates for s in compiled.built.placed)
    ]


def test_layers_that_are_alike_are_costed_once(monkeypatch):
    asked = []
    original = Answers.again
    monkeypatch.setattr(
        Answers, "again", lambda s, k, n: asked.append(original(s, k, n)) or asked[-1]
    )
    for layers in (2, 6):
        asked.clear()
        made = compilation(transformer(d=80, heads=2, layers=layers))
        made.build(((2, 5), (2, 5)))
        new = sum(found is None for found in asked)
        assert new < 16 < len(asked), (layers, new, len(asked))


def test_shape_arithmetic_is_gone_before_any_shape_is_known():
    made = compilation(transformer(layers=2))
    counts = [n.op.name for n in made.canonical.nodes]
    assert counts.count("Shape") == 1  # for the positions
    assert "Concat" not in counts
    symbols = {d for n in made.canonical.nodes for d in n.outputs[0].shape if isinstance(d, str)}
    assert symbols == {"batch", "seq"}


def test_types_of_a_copy_are_those_that_its_nodes_infer(compilations):
    for name, shape in CASES:
        made = compilations[name]
        copy = Copier(made.canonical).copy(shaped_types(made.canonical, signature_of(name, shape)))
        verify(copy)
        for n in copy.nodes:
            for v, type in zip(n.outputs, n.op.infer(n.inputs, n.attrs), strict=True):
                assert v.type == type or not type.is_static, (n, v.type, type)


def test_two_sizes_that_only_data_tells_are_not_taken_for_one():
    model = model_of(
        [
            node("NonZero", "x", "a"), node("NonZero", "z", "b"),
            node("Transpose", "a", "at", perm=[1, 0]), node("Transpose", "b", "bt", perm=[1, 0]),
            node("Cast", "at", "fa", to=F), node("Cast", "bt", "fb", to=F),
            node("Concat", "fa fb", "y", axis=0),
        ],
        [("x", F, ["n", 3]), ("z", F, ["n", 3])], [("y", F)],
    )  # fmt: skip
    graph = ts.load(model)
    net, reference = ts.compile(graph, cache=False), ts.compile(graph, backend="numpy")
    for n in (2, 5):
        x, z = (RANDOM.integers(0, 2, (n, 3)).astype(np.float32) for _ in range(2))
        np.testing.assert_array_equal(net(x, z), reference(x, z))


def test_a_shape_that_does_not_fit_is_still_refused():
    """The table of positions has 512 rows: a longer sequence must not read behind it."""
    model = model_of(
        [node("Add", "x table", "y")], [("x", F, ["n", "m"])], [("y", F)],
        [("table", weights(4, 6))],
    )  # fmt: skip
    net = ts.compile(ts.load(model), cache=False)
    net(np.ones((4, 6), np.float32))
    net(np.ones((1, 1), np.float32))
    with pytest.raises(TypeRuleError, match="do not broadcast"):
        net(np.ones((5, 6), np.float32))


@pytest.mark.parametrize("name", DEPENDENT)
def test_models_that_depend_on_data_are_placed_alike(name):
    made = compilation(DEPENDENT[name])
    for n in (1, 4):
        everywhere = made.canonical.clone(shaped_types(made.canonical, ((n, 8),)))
        run_passes(everywhere, "portable", "cpu")
        cut(everywhere)
        run_passes(everywhere, "machine", "cpu")
        assert [str(m.op.name) for m in made.place(((n, 8),)).nodes] == [
            str(m.op.name) for m in everywhere.nodes
        ]


def test_rows_of_no_batch_at_all():
    """A target that keeps its dims needs no other dim to tell them."""
    model = model_of(
        [node("Shape", "x", "s"), node("Slice", "s zero one", "n"),
         node("Concat", "n two three", "t", axis=0), node("Reshape", "x t", "r"),
         node("Relu", "r", "y")],
        [("x", F, ["n", 6])], [("y", F)],
        [("zero", np.array([0])), ("one", np.array([1])), ("two", np.array([2])),
         ("three", np.array([3]))],
    )  # fmt: skip
    net = ts.compile(ts.load(model), cache=False)
    assert net(np.ones((0, 6), np.float32)).shape == (0, 2, 3)
    assert net(np.ones((2, 6), np.float32)).shape == (2, 2, 3)


@pytest.mark.parametrize("wanted", [(100,), (-100,), (3,), (2**31,)])
def test_a_shape_that_arrives_in_a_run_must_fit(wanted):
    model = model_of(
        [node("Reshape", "x shape", "y")], [("x", F, [6]), ("shape", 7, [1])], [("y", F)]
    )
    net = ts.compile(ts.load(model), cache=False)
    data = np.arange(6, dtype=np.float32)
    assert net(data, np.array([-1])).shape == (6,)
    with pytest.raises(TinsmithError):
        net(data, np.array(wanted))


def test_a_new_shape_costs_little_where_its_kernels_exist():
    shapes = [(1 + i % 4, 1 + (7 * i) % 23) for i in range(6)]
    model = ts.load(transformer())
    for _ in range(2):  # the second time its kernels are in the cache on disk as well
        net = ts.compile(model)
        for shape in shapes:
            net(**feeds(*shape))
    net, spent = ts.compile(model), []
    for shape in shapes:
        given = feeds(*shape)
        start = time.process_time()
        net(**given)
        spent.append(time.process_time() - start)
    assert min(spent) < 0.1, spent  # 15 ms where nothing else runs
