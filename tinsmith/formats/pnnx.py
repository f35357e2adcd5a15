"""Reads and writes PNNX files: `.pnnx.param` is text with one operator a line, `.pnnx.bin` a zip of
uncompressed weights.

    7767517
    <operators> <operands>
    <type> <name> <ins> <outs> <inputs> <outputs> key=value @weight=(2,3)f32 $input=0 #0=(1,?)f32

Operands are the values. `@weight` is the type and shape of a weight, whose bytes are the entry
`<name>.<weight>` of the zip; `$input=0` says that the operand 0 is the operator's parameter
`input`; `#0` is the element type and shape of the operand 0, in which `?` is unknown."""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from functools import partial
from io import BytesIO
from math import prod
from pathlib import Path
from struct import unpack_from
from typing import Any

import numpy as np

from tinsmith.errors import ModelFileError, counted
from tinsmith.formats import PNNX, describe
from tinsmith.formats.mapped import Files, MappedFile, opened
from tinsmith.formats.whole import whole_file
from tinsmith.graph import Array
from tinsmith.graph.types import dtype_of
from tinsmith.records import dataclass

MAGIC = "7767517"
DTYPES = {
    "f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16", "i64": "int64",
    "i32": "int32", "i16": "int16", "i8": "int8", "u8": "uint8", "bool": "bool",
    "c64": "complex64", "c128": "complex128", "c32": "", "null": "",
}  # fmt: skip
"""PNNX's names of element types -> numpy's; "" for unknown, and for types that numpy lacks."""

TEXT = "expr"
"""The parameter that holds a formula as text: it is not parsed as a number or list."""

_INT = re.compile(r"-?\d{1,18}")
_FLOAT = re.compile(r"-?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|-?inf|-?nan", re.I)
_TENSOR = re.compile(r"\(((?:\d{1,18}|\?)(?:,(?:\d{1,18}|\?))*)?\)(\w+)")
_LOCAL = b"PK\x03\x04"
_WORDS = {"None": None, "True": True, "False": False, "()": (), "[]": ()}


@dataclass(frozen=True)
class Tensor:
    """Element type ("" if unknown) and shape of a weight or operand; None is an unknown dim."""

    dtype: str
    shape: tuple[int | None, ...]


class Operator:
    """One line of the file; `inputs` and `outputs` are operands.

    params    name -> value (`value_of`)
    weights   name -> type and shape
    keywords  name of a parameter -> the operand that is its value
    tensors   name of an operand -> type and shape
    line      the number of the line, from 1; 0 if it was read from no file
    """

    def __init__(
        self, type: str, name: str, inputs: Iterable[str] = (), outputs: Iterable[str] = ()
    ) -> None:
        self.type, self.name, self.inputs, self.outputs = type, name, [*inputs], [*outputs]
        self.params: dict[str, Any] = {}
        self.weights: dict[str, Tensor] = {}
        self.keywords: dict[str, str] = {}
        self.tensors: dict[str, Tensor] = {}
        self.line = 0


class PnnxModel:
    """The operators of a model, and its weights: the path or the bytes of the zip, which `array`
    opens, or None. `file` is the name of the .param file ("" for bytes), `files` are the files
    opened so far."""

    def __init__(self, file: str, operators: list[Operator], files: Files, weights: Any):
        self.file, self.operators, self.files, self.weights = file, operators, files, weights
        self.name = file or "the model"
        self.bin = weights if isinstance(weights, Path) else f"the .bin of {self.name}"
        self._entries: dict[str, memoryview] | None = None

    def array(self, op: Operator, weight: str) -> Array:
        """A weight as a view of the zip (bools as a copy). Raises ModelFileError."""
        tensor, label = op.weights[weight], f"{op.name}.{weight}"
        if self._entries is None:
            self._entries = self._opened()
        data = self._entries.get(label)
        if data is None:
            raise ModelFileError(f"{self.bin} holds no {label!r}, which {self.name} needs")
        dtype = dtype_of(tensor.dtype)
        count = prod(d or 0 for d in tensor.shape)
        if len(data) != count * dtype.itemsize:
            raise ModelFileError(
                f"{label!r} of {self.bin} has {len(data)} bytes; {self.name} says that it has "
                f"{count} elements of {dtype.name}"
            )
        kind = np.uint8 if dtype.kind == "b" else dtype
        flat = np.frombuffer(data, kind) if data else np.zeros(0)
        return flat.astype(dtype, copy=False).reshape([d or 0 for d in tensor.shape])

    def _opened(self) -> dict[str, memoryview]:
        """Open the zip of weights; return its entries: name -> bytes. Raises ModelFileError."""
        weights = self.weights
        if weights is None or (isinstance(weights, Path) and not weights.exists()):
            where = f"{self.bin} is not there" if weights else "bytes have no file beside them"
            raise ModelFileError(
                f"{self.name} has no weights: {where}; random_weights=SEED (--random-weights SEED) "
                "gives it seeded random ones"
            )
        try:
            return _entries(self.files.map(weights) if isinstance(weights, Path) else weights)
        except OSError as error:
            raise ModelFileError(f"{self.bin} cannot be read: {error}") from error
        except Exception as error:  # a damaged zip file can fail in any way
            raise ModelFileError(f"{self.bin} is damaged, or no weights: {error}") from error


def sniff(head: bytes, path: str) -> bool:
    return describe(head) == PNNX


def read(source: Any) -> PnnxModel:
    """Read a model: a `.param` file by path, with the `.bin` file beside it, or as bytes, without
    weights, or a pair (param, bin) of paths or bytes. Raises ModelFileError."""
    source, weights = source if isinstance(source, tuple) else (source, None)
    file, data, files = opened(source)
    name = file or "the model"
    try:
        text = bytes(data).decode()
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{name} is no text: {error}") from error
    lines = [(i, line.split()) for i, line in enumerate(text.splitlines(), 1) if line.strip()]
    first, counts = ([words for _, words in lines[:2]] + [[], []])[:2]
    if first != [MAGIC] or len(counts) != 2 or not _INT.fullmatch(counts[0]):
        raise ModelFileError(f"{name} does not begin with {MAGIC} and two counts")
    if int(counts[0]) != len(lines) - 2:
        short = ": it was cut short?" if len(lines) - 2 < int(counts[0]) else ""
        raise ModelFileError(
            f"{name} has {counted(len(lines) - 2, 'operator')}, where its second line says "
            f"{counts[0]}{short}"
        )
    found: dict[str, Operator] = {}
    for at, words in lines[2:]:
        try:
            op = _operator(words)
            op.line = at
        except ValueError as error:
            raise ModelFileError(f"line {at} of {name}: {error}") from error
        if found.setdefault(op.name, op) is not op:
            raise ModelFileError(f"line {at} of {name}: {op.name!r} is the name of two operators")
    if weights is None and file:
        weights = Path(source).with_suffix(".bin")
    elif isinstance(weights, str | os.PathLike):
        weights = Path(weights)
    return PnnxModel(file, [*found.values()], files, weights)


def _operator(words: list[str]) -> Operator:
    """Parse one line. Raises ValueError."""
    if len(words) < 4 or not all(_INT.fullmatch(w) and int(w) >= 0 for w in words[2:4]):
        raise ValueError("it needs a type, a name and the numbers of inputs and outputs")
    ins, outs = int(words[2]), int(words[3])
    operands, rest = words[4 : 4 + ins + outs], words[4 + ins + outs :]
    if len(operands) < ins + outs or any("=" in o for o in operands):
        raise ValueError(f"it lists fewer operands than the {ins + outs} that it says")
    op = Operator(words[0], words[1], operands[:ins], operands[ins:])
    for word in rest:
        key, equals, value = word.partition("=")
        if not equals or key in ("", "@", "$", "#"):
            raise ValueError(f"{word!r} is not key=value")
        if key[0] == "@":
            op.weights[key[1:]] = _tensor(value)
        elif key[0] == "#":
            op.tensors[key[1:]] = _tensor(value)
        elif key[0] != "$":
            op.params[key] = value if key == TEXT else value_of(value)
        elif value not in op.inputs:
            raise ValueError(f"{word!r} names none of its inputs")
        else:
            op.keywords[key[1:]] = value
    return op


def _tensor(text: str) -> Tensor:
    found = _TENSOR.fullmatch(text)
    if not found or found[2] not in DTYPES:
        raise ValueError(f"{text[:80]!r} is no element type and shape")
    dims = found[1].split(",") if found[1] else []
    return Tensor(DTYPES[found[2]], tuple(None if d == "?" else int(d) for d in dims))


def value_of(text: str) -> Any:
    """Parse a parameter: None, a bool, an int, a float, a text, or a tuple of these."""
    if text in _WORDS:
        return _WORDS[text]
    if text[:1] in "([" and text[-1:] in ")]":
        return tuple(value_of(item) for item in text[1:-1].split(",") if item)
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _entries(data: Any) -> dict[str, memoryview]:
    """Name -> bytes, not copied, of each entry of an uncompressed zip. Of a MappedFile, checksums
    are checked only before the weights are used (`MappedFile.checks`). Raises ValueError,
    ModelFileError, and the errors of `zipfile`."""
    whole, found, sums = memoryview(data).cast("B"), {}, {}
    mapped = isinstance(data, MappedFile)
    with zipfile.ZipFile(data if mapped else BytesIO(data)) as archive:  # type: ignore[arg-type]
        for info in archive.infolist():
            at = info.header_offset
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                raise ValueError(f"{info.filename!r} is compressed or encrypted")
            if not 0 <= at <= len(whole) - 30 or whole[at : at + 4] != _LOCAL:
                raise ValueError(f"{info.filename!r} does not begin where the list of entries says")
            start = at + 30 + sum(unpack_from("<HH", whole, at + 26))
            if start + info.file_size > len(whole):
                raise ValueError(f"{info.filename!r} goes on beyond the end of the file")
            found[info.filename] = whole[start : start + info.file_size]
            sums[info.filename] = info.CRC
    if mapped:
        data.checks = (partial(_check_sums, found, sums),)
    else:
        _check_sums(found, sums)
    return found


def _check_sums(
    found: dict[str, memoryview], sums: dict[str, int], mapped: MappedFile | None = None
) -> None:
    where = f" of {mapped.path}" if mapped is not None else ""
    for name, part in found.items():
        if zlib.crc32(part) != sums[name]:
            raise ModelFileError(f"{name!r}{where} is damaged: its checksum differs")


# ---- writing


def text_of(value: Any) -> str:
    """A parameter as text; floats with the digits that give the same number again."""
    if isinstance(value, tuple | list):
        return f"({','.join(map(text_of, value))})"
    if isinstance(value, float):
        text = repr(value)
        return text if re.search(r"[.ein]", text) else f"{text}.0"
    return str(value)


def param_text(operators: list[Operator]) -> str:
    """The text of the `.param` file of operators."""
    names = {value: name for name, value in reversed(DTYPES.items()) if value}
    shown = lambda t: (  # noqa: E731
        f"({','.join('?' if d is None else str(d) for d in t.shape)}){names[t.dtype]}"
    )
    lines = [MAGIC, f"{len(operators)} {len({o for op in operators for o in op.outputs})}"]
    for op in operators:
        head = f"{op.type:24} {op.name:24} {len(op.inputs)} {len(op.outputs)}"
        words = [head, *op.inputs, *op.outputs]
        words += [f"{k}={text_of(v)}" for k, v in sorted(op.params.items())]
        words += [f"@{k}={shown(t)}" for k, t in sorted(op.weights.items())]
        words += [f"${k}={v}" for k, v in op.keywords.items()]
        words += [f"#{k}={shown(t)}" for k, t in op.tensors.items() if t.dtype in names]
        lines.append(" ".join(words))
    return "\n".join(lines) + "\n"


def write(path: Path, operators: list[Operator], arrays: Mapping[str, Array]) -> None:
    """Write operators to `path`, and their weights (by `<operator>.<weight>`) to the `.bin` file
    beside it. Both are written under other names, then renamed. Raises OSError."""
    with whole_file(path) as param, whole_file(path.with_suffix(".bin")) as bin:
        param.write(param_text(operators).encode())
        with zipfile.ZipFile(bin, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                archive.writestr(zipfile.ZipInfo(name), np.ascontiguousarray(array).tobytes())
