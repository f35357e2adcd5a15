"""Makes a part of a model (`cut.py`) a graph of its own, with free input sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tinsmith.compiler.cut import counts, numbers_read
from tinsmith.graph import Graph, Type, Value
from tinsmith.graph.copy import Copier
from tinsmith.graph.uses import sources_of
from tinsmith.ops import OPS, fresh
from tinsmith.passes.contents import computes_sizes
from tinsmith.runtime.inputs import Signature
from tinsmith.sizes import Size


def numbers_of_sizes(body: Graph) -> frozenset[int]:
    """Return the numbers of a part's inputs (small ones of integers) whose elements are sizes
    inside, such as a Reshape's target, also after arithmetic."""
    read = [n.inputs[k] for n in body.nodes for k in numbers_read(n)]
    wanted = sources_of(read, computes_sizes)
    return frozenset(k for k, v in enumerate(body.inputs) if v in wanted and counts(v))


def opened(body: Graph, read: frozenset[int], signature: Signature) -> Graph:
    """Return a copy of a part with free input sizes, for which a program for free sizes is made.

    A size that is a formula (`Size`) of the surrounding program becomes a free dimension; equal
    formulas get one name. Ranks that the part leaves open are those of `signature`. Inputs in
    `read`, whose elements are sizes, become inputs that pass the elements as shape (`_tell`)."""
    names: dict[Any, str] = {}

    def name(d: Any) -> Any:
        return names.setdefault(d.form, f"f{len(names)}") if isinstance(d, Size) else d

    def freed(v: Value, dims: Sequence[int] | None) -> Type:
        own = v.type.shape
        if own is None:
            own = tuple([f"{v.name}.{axis}" for axis in range(len(dims or ()))])
        return v.type.like(shape=tuple(map(name, own)))

    types = {
        v.name: v.type if k in read else freed(v, dims)
        for k, (v, dims) in enumerate(zip(body.inputs, signature, strict=True))
    }
    graph = Copier(body).copy(types)
    for v in [v for node in graph.nodes for v in node.outputs]:
        if v.type.shape is not None:
            v.type = v.type.like(shape=tuple([_inside(d, names) for d in v.type.shape]))
    for k in read:
        _tell(graph, k)
    return graph


def _inside(d: Any, names: Mapping[Any, str]) -> Any:
    """Return a dim of a value inside the part: for a formula of the surrounding program the name
    that an input got, or a new unknown size if no input has it."""
    return names.get(d.form, fresh()) if isinstance(d, Size) else d


def _tell(graph: Graph, k: int) -> None:
    """Replace input k, which holds n integers, by a boolean tensor of 2 n free dimensions whose
    data are not read. Nodes compute the integers from its shape: number i is dims[i] - dims[n + i]
    (see `later.told_by`). So the integers become free sizes."""
    v, first = graph.inputs[k], graph.nodes[0]
    dims, n = v.type.dims, v.type.size
    shape = tuple([f"{v.name}.{sign}{i}" for sign in ("more", "less") for i in range(n)])
    told = Value(graph, Type(np.dtype(np.bool_), shape), v.name)

    def add(op: str, *inputs: Any, **attrs: Any) -> Value:
        return OPS[op](*inputs, name=f"{v.name}.{op}", before=first, origin=first.origin, **attrs)

    both = add("Shape", told)
    more, less = (add("Slice", both, [a], [a + n], [0]) for a in (0, n))
    found = add("Reshape", add("Sub", more, less), np.array(dims, np.int64))
    graph.replace(v, found if v.dtype == np.int64 else add("Cast", found, to=v.dtype.name))
    graph.inputs[k] = told
