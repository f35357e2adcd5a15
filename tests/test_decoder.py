"""Attention whose sizes only a call tells: batch, tokens, and the length of a cache that grows."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from onnx import helper

import tinsmith as ts
from tests.decoder import decoder, empty, grown
from tests.kernels.harness import levels
from tests.models import agree
from tests.transformer import feeds, transformer
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS
from tinsmith.runtime.free import SizedProgram

F32 = np.dtype(np.float32)
RANDOM = np.random.default_rng(7)


def free_of(net):
    """The free programs of a net."""
    return [free for free, _ in net._model._free.found]


def kernels(net):
    return {s.op: s.kernel for s in net.program().plan.steps}


def fixed_sizes(net):
    """What was taken from the example alone."""
    return [c for free in free_of(net) for c in free.scope.conditions if c[1] == "=="]


def step_feeds(batch: int, past: int) -> dict[str, Any]:
    """A token for each sample, after `past` others."""
    cache = {n: RANDOM.standard_normal((batch, 4, past, 8), np.float32) for n in empty(batch)}
    return {"ids": np.ones((batch, 1), np.int64), **cache}


# ---- a decoder


@pytest.fixture(scope="module")
def step():
    return ts.compile(ts.load(decoder()), cache=False, shapes="free", threads=1)


@pytest.fixture(scope="module")
def reference():
    return ts.compile(ts.load(decoder()), backend="numpy")


def test_a_cache_that_grows_token_by_token(step, reference):
    cache, ids = empty(1), np.array([[3]])
    for past in range(40):
        given = {"ids": ids, **cache}
        got = step(**given)
        agree(got, reference(**given))
        assert isinstance(step.program(), SizedProgram), past
        cache, ids = grown(got), got["logits"][:, -1:].argmax(-1)
    assert len(free_of(step)) == 1 and not fixed_sizes(step)
    assert kernels(step)["RowAttention"] == "attention_rows"
    assert {s.kind for s in step.program().plan.steps} <= {"native", "view", "once"}


def test_one_program_takes_caches_of_any_length_from_none_on(reference):
    net = ts.compile(ts.load(decoder()), cache=False, shapes="free")
    for past in (0, 1, 2, 40, 0):
        given: dict[str, Any] = {"ids": np.array([[3]])}
        for name, none in empty(1).items():
            given[name] = RANDOM.standard_normal((1, 4, past, none.shape[3]), np.float32)
        agree(net(**given), reference(**given))
    assert len(free_of(net)) == 1 and not fixed_sizes(net)


@pytest.mark.parametrize(("batch", "new", "past"), [(2, 5, 3), (3, 2, 17), (2, 33, 64), (4, 7, 31)])
def test_several_new_tokens(step, reference, batch, new, past):
    given: dict[str, Any] = {"ids": RANDOM.integers(0, 50, (batch, new))}
    for name, none in empty(batch).items():
        given[name] = RANDOM.standard_normal((batch, 4, past, none.shape[3]), np.float32)
    agree(step(**given), reference(**given))
    assert isinstance(step.program(), SizedProgram) and not fixed_sizes(step)
    assert len(free_of(step)) <= 2  # of one new token, and of several


# ---- attention by itself

SIZES = [(2, 3, 5), (3, 2, 2), (2, 17, 33), (5, 16, 64), (2, 31, 100)]


def attention(flat, groups, causal, mask, past, lengths=False):
    """A graph of free batch, queries and keys, and a function that makes its inputs."""
    g, heads, e, f = Graph("g"), 4, 8, 12
    rows = [("q", heads, "T", e), ("k", groups, "S", e), ("v", groups, "S", f)]
    values = [
        g.input(n, Type(F32, ("B", t, h * w) if flat else ("B", h, t, w))) for n, h, t, w in rows
    ]
    before = [
        g.input(n, Type(F32, ("B", groups, "P", w))) if past else None
        for n, w in (("pk", e), ("pv", f))
    ]
    shape = {"keys": ("B", 1, 1, "M"), "all": ("B", heads, "T", "M"), "few": ("T", "M")}.get(mask)
    term = None if mask is None else g.input("m", Type(F32, shape))
    counted = g.input("n", Type(np.dtype(np.int64), ("B",))) if lengths else None
    y = OPS["Attention"](*values, term, *before, counted, is_causal=causal, q_num_heads=heads,
                         kv_num_heads=groups)  # fmt: skip
    g.outputs = [y]

    def made(b, t, s, p=4):
        known = {"B": b, "T": t, "S": s, "P": p, "M": s + (p if past else 0)}

        def one(v):
            dims = [d if isinstance(d, int) else known[d] for d in v.type.shape]
            if v.name == "n":
                return RANDOM.integers(t, s + 1, dims)
            array = RANDOM.standard_normal(dims, np.float32)
            return np.where(array > 1, -np.inf, 0).astype(np.float32) if v.name == "m" else array

        return {v.name: one(v) for v in g.inputs}

    return g, made


def same_for_all(graph, made, target=None, shapes=SIZES):
    net = ts.compile(graph, target=target, cache=False, shapes="free", threads=1)
    reference = ts.compile(graph, backend="numpy")
    for sizes in shapes:
        given = made(*sizes)
        got, wanted = net(**given), reference(**given)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    assert len(free_of(net)) == 1 and isinstance(net.program(), SizedProgram)
    assert "attention_rows" in kernels(net).values(), kernels(net)
    return net


@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("past", [False, True])
def test_heads_and_windows(groups, flat, causal, past):
    if past and flat:
        pytest.skip("caches are [batch, heads, past, width]")
    same_for_all(*attention(flat, groups, causal, None, past))


@pytest.mark.parametrize("mask", ["keys", "all", "few"])
@pytest.mark.parametrize("groups", [4, 2])
def test_masks(mask, groups):
    """Some rows see nothing: their result is 0."""
    same_for_all(*attention(False, groups, False, mask, False))


@pytest.mark.parametrize("causal", [False, True])
def test_lengths(causal):
    same_for_all(*attention(False, 2, causal, None, False, lengths=True))


@pytest.mark.parametrize("level", levels())
def test_instruction_sets(level):
    same_for_all(*attention(False, 4, True, "all", True), target=level)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("groups", [4, 1])
def test_one_query(level, groups):
    """Keys are read where they lie."""
    shapes = [(2, 1, 5), (3, 1, 2), (2, 1, 33), (5, 1, 64), (2, 1, 101)]
    same_for_all(*attention(False, groups, False, "all", True), target=level, shapes=shapes)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_transformer_has_fused_attention(threads):
    net = ts.compile(ts.load(transformer()), cache=False, shapes="free", threads=threads)
    reference = ts.compile(ts.load(transformer()), backend="numpy")
    for batch, seq in [(2, 18), (3, 5), (2, 4), (4, 64), (2, 131)]:
        given = feeds(batch, seq, seed=seq)
        agree(net(**given), reference(**given))
        assert isinstance(net.program(), SizedProgram)
    assert "Softmax" not in kernels(net)
    assert threads > 1 or not fixed_sizes(net)
    assert kernels(net)["RowAttention"] == "attention_rows"


# ---- ONNX Runtime's own operators

H, G, E = 4, 2, 8
PAST = [("pk", ["B", G, "P", E]), ("pv", ["B", G, "P", E])]
CONTRIB = {
    "MultiHeadAttention": [(n, ["B", t, H * E]) for n, t in (("q", "T"), ("k", "S"), ("v", "S"))],
    "GroupQueryAttention": [
        *((n, ["B", "T", w * E]) for n, w in (("q", H), ("k", G), ("v", G))), *PAST,
        ("lengths", ["B"]), ("total", []),
    ],
}  # fmt: skip


@pytest.mark.parametrize("op", CONTRIB)
def test_contributed_operators(op):
    info, integers = helper.make_tensor_value_info, ("lengths", "total")
    attrs: dict[str, Any] = {"num_heads": H} | (
        {"kv_num_heads": G} if op.startswith("Group") else {}
    )
    outs = ["y", "present_k", "present_v"] if op.startswith("Group") else ["y"]
    names = [n for n, _ in CONTRIB[op]]
    nodes = [helper.make_node(op, names, outs, domain="com.microsoft", **attrs)]
    inputs = [info(n, 6 if n in integers else 1, dims) for n, dims in CONTRIB[op]]
    graph = helper.make_graph(nodes, "m", inputs, [info(n, 1, None) for n in outs])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = ts.load(helper.make_model(graph, opset_imports=opsets, ir_version=9))
    net = ts.compile(model, cache=False, shapes="free", threads=1)
    reference = ts.compile(model, backend="numpy")
    for known in [(2, 3, 5, 7), (2, 2, 9, 4), (5, 17, 31, 16), (3, 1, 8, 20), (2, 1, 33, 9)]:
        sizes = dict(zip("BTPS", known, strict=True))
        given: dict[str, Any] = {}
        for name, dims in CONTRIB[op]:
            shape = [d if isinstance(d, int) else sizes[d] for d in dims]
            given[name] = RANDOM.standard_normal(shape).astype(np.float32)
            if name in integers:
                last = sizes["P"] + sizes["T"] - (name == "lengths")
                given[name] = np.full(shape, last, np.int32)
        got, wanted = net(**given), reference(**given)
        one = {} if isinstance(got, dict) else {"y": got}
        agree(one or got, {"y": wanted} if one else wanted)
    if "total" not in names:  # which tells a size that only data tell
        assert len(free_of(net)) <= 2 and not fixed_sizes(net)  # of one new token, and of several
        assert kernels(net)["RowAttention"] == "attention_rows"


# ---- the memory of many sizes


def test_sizes_share_the_memory_of_the_largest():
    net = ts.compile(ts.load(transformer()), cache=False, shapes="free", threads=1)
    sizes = [(int(b), int(s)) for b, s in RANDOM.integers(2, 24, (200, 2))]
    most = 0
    for batch, seq in sizes:
        net(**feeds(batch, seq))
        most = max(most, net.program().plan.memory.peak)
    sessions = list(net._local.sessions.values())
    (memory,) = {s._memory for s in sessions}
    assert len(sessions) > 1
    assert len(memory.arena) < most * 1.3 + 8192


@pytest.mark.parametrize(("model", "given"), [(transformer, feeds), (decoder, step_feeds)])
def test_one_program_takes_one_sample_and_many(model: Any, given: Any) -> None:
    net = ts.compile(ts.load(model()), cache=False, shapes="free", threads=1)
    exact = ts.compile(ts.load(model()), backend="numpy")
    for batch, length in ((3, 9), (1, 9), (2, 2), (1, 3)):
        inputs = given(batch, length)
        agree(net(**inputs), exact(**inputs))
    assert len(free_of(net)) == 1


def test_a_session_in_another_thread_has_memory_of_its_own():
    net = ts.compile(ts.load(transformer()), cache=False, shapes="free", threads=1)
    given = [feeds(2, 9), feeds(3, 30)]
    wanted = [net(**g) for g in given]
    sessions = [net.session(tuple(a.shape for a in g.values())) for g in given]
    assert sessions[0]._memory is sessions[1]._memory
    found = []

    def run():
        found.extend(sessions[0].run(list(given[0].values())) for _ in range(50))

    thread = threading.Thread(target=run)
    thread.start()
    for _ in range(50):
        got = sessions[1].run(list(given[1].values()))
        agree(dict(zip(net.output_names, got, strict=True)), wanted[1])
    thread.join()
    assert len(found) == 50
    for got in found:
        agree(dict(zip(net.output_names, got, strict=True)), wanted[0])
    assert sessions[0]._memory is not sessions[1]._memory


def test_a_call_for_larger_sizes_from_within_a_call():
    """The memory in which the outer call runs must stay where it is."""
    net = ts.compile(ts.load(transformer()), cache=False, shapes="free", threads=1)
    outer, inner = feeds(2, 9), feeds(4, 60)
    reference = ts.compile(ts.load(transformer()), backend="numpy")
    agree(net(**outer), reference(**outer))
    memory = net.session(tuple(a.shape for a in outer.values()))._memory
    before, memory.busy = memory.arena, True
    agree(net(**inner), reference(**inner))
    assert memory.arena is before
    memory.busy = False
    agree(net(**outer), reference(**outer))
