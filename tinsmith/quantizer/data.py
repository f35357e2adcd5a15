"""Calibration data: batches that fit a model's inputs, read when they are used."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith.errors import CalibrationError, MissingFile, TypeRuleError
from tinsmith.formats import npz
from tinsmith.graph import Array, Graph, Type, Value, shapes_agree
from tinsmith.graph.copy import shaped_types
from tinsmith.progress import tell
from tinsmith.runtime.inputs import transposing

Batch = dict[str, Array]
FILES = (".npy", ".npz")
"""The endings of the files of a folder that are read as arrays."""
LABELS = ("labels", "label")
"""Names of arrays with the right class of each sample."""


class Samples:
    """The calibration data (`data` of `quantize`) as batches {input name: array}. Each iteration
    reads them again, in the same order: files of a folder, and functions in a list, only when they
    are reached. Raises CalibrationError, when it is made, for data that do not fit the inputs, or
    that are constant for an input that needs a range; MissingFile.

    batch     samples of a batch, for inputs whose type does not fix them; 1 where nodes fix that
    ranged    names of the inputs that need a range
    number    how many batches there are
    total     how many samples there are
    labels    the right class of each sample, [total]; None if the data hold no labels
    left_out  notes on files that are not read
    """

    def __init__(self, graph: Graph, data: Any, batch: int, ranged: Collection[str]) -> None:
        self.inputs, self.ranged = list(graph.inputs), ranged
        if not self.inputs:
            raise CalibrationError("the model has no inputs: no data could calibrate it")
        self.batch = batch
        self.number = self.total = 0
        self.left_out: list[str] = []
        self.labels: Array | None = None
        self._sources = list(self._read(data))
        if not self._sources:
            raise CalibrationError("there are no data to calibrate with")
        self._fit(graph)
        self._check()

    def _read(self, data: Any) -> Iterator[tuple[Any, Callable[[], Batch]]]:
        """Yield (source, function that reads it) for each file, arrays, or item of a list; `source`
        is a Path for a file."""
        source: Any = "the data"
        if isinstance(data, str | os.PathLike):
            source = Path(data)
            if not source.exists():
                raise MissingFile(f"there is no file {str(source)!r}")
            if source.is_dir():
                there = sorted(source.iterdir())
                files = [f for f in there if f.suffix in FILES]
                if not files:
                    raise CalibrationError(
                        f"{source} holds no .npy and no .npz files; pictures are decoded only by "
                        "the command `tinsmith quantize`, for models of one input"
                    )
                self.left_out += left_out(source, set(there).difference(files))
                for file in files:
                    yield file, lambda file=file: self._named(npz.read_arrays(file), file)
                return
            data = npz.read_arrays(source)
        if isinstance(data, Mapping):
            named = self._named(data, source)
            yield source, lambda: named
        elif isinstance(data, np.ndarray):
            yield from self._read({self.inputs[0].name: data})
        elif isinstance(data, Iterable):
            for item in data:
                if callable(item):
                    read: Callable[[], Any] = item
                    yield "", lambda read=read: self._named(self._ordered(read()), "the data")
                else:
                    whole = isinstance(item, str | os.PathLike)
                    yield from self._read(item if whole else self._ordered(item))
        else:
            raise CalibrationError(
                f"data are arrays by name, an .npz file, a folder, or a list of these, not "
                f"{type(data).__name__}"
            )

    def _ordered(self, item: Any) -> Mapping[str, Array]:
        """Return input name -> array, for an array or a list of arrays in the inputs' order; arrays
        by name as they are. Raises CalibrationError."""
        if isinstance(item, Mapping):
            return item
        several = isinstance(item, Iterable) and not isinstance(item, np.ndarray)
        arrays = list(item) if several else [item]
        if len(arrays) != len(self.inputs):
            raise CalibrationError(
                f"the model has {len(self.inputs)} inputs, {len(arrays)} arrays are given"
            )
        return {v.name: np.asarray(a) for v, a in zip(self.inputs, arrays, strict=True)}

    def _named(self, arrays: Mapping[str, Array], source: Any) -> Batch:
        """Return the inputs among named arrays, and labels. For a model of one input, its array may
        have no name (.npy, `UNNAMED`) if no other but labels is there. Raises CalibrationError,
        which calls the data `source`, if an input is missing."""
        found: Batch = {}
        arrays = {str(n): a for n, a in arrays.items()}
        for v in self.inputs:
            value = npz.whole(v.name, arrays)
            if value is None and len(self.inputs) == 1:
                rest = [n for n in arrays if n not in LABELS]
                if rest == [npz.UNNAMED] or (rest and Path(source).suffix == ".npy"):
                    value = arrays[rest[0]]
            if not isinstance(value, np.ndarray):
                raise CalibrationError(
                    f"{source} holds no array for the input {v.name!r}: it holds "
                    f"{', '.join(arrays) or 'nothing'}"
                    + "; give it under that name, or alone without a name"
                    * (len(arrays) == 1)
                )
            found[v.name] = value
        return found | {n: arrays[n] for n in LABELS if n in arrays and n not in found}

    def __iter__(self) -> Iterator[Batch]:
        return self._batches([])

    def told(self, what: str) -> Iterator[Batch]:
        """Yield all batches; report progress as `what`."""
        for i, batch in enumerate(self):
            tell(i, self.number, what)
            yield batch

    def _batches(self, labels: list[Array]) -> Iterator[Batch]:
        """Yield all batches, and add the labels of each source to `labels`."""
        for source, read in self._sources:
            arrays = read()
            try:
                pieces = {v.name: _cut(v, arrays[v.name], self.batch) for v in self.inputs}
            except CalibrationError as error:
                if not isinstance(source, Path):
                    raise
                raise CalibrationError(f"{source}: {error}") from error
            if len(set(map(len, pieces.values()))) > 1:
                raise CalibrationError(
                    "the inputs have data for different numbers of batches: "
                    + ", ".join(f"{n} {len(own)}" for n, own in pieces.items())
                )
            labels += [np.asarray(a).reshape(-1) for n, a in arrays.items() if n not in pieces]
            for one in zip(*pieces.values(), strict=True):
                yield dict(zip(pieces, one, strict=True))

    def _fit(self, graph: Graph) -> None:
        """Set `batch` to 1 if the graph takes one sample and not the first batch, as with a Reshape
        to [1, -1]. Raises CalibrationError if it takes neither."""
        told, dims, name = "", "", self.inputs[0].name
        for batch in dict.fromkeys((self.batch, 1)):
            self.batch = batch
            first = next(self._batches([]), None)
            if first is None:
                return
            shapes = [first[v.name].shape for v in self.inputs]
            try:
                graph.clone(shaped_types(graph, shapes))
                return
            except TypeRuleError as error:
                told = told or f"{list(shapes[0])}: {error}"
                dims = ", ".join(map(str, ("B", *shapes[0][1:])))
        raise CalibrationError(
            f"the model does not take {name!r} as {told}. If its nodes fix a batch B, load it with "
            f"that: tinsmith.load(MODEL, input_shapes={{{name!r}: ({dims})}})"
        )

    def _check(self) -> None:
        """Read all data once, to set `number`, `total` and `labels`. Raises CalibrationError for
        data that are empty, or constant for an input in `ranged`."""
        ends: dict[str, tuple[float, float]] = {}
        elements, labels = 0, list[Array]()
        for batch in self._batches(labels):
            self.number += 1
            self.total += next((len(x) if x.ndim else 1 for x in batch.values()), 0)
            for name, x in batch.items():
                elements += x.size
                if x.dtype.kind != "f" or x.size == 0:
                    continue
                low, high = float(x.min()), float(x.max())
                old = ends.get(name, (low, high))
                ends[name] = min(low, old[0]), max(high, old[1])
        self.labels = np.concatenate(labels) if labels else None
        if not elements:
            raise CalibrationError("there are no data to calibrate with: the arrays are empty")
        for name, (low, high) in ends.items():
            if low == high and name in self.ranged:
                raise CalibrationError(
                    f"the data for {name!r} are constant, {low:g} everywhere: no range follows "
                    "from that; give inputs as the model sees them"
                )


def left_out(folder: Path, files: Iterable[Path]) -> list[str]:
    """Return a note that names files of a folder that are not read, as a list; [] if `files` is
    empty."""
    names = sorted(f.name for f in files)
    more = ", ..." * (len(names) > 5)
    return [f"not read of {folder}: {', '.join(names[:5])}{more}"] if names else []


def _cut(v: Value, x: Array, batch: int) -> list[Array]:
    """Cut an array along its first axis into batches for an input v: of the input's fixed size,
    else of `batch` samples. A single sample may lack the axis; for an input of unknown or no axes
    the array is one batch. An array of v's kind, int or float, but of other bits is converted.
    Raises CalibrationError for another type or shape, for NaN or infinity, and for samples that do
    not fill the last batch of a fixed size."""
    type_: Type = v.type
    if x.dtype != type_.dtype:
        kinds = {"i" if kind == "u" else kind for kind in (x.dtype.kind, type_.dtype.kind)}
        if len(kinds) > 1 or not kinds <= {"i", "f"}:
            raise CalibrationError(
                f"the data for {v.name!r} are {x.dtype}, the model takes {type_.dtype}; convert "
                "them as for any other call"
            )
        x = x.astype(type_.dtype)
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise CalibrationError(f"the data for {v.name!r} hold NaN or infinity")
    dims = type_.shape
    if dims is None:
        return [x]
    if x.ndim == len(dims) - 1 and shapes_agree(x.shape, dims[1:]):
        x = x[None]
    if x.ndim != len(dims) or not shapes_agree(x.shape[1:], dims[1:]):
        raise CalibrationError(
            f"the data for {v.name!r} are {list(x.shape)}, the model takes {type_}"
            + transposing(dims, x.shape)
        )
    if not dims:
        return [x]
    size = dims[0] if isinstance(dims[0], int) else batch
    if isinstance(dims[0], int) and len(x) % size:
        raise CalibrationError(
            f"the {len(x)} samples for {v.name!r} make up no batches of {size}, which the model "
            "takes"
        )
    return [x[i : i + size] for i in range(0, len(x), size)]
