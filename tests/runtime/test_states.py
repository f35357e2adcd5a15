"""Sessions that keep outputs and give them as inputs to their next run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.decoder import decoder, empty, grown
from tinsmith import ops
from tinsmith.errors import (
    InputNameError,
    InputShapeError,
    InputTypeError,
    OptionError,
    OutsideHint,
    StateError,
    TinsmithError,
    UnknownName,
)
from tinsmith.graph import Graph, Type
from tinsmith.plan.plan import ARENA, WORKSPACE
from tinsmith.runtime.memory import address_of, aligned
from tinsmith.runtime.rooms import Runner
from tinsmith.runtime.states import states_of

F32 = "float32"
RANDOM = np.random.default_rng(11)


@pytest.fixture(scope="module", params=["cpu", "numpy"])
def net(request):
    return ts.compile(ts.load(decoder()), backend=request.param, cache=False, threads=1)


@pytest.fixture(scope="module")
def reference():
    return ts.compile(ts.load(decoder()), backend="numpy")


def names():
    return {n.replace("past", "present"): n for n in empty(1)}


# ---- a decoder


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("states", ["auto", True, names()])
def test_the_session_keeps_a_cache(net, reference, states, batch):
    session = net.session(states=states)
    assert session.input_names == ["ids"] and session.output_names == ["logits"]
    cache: dict[str, Any] = empty(batch)
    ids = RANDOM.integers(0, 50, (batch, 5))
    for _ in range(6):
        wanted = reference(ids=ids, **cache)
        got = session(ids)
        np.testing.assert_allclose(got, wanted["logits"], rtol=1e-4, atol=1e-5)
        cache, ids = grown(wanted), wanted["logits"][:, -1:].argmax(-1)
    assert list(session.states) == list(cache)
    for name, state in session.states.items():
        np.testing.assert_allclose(state, cache[name], rtol=1e-4, atol=1e-5)


def test_prompts_of_several_tokens_and_a_reset(net, reference):
    session = net.session(states=True)
    ids = RANDOM.integers(0, 50, (2, 9))
    wanted = reference(ids=ids, **empty(2))["logits"]
    for cuts in [(9,), (4, 5), (1, 1, 7), (8, 1)]:
        session.reset()
        assert session.states == {}
        at, found = 0, []
        for n in cuts:
            found += session.run([ids[:, at : at + n]])
            at += n
        np.testing.assert_allclose(np.concatenate(found, 1), wanted, rtol=1e-4, atol=1e-5)


def test_copies_go_their_own_way(net, reference):
    session = net.session(states=True)
    session(np.array([[3, 1, 4]]))
    other = session.copy()
    for ids in ([[1, 5]], [[9]], [[2]]):
        session(np.array(ids))
    got = other(np.array([[2, 7]]))
    wanted = reference(ids=np.array([[3, 1, 4, 2, 7]]), **empty(1))["logits"][:, 3:]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_states_that_are_given(net, reference):
    """By reset, as beams are reordered, and by name in a run."""
    session, ids = net.session(states=True), RANDOM.integers(0, 50, (3, 4))
    session(ids)
    order = [2, 2, 0]
    session.reset({n: a[order] for n, a in session.states.items()})
    got = session(ids[:, :2])
    wanted = reference(ids=np.concatenate([ids[order], ids[:, :2]], 1), **empty(3))["logits"]
    np.testing.assert_allclose(got, wanted[:, 4:], rtol=1e-4, atol=1e-5)
    cache = grown(reference(ids=ids, **empty(3)))
    for given in ({"ids": ids, **cache}, {**cache, "ids": ids}):
        got = session(**given)
        np.testing.assert_allclose(got, reference(ids=ids, **cache)["logits"], 1e-4, 1e-5)
    assert session.states["past.1.key"].shape == (3, 4, 8, 8)


def test_states_are_copies(net):
    session = net.session(states=True)
    session(np.array([[3, 1]]))
    wanted = session.copy()(np.array([[4]]))
    for array in session.states.values():
        array[:] = 7
    np.testing.assert_array_equal(session(np.array([[4]])), wanted)


def test_a_state_that_grows_beyond_its_hint_is_refused():
    graph = ts.load(decoder())
    past = next(d for n, t in ts.compile(graph, cache=False).inputs.items() if "past" in n
                for d in t.shape if isinstance(d, str) and "past" in d)  # fmt: skip
    limited = ts.compile(graph, cache=False, threads=1, shapes="free", sizes={past: (0, 6)})
    session = limited.session(states=True)
    with pytest.raises(OutsideHint, match=past):
        for _ in range(12):
            session(np.ones((2, 1), np.int64))
    assert {a.shape[2] for a in session.states.values()} == {7}


def test_memory_that_has_moved_is_found():
    session = ts.compile(ts.load(decoder()), cache=False, threads=1, shapes="free").session(
        states=True
    )
    for _ in range(3):
        session(np.ones((2, 1), np.int64))
    growing = session._runner._session
    memory = growing._memory
    memory.arena, memory.workspace = (aligned(8 * len(a) + 4096) for a in (
        memory.arena, memory.workspace))  # fmt: skip
    memory.version += 1
    session(np.ones((2, 1), np.int64))
    assert list(growing._table[[ARENA, WORKSPACE]]) == [
        address_of(memory.arena), address_of(memory.workspace)
    ]  # fmt: skip


@pytest.mark.parametrize("states", [[1], "past", 3])
def test_what_is_no_dict_of_states_is_refused(net, states):
    with pytest.raises(StateError, match="dict of arrays"):
        net.session(states=True).reset(states)


def test_a_run_that_fails_leaves_the_states(net):
    session = net.session(states=True)
    session(np.array([[3, 1]]))
    for bad, error in [
        (np.array([[1], [2]]), InputShapeError),
        (np.array([[1.0]]), InputTypeError),
        (np.array([1]), InputShapeError),
    ]:
        with pytest.raises(error):
            session(bad)
    with pytest.raises(TinsmithError):
        session(np.array([[999]]))  # no such token
    with pytest.raises(InputNameError, match="'ids'"):
        session()
    with pytest.raises(InputNameError, match="'idx'"):
        session(np.array([[1]]), idx=3)
    with pytest.raises(InputNameError, match="twice"):
        session(np.array([[1]]), ids=np.array([[1]]))
    with pytest.raises(InputNameError, match="states by name"):
        session(np.array([[1]]), np.array([[1]]))
    with pytest.raises(InputTypeError, match="list of arrays"):
        session.run(np.array([[1]]))
    assert all(a.shape == (1, 4, 2, 8) for a in session.states.values())


# ---- other states


def recurrent() -> Graph:
    """y = x + h, h' = y: a state of fixed sizes but for the batch."""
    g = Graph("sums")
    x, h = g.input("x", Type(F32, ("N", 4))), g.input("h", Type(F32, ("N", 4)))
    y = ops.Add(x, h, name="y")
    g.outputs = [y, ops.Identity(y, name="hn")]
    return g


def test_a_run_during_another_is_refused(net, monkeypatch):
    """As in a signal handler: it would move memory in which the other runs."""
    session, ids, run = net.session(states=True), np.array([[3, 1]]), Runner.run
    session(ids)
    wanted = session.copy()(ids)

    def struck(*args):
        with pytest.raises(StateError, match="before an earlier one"):
            session(ids)
        return run(*args)

    monkeypatch.setattr(Runner, "run", struck)
    np.testing.assert_array_equal(session(ids), wanted)
    monkeypatch.undo()
    np.testing.assert_array_equal(session.copy()(ids), session(ids))


def test_a_recurrent_state_begins_with_zeros():
    session = ts.compile(recurrent(), cache=False).session(states=True)
    x, total = RANDOM.standard_normal((3, 4), np.float32), np.zeros((3, 4), np.float32)
    for _ in range(4):
        total += x
        np.testing.assert_allclose(session(x=x), total, rtol=1e-6)
    session.reset({"h": np.ones((3, 4), np.float32)})
    np.testing.assert_allclose(session(x), x + 1)


def test_all_outputs_may_be_states():
    g = recurrent()
    g.outputs = [g.outputs[1]]
    session = ts.compile(g, cache=False).session(states={"hn": "h"})
    assert session(np.ones((2, 4), np.float32)) == {}
    assert session.run({"x": np.ones((2, 4), np.float32)}) == []
    np.testing.assert_array_equal(session.states["h"], np.full((2, 4), 2, np.float32))


@pytest.mark.parametrize("shapes", ["free", "both", "fixed"])
def test_no_tokens_after_a_reset(shapes):
    """The room is there, and nothing is written to it."""
    g = Graph("growing")
    x, past = (g.input(name, Type(F32, ("b", n, 4))) for name, n in (("x", "s"), ("past", "p")))
    present = ops.Concat(past, x, axis=1, name="present")
    g.outputs = [ops.Mul(x, np.float32(2), name="y"), present]
    session = ts.compile(g, cache=False, shapes=shapes).session(states={"present": "past"})
    for count in (1, 0, 0, 3, 0):
        session.reset()
        for new in (count, 0, 2):
            assert session(np.ones((1, new, 4), np.float32)).shape == (1, new, 4)
        assert session.states["past"].shape == (1, count + 2, 4)


def test_sizes_that_nobody_tells():
    g = Graph("one")
    h = g.input("h", Type(F32, ("N", 2)))
    g.outputs = [ops.Add(h, np.float32(1), name="hn")]
    session = ts.compile(g, cache=False).session(states=True)
    with pytest.raises(StateError, match=r"'N'.*first run"):
        session()
    assert session(h=np.zeros((3, 2), np.float32)) == {}
    session()
    np.testing.assert_array_equal(session.states["h"], np.full((3, 2), 2, np.float32))


def test_a_result_that_the_next_run_cannot_take():
    g = Graph("twice")
    x, h = g.input("x", Type(F32, ("N",))), g.input("h", Type(F32, (4,)))
    g.outputs = [ops.Concat(x, x, axis=0, name="y"), ops.Relu(h)]
    session = ts.compile(g, cache=False).session(states={"y": "h"})
    session(np.ones(2, np.float32))
    with pytest.raises(StateError, match=r"shape \[6\].*'h'"):
        session(np.ones(3, np.float32))
    assert session.states["h"].shape == (4,)


@pytest.mark.parametrize(
    ("states", "error", "text"),
    [
        ({}, OptionError, "dict"),
        (3, OptionError, "dict"),
        (False, OptionError, "dict"),
        ({"present.0.key": 1}, OptionError, "dict"),
        ({"present": "past.0.key"}, UnknownName, "present"),
        ({"present.0.key": "past"}, UnknownName, "past"),
        ({"past.0.key": "present.0.key"}, StateError, "inputs by outputs"),
        ({"logits": "ids"}, StateError, "int64"),
        ({"logits": "past.0.key"}, StateError, "cannot be"),
        ({"present.0.key": "past.0.key", "present.1.key": "past.0.key"}, StateError, "twice"),
    ],
)
def test_states_that_cannot_be(net, states, error, text):
    with pytest.raises(error, match=text):
        net.session(states=states)


def test_states_that_do_not_fit_a_reset(net):
    session = net.session(states=True)
    with pytest.raises(UnknownName, match="past"):
        session.reset({"past": np.zeros(3)})
    for bad in (np.zeros(3, np.float32), np.zeros((1, 4, 2, 8)), [1]):
        with pytest.raises(StateError, match=r"past\.0\.key"):
            session.reset({"past.0.key": bad})
    with pytest.raises(OptionError, match="signature"):
        net.session(((1, 1),), states=True)


def test_nothing_is_recognised():
    g = Graph("g")
    g.outputs = [ops.Relu(g.input("x", Type(F32, (2,))), name="y")]
    with pytest.raises(StateError, match="recognised"):
        ts.compile(g, cache=False).session(states=True)


SPELLED = {
    "past_key_values.0.key": "present.0.key",
    "past_key_values.0.decoder.value": "present.0.decoder.value",
    "past_key_values.0.encoder.key": "present.0.encoder.key",
    "past_key_values.3": "present_key_values.3",
    "past.0.key": "present.0.key",
    "past_0": "present_0",
    "past_key_self_0": "present_key_self_0",
    "past_conv.2": "present_conv.2",
    "cache_k_in": "cache_k_out",
    "cache_in": "cache_out",
    "in_cache0": "out_cache0",
    "state": "stateN",
    "h0": "hn",
    "h": "new_h",
    "hidden": "hidden_new",
    "prev_h": "next_h",
}


@pytest.mark.parametrize("name", SPELLED)
def test_names_that_are_recognised(name):
    type = Type(F32, (1, "T"))
    known = {"x": type, name: type}
    (state,) = states_of("m", known, {"y": type, SPELLED[name]: Type(F32, (1, "U"))}, True)
    assert (state.output, state.input, state.grows) == (SPELLED[name], name, (1,))
    with pytest.raises(StateError):  # of another type
        states_of("m", known, {"y": type, SPELLED[name]: Type("int64", (1, "U"))}, True)
