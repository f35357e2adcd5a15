"""Models whose sizes are free, made of other tables of tests, and what their programs give."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tinsmith as ts
from tests.models import GRAPHS, agree
from tests.ops.samples import Sample, load_samples
from tinsmith.errors import TinsmithError, TypeRuleError
from tinsmith.formulas import shown
from tinsmith.graph import Graph, Type
from tinsmith.graph.copy import Copier
from tinsmith.ops import OPS

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]

EXAMPLE = (6, 10, 14, 5, 9)
"""The sizes of free dimensions for which programs are made, by number of the dimension."""
OTHERS = (
    (2, 2, 2, 2, 2), (3, 2, 3, 2, 3), (7, 11, 13, 5, 3), (15, 16, 17, 3, 2), (17, 15, 16, 4, 2),
    (3, 31, 33, 2, 5), (64, 47, 6, 7, 2),
)  # fmt: skip
RANDOM = {"RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}


@dataclass
class Found:
    """What is known after some calls: the sizes that were refused by the reference, how many
    programs were made, and the sizes that these hold to numbers."""

    calls: int = 0
    refused: list[Sizes] = field(default_factory=list)
    programs: int = 0
    held: list[str] = field(default_factory=list)
    reference: list[str] = field(default_factory=list)


def compare(
    graph: Graph, calls: Sequence[Sizes], feed: Any, tolerance: float = 1e-4, **options: Any
) -> Found:
    """Call one net at many sizes; every result must be the reference's. `feed(sizes)` gives the
    inputs. What the reference refuses must be refused."""
    net = ts.compile(graph, cache=False, shapes="free", **options)
    reference, found = ts.compile(graph, backend="numpy"), Found()
    for sizes in calls:
        given = feed(sizes)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                want = reference.run([given[n] for n in reference.inputs])
            except TinsmithError:
                found.refused.append(sizes)
                continue
            try:
                got = net.run([given[n] for n in net.inputs])
            except TypeRuleError:  # references take some inputs that type rules refuse
                found.refused.append(sizes)
                continue
        found.calls += 1
        names = [f"{n} at {dict(sizes)}" for n in net.output_names]
        agree(dict(zip(names, got, strict=True)), dict(zip(names, want, strict=True)), tolerance)
        shapes = tuple(given[n].shape for n in net.inputs)
        steps = net.program(shapes).plan.steps
        found.reference += [s.op for s in steps if s.kind == "reference"]
    programs = net._model._free  # type: ignore[attr-defined]
    if programs is not None:
        found.programs = len(programs.found)
        found.held = [
            shown(form)
            for free, _ in programs.found
            for form, relation in free.scope.conditions
            if relation == "=="
        ]
    return found


# ---- whole models

PICTURES = ((1, 12, 12), (2, 7, 9), (3, 5, 16), (1, 17, 15), (2, 31, 2), (1, 64, 47), (5, 3, 3))


def pictured(name: str) -> tuple[Graph, dict[str, Any]]:
    """A graph of `tests.models` whose batch and spatial sizes are free, where it has such."""
    graph = GRAPHS[name]()
    dims = {
        v.name: ("n", v.dims[1], "h", "w") if v.rank == 4 else ("n", "m")[: v.rank]
        for v in graph.inputs
        if v.rank in (2, 4)
    }
    if name == "recurrent":
        dims = {"x": ("t", "n", 10)}
    types = {v.name: v.type.like(shape=dims[v.name]) for v in graph.inputs}
    if name == "mixed":
        types["x"] = types["x"].like(shape=("n", 6))
    return Copier(graph).copy(types), dims


# ---- one operator


@dataclass(frozen=True)
class Single:
    """A sample of an operator as a model, all dims of whose first input are free."""

    sample: Sample
    names: tuple[tuple[str | int, ...] | None, ...]
    """The dims of each input; None where it is a constant."""

    def graph(self) -> Graph:
        graph, values = Graph("single"), []
        for i, (array, dims) in enumerate(zip(self.sample.inputs, self.names, strict=True)):
            if array is None:
                values.append(None)
            elif dims is None:
                values.append(graph.const(array, f"c{i}"))
            else:
                values.append(graph.input(f"x{i}", Type(array.dtype, dims)))
        graph.outputs = list(graph.add(OPS[self.sample.op], *values, **self.sample.attrs).outputs)
        return graph

    def calls(self) -> Iterator[Sizes]:
        free = list(dict.fromkeys(d for n in self.names for d in n or () if isinstance(d, str)))
        for sizes in (EXAMPLE, *OTHERS):
            yield dict(zip(free, sizes, strict=False))

    def feed(self, sizes: Sizes) -> dict[str, Array]:
        """Numbers of the sample's, in other places."""
        rng, found = np.random.default_rng(sum(sizes.values())), {}
        for i, (array, dims) in enumerate(zip(self.sample.inputs, self.names, strict=True)):
            if dims is not None:
                shape = tuple(sizes[d] if isinstance(d, str) else d for d in dims)
                found[f"x{i}"] = drawn(rng, array, shape)
        return found


def drawn(rng: np.random.Generator, like: Array, shape: tuple[int, ...]) -> Array:
    """Numbers between the least and the greatest of an array."""
    if like.dtype == np.bool_:
        return rng.random(shape) < 0.5
    flat = like.reshape(-1).astype(np.float64)
    flat = flat[np.isfinite(flat)]
    low, high = (float(flat.min()), float(flat.max())) if flat.size else (-1.0, 1.0)
    if like.dtype.kind in "iu":
        return rng.integers(int(low), int(high) + 1, shape).astype(like.dtype)
    return np.asarray(rng.uniform(low, high + 1e-3, shape)).astype(like.dtype)


def singles(each: int) -> list[Single]:
    """Of every operator that has samples, so many of its samples, those of most dims first."""
    chosen: dict[str, list[Single]] = {}
    for sample in sorted(load_samples(), key=_order):
        first = sample.inputs[0] if sample.inputs else None
        if first is None or first.dtype not in (np.float32, np.int64, np.bool_) or not first.ndim:
            continue
        if sample.op in RANDOM or 0 in first.shape:
            continue
        one = Single(sample, tuple(_dims(sample)))
        kept = chosen.setdefault(sample.op, [])
        if len(kept) < each and str(one.sample) not in [str(k.sample) for k in kept]:
            kept.append(one)
    return [one for kept in chosen.values() for one in kept]


def _order(sample: Sample) -> tuple[str, bool, int]:
    first = sample.inputs[0] if sample.inputs else None
    rank = 0 if first is None else first.ndim
    return sample.op, first is None or first.dtype != np.float32, -rank


def _dims(sample: Sample) -> Iterator[tuple[str | int, ...] | None]:
    """The first input's dims are free; other floats of as many dims or fewer have those of its
    sizes, counted from the last, and are constants where none fits."""
    first = sample.inputs[0]
    own = tuple(f"d{i}" for i in range(first.ndim))
    yield own
    for array in sample.inputs[1:]:
        if array is None or array.dtype != first.dtype or not 0 < array.ndim <= first.ndim:
            yield None
            continue
        last = first.shape[first.ndim - array.ndim :], own[first.ndim - array.ndim :]
        dims = tuple(d if n == m else n for n, m, d in zip(array.shape, *last, strict=True))
        yield dims if any(isinstance(d, str) for d in dims) else None
