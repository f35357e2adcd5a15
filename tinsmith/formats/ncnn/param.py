"""Reads and writes ncnn's .param files, of text and binary.

In text, a layer is `Type name inputs outputs names... id=value...`, separated by white space:
inputs and outputs are numbers, names those of the values, ids those of parameters (see `schema`).
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import count as counter
from typing import Any

import numpy as np

from tinsmith.errors import ImportFailed, ModelFileError, counted, suggest
from tinsmith.formats.ncnn.layers import LAYERS
from tinsmith.formats.ncnn.schema import MOST_PARAMS, Param, Schema
from tinsmith.records import dataclass

MAGIC = 7767517
BINARY_MAGIC = struct.pack("<i", MAGIC)
CUSTOM = 1 << 8
"""The bit that marks types without a number of their own in binary files."""
END, LISTS, TEXTS = -233, -23300, -23400
HALF = 1 << 31
SMALLEST = 1 << 23
"""An integer of this size or more, in the place of a float, is the float's bits: 1077936128 is 3.0.
ncnn reads all integers so; smaller ones would be denormal floats, and are read as they stand."""
_TOKEN = re.compile(r'(?:-?\d+="[^"\n]*")|\S+')
_PARAM = re.compile(r"(-?\d+)=(.*)", re.S)
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")


@dataclass
class Layer:
    """A layer of a file: `inputs` and `outputs` name its values, `given` are the parameters in the
    file by name, `weights` its arrays by name, once they are read."""

    type: str
    name: str
    inputs: list[str]
    outputs: list[str]
    given: dict[str, Any]
    weights: dict[str, Any]
    line = 0  # no field: number of the line in a text file, from 1

    @property
    def schema(self) -> Schema:
        return LAYERS[self.type]


Row = tuple[Layer, dict[int, Any], str]
"""A layer as read, still without parameters; these by number, as in the file (`_given`); and words
for the layer in messages."""


def read_param(data: memoryview, model: str) -> list[Layer]:
    """Read the layers of a .param file, text or binary, without weights. Raises ModelFileError, and
    ImportFailed where layer types are not known."""
    if bytes(data[:4]) == BINARY_MAGIC:
        rows, convert = _binary_rows(data, model), _from_bytes
    else:
        rows, convert = _text_rows(data, model), _from_text
    layers: list[Layer] = []
    unknown: dict[str, list[str]] = {}
    for layer, raw, where in rows:
        if layer.type in LAYERS:
            layer.given = _given(layer.schema, raw, where, convert)
            layers.append(layer)
        else:
            unknown.setdefault(layer.type, []).append(layer.name)
    if unknown:
        lines = [
            f"  {type} x{len(names)}: there is no layer type of that name."
            f"{suggest(type, LAYERS)} [{', '.join(map(repr, names[:3]))}]"
            for type, names in unknown.items()
        ]
        raise ImportFailed(
            f"{model} cannot be imported; layers of {counted(len(unknown), 'type')} "
            "are not known:\n" + "\n".join(lines) + "\nWhat helps: register them, by "
            "tinsmith.formats.ncnn.schema.layer_type and tinsmith.frontends.ncnn.node.layer"
        )
    return layers


# ---- text


class _Tokens:
    """The words of a text file, read in order. Methods raise ModelFileError, in which `what` names
    the missing or wrong word."""

    def __init__(self, text: str, model: str) -> None:
        self.found, self.at, self.model = list[str](), 0, model
        self.ends: list[int] = []
        for line in text.split("\n"):
            self.found += _TOKEN.findall(line)
            self.ends.append(len(self.found))

    def line(self) -> int:
        """The number of the next word's line, from 1."""
        return bisect_right(self.ends, self.at) + 1

    def take(self, what: str) -> str:
        if self.at >= len(self.found):
            raise ModelFileError(f"{self.model} ends where {what} should be")
        self.at += 1
        return self.found[self.at - 1]

    def count(self, what: str, least: int = 0) -> int:
        token = self.take(what)
        if not re.fullmatch(r"-?\d{1,9}", token) or int(token) < least:
            raise ModelFileError(
                f"{self.model}: {what} is {token[:40]!r}, not a number from {least}"
            )
        return int(token)

    def param(self) -> tuple[int, str] | None:
        """Take the next word if it is a parameter "id=value"; else None."""
        found = _PARAM.match(self.found[self.at]) if self.at < len(self.found) else None
        if not found:
            return None
        self.at += 1
        return int(found[1][:12]), found[2]


def _text_rows(data: memoryview, model: str) -> Iterator[Row]:
    try:
        tokens = _Tokens(bytes(data).decode("utf-8"), model)
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{model} is neither text nor a binary .param file") from error
    if tokens.take("the number 7767517") != str(MAGIC):
        raise ModelFileError(f"{model} does not begin with {MAGIC}")
    count = tokens.count("the number of layers", 1)
    tokens.count("the number of values", 1)
    for i in range(count):
        line = tokens.line()
        type, name = tokens.take(f"layer {i} of {count}"), tokens.take(f"the name of layer {i}")
        where = f"{model}, line {line}, layer {name!r} ({type})"
        numbers = [tokens.count(f"{where}: its number of {n}") for n in ("inputs", "outputs")]
        inputs, outputs = ([tokens.take(f"{where}: a value") for _ in range(n)] for n in numbers)
        raw: dict[int, Any] = {}
        while (pair := tokens.param()) is not None:
            id, value = pair
            raw[LISTS - id if id <= LISTS else id] = value if id > LISTS else (value,)
        layer = Layer(type, name, inputs, outputs, {}, {})
        layer.line = line
        yield layer, raw, where


def _given(schema: Schema, raw: Mapping[int, Any], where: str, convert: Any) -> dict[str, Any]:
    """A layer's parameters by name, from `raw`: id -> value as in the file, which `convert(value,
    kind)` converts. One that the schema lacks is "parameter 7", of kind "". Raises ModelFileError
    for an id out of range or a value that `convert` refuses."""
    given: dict[str, Any] = {}
    for id, value in raw.items():
        if not 0 <= id < MOST_PARAMS:
            raise ModelFileError(
                f"{where}: it has a parameter {id}; they are 0 to {MOST_PARAMS - 1}"
            )
        param = schema.param(id) or Param(id, f"parameter {id}", "")
        try:
            given[param.name] = convert(value, param.kind)
        except (ValueError, OverflowError) as error:
            shown = value[0] if isinstance(value, tuple) else value
            raise ModelFileError(
                f"{where}: its {param.name} ({id}) is {str(shown)[:60]!r}: {error}"
            ) from error
    return given


def _from_text(value: Any, kind: str) -> Any:
    """Convert the text of a parameter to its kind ("": keep it), lists to tuples. `value` is
    (text,) if the id said that it is a list, "length,item,item...". Raises ValueError."""
    if kind == "":
        return value
    if isinstance(value, tuple):
        length, *items = value[0].rstrip(",").split(",")
        if int(length) != len(items):
            raise ValueError(f"{length} elements are announced, {len(items)} are there")
    else:
        if kind == "text":
            return value.strip('"')
        items = value.rstrip(",").split(",")
    numbers = [_number(item, kind) for item in items]
    if kind in ("ints", "floats"):
        return tuple(numbers)
    if len(numbers) != 1:
        raise ValueError(f"{len(numbers)} values, where one belongs")
    return numbers[0]


def _number(text: str, kind: str) -> Any:
    if not _NUMBER.match(text) or len(text) > 60:
        raise ValueError(f"{text[:40]!r} is no number")
    if kind in ("int", "ints"):
        number = int(float(text)) if not text.lstrip("+-").isdigit() else int(text)
        if not -(1 << 31) <= number < 1 << 31:
            raise ValueError("it is out of range")
        return number
    if text.lstrip("+-").isdigit() and abs(int(text)) >= SMALLEST:
        found = (
            struct.unpack("<f", struct.pack("<i", int(text)))[0]
            if -HALF <= int(text) < HALF
            else np.inf
        )
    else:
        found = float(np.float32(float(text)))
    if not np.isfinite(found):
        raise ValueError("it is out of range")
    return found


# ---- numbers


class _Words:
    """The 32-bit words of a binary file, read in order. Methods raise ModelFileError, in which
    `what` names the missing or wrong word."""

    def __init__(self, data: memoryview, model: str) -> None:
        self.data, self.model, self.at = data, model, 4

    def bytes(self, size: int, what: str) -> bytes:
        if size > len(self.data) - self.at or size < 0:
            raise ModelFileError(f"{self.model} ends where {what} should be")
        self.at += size
        return bytes(self.data[self.at - size : self.at])

    def int(self, what: str, least: int = -(1 << 31), most: int = 1 << 31) -> int:
        (number,) = struct.unpack("<i", self.bytes(4, what))
        if not least <= number <= most:
            raise ModelFileError(f"{self.model}: {what} is {number}, not from {least} to {most}")
        return number


def _binary_rows(data: memoryview, model: str) -> Iterator[Row]:
    words = _Words(data, model)
    count, values = words.int("the number of layers", 1), words.int("the number of values", 1)
    types = {number: type for type, number in _type_numbers().items()}
    for i in range(count):
        number = words.int(f"the type of layer {i}")
        type = types.get(number, f"number {number}")
        where = f"{model}, layer {i} ({type})"
        sizes = [words.int(f"{where}: its number of {n}", 0, values) for n in ("inputs", "outputs")]
        names = [
            [f"blob{words.int(f'{where}: a value', 0, values - 1)}" for _ in range(n)]
            for n in sizes
        ]
        raw: dict[int, Any] = {}
        while (id := words.int(f"{where}: a parameter")) != END:
            if id <= LISTS:
                size = words.int(f"{where}: a length", 0)
                real = (TEXTS if id <= TEXTS else LISTS) - id
                raw[real] = (
                    words.bytes(-(-size // 4) * 4 if id <= TEXTS else 4 * size, where),
                    size,
                )
            else:
                raw[id] = words.bytes(4, where)
        name = f"{type.lower()}{i}" if number in types else f"layer {i}"
        inputs, outputs = names
        yield Layer(type, name, inputs, outputs, {}, {}), raw, where


def _type_numbers() -> dict[str, int]:
    """Type -> its number in binary files; types without one count on from CUSTOM."""
    custom = counter(CUSTOM)
    rows = LAYERS.values()
    return {s.type: next(custom) if s.number is None else s.number for s in rows}


def _from_bytes(value: Any, kind: str) -> Any:
    """Convert the bytes of a parameter to its kind, lists to tuples. `value` is (bytes, length) for
    a list or text. Raises ValueError."""
    if kind == "text":
        if not isinstance(value, tuple):
            raise ValueError("it is no text")
        return value[0][: value[1]].decode("utf-8", "replace")
    raw = value[0] if isinstance(value, tuple) else value
    numbers = np.frombuffer(raw, "<f4" if kind in ("float", "floats") else "<i4").tolist()
    if not np.isfinite(numbers).all():
        raise ValueError("it is no number")
    if kind in ("ints", "floats"):
        return tuple(numbers)
    if len(numbers) != 1:
        raise ValueError(f"{len(numbers)} values, where one belongs")
    return numbers[0]


# ---- writing


def shown(layer: Layer) -> Iterable[tuple[Param, Any]]:
    """Yield (parameter, value) for the given parameters whose values are not the defaults: those
    that a file must have."""
    schema, plain = layer.schema, layer.schema.values({})
    full = schema.values(layer.given)
    for param in schema.params:
        value = layer.given.get(param.name)
        if value is not None and value != (full[param.like] if param.like else plain[param.name]):
            yield param, value


def _blobs(layers: Iterable[Layer]) -> dict[str, int]:
    """Number the values of layers as they first occur: name -> number."""
    names = (name for layer in layers for name in (*layer.inputs, *layer.outputs))
    return {name: i for i, name in enumerate(dict.fromkeys(names))}


def _text(value: Any, kind: str) -> str:
    if kind in ("ints", "floats"):
        return ",".join([str(len(value)), *(_text(v, kind[:-1]) for v in value)])
    if kind == "float":
        return f"{np.float32(value):.9e}"
    return f'"{value}"' if kind == "text" else str(value)


def param_text(layers: list[Layer]) -> str:
    """Layers as a text .param file."""
    lines = [str(MAGIC), f"{len(layers)} {len(_blobs(layers))}"]
    for layer in layers:
        words = [
            f"{layer.type:24} {layer.name:24} {len(layer.inputs)} {len(layer.outputs)}",
            *layer.inputs, *layer.outputs,
        ]  # fmt: skip
        for p, value in shown(layer):
            id = LISTS - p.id if p.kind in ("ints", "floats") else p.id
            words.append(f"{id}={_text(value, p.kind)}")
        lines.append(" ".join(words))
    return "\n".join(lines) + "\n"


def param_bytes(layers: list[Layer]) -> bytes:
    """Layers as a binary .param file."""
    blobs, numbers = _blobs(layers), _type_numbers()
    out: list[bytes] = []

    def put(*numbers: int) -> None:
        out.append(struct.pack(f"<{len(numbers)}i", *numbers))

    put(MAGIC, len(layers), len(blobs))
    for layer in layers:
        put(numbers[layer.type], len(layer.inputs), len(layer.outputs))
        put(*(blobs[name] for name in (*layer.inputs, *layer.outputs)))
        for p, value in shown(layer):
            if p.kind == "text":
                raw = value.encode()
                put(TEXTS - p.id, len(raw))
                out.append(raw + bytes(-len(raw) % 4))
                continue
            items = value if p.kind in ("ints", "floats") else (value,)
            put(*((LISTS - p.id, len(items)) if p.kind in ("ints", "floats") else (p.id,)))
            out.append(np.array(items, "<f4" if "float" in p.kind else "<i4").tobytes())
        put(END)
    return b"".join(out)
