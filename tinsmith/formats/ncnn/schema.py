"""Parameters and weights of ncnn's layer types, from rows of `layers`: three parts, with | between.

    Convolution 6
    0 num_output=0, 1 kernel_w=0, 11 kernel_h=kernel_w, 18 pad_value=0.0, 10 activation_params=[f]
    T weight weight_data_size; R bias num_output if bias_term

1. The type, and its number in binary files.
2. The parameters, separated by commas: number, name, default. The default tells the kind: 0 an
   integer, 0.0 a float, [i] and [f] lists, "" text, a name: the value of that parameter.
3. The weights, separated by semicolons: T (a tag before it in the file tells the encoding), Q (like
   T, but integers if quantize_term or int8_scale_term is not 0) or R (float32); the name; the
   number of elements; "if" and a condition, if there is one. Number and condition are expressions
   of the parameters, in which prod and max may be used."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from math import prod
from typing import Any

from tinsmith.errors import DuplicateName, ModelFileError, OptionError
from tinsmith.records import dataclass

MOST_PARAMS = 32
"""Parameters have numbers below this, ncnn's own limit."""
COMMON = "30 shapes=[i], 31 featmask=0"
LARGEST = -3.402823466385288596e38
"""The number that ncnn uses for minus infinity."""


@dataclass(frozen=True)
class Param:
    """A parameter of a layer type: `kind` is int, float, ints, floats or text; `like`, if not "",
    names another parameter, whose value is the default."""

    id: int
    name: str
    kind: str
    default: Any = None
    like: str = ""


@dataclass(frozen=True)
class Slot:
    """One array of weights of a layer.

    tagged  whether a tag before it in the file tells how it is encoded
    count   number of elements; of bytes, where integers of 4 or 6 bits are packed
    bits    4, 6 or 8 for integers with scales of their own (Q); else 0"""

    name: str
    tagged: bool
    count: int
    bits: int = 0


@dataclass(frozen=True)
class Schema:
    """A layer type. `number` is its number in binary files; None for types of other packages.
    `weights`: all parameters by name -> the arrays of weights."""

    type: str
    number: int | None
    params: tuple[Param, ...]
    weights: Callable[[Mapping[str, Any]], Iterable[Slot]]

    def param(self, id: int) -> Param | None:
        return next((p for p in self.params if p.id == id), None)

    def values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All parameters of the layer type by name: the given value, else that of the parameter
        `like`, else the default. Given names that the type lacks are left out."""
        found: dict[str, Any] = {}
        for p in self.params:
            found[p.name] = given.get(p.name, found[p.like] if p.like else p.default)
        return found

    def slots(self, given: Mapping[str, Any], where: str) -> list[Slot]:
        """The arrays of weights of a layer with given parameters. Raises ModelFileError, which
        names the layer by `where`, for parameters that contradict each other."""
        try:
            slots = list(self.weights(self.values(given)))
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise ModelFileError(f"{where}: its parameters do not fit together: {error}") from error
        for slot in slots:
            if slot.count < 0:
                raise ModelFileError(f"{where}: its {slot.name} would have {slot.count} elements")
        return slots


def _param(text: str, known: Mapping[str, Param]) -> Param:
    """Parse one parameter of a row, "1 kernel_w=0"; `known` are those before it, one of which its
    default may name: "11 kernel_h=kernel_w". Raises ValueError."""
    id, _, rest = text.partition(" ")
    name, _, default = rest.partition("=")
    if default in known:
        return Param(int(id), name, known[default].kind, like=default)
    if default in ("[i]", "[f]"):
        return Param(int(id), name, "ints" if default == "[i]" else "floats", ())
    if default == '""':
        return Param(int(id), name, "text", "")
    if default.lstrip("-").isdigit():
        return Param(int(id), name, "int", int(default))
    return Param(int(id), name, "float", struct.unpack("<f", struct.pack("<f", float(default)))[0])


def _params(text: str) -> tuple[Param, ...]:
    known: dict[str, Param] = {}
    for part in filter(None, map(str.strip, f"{text},{COMMON}".split(","))):
        param = _param(part, known)
        if any(param.id == p.id or param.name == p.name for p in known.values()):
            raise ValueError(f"{part!r} has a number or a name that another parameter has")
        known[param.name] = param
    return tuple(known.values())


_CONDITION = re.compile(r" if (?![^()]*\))")
"""The "if" before the condition of a weight, outside of parentheses."""
_BUILTINS = {"__builtins__": {}, "prod": prod, "max": max}


def _weights(text: str, params: Collection[str]) -> Callable[[Mapping[str, Any]], Iterable[Slot]]:
    """Parse the weights of a row, which may read `params` (names); return the function
    `Schema.weights`. Raises ValueError."""
    rows = []
    for part in filter(None, map(str.strip, text.split(";"))):
        what, condition = [*_CONDITION.split(part), "1"][:2]
        tag, name, count, *_ = [*what.split(None, 2), "", ""]
        try:
            codes = [compile(s.strip(), "<ncnn>", "eval") for s in (count, condition)]
        except SyntaxError as error:
            raise ValueError(
                f"{part!r} is not 'R name count' or 'R name count if condition' ({error.msg}); "
                "a ';' goes between two weights"
            ) from None
        unknown = {n for c in codes for n in c.co_names} - {*params, *_BUILTINS}
        if tag not in ("T", "Q", "R") or unknown:
            raise ValueError(f"{part!r} begins with none of T, Q, R, or asks for {unknown}")
        rows.append((tag, name, *codes))

    def slots(values: Mapping[str, Any]) -> Iterable[Slot]:
        names = {**_BUILTINS, **values}
        blocks = values.get("quantize_term", 0)
        bits = blocks // 100 if blocks >= 400 else 8
        if bits not in (4, 6, 8):
            raise ValueError(f"quantize_term {blocks} is of {bits} bits, which are 4, 6 or 8")
        if not (blocks or values.get("int8_scale_term")):
            bits = 0
        for tag, name, count, condition in rows:
            if eval(condition, names):
                yield Slot(name, tag != "R", int(eval(count, names)), bits if tag == "Q" else 0)

    return slots


def layer_type(
    type: str,
    params: str = "",
    weights: str | Callable[[Mapping[str, Any]], Iterable[Slot]] = "",
    number: int | None = None,
) -> Schema:
    """Register a layer type. `params` and `weights` are text as in the module's docstring; or
    `weights` is a function as in `Schema`. Raises DuplicateName, OptionError."""
    if type in LAYERS:
        raise DuplicateName(f"ncnn layer type {type!r} is registered twice")
    try:
        found = _params(params)
        names = {p.name for p in found}
        made = _weights(weights, names) if isinstance(weights, str) else weights
    except ValueError as error:
        raise OptionError(f"the row of ncnn layer type {type!r} cannot be read: {error}") from error
    if type.split() != [type] or not all(0 <= p.id < MOST_PARAMS for p in found):
        raise OptionError(
            f"ncnn layer type {type!r}: a name has no spaces, and numbers are 0 to "
            f"{MOST_PARAMS - 1}, of which every type has {COMMON}"
        )
    LAYERS[type] = Schema(type, number, found, made)
    return LAYERS[type]


LAYERS: dict[str, Schema] = {}
