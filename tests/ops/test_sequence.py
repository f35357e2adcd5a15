"""Sequences and optionals: types, references, text, and the interpreter of graphs."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tests.ops.checking import normal
from tinsmith.errors import DataError, GraphSyntaxError, ReferenceFailed, TypeRuleError
from tinsmith.graph import Graph, OptionalType, SequenceType, Type, compatible
from tinsmith.graph.text import format_graph, parse_graph
from tinsmith.graph.verify import verify
from tinsmith.ops import OPS
from tinsmith.ops.interpret import run_graph

A, B = normal(3), normal(3, seed=1)
FLOAT3, ANY = Type("float32", (3,)), Type("float32", None)
LIST = SequenceType(Type("float32", ("N",)))


def infer(name, *types, **attrs):
    g = Graph("check")
    values = [None if t is None else g.input(f"x{i}", t) for i, t in enumerate(types)]
    return g.add(OPS[name], *values, **attrs).output.type


def i64(n):
    return np.array(n, np.int64)


# ---- references


@pytest.mark.parametrize(
    ("name", "inputs", "attrs", "want"),
    [
        ("SequenceEmpty", [], {}, []),
        ("SequenceConstruct", [A, B], {}, [A, B]),
        ("SequenceInsert", [[A], B], {}, [A, B]),
        ("SequenceInsert", [[A], B, i64(0)], {}, [B, A]),
        ("SequenceInsert", [[A], B, i64(-1)], {}, [B, A]),
        ("SequenceErase", [[A, B]], {}, [A]),
        ("SequenceErase", [[A, B], i64(0)], {}, [B]),
        ("SequenceAt", [[A, B], i64(-2)], {}, A),
        ("SequenceLength", [[A, B, A]], {}, i64(3)),
        ("SplitToSequence", [A], {}, [A[:1], A[1:2], A[2:]]),
        ("SplitToSequence", [A], {"keepdims": False}, list(map(np.array, A))),
        ("SplitToSequence", [A, i64(2)], {"keepdims": False}, [A[:2], A[2:]]),
        ("SplitToSequence", [A, i64([2, 0, 1])], {}, [A[:2], A[:0], A[2:]]),
        ("SplitToSequence", [A[:0]], {}, []),
        ("ConcatFromSequence", [[A, B]], {"axis": 0}, np.concatenate([A, B])),
        ("ConcatFromSequence", [[A, B]], {"axis": -1, "new_axis": True}, np.stack([A, B], 1)),
        ("Optional", [A], {}, A),
        ("Optional", [None], {"dtype": "float32"}, None),
        ("OptionalHasElement", [None], {}, np.array(False)),
        ("OptionalHasElement", [[A]], {}, np.array(True)),
        ("OptionalGetElement", [[A, B]], {}, [A, B]),
    ],
)
def test_references(name, inputs, attrs, want):
    got = OPS[name](*inputs, **attrs)
    same(got, want)


def same(got, want):
    assert type(got) is type(want)
    if isinstance(want, list):
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            same(a, b)
    elif want is not None:
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_array_equal(got, want)


def test_no_reference_changes_what_it_is_given():
    given = [A, B]
    OPS["SequenceInsert"](given, A)
    OPS["SequenceErase"](given)
    assert len(given) == 2


@pytest.mark.parametrize(
    ("name", "inputs", "attrs", "message"),
    [
        ("SequenceAt", [[A], i64(1)], {}, "position 1 is outside of a sequence of 1"),
        ("SequenceErase", [[]], {}, "position -1 is outside of a sequence of 0"),
        ("SequenceInsert", [[A], B, i64(2)], {}, "position 2 is outside"),
        ("ConcatFromSequence", [[]], {"axis": 0}, "sequence is empty"),
        ("SplitToSequence", [A, i64([1, 1])], {}, "do not add up to 3"),
        ("SplitToSequence", [A, i64(0)], {}, "cannot have the size 0"),
        ("OptionalGetElement", [None], {}, "optional value is empty"),
    ],
)
def test_what_the_data_do_not_allow(name, inputs, attrs, message):
    op = OPS[name]
    with pytest.raises(DataError, match=message):
        op.evaluate(tuple(inputs), {k: attrs.get(k, v) for k, v in op.attrs.items()})


# ---- types


def test_types_of_what_is_made():
    assert infer("SequenceConstruct", FLOAT3, FLOAT3) == SequenceType(FLOAT3)
    mixed = infer("SequenceConstruct", FLOAT3, Type("float32", (4,)))
    assert compatible(mixed, LIST) and isinstance(mixed.item.shape[0], str)
    assert infer("SequenceConstruct", FLOAT3, ANY) == SequenceType(ANY)
    assert infer("SequenceEmpty", dtype="int64") == SequenceType(Type("int64", None))
    parts = infer("SplitToSequence", Type("float32", ("N", 6)), axis=1)
    assert parts == SequenceType(Type("float32", ("N", 1)))
    assert infer("SplitToSequence", Type("float32", (2, 6)), axis=1, keepdims=False).item.shape == (
        2,
    )
    assert infer("Optional", LIST) == OptionalType(LIST)
    assert infer("Optional", dtype="int8", sequence=True).item.item.dtype == np.int8
    assert infer("OptionalGetElement", OptionalType(LIST)) == LIST


def test_elements_of_a_sequence_may_differ_in_size():
    """Two elements of a sequence(float32[N]) must not seem to be equally long."""
    g = Graph("two")
    s, i, j = (g.input(n, t) for n, t in (("s", LIST), ("i", I64), ("j", I64)))
    a, b = (g.add(OPS["SequenceAt"], s, at).output for at in (i, j))
    assert a.shape != b.shape


I64 = Type("int64", ())


@pytest.mark.parametrize(
    ("name", "types", "attrs", "message"),
    [
        ("Relu", [LIST], {}, r"sequence\(float32\[N\]\) is no tensor"),
        ("Add", [FLOAT3, OptionalType(FLOAT3)], {}, "is no tensor"),
        ("SequenceLength", [FLOAT3], {}, "is no sequence"),
        ("SequenceLength", [OptionalType(LIST)], {}, "is no sequence"),
        ("SequenceInsert", [LIST, Type("int64", (3,))], {}, "a sequence has one element type"),
        ("SequenceConstruct", [], {}, "SequenceEmpty makes"),
        ("SequenceConstruct", [LIST], {}, "is no tensor"),
        ("SequenceAt", [LIST, FLOAT3], {}, "the position is"),
        ("Optional", [], {}, "needs an element type"),
        ("Optional", [OptionalType(LIST)], {}, "is optional already"),
    ],
)
def test_what_does_not_fit_is_refused(name, types, attrs, message):
    with pytest.raises(TypeRuleError, match=message):
        infer(name, *types, **attrs)


# ---- graphs


def growing():
    """y = [x, x + s[0], ...]: a sequence that a loop makes as long as `count` says."""
    body = Graph("body")
    i, go = body.input("i", I64), body.input("go", Type("bool", ()))
    s = body.input("s", LIST)
    first = body.add(OPS["SequenceAt"], s, body.const(i64(0))).output
    last = body.add(OPS["SequenceAt"], s, i).output
    longer = body.add(OPS["SequenceInsert"], s, body.add(OPS["Add"], first, last).output).output
    body.outputs = [go, longer]
    g = Graph("growing")
    count, maybe = g.input("count", I64), g.input("maybe", OptionalType(LIST))
    start = g.add(OPS["OptionalGetElement"], maybe).output
    y = g.add(OPS["Loop"], count, None, start, body=body, name="y").output
    n = g.add(OPS["SequenceLength"], y, name="n").output
    back = g.add(OPS["Optional"], y, name="back").output
    g.outputs = [y, n, back]
    return g


def test_a_sequence_grows_in_a_loop_and_survives_as_text():
    g = growing()
    verify(g)
    y, n, back = run_graph(g, [i64(3), [A]])
    same(y, [A, A + A, A + (A + A), A + (A + (A + A))])
    assert n == 4 and back is not None
    text = format_graph(g)
    assert "maybe: optional(sequence(float32[N]))" in text
    again = parse_graph(text)
    verify(again)
    assert format_graph(again) == text
    same(run_graph(again, [i64(1), [B]])[0], [B, B + B])
    with pytest.raises(DataError, match="empty"):
        run_graph(g, [i64(3), None])


def test_names_may_be_those_of_types():
    g = parse_graph("graph g (sequence: float32[3], x: sequence(float32[3])) {\n return x\n}\n")
    assert [str(v.type) for v in g.inputs] == ["float32[3]", "sequence(float32[3])"]
    with pytest.raises(GraphSyntaxError, match="'list' is not an element type"):
        parse_graph("graph g (x: list(float32[3])) {\n return x\n}\n")


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_nets_take_and_give_lists(backend, tmp_path):
    net = ts.compile(growing(), backend=backend)
    got = net(i64(2), [A])
    same(got["y"], [A, A + A, A + (A + A)])
    same(got["back"], got["y"])
    got["y"][0][:] = 7  # results are the caller's own
    same(net(i64(0), (A,))["y"], [A])
    assert net.inputs["maybe"] == OptionalType(LIST)
    if backend == "cpu":
        assert isinstance(net.outputs["y"], SequenceType)
        assert isinstance(net.outputs["back"], OptionalType)
    with pytest.raises(ts.errors.InputTypeError, match=r"'maybe' .* must be a list of arrays"):
        net(i64(2), A)
    with pytest.raises(ts.errors.InputTypeError, match=r"'maybe\[1\]' .* must have dtype float32"):
        net(i64(2), [A, A.astype(np.float64)])
    with pytest.raises(ts.errors.InputTypeError, match=r"'maybe\[0\]' .* must be a numpy array"):
        net(i64(2), [1.0])
    with pytest.raises(ts.errors.InputShapeError, match=r"'maybe\[0\]' .* not \[3, 3\]"):
        net(i64(2), [np.zeros((3, 3), np.float32)])
    ts.save(net, tmp_path / "growing.tin")
    for _ in range(2):  # built, then from the store
        same(ts.compile(tmp_path / "growing.tin", backend=backend)(i64(1), [B])["y"], [B, B + B])


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_an_empty_optional_is_none(backend):
    g = Graph("maybe")
    x = g.input("x", OptionalType(FLOAT3))
    same_again = g.add(OPS["Identity"], x, name="z").output
    g.outputs = [g.add(OPS["OptionalHasElement"], x, name="y").output, same_again]
    net = ts.compile(g, backend=backend)
    assert net(None)["z"] is None and not net(None)["y"]
    same(net(A)["z"], A)
    assert net(A)["y"]


def test_steps_of_a_program_keep_what_native_code_will_overwrite():
    """A sequence of results of kernels whose memory is used again."""
    g = Graph("kept")
    x, i = g.input("x", Type("float32", (64,))), g.input("i", I64)
    steps = [x]
    for _ in range(6):
        steps.append(g.add(OPS["Tanh"], steps[-1]).output)
    s = g.add(OPS["SequenceConstruct"], *steps[1:4]).output
    g.outputs = [
        g.add(OPS["SequenceAt"], s, i, name="y").output,
        g.add(OPS["Exp"], steps[-1], name="z").output,
    ]
    data = normal(64)
    got = ts.compile(g)(data, i64(1))
    np.testing.assert_allclose(got["y"], np.tanh(np.tanh(data)), rtol=1e-5, atol=1e-6)


def test_a_failing_reference_says_what_it_was_given():
    g = Graph("bad")
    s = g.input("s", SequenceType(ANY))
    g.outputs = [g.add(OPS["ConcatFromSequence"], s, axis=0, name="y").output]
    for net in (ts.compile(g), ts.compile(g, backend="numpy")):
        with pytest.raises(ReferenceFailed, match=r"\(sequence\[2\] of float32\) failed"):
            net([A, np.zeros((2, 2), np.float32)])
