"""Model files -> Graph. One module or package a format, found by listing this folder.

A format registers itself:

    FRONTENDS.register("onnx", Frontend("ONNX", (".onnx",), sniff, load))
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tinsmith import budget
from tinsmith.errors import MissingFile, ModelFileError, ModelKindError, OptionError, suggest
from tinsmith.formats import FOREIGN, HEAD, describe
from tinsmith.formats.mapped import open_file
from tinsmith.graph import Graph
from tinsmith.records import dataclass
from tinsmith.registry import Registry

__all__ = ["FRONTENDS", "Frontend", "load"]


@dataclass(frozen=True)
class Frontend:
    """One format that models are read from: a row of `FRONTENDS`.

    title    the name of the format in messages
    suffixes usual endings of its files, for messages only
    sniff    sniff(head, path): whether a file with these first bytes is of this format; path is ""
             for bytes
    load     load(source, **options): the Graph of a path, of bytes, or of an object for which
             `accepts` is true
    options  the names of the keywords that `load` takes: see the function `load` below
    pairs    whether `load` also takes two files, (param, weights), each a path or bytes; `sniff`
             then looks at the first"""

    title: str
    suffixes: tuple[str, ...]
    sniff: Callable[[bytes, str], bool]
    load: Callable[..., Graph]
    accepts: Callable[[Any], bool] = lambda source: False
    options: tuple[str, ...] = ()
    pairs: bool = False


FRONTENDS: Registry[Frontend] = Registry("model format", "tinsmith.frontends", deep=False)


def load(source: Any, **options: Any) -> Graph:
    """The graph of a model: a path, the bytes of a file, an `onnx.ModelProto`, or a pair (param,
    weights) of paths or bytes where a format has two files. A Graph is returned as it is.

    The format is recognised by content. `options`, if the format takes them:

    random_weights  a seed: weights are random instead of read, so the file of weights may be absent
    batch           "free": inputs of any batch "N" (PNNX, ncnn); for ncnn also a name or a size
    input_shapes    {name of an input: shape}, for inputs whose shapes the file leaves open (ncnn:
                    also in place of the file's)

    Raises ModelFileError for a file that is missing, damaged or of no known format, ImportFailed
    for operators that cannot be imported, and OptionError for an option that is wrong or of another
    format."""
    options = {name: value for name, value in options.items() if value is not None}
    if isinstance(source, Graph):
        _check_options(options, "a graph", ())
        return source
    if "input_shapes" in options:
        options["input_shapes"] = _shapes(options["input_shapes"])
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else "the model"
    try:
        with budget.told(f"loading {name!r}"):
            return _fitting(_loaded(source, options), options.get("input_shapes", {}))
    except RecursionError as error:
        raise ModelFileError(f"{name!r} is nested too deeply") from error


def _shapes(given: Any) -> dict[str, tuple[int | str, ...]]:
    """The value of the option `input_shapes` as {name: tuple of dims}. Raises OptionError where it
    is no such mapping."""
    if not isinstance(given, Mapping):
        raise OptionError(f'input_shapes is shapes by names, {{"x": (1, 3, 8, 8)}}, not {given!r}')
    found = {}
    for name, shape in given.items():
        dims = tuple(shape) if isinstance(shape, list | tuple) else None
        if dims is None or not all(
            (type(d) is int and 0 <= d < 2**31) or (isinstance(d, str) and d.isidentifier())
            for d in dims
        ):
            raise OptionError(
                f"input_shapes: the shape of {name!r} is sizes and names of free ones, "
                f"not {shape!r}"
            )
        found[name] = dims
    return found


def _fitting(graph: Graph, shapes: Mapping[str, Any]) -> Graph:
    """Return `graph`. Raises OptionError unless its inputs have these `shapes`, {name: dims}: some
    formats keep the shapes of the file."""
    there = {v.name: v for v in graph.inputs}
    for name, shape in shapes.items():
        if name not in there:
            raise OptionError(
                f"input_shapes: {graph.name!r} has no input {name!r}.{suggest(name, there)} "
                f"Its inputs are {', '.join(there) or 'none'}."
            )
        if there[name].shape != shape:
            raise OptionError(
                f"input_shapes gives {name!r} {shape}; the model has {there[name].type}, which a "
                "file of this format keeps"
            )
    return graph


def _loaded(source: Any, options: dict[str, Any]) -> Graph:
    pair = isinstance(source, tuple) and len(source) == 2
    files = [_begun(file) for file in (source if pair else [source])]
    if files[0] is None or files[-1] is None:
        for row in FRONTENDS.rows():
            if row.accepts(source):
                return _read(row, source, options)
        hint = " A Net has its graph: net.source()." if hasattr(source, "source") else ""
        raise ModelKindError(
            f"cannot load a model from {type(source).__name__}: give a path, the bytes of a file, "
            f"an onnx.ModelProto, or for ncnn and PNNX a pair (param, bin) of paths or bytes.{hint}"
        )
    row, *others = [_row_of(*file) for file in files if file]
    if row is not None and (row.pairs or not pair):
        return _read(row, source, options)
    if any(other and other.pairs for other in others):
        raise ModelFileError("a pair is (param, bin): are the two files swapped?")
    if row is not None:
        raise ModelKindError(f"a model of {row.title} is no pair of files")
    raise ModelFileError(_unknown(*files[0]))


def recognise(path: Path) -> None:
    """Raise ModelFileError where a file is missing, or does not begin as a model of a known format:
    a quick check."""
    head = _head(path)
    if _row_of(head, os.fspath(path)) is None:
        raise ModelFileError(_unknown(head, os.fspath(path)))


def _begun(file: Any) -> tuple[bytes, str] | None:
    """(first bytes, path) of a file given by its path, or as bytes (path ""); None for an object
    that is neither. Raises ModelFileError."""
    if isinstance(file, bytes | bytearray | memoryview):
        return bytes(memoryview(file).cast("B")[:HEAD]), ""
    if file == "":
        raise ModelFileError("the path of the model is empty")
    if isinstance(file, str | os.PathLike):
        return _head(Path(file)), os.fspath(file)
    return None


def _row_of(head: bytes, path: str) -> Frontend | None:
    """The format of a file by its first bytes and path; None where it is of no known format."""
    return next((row for row in FRONTENDS.rows() if row.sniff(head, path)), None)


def _read(row: Frontend, source: Any, options: dict[str, Any]) -> Graph:
    _check_options(options, row.title, (*row.options, "input_shapes"))  # `_fitting` checks these
    return row.load(source, **{k: v for k, v in options.items() if k in row.options})


def _check_options(options: dict[str, Any], title: str, known: tuple[str, ...]) -> None:
    """Raise OptionError unless all `options` are among the `known` ones of a format (`title`), and
    random_weights is a seed."""
    for name, value in options.items():
        if name not in known:
            raise OptionError(f"{name}={value!r} means nothing where the model is {title}")
    seed = options.get("random_weights", 0)
    if type(seed) is not int or seed < 0:
        raise OptionError(f"random_weights is a seed, a whole number from 0 on, not {seed!r}")


def _head(path: Path) -> bytes:
    """The first HEAD bytes of a model file. Raises ModelFileError, MissingFile for a path without a
    file."""
    try:
        there = path.exists()
    except (OSError, ValueError) as error:  # too long, or with a null character
        raise ModelFileError(f"{str(path)[:200]!r} is no path: {error}") from error
    if not there:
        hint = " ('~' is not expanded: Path(...).expanduser())" * any(
            part.startswith("~") for part in path.parts
        )
        raise MissingFile(f"there is no file {str(path)!r}{hint}")
    if path.is_dir():
        raise ModelFileError(f"{str(path)!r} is a folder, not a model file")
    try:
        with open_file(path) as file:
            return file.read(HEAD)
    except OSError as error:
        raise ModelFileError(f"{str(path)!r} cannot be read: {error.strerror or error}") from error


def _unknown(head: bytes, path: str) -> str:
    name = repr(Path(path).name) if path else "the model"
    known = ", ".join(row.title for row in FRONTENDS.rows())
    claimed = [r.title for r in FRONTENDS.rows() if path.lower().endswith(r.suffixes)]
    hint = f" Its name says {' or '.join(claimed)}, its content does not." if claimed else ""
    found = describe(head, path)
    if found in FOREIGN:
        hint = " Convert it to ONNX first."
    params = [path.removesuffix(".bin") + end for end in (".param", ".param.bin")]
    if path.endswith(".bin") and (there := [p for p in params if Path(p).is_file()]):
        hint = f" Give {there[0]}, which lies beside it: a .bin file holds its weights."
    return f"{name} looks like {found}, not a model of a known format ({known}).{hint}"
