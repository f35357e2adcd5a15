"""States that grow in place: rooms of which a run writes new rows alone, and larger rooms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.decoder import decoder, empty, grown
from tests.interrupts import strikes
from tests.models import agree
from tinsmith import ops
from tinsmith.errors import DataError, StateError, TinsmithError
from tinsmith.graph import Graph, Type

F32 = np.dtype(np.float32)
RANDOM = np.random.default_rng(3)
MOVES = {"Concat", "Slice", "Transpose", "Relayout", "Gather"}


def net_of(threads: int = 1, **options: Any) -> Any:
    return ts.compile(ts.load(decoder()), cache=False, threads=threads, **options)


@pytest.fixture(scope="module")
def net():
    return net_of()


@pytest.fixture(scope="module")
def reference():
    return ts.compile(ts.load(decoder()), backend="numpy")


def rooms(session: Any) -> dict[str, Any]:
    """The arrays in which the states of a session lie."""
    return {name: held.array for name, held in session._states.items()}


def fed(session: Any, *ids: Any) -> Any:
    for one in ids:
        found = session(np.array(one))
    return found


# ---- what is written


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("new", [1, 4])
def test_a_run_writes_its_own_rows_alone(net, batch, new):
    session = net.session(states=True)
    fed(session, RANDOM.integers(0, 50, (batch, 5)), RANDOM.integers(0, 50, (batch, 2)))
    before = rooms(session)
    for room in before.values():
        room[:, :, 7:] = np.nan
    copies = {name: room.copy() for name, room in before.items()}
    session(RANDOM.integers(0, 50, (batch, new)))
    for name, room in rooms(session).items():
        assert room is before[name] and room.shape[2] >= 64
        np.testing.assert_array_equal(room[:, :, :7], copies[name][:, :, :7])
        assert np.isfinite(room[:, :, 7 : 7 + new]).all()
        assert np.isnan(room[:, :, 7 + new :]).all()
    assert all(state.shape[2] == 7 + new for state in session.states.values())


@pytest.mark.parametrize("threads", [1, 2])
def test_no_step_moves_the_past(threads):
    session = net_of(threads).session(states=True)
    fed(session, [[3, 1, 4]], [[1]], [[5]])
    program = session.net_of_runs.program()
    past = 2 * 4 * 8 * 4 * 5  # bytes of keys and values of a layer
    steps = [s for s in program.plan.steps if s.kind != "view"]
    assert {s.kernel for s in steps if s.op == "TensorScatter"} == {"scatter_rows"}
    assert not [s.name for s in steps if s.op in MOVES and s.kernel != "gather_rows"]
    assert all(s.nbytes < past for s in steps if s.op == "TensorScatter")
    assert [len(s.calls) for s in steps if s.op == "TensorScatter"] == [1] * 4
    assert {s.op: s.kernel for s in steps}["RowAttention"] == "attention_rows"


# ---- rooms that are full


def test_rooms_double(net, reference):
    session, cache = net.session(states=True), empty(2)
    sizes = []
    for new in (3, 1, 58, 1, 1, 1, 40, 1, 30):
        ids = RANDOM.integers(0, 50, (2, new))
        wanted = reference(ids=ids, **cache)
        np.testing.assert_allclose(session(ids), wanted["logits"], rtol=1e-4, atol=1e-5)
        cache = grown(wanted)
        sizes.append(rooms(session)["past.0.key"].shape[2])
    assert sizes == sorted(sizes) and len(set(sizes)) == 3
    agree(session.states, cache)


def test_rooms_end_at_the_hint():
    session = net_of(sizes={"past": (0, 80)}).session(states=True)
    fed(session, RANDOM.integers(0, 50, (1, 60)), *[[[k]] for k in range(20)])
    assert {room.shape[2] for room in rooms(session).values()} == {80}
    fed(session, [[1]])  # 80 of the past, and this one
    assert {state.shape[2] for state in session.states.values()} == {81}


def test_another_batch_begins_in_other_rooms(net, reference):
    session = net.session(states=True)
    fed(session, [[3, 1]], [[4]])
    order = [0, 0, 0]
    session.reset({n: a[order] for n, a in session.states.items()})
    got = session(np.array([[2], [7], [1]]))
    ids = np.array([[3, 1, 4, k] for k in (2, 7, 1)])
    np.testing.assert_allclose(got, reference(ids=ids, **empty(3))["logits"][:, 3:], 1e-4, 1e-5)


def test_sessions_side_by_side_have_rooms_of_their_own(net, reference):
    sessions = [net.session(states=True) for _ in range(3)]
    lines = RANDOM.integers(0, 50, (3, 12))
    for k in range(12):
        found = [s(line[None, k : k + 1]) for s, line in zip(sessions, lines, strict=True)]
    for got, line in zip(found, lines, strict=True):
        wanted = reference(ids=line[None], **empty(1))["logits"][:, -1:]
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    assert len({id(room) for s in sessions for room in rooms(s).values()}) == 12


def test_given_arrays_stay_as_they_are(net):
    cache = {n: RANDOM.standard_normal((1, 4, 6, 8), np.float32) for n in empty(1)}
    kept = {n: a.copy() for n, a in cache.items()}
    session = net.session(states=True)
    session(ids=np.array([[1]]), **cache)
    fed(session, [[2]], [[3]])
    agree(cache, kept)


def test_an_interrupt_at_any_moment_leaves_the_states(net, reference):
    line = RANDOM.integers(0, 50, (1, 70))
    session = net.session(states=True)
    fed(session, line[:, :61], line[:, 61:62])
    at, last = 62, {n: a.copy() for n, a in session.states.items()}

    def step() -> None:
        session(line[:, 62:66])  # exceeds the rooms

    for _ in strikes(step):
        held = {state.shape[2] for state in session.states.values()}
        assert held in ({62}, {66}), held
        agree({n: a[:, :, :62] for n, a in session.states.items()}, last)
        if held == {66}:
            session.reset({n: a[:, :, :62] for n, a in session.states.items()})
    got = fed(session, line[:, at + 4 : at + 5])
    wanted = reference(ids=line[:, : at + 5], **empty(1))["logits"][:, -1:]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


# ---- caches of fixed size


def fixed(op: str) -> Graph:
    """y = sum over the rows of a cache [2, 8, 3] of which a run overwrites some from `at` on."""
    g = Graph("fixed")
    cache, new = g.input("cache", Type(F32, (2, 8, 3))), g.input("new", Type(F32, (2, 1, 3)))
    at = g.input("at", Type(np.dtype(np.int64), (2,)))
    if op == "TensorScatter":
        after = ops.TensorScatter(cache, new, at, axis=1)
    elif op == "ScatterElements":
        places = ops.Expand(ops.Reshape(at, np.array([2, 1, 1])), np.array([2, 1, 3]))
        after = ops.ScatterElements(cache, places, new, axis=1)
    else:
        row = ops.Reshape(at, np.array([2, 1, 1]))
        places = ops.Concat(np.array([[[0]], [[1]]]), row, axis=2)
        after = ops.ScatterND(cache, places, new)
    g.outputs = [ops.Reduce(after, np.array([1]), kind="sum"), after]
    after.name = "cache_out"
    return g


SCATTERS = ["TensorScatter", "ScatterElements", "ScatterND"]


@pytest.mark.parametrize("op", SCATTERS)
def test_a_cache_of_fixed_size_stays_where_it_is(op):
    session = ts.compile(fixed(op), cache=False).session(states={"cache_out": "cache"})
    mine = np.full((2, 8, 3), 9, np.float32)
    session(cache=mine, new=np.ones((2, 1, 3), np.float32), at=np.array([0, 3]))
    wanted, room = mine.copy(), rooms(session)["cache"]
    assert (mine == 9).all() and room is not mine
    wanted[[0, 1], [0, 3]] = 1
    for k in range(5):
        row = RANDOM.standard_normal((2, 1, 3), np.float32)
        at = np.array([k + 1, 7 - k])
        wanted[[0, 1], at] = row[:, 0]
        got = session(new=row, at=at)
        np.testing.assert_allclose(got, wanted.sum(1, keepdims=got.ndim == 3), rtol=1e-5)
        assert rooms(session)["cache"] is room
    np.testing.assert_array_equal(session.states["cache"], wanted)
    (step,) = [s for s in session.net_of_runs.program().plan.steps if s.op == op]
    assert len(step.calls) == 1, "nothing is copied"


@pytest.mark.parametrize("op", SCATTERS)
def test_a_failure_while_a_cache_is_overwritten_is_told(op):
    session = ts.compile(fixed(op), cache=False).session(states={"cache_out": "cache"})
    new = np.ones((2, 1, 3), np.float32)
    session(new=new, at=np.array([0, 3]))
    with pytest.raises(TinsmithError):
        session(new=new[:1], at=np.array([0, 3]))
    session(new=new, at=np.array([0, 3]))  # that one had not begun
    with pytest.raises(DataError):
        session(new=new, at=np.array([1, 8]))
    with pytest.raises(StateError, match="reset"):
        session(new=new, at=np.array([0, 3]))
    session.reset({"cache": np.zeros((2, 8, 3), np.float32)})
    session(new=new, at=np.array([1, 3]))
    assert session.states["cache"].sum() == 6


def test_a_cache_that_is_read_after_it_is_overwritten_is_copied():
    g = fixed("TensorScatter")
    cache, after = g.inputs[0], g.outputs[1]
    g.outputs = [ops.Reduce(ops.Sub(after, cache), np.array([1]), kind="sum"), after]
    session = ts.compile(g, cache=False).session(states={"cache_out": "cache"})
    for k in range(3):
        got = session(new=np.full((2, 1, 3), k + 1, np.float32), at=np.array([0, 3]))
        np.testing.assert_allclose(got.reshape(-1), 1)


def test_a_cache_that_is_two_outputs_is_copied():
    graph = Graph()
    past = graph.input("past", Type("float32", ("n", 4)))
    x = graph.input("x", Type("float32", (1, 4)))
    graph.outputs = [ops.Concat(past, x, axis=0, name="present")] * 2
    session = ts.compile(graph, cache=False).session(states={"present": "past"})
    for i in range(3):
        session(np.full((1, 4), i, np.float32))
    np.testing.assert_array_equal(session.states["past"][:, 0], [0, 1, 2])
