"""States that grow in place: rooms of which a run writes new rows alone, and larger rooms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.decoder import decoder, empty, grown
from tests.interrupts import strikes
from tests.models import agree

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
