"""Checks plain data (as from JSON: dicts, lists, numbers, texts) against declared types, before
anything uses them, and makes values of these types.

    decode(dict[str, tuple[str, tuple[int, ...], int]], data)
    decode(Plan, data)                      # a NamedTuple of NamedTuples: lists of as many values
    decode(list[Explanation], data)         # of a data class: objects with its fields

A declared `int` takes 64 bits or a `Size`, but no bool and no float; a `float` takes ints, too.
Every field that a NamedTuple, a TypedDict or a data class declares must be there.
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import Any, TypeVar, cast

T = TypeVar("T")
FAR = 1 << 63


class Misfit(ValueError):
    """Data are not of the declared type. The message shows them and their key."""


def decode(hint: type[T], data: Any) -> T:
    """Return `data` as a value of the type `hint`. Raises Misfit if they are of another type."""
    try:
        return _reader(hint)(data)
    except RecursionError:
        raise Misfit("it is nested too deeply") from None


@cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda data: data
    if origin in (types.UnionType, typing.Union):
        return _optional(hint, args)
    if origin is tuple:
        return _each(args[0], tuple) if args[1:] == (...,) else _row(args, tuple)
    if origin is list:
        return _each(args[0], list)
    if origin in (dict, Mapping):
        return _dict(args[1])
    if typing.is_typeddict(hint):
        return _fields(typing.get_type_hints(hint))
    if isinstance(hint, type) and hasattr(hint, "_fields"):
        return _row(tuple(typing.get_type_hints(hint).values()), hint._make)  # type: ignore[attr-defined]
    if is_dataclass(hint):
        fields = _fields(typing.get_type_hints(hint))
        make = cast(Callable[..., Any], hint)
        return lambda data: make(**fields(data))
    return _plain(hint)


def _plain(kind: type) -> Callable[[Any], Any]:
    allowed = (int, float) if kind is float else (kind,)

    def read(data: Any) -> Any:
        if type(data) not in allowed or (type(data) is int and not -FAR <= data < FAR):
            if kind is int and _is_size(data):
                return data
            raise Misfit(f"{repr(data)[:60]} is not {kind.__name__}")
        return data

    return read


def _is_size(data: Any) -> bool:
    sizes = sys.modules.get("tinsmith.sizes")  # where nobody has loaded it, there are none
    return sizes is not None and type(data) is sizes.Size


def _optional(hint: Any, args: tuple[Any, ...]) -> Callable[[Any], Any]:
    readers = [_reader(a) for a in args if a is not type(None)]

    def read(data: Any) -> Any:
        if data is None and type(None) in args:
            return None
        for reader in readers[:-1]:
            try:
                return reader(data)
            except Misfit:
                pass
        return readers[-1](data)

    return read


def _each(item: Any, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    reader = _reader(item)

    def read(data: Any) -> Any:
        if not isinstance(data, list | tuple):
            raise Misfit(f"{repr(data)[:60]} is not a list")
        return make([reader(value) for value in data])

    return read


def _row(items: tuple[Any, ...], make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    readers = [_reader(item) for item in items]

    def read(data: Any) -> Any:
        if not isinstance(data, list | tuple) or len(data) != len(readers):
            raise Misfit(f"{repr(data)[:60]} is not a list of {len(readers)}")
        return make([reader(value) for reader, value in zip(readers, data, strict=True)])

    return read


def _dict(item: Any) -> Callable[[Any], Any]:
    reader = _reader(item)

    def read(data: Any) -> Any:
        if not isinstance(data, dict):
            raise Misfit(f"{repr(data)[:60]} is not an object")
        return {str(key): _at(key, reader, value) for key, value in data.items()}

    return read


def _at(name: Any, reader: Callable[[Any], Any], data: Any) -> Any:
    try:
        return reader(data)
    except Misfit as error:
        raise Misfit(f"{name!r}: {error}") from None


def _fields(hints: dict[str, Any]) -> Callable[[Any], Any]:
    readers = {name: _reader(hint) for name, hint in hints.items()}

    def read(data: Any) -> Any:
        if not isinstance(data, dict):
            raise Misfit(f"{repr(data)[:60]} is not an object")
        if missing := [name for name in readers if name not in data]:
            raise Misfit(f"{missing[0]!r} is missing")
        return {name: _at(name, reader, data[name]) for name, reader in readers.items()}

    return read
