"""Writes recurrent layers, with the transposes of their batch around them, as one layer of ncnn. An
LSTM may project its states."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.frontends.ncnn.recurrent import DIRECTIONS, GATES
from tinsmith.graph import Array, Node, Value
from tinsmith.ops import OPS
from tinsmith.records import NamedTuple
from tinsmith.writers.ncnn.several import maker, source
from tinsmith.writers.ncnn.writer import Writer, claims
from tinsmith.writers.rows import constant, inputs_of, need, need_defaults, numbers, present

ASIDE = (1, 0, 2)
"""The permutation that exchanges the batch, the first axis, with steps or directions."""
NEAR = 1e-5
"""Relative error with which the weights of states may be r p, with the projection p. Estimated."""


class Given(NamedTuple):
    """The inputs of a recurrent layer in ncnn: `x` and `states` (none, or all that the type has),
    with the batch in front; its weights `w` (of x) and `r` (of states); and the `nodes` between
    them and our node."""

    x: Value
    states: list[Value]
    w: Array
    r: Array
    nodes: set[Node]


@claims("LSTM", "GRU", "RNN")
def recurrent(w: Writer, node: Node) -> None:
    need_defaults(node, "direction", "hidden_size", "linear_before_reset")
    need(node.attrs.get("linear_before_reset", True), "it resets before the product")
    _, _, _, _, lengths, *others = inputs_of(node)
    need(lengths is None and not any(others[2:]), "it has lengths of sequences, or peepholes")
    projection = _projection(w, node)
    read = _plain(w, node) if projection is None else _projected(w, node, projection)
    arrays = _packed(node, read.w, read.r)
    outputs, taken = _outputs(w, node, projection)
    given = {"num_output": read.r.shape[-1], "weight_data_size": read.w.size}
    given["direction"] = DIRECTIONS.index(node.attrs["direction"])
    if projection is not None:
        given["hidden_size"] = projection.shape[2]
        arrays["p"] = projection
    values = [read.x, *read.states]
    nodes = read.nodes | taken
    w.claim_as(node, nodes, node.op.name, values, outputs, given, node.name, **arrays)


def _turned(w: Writer, v: Value | None, *readers: Node) -> tuple[Value, Node]:
    """Return (x, node): `node` is the Transpose that makes v from x, which has the batch in front.
    Raises Inexpressible if nothing of the kind makes v, if v is an output of the graph, or if nodes
    other than `readers` read v (without `readers`: more than one node)."""
    node = maker(v, "Transpose") if readers else source(w, v, "Transpose")
    need(node.attrs["perm"] == ASIDE, "its batch is not in front")
    others = set(node.output.uses) - set(readers)
    need(not readers or not (others or node.output in w.graph.outputs), "it is read elsewhere")
    return node.operand(0), node


def _plain(w: Writer, node: Node) -> Given:
    """Return the inputs of a recurrent layer without a projection. Raises Inexpressible."""
    x, w_x, r, _, _, *others = inputs_of(node)
    found = [_turned(w, v) for v in (x, *others[:2]) if v is not None]
    need(node.op is not OPS["LSTM"] or len(found) != 2, "it has one of its two states")
    weights = [constant(v, "a weight") for v in (w_x, r)]
    (first, *states), nodes = [v for v, _ in found], {n for _, n in found}
    return Given(first, states, weights[0], weights[1], nodes)


# ---- projections: see `frontends.projection`


def _projection(w: Writer, node: Node) -> Array | None:
    """Return the weights [D,P,H] by which the states of an LSTM are projected, from H to P; None if
    they are not. Raises Inexpressible."""
    user = w.only_user(node.outputs[0], "MatMul") if node.op is OPS["LSTM"] else None
    if user is None or user.inputs[0] is not node.outputs[0]:
        return None
    array = constant(user.inputs[1], "a projection")
    need(array.ndim == 3, "it is no projection of each direction")
    need(array.shape[1] != array.shape[2], "ncnn projects to another size alone")
    return np.ascontiguousarray(array.swapaxes(1, 2))


def _projected(w: Writer, node: Node, p: Array) -> Given:
    """Return the inputs of an LSTM whose states are projected by p. The node's weights of states
    are r p, of which ncnn needs r; its first h is given as features of the first step (see
    `_first_features`). Raises Inexpressible."""
    x, w_x, both, _, _, h, c, *_ = (*inputs_of(node), None, None)
    w_x, both = constant(w_x, "a weight"), constant(both, "a weight")
    if c is None:
        need(h is None, "it has one of its two states")
        first, turned = _turned(w, x)
        exact = (np.linalg.lstsq(a.T, b.T, rcond=None)[0].T for a, b in zip(p, both, strict=True))
        read = Given(first, [], w_x, np.stack(list(exact)).astype(np.float32), {turned})
    else:
        need(h is None, "its first h is not projected")
        read = _first_features(w, node, w_x, p)
    near = np.abs(np.matmul(read.r, p) - both).max() <= NEAR * np.abs(both).max(initial=1e-30)
    need(near, "the weights of its states are not of what it projects")
    return read


def _first_features(w: Writer, node: Node, weights: Array, p: Array) -> Given:
    """Return the inputs of an LSTM whose states are projected by p, with first states. Its x is
    joined with further features: the first h at the first step, 0 at others. So `weights` are those
    of x, then r. Raises Inexpressible for other features."""
    joined = source(w, node.inputs[0], "Concat")
    count, size = p.shape[:2]
    x, *firsts = joined.operands
    need(joined.attrs["axis"] in (2, -1) and len(firsts) == count, "its first h is no features")
    pads = [source(w, v, "Pad") for v in firsts]
    parts = [source(w, pad.inputs[0], "Slice") for pad in pads]
    first, turned = _turned(w, x)
    h, moved = _turned(w, parts[0].inputs[0], *parts)
    last, c_moved = _turned(w, node.inputs[6])
    for d, (pad, part) in enumerate(zip(pads, parts, strict=True)):
        ends = [numbers(v, "a part") for v in part.inputs[1:]]
        need(part.inputs[0] is moved.output and ends == [(d,), (d + 1,), (0,)], "no first h")
        backward = node.attrs["direction"] == "reverse" or d == 1
        need(
            _is_one_step(pad, first.shape[1] if first.shape else None, backward),
            "its first h is of another step",
        )
    inner, more = np.split(weights, [weights.shape[2] - count * size], axis=2)
    r = np.stack([more[d, :, d * size : (d + 1) * size] for d in range(count)])
    others = more.copy()
    for d in range(count):
        others[d, :, d * size : (d + 1) * size] = 0
    need(not others.any(), "a first h is of both directions")
    nodes = {joined, *pads, *parts, turned, moved, c_moved}
    return Given(first, [h, last], inner, r, nodes)


def _is_one_step(pad: Node, steps: Any, backward: bool) -> bool:
    """Whether a padding extends one step [1, batch, features] to `steps` steps by zeros after it,
    or, if `backward`, before it."""
    widths = constant(pad.inputs[1], "the padding of its first h")
    wanted = [0] * 6
    wanted[0 if backward else 3] = steps - 1 if isinstance(steps, int) else -1
    return (
        pad.attrs["mode"] == "constant" and len(pad.inputs) == 2 and np.array_equal(widths, wanted)
    )


# ---- weights and results


def _packed(node: Node, w: Array, r: Array) -> dict[str, Array]:
    """Return the weights "w", "r" and "b" of a recurrent layer in ncnn's order of gates. b is the
    sum of both biases; only for the new state of a GRU it has the two apart."""
    gates = list(GATES[node.op.name])
    d, hidden = r.shape[0], r.shape[1] // len(gates)
    parts: dict[str, Any] = {}
    for name, array in (("w", w), ("r", r)):
        parts[name] = array.reshape(d, len(gates), hidden, -1)[:, np.argsort(gates)]
    b = node.inputs[3] if len(node.inputs) > 3 else None
    both = np.zeros((d, 2 * len(gates) * hidden), np.float32) if b is None else constant(b, "bias")
    before, behind = both.reshape(d, 2, len(gates), hidden)[:, :, np.argsort(gates)].swapaxes(0, 1)
    if "linear_before_reset" in node.attrs:
        rows = before[:, :2] + behind[:, :2], before[:, 2:], behind[:, 2:]
        return parts | {"b": np.concatenate(rows, axis=1)}
    return parts | {"b": before + behind}


def _outputs(w: Writer, node: Node, p: Array | None) -> tuple[list[Value], set[Node]]:
    """Return (outputs, nodes between): the values that the layer of a recurrent node gives, y and,
    if they are read, last states, with the batch in front; and the nodes that project them by p
    (None: no projection) and transpose them. Raises Inexpressible."""
    taken = set[Node]()

    def projected(v: Value) -> Value:
        if p is None or (not v.uses and v not in w.graph.outputs):
            return v
        user = present(w.only_user(v, "MatMul"), "it is not projected")
        array = constant(user.inputs[1], "its projection")
        need(np.array_equal(array, p.swapaxes(1, 2)), "it is not projected")
        taken.add(user)
        return user.output

    first, *lasts = node.outputs
    found, between = _behind(w, projected(first))
    taken |= set(between)
    lasts = [projected(v) if i == 0 else v for i, v in enumerate(lasts)]
    outputs = [found]
    if not any(v.uses or v in w.graph.outputs for v in lasts):
        return outputs, taken
    for v in lasts:
        user = present(w.only_user(v, "Transpose"), "a last state has no batch in front")
        need(user.attrs["perm"] == ASIDE, "a last state has no batch in front")
        outputs.append(user.output)
        taken.add(user)
    if not any(v.uses or v in w.graph.outputs for v in outputs[1:]):
        outputs = [found]
    return outputs, taken


def _behind(w: Writer, v: Value) -> tuple[Value, list[Node]]:
    """Return (value, nodes): the results v [T,D,N,H] of a recurrent node as the value [N,T,D*H],
    and the nodes that move the elements. Raises Inexpressible if none make it."""
    steps, d, batch, hidden = (
        k if isinstance(k, int) else 2 + i for i, k in enumerate(v.shape or ())
    )
    numbers = np.arange(steps * d * batch * hidden).reshape(steps, d, batch, hidden)
    wanted = numbers.transpose(2, 0, 1, 3).reshape(batch, steps, d * hidden)
    taken = list[Node]()
    while numbers.shape != wanted.shape or (numbers != wanted).any():
        user = w.only_user(v, "Transpose", "Reshape", "Squeeze", "Unsqueeze")
        user = present(user, "its results are not moved to have the batch in front")
        more = [None if i is None else constant(i, "a shape") for i in user.inputs[1:]]
        numbers = np.asarray(OPS[user.op.name].evaluate((numbers, *more), user.attrs)[0])
        v = user.output
        taken.append(user)
    return v, taken
