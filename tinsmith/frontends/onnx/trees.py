"""Ensembles of decision trees: from attributes of ai.onnx.ml to the inputs of our TreeEnsemble."""

from __future__ import annotations

import numpy as np

from tinsmith.frontends.onnx.call import Call, Unsupported
from tinsmith.graph import Array
from tinsmith.ops.classical import MODES
from tinsmith.records import NamedTuple


class Trees(NamedTuple):
    """The constant inputs of our operator TreeEnsemble (`ops/classical.py`), in its order. `roots`
    are the trees' root nodes. Node i has feature[i] .. missing[i], the targets and weights number
    first[i] .. first[i + 1] - 1, and the set member[held[i] : held[i + 1]]."""

    feature: Array
    split: Array
    mode: Array
    yes: Array
    no: Array
    missing: Array
    roots: Array
    first: Array
    target: Array
    weight: Array
    held: Array | None = None
    member: Array | None = None


_LEAF, _MEMBER = MODES.index("LEAF"), MODES.index("MEMBER")


def _values(call: Call, name: str) -> Array:
    """The numbers in the attribute NAME_as_tensor (float32 or float64), else in NAME (float32)."""
    tensor = call.attr(f"{name}_as_tensor")
    plain = call.attr(name, [])
    return np.asarray(plain, np.float32) if tensor is None else tensor.reshape(-1)


def _ints(call: Call, name: str) -> Array:
    return np.asarray(call.required(name), np.int64)


def from_lists(call: Call, kind: str) -> Trees:
    """The trees of a TreeEnsembleClassifier (`kind` "class") or TreeEnsembleRegressor ("target"),
    whose attributes are lists. Raises Unsupported for unknown modes and links that are no trees."""
    call.ignore("nodes_hitrates", "nodes_hitrates_as_tensor")
    tree, node = _ints(call, "nodes_treeids"), _ints(call, "nodes_nodeids")
    names = call.required("nodes_modes")
    modes = [m.removeprefix("BRANCH_") for m in names]
    if unknown := [m for m in modes if m not in MODES or m == "MEMBER"]:
        raise Unsupported(f"the mode {unknown[0]!r} of a tree's node is unknown")
    mode = np.array([MODES.index(m) for m in modes], np.uint8)
    place = {pair: i for i, pair in enumerate(zip(tree.tolist(), node.tolist(), strict=True))}
    if len(place) != len(mode):
        raise Unsupported(f"{len(mode)} nodes have {len(place)} different numbers")

    def linked(name: str) -> Array:
        ids = _ints(call, name).tolist()
        rows = zip(tree.tolist(), ids, range(len(mode)), strict=True)
        return np.array(
            [i if mode[i] == _LEAF else _found(place, t, n) for t, n, i in rows], np.int64
        )

    yes, no = linked("nodes_truenodeids"), linked("nodes_falsenodeids")
    leads = mode != _LEAF
    children = set(yes[leads].tolist()) | set(no[leads].tolist())
    roots = [i for i in range(len(mode)) if i not in children]
    if len(roots) != len(set(tree.tolist())):
        raise Unsupported(f"{len(roots)} nodes have no parent in {len(set(tree.tolist()))} trees")
    split = _values(call, "nodes_values")
    flags = call.attr("nodes_missing_value_tracks_true") or [0] * len(mode)
    owner = [
        _found(place, t, n)
        for t, n in zip(
            _ints(call, f"{kind}_treeids").tolist(),
            _ints(call, f"{kind}_nodeids").tolist(),
            strict=True,
        )
    ]
    weight = _values(call, f"{kind}_weights").astype(split.dtype)
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(np.asarray(owner, np.int64), minlength=len(mode))
    return Trees(
        _ints(call, "nodes_featureids"), split, mode, yes, no, np.array(flags, bool),
        np.array(roots, np.int64), np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        _ints(call, f"{kind}_ids")[order], weight[order],
    )  # fmt: skip


def _found(place: dict[tuple[int, int], int], tree: int, node: int) -> int:
    if (tree, node) not in place:
        raise Unsupported(f"the tree {tree} has no node {node}")
    return place[tree, node]


def from_tensors(call: Call) -> Trees:
    """The trees of a TreeEnsemble (ai.onnx.ml 5), whose attributes are tensors. Nodes of the result
    are its nodes, then its leaves. Raises Unsupported for unknown modes, and for another number of
    sets than of nodes with the mode MEMBER (`_members`)."""
    call.ignore("nodes_hitrates")
    split: Array = call.required("nodes_splits").reshape(-1)
    count = split.size
    weight: Array = call.required("leaf_weights").reshape(-1).astype(split.dtype)
    leaves = weight.size
    modes = call.required("nodes_modes").reshape(-1).astype(np.uint8)
    if modes.size and modes.max() > _MEMBER:
        raise Unsupported(f"the mode {modes.max()} of a tree's node is unknown")

    def linked(which: str) -> Array:
        ids, leaf = _ints(call, f"nodes_{which}nodeids"), _ints(call, f"nodes_{which}leafs")
        return np.concatenate([ids + count * leaf, np.arange(count, count + leaves)])

    yes, no = linked("true"), linked("false")
    roots = _ints(call, "tree_roots")
    bare = [r for r in roots if yes[r] == no[r] and yes[r] >= count]  # a tree of one leaf
    roots = np.where(np.isin(roots, bare), yes[roots], roots)
    flags = call.attr("nodes_missing_value_tracks_true") or [0] * count
    held, member = _members(call, modes, leaves)
    return Trees(
        _padded(_ints(call, "nodes_featureids"), leaves), _padded(split, leaves),
        np.concatenate([modes, np.full(leaves, _LEAF, np.uint8)]), yes, no,
        _padded(np.array(flags, bool), leaves), roots,
        np.concatenate([np.zeros(count, np.int64), np.arange(leaves + 1)]),
        _ints(call, "leaf_targetids"), weight, held, member,
    )  # fmt: skip


def _padded(array: Array, count: int) -> Array:
    return np.concatenate([array, np.zeros(count, array.dtype)])


def _members(call: Call, modes: Array, leaves: int) -> tuple[Array | None, Array | None]:
    """The inputs `held` (where each node's set begins) and `member` (the elements of all sets) of
    our TreeEnsemble; (None, None) if no node has the mode MEMBER. The file has a set, ended by a
    NaN, for each such node. Raises Unsupported for another number of sets."""
    values = call.attr("membership_values")
    asked = modes == _MEMBER
    if not asked.any():
        return None, None
    flat = np.zeros(0, np.float32) if values is None else values.reshape(-1)
    ends = np.flatnonzero(np.isnan(flat))
    if len(ends) != asked.sum():
        raise Unsupported(f"{asked.sum()} nodes ask for members, {len(ends)} sets are given")
    sizes = np.zeros(modes.size + leaves, np.int64)
    sizes[: modes.size][asked] = np.diff(ends, prepend=-1) - 1
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), flat[~np.isnan(flat)]
