"""Nodes that are alike are costed once in a plan.

Models repeat their layers. What kernels say of a site depends on its operators, types, layouts and
small constants (`site_key`), not on the arrays of weights: for the second of two such sites only
the arrays are exchanged that a choice packs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from tinsmith.graph import Graph, Node, Value
from tinsmith.kernels._kernel import Choice, Packed, Site
from tinsmith.kernels.layout import Layout
from tinsmith.kernels.memo import node_key
from tinsmith.kernels.select import Candidate
from tinsmith.kernels.trace import is_whole

Array = np.ndarray[Any, Any]


@dataclass
class _Known:
    site: Site
    found: list[Candidate]


class Alike:
    """What kernels have said of the nodes of one plan."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Known] = {}

    def key(self, node: Node, layouts: Sequence[Layout], *context: Hashable) -> Hashable:
        """Equal for nodes of which kernels say the same."""
        first: dict[Value | None, int] = {}
        places = tuple([first.setdefault(v, i) for i, v in enumerate(node.inputs)])
        return (node_key(node), places, tuple(layouts), *context)

    def keep(self, key: Hashable, site: Site, found: list[Candidate]) -> None:
        """Remember what was said of a site."""
        self._known.setdefault(key, _Known(site, found))

    def again(self, key: Hashable, node: Node) -> tuple[Site, list[Candidate]] | None:
        """The site of a node and its candidates, where those of one that is alike are known and
        mention no arrays but operands."""
        known = self._known.get(key)
        if known is None:
            return None
        site = _site(known.site, node)
        if site is None:
            return None
        arrays = _exchange(known.site, site)
        found: list[Candidate] = []
        for c in known.found:
            if c.choice is not None and c.choice.packed:
                packed = [_repacked(p, arrays) for p in c.choice.packed]
                if None in packed:
                    return None
                c = replace(c, choice=_with(c.choice, packed))
            found.append(c)
        return site, found


def _with(choice: Choice, packed: Sequence[Packed | None]) -> Choice:
    return replace(choice, packed=tuple([p for p in packed if p is not None]))


def _site(known: Site, node: Node) -> Site | None:
    """The site of a node which is like that of another one."""
    inner, outer = _body(known.node), _body(node)
    values: dict[Value | None, Value | None] = dict(
        zip(known.node.inputs, node.inputs, strict=True)
    )
    anchor = known.anchor
    if anchor is known.node:
        anchor = node
    elif anchor is not None:
        assert inner is not None and outer is not None
        anchor = outer.nodes[inner.nodes.index(anchor)]
        values |= dict(zip(known.anchor.inputs, anchor.inputs, strict=True))  # type: ignore[union-attr]
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


def _body(node: Node) -> Graph | None:
    return node.attrs["body"] if node.op.name == "Fused" else None


def _exchange(old: Site, new: Site) -> list[tuple[Array, Array]]:
    """The constants of one site, and those of the other in their places."""
    pairs = zip(old.operands, new.operands, strict=True)
    return [
        (a.const, b.const)
        for a, b in pairs
        if a is not None and b is not None and a.const is not None and b.const is not None
    ]


def _repacked(packed: Packed, arrays: list[tuple[Array, Array]]) -> Packed | None:
    """The same packing of other arrays; None where it does not say what it packs, or where they
    do not fit it."""
    make = packed.make
    if not isinstance(make, partial) or make.keywords:
        return None
    args: list[Any] = []
    for arg in make.args:
        if isinstance(arg, np.ndarray):
            new = _exchanged(arg, arrays)
            if new is None or (packed.fits is not None and not packed.fits(new)):
                return None
            args.append(new)
        else:
            args.append(arg)
    return replace(packed, make=partial(make.func, *args))


def _exchanged(array: Array, arrays: list[tuple[Array, Array]]) -> Array | None:
    """What stands in its place at the other node; None where that is not one array."""
    found: list[Array] = []
    for old, new in arrays:
        same = array.ctypes.data == old.ctypes.data and array.size == old.size
        if array is old:
            found.append(new)
        elif same and array.flags.c_contiguous and old.flags.c_contiguous and array.size:
            if array.dtype != old.dtype:
                return None
            found.append(np.ascontiguousarray(new).reshape(array.shape))
    return found[0] if found and all(a is found[0] for a in found) else None
