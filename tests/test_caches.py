"""Caches with room for a greatest length, and caches that lengths are told of: written in place,
and attended as far as they are filled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tinsmith as ts
from tests.decoder import Grouped, grown
from tests.kernels.harness import levels
from tests.models import agree
from tests.transformer import Builder
from tinsmith.errors import DataError
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS

RANDOM = np.random.default_rng(5)
ROOM = 48


def compiled(model: Any) -> tuple[Any, Any]:
    net = ts.compile(ts.load(model), cache=False, threads=1)
    return net, ts.compile(ts.load(model), backend="numpy")


def steps_of(session: Any, *ops: str) -> list[Any]:
    steps = session.net_of_runs.program().plan.steps
    return [s for s in steps if s.op in ops and s.kind != "view"]


# ---- GroupQueryAttention


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    "of", [Grouped(), Grouped(room=ROOM), Grouped(room=ROOM, window=5), Grouped(groups=4)], ids=str
)
def test_grouped_queries(of: Grouped, batch: int) -> None:
    net, reference = compiled(of.model())
    session, cache, held = net.session(states=True), of.cache(batch), 0
    session.reset(cache)
    for new in (5, 1, 1, 3, 1, 1, 1):
        held += new
        mask = np.ones((batch, held), np.int64)
        mask[1:, 3:5] = 0  # this sequence is shorter
        given = {"ids": RANDOM.integers(0, 50, (batch, new)), "attention_mask": mask}
        wanted = reference(**given, **cache)
        np.testing.assert_allclose(session(**given), wanted["logits"], rtol=1e-4, atol=1e-5)
        cache = grown(wanted)
    agree(session.states, cache)
    assert {s.kernel for s in steps_of(session, "RowAttention")} == {"attention_rows"}
    scatters = steps_of(session, "TensorScatter")
    assert len(scatters) == of.layers * (2 if of.room else 4)
    assert all(len(s.calls) == 1 for s in scatters), "no copy precedes what is written"


def test_a_cache_of_fixed_room_stays_where_it_is() -> None:
    of = Grouped(room=ROOM)
    session = compiled(of.model())[0].session(states=True)
    cache = of.cache(1)
    for array in cache.values():
        array[...] = np.nan  # nothing is there yet
    session.reset(cache)
    session(ids=np.array([[3, 1, 4]]), attention_mask=np.ones((1, 3), np.int64))
    arrays = {name: held.array for name, held in session._states.items()}
    for held in (4, 5, 6):
        logits = session(ids=np.array([[7]]), attention_mask=np.ones((1, held), np.int64))
        assert np.isfinite(logits).all()
        for name, state in session._states.items():
            assert state.array is arrays[name]
            assert np.isfinite(state.array[:, :, :held]).all()
            assert np.isnan(state.array[:, :, held:]).all()


def test_more_keys_than_the_room_are_refused() -> None:
    session = compiled(Grouped(room=8).model())[0].session(states=True)
    with pytest.raises(DataError, match="no room for total_sequence_length"):
        session(ids=np.ones((1, 3), np.int64), attention_mask=np.ones((1, 9), np.int64))


# ---- a cache that a scatter writes, as PyTorch's exporter spells it


def static(groups: int = 2, shared: int = 2, width: int = 8) -> Any:
    """ModelProto of an attention: x [1, new, heads * width], pos [new] int64, past.key and
    past.value [1, groups, ROOM, width] -> y, present.key, present.value."""
    b, heads = Builder(), groups * shared
    d = heads * width

    def split(name: str, count: int) -> str:
        y = b("Reshape", b.dense("x", d, count * width), b.const([1, -1, count, width]))
        return b("Transpose", y, perm=[0, 2, 1, 3])

    q, k, v = split("q", heads), split("k", groups), split("v", groups)
    both = []
    for kind, one in (("key", k), ("value", v)):
        there, new = (b("Transpose", n, perm=[2, 1, 0, 3]) for n in (f"past.{kind}", one))
        put = b("ScatterND", there, b("Unsqueeze", "pos", b.const([-1])), new)
        b.nodes.append(helper.make_node("Transpose", [put], [f"present.{kind}"], perm=[2, 1, 0, 3]))
        wide = b("Unsqueeze", f"present.{kind}", b.const([2]))
        wide = b("Expand", wide, b.const([1, groups, shared, ROOM, width]))
        both.append(b("Reshape", wide, b.const([1, heads, ROOM, width])))
    seen = b("LessOrEqual", b.const(np.arange(ROOM)), b("Unsqueeze", "pos", b.const([1])))
    zero, least = (b.const(n, np.float32) for n in (0, np.finfo(np.float32).min))
    scores = b("MatMul", q, b("Transpose", both[0], perm=[0, 1, 3, 2]))
    scores = b("Add", b("Mul", scores, b.const(0.3, np.float32)), b("Where", seen, zero, least))
    weights = b("Softmax", scores, axis=-1)
    mixed = b("MatMul", b("Where", b("IsNaN", weights), zero, weights), both[1])
    mixed = b("Reshape", b("Transpose", mixed, perm=[0, 2, 1, 3]), b.const([1, -1, d]))
    b.nodes.append(helper.make_node("MatMul", [mixed, b.weight(d, d)], ["y"]))
    info, past = helper.make_tensor_value_info, [1, groups, ROOM, width]
    caches = [[info(f"{w}.{k}", 1, past) for k in ("key", "value")] for w in ("past", "present")]
    inputs = [info("x", 1, [1, "new", d]), info("pos", TensorProto.INT64, ["new"]), *caches[0]]
    graph = helper.make_graph(b.nodes, "g", inputs, [info("y", 1, None), *caches[1]], b.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("shared", [1, 2])
def test_a_cache_that_a_scatter_writes(shared: int) -> None:
    model = static(shared=shared)
    net, reference = compiled(model)
    session, at = net.session(states=True), 0
    cache = {f"past.{k}": np.zeros((1, 2, ROOM, 8), np.float32) for k in ("key", "value")}
    session.reset(cache)
    for new in (4, 1, 1, 2, 1, 1):
        x = RANDOM.standard_normal((1, new, 16 * shared)).astype(np.float32)
        given = {"x": x, "pos": np.arange(at, at + new)}
        wanted = reference(**given, **cache)
        np.testing.assert_allclose(session(**given), wanted["y"], rtol=1e-4, atol=1e-5)
        cache = {n.replace("present", "past"): a for n, a in wanted.items() if n != "y"}
        at += new
    agree(session.states, cache)
    assert [len(s.calls) for s in steps_of(session, "ScatterElements")] == [1, 1]
    assert len(steps_of(session, "RowAttention")) == 1
    assert not steps_of(session, "Softmax", "IsNaN", "ScatterND")


# ---- keys that no query sees

MASKS = [(2, 1, 1, "K"), ("Q", "K"), (2, 4, "Q", "K")]
SIZES = [(1, 64), (1, 67), (3, 130), (7, 45), (17, 100), (1, 5)]


def masked(dtype: str, dims: Any, queries: int | str, keys: int | str) -> Graph:
    g, known = Graph("g"), {"Q": queries, "K": keys}
    rows = [("q", 4, queries), ("k", 2, keys), ("v", 2, keys)]
    values = [g.input(n, Type("float32", (2, h, t, 16))) for n, h, t in rows]
    mask = g.input("m", Type(dtype, tuple(known.get(d, d) for d in dims)))
    g.outputs = [OPS["Attention"](*values, mask, q_num_heads=4, kv_num_heads=2)]
    return g


def checked(net: Any, reference: Any, dtype: str, dims: Any, queries: int, keys: int) -> None:
    """Keys outside a range are hidden; what lies there is not a number."""
    third, shape = keys // 3, tuple({"Q": queries, "K": keys}.get(d, d) for d in dims)
    for lo, hi in ((0, keys), (0, third), (third, third + 1), (third, keys), (0, 0), (0, 1)):
        given: dict[str, Any] = {
            n: RANDOM.standard_normal((2, h, t, 16)).astype(np.float32)
            for n, h, t in (("q", 4, queries), ("k", 2, keys), ("v", 2, keys))
        }
        on = np.zeros(shape, bool)
        on[..., lo:hi] = RANDOM.random((*shape[:-1], hi - lo)) < 0.8
        on[..., lo : lo + (hi > lo)] = on[..., hi - (hi > lo) : hi] = True
        hidden = RANDOM.choice([-np.inf, np.finfo(np.float32).min]) if hi > lo else -np.inf
        number = RANDOM.standard_normal(shape).astype(np.float32)
        given["m"] = on if dtype == "bool" else np.where(on, number, np.float32(hidden))
        wanted = reference(**given)
        if hi > lo:
            for name in ("k", "v"):
                given[name][:, :, :lo] = given[name][:, :, hi:] = np.nan
        np.testing.assert_allclose(net(**given), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dims", MASKS, ids=str)
@pytest.mark.parametrize("dtype", ["bool", "float32"])
def test_keys_that_no_query_sees_are_not_read(dtype: str, dims: Any, level: Any) -> None:
    free = masked(dtype, dims, "Q", "K")
    net = ts.compile(free, target=level, cache=False, shapes="free", threads=1)
    reference = ts.compile(free, backend="numpy")
    for queries, keys in SIZES[::-1]:
        checked(net, reference, dtype, dims, queries, keys)


@pytest.mark.parametrize("dtype", ["bool", "float32"])
@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_keys_that_no_query_sees_at_fixed_sizes(dtype: str, queries: int, keys: int) -> None:
    graph = masked(dtype, MASKS[2], queries, keys)
    net = ts.compile(graph, cache=False, shapes="fixed", threads=2)
    checked(net, ts.compile(graph, backend="numpy"), dtype, MASKS[2], queries, keys)
