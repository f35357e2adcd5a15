"""Asks kernels once for all nodes of an equivalence class, because models repeat their layers.

Two nodes are equivalent (alike) if they have the same operator, types, layouts and small constants
(`site_key`), whatever the values of their weights. Kernels are asked about the first; for the
others their answers are reused, with each array that a choice packs replaced by the node's own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import numpy as np

from tinsmith.graph import Array, Node, Value
from tinsmith.kernels._kernel import Packed, Site
from tinsmith.kernels.layout import Layout
from tinsmith.kernels.memo import node_key
from tinsmith.kernels.select import Candidate
from tinsmith.kernels.trace import is_whole
from tinsmith.ops.control import fused_body
from tinsmith.records import cached_property, dataclass

Arrays = Sequence[tuple[Array, Array]]
"""Pairs: a constant of one site, and the constant in the same place of an equivalent site."""


@dataclass
class _Known:
    """What kernels answered for the first node of an equivalence class: its site, candidates."""

    site: Site
    found: list[Candidate]

    @cached_property
    def limits(self) -> list[tuple[Callable[[Array], bool], Array]] | None:
        """Conditions under which these answers hold for an equivalent node: pairs of a test
        (`Packed.fits`) and an array of this site. The other node's array in the place of this array
        must pass the test. None if a choice packs an array that is not exactly one constant of the
        site: the answers are then never reused."""
        own = _exchange(self.site, self.site)
        limits: dict[tuple[Callable[[Array], bool], int], Array] = {}
        for p in [p for c in self.found if c.choice is not None for p in c.choice.packed]:
            if not all(sum(_is_same(a, old) for old, _ in own) == 1 for a in p.arrays):
                return None
            if p.fits is not None:
                limits |= {(p.fits, id(a)): a for a in p.arrays}
        return [(fits, a) for (fits, _), a in limits.items()]


class EquivalenceClass:
    """The key of an equivalence class in dictionaries: what its nodes compute, and how their
    operands lie. A wrapper around a nested tuple whose hash takes long: it is computed once."""

    __slots__ = ("_hash", "_key")

    def __init__(self, key: Hashable) -> None:
        self._key, self._hash = key, hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EquivalenceClass) and self._key == other._key


class Answers:
    """The answers of kernels for the nodes of one plan, by equivalence class: `keep` stores them
    for the first node of a class, `again` gives them for each further one."""

    def __init__(self) -> None:
        self._known: dict[EquivalenceClass, _Known] = {}
        self._classes: dict[EquivalenceClass, EquivalenceClass] = {}

    def key(self, node: Node, layouts: Sequence[Layout], *context: Hashable) -> EquivalenceClass:
        """The class of a node whose inputs lie in these `layouts`. It is equal for nodes for which
        kernels give the same answers. `context` is what else answers depend on, such as threads."""
        first: dict[Value | None, int] = {}
        places = tuple([first.setdefault(v, i) for i, v in enumerate(node.inputs)])
        found = EquivalenceClass((node_key(node), places, tuple(layouts), *context))
        return self._classes.setdefault(found, found)

    def keep(self, key: EquivalenceClass, site: Site, found: list[Candidate]) -> None:
        """Remember the answers `found` for `site` as those of the class `key`, if it has none."""
        self._known.setdefault(key, _Known(site, found))

    def again(
        self, key: EquivalenceClass, node: Node
    ) -> tuple[Site, list[Candidate], Arrays] | None:
        """The answers for a further `node` of a class: its site, the candidates of the class's
        first node, and pairs (constant of the first node, this node's constant in its place), by
        which `packing` replaces what the candidates pack. None if kernels must be asked: the class
        is new, or its answers do not hold for this node's constants (`_Known.limits`)."""
        known = self._known.get(key)
        if known is None or known.limits is None:
            return None
        site = _site(known.site, node)
        if site is None:
            return None
        arrays = _exchange(known.site, site)
        if not all(fits(_exchanged(a, arrays)) for fits, a in known.limits):
            return None
        return site, list(known.found), arrays


def packing(packed: Packed, arrays: Arrays) -> Packed:
    """`packed` for another node: each array among its arguments is replaced by the pairs `arrays`
    (old, new). Without pairs, `packed` itself."""
    if not arrays:
        return packed
    args = [_exchanged(a, arrays) if isinstance(a, np.ndarray) else a for a in packed.args]
    return replace(packed, args=tuple(args))


def _site(known: Site, node: Node) -> Site | None:
    """The site `known` with the anchor, operands and results of another node of its class. None if
    answers for `known` may not hold: only one of the two nodes has a first input of whole numbers
    (`is_whole`), or an extra is no input of its node, so that its counterpart is not known."""
    anchor, values = known.anchor, dict[Value | None, Value | None]()
    if anchor is known.node:
        anchor = node
    elif anchor is not None:
        inner, outer = fused_body(known.node), fused_body(node)
        assert inner is not None and outer is not None
        first, anchor = anchor, outer.nodes[inner.nodes.index(anchor)]
        values = dict(zip(first.inputs, anchor.inputs, strict=True))
    values |= dict(zip(known.node.inputs, node.inputs, strict=True))
    inputs = tuple([values[v] for v in known.inputs])
    if inputs and is_whole(inputs[0]) != (
        known.inputs[0] is not None and is_whole(known.inputs[0])
    ):
        return None
    extras = tuple([v for e in known.extras if (v := values.get(e)) is not None])
    if len(extras) != len(known.extras):
        return None
    return replace(
        known, node=node, anchor=anchor, inputs=inputs, extras=extras, outputs=node.outputs
    )


def _exchange(old: Site, new: Site) -> Arrays:
    """Pairs (old, new) of the constants that are in the same place of two equivalent sites."""
    pairs = dict(zip(old.operands, new.operands, strict=True))
    return [
        (a.const, b.const)
        for a, b in pairs.items()
        if a is not None and b is not None and a.const is not None and b.const is not None
    ]


def _is_same(array: Array, old: Array) -> bool:
    """Whether `array` is all of the constant `old`, in the same memory, perhaps reshaped."""
    if array is old or array.size != old.size or array.dtype != old.dtype:
        return array is old
    whole = array.flags.c_contiguous and old.flags.c_contiguous and array.size > 0
    return whole and array.ctypes.data == old.ctypes.data


def _exchanged(array: Array, arrays: Arrays) -> Array:
    """The other node's array in place of `array`, which is the old one of a pair of `arrays` or a
    reshaped view of that; the result has the shape of `array`. StopIteration if it is of none."""
    old, new = next(pair for pair in arrays if _is_same(array, pair[0]))
    return new if array is old else np.ascontiguousarray(new).reshape(array.shape)
