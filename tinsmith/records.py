"""`dataclass` and `NamedTuple`, used as the standard library's, but fast to define: a process
defines many such classes, and calls few. And `cached_property` without a lock.

When a class is defined, the standard `dataclass` compiles up to six functions, `NamedTuple` a
`__new__` and every annotation: a large part of a start. Here `__init__` and `__new__` are written
at a class's first call, classes share the other functions, and annotations stay text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, fields
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

try:
    from _collections import _tuplegetter as _field  # pyright: ignore[reportMissingImports]
except ImportError:  # not CPython

    def _field(index: int, name: str) -> Any:
        return property(itemgetter(index), doc=name)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from functools import cached_property as cached_property
    from typing import NamedTuple as NamedTuple
else:

    class cached_property:
        """`functools.cached_property` without the lock that Python 3.11 takes at each object's
        first access. Two threads may both compute the value."""

        def __init__(self, function):
            self.function, self.__doc__ = function, function.__doc__

        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            value = instance.__dict__[self.name] = self.function(instance)
            return value

    class _Rows(type):
        """The metaclass of `NamedTuple`: makes a class as `collections.namedtuple` does, but for a
        `__new__` that is written at its first call."""

        def __new__(cls, name, bases, own):
            names = tuple(own.get("__annotations__", {}))
            defaults = {n: own[n] for n in names if n in own}
            about = {
                "__slots__": (), "__match_args__": names, "_fields": names,
                "_field_defaults": defaults, "__new__": _first_new,
            }  # fmt: skip
            fields = {n: _field(k, n) for k, n in enumerate(names)}
            return type(name, (tuple,), {**_ROW, **own, **about, **fields})

    class _NamedTuple:
        def __mro_entries__(self, bases):
            return (type.__new__(_Rows, "NamedTuple", (), {}),)

    NamedTuple = _NamedTuple()

    def dataclass(cls=None, /, *, init=True, eq=True, frozen=False):
        """Like `dataclasses.dataclass` with these options, but fast to define. The functions of
        `dataclasses`, such as `replace`, work on its classes."""
        if cls is None:
            return lambda cls: dataclass(cls, init=init, eq=eq, frozen=frozen)
        cls.__doc__ = cls.__doc__ or cls.__name__  # else the standard one writes a signature
        own = cls.__dict__
        made = {"__repr__": _repr}
        dataclasses.dataclass(cls, init=False, repr=False, eq=False)
        if eq:
            values = _values([f.name for f in fields(cls) if f.compare])
            made |= {"__eq__": _equal(values), "__hash__": _hash(values) if frozen else None}
        if frozen:
            made |= {"__setattr__": _refuse, "__delattr__": _refuse}
        for name, function in made.items():
            if name not in own:
                setattr(cls, name, function)
        if init:
            cls.__init__ = _first_init(cls, frozen)
        return cls


def _first_new(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """The first `__new__` of a class of `NamedTuple`: compiles the real one, puts it in its own
    place, and calls the class again."""
    known = {f"_of_{name}": value for name, value in cls._field_defaults.items()}
    params = [f"{n}=_of_{n}" if n in cls._field_defaults else n for n in cls._fields]
    body = f"_made(_cls, ({''.join(n + ',' for n in cls._fields)}))"
    cls.__new__ = eval(f"lambda {', '.join(['_cls', *params])}: {body}", known | {"_made": _made})
    return cls(*args, **kwargs)


_made = tuple.__new__


def _make(cls: Any, values: Any) -> Any:
    row = _made(cls, values)
    if len(row) != len(cls._fields):
        raise TypeError(f"{cls.__name__} has {len(cls._fields)} fields, not {len(row)}")
    return row


def _replace(self: Any, /, **changes: Any) -> Any:
    row = _made(type(self), map(changes.pop, self._fields, self))
    if changes:
        raise ValueError(f"{type(self).__name__} has no fields {', '.join(changes)}")
    return row


def _asdict(self: Any) -> dict[str, Any]:
    return dict(zip(self._fields, self, strict=True))


def _shown_row(self: Any) -> str:
    return f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in _asdict(self).items())})"


_ROW = {
    "_make": classmethod(_make), "_replace": _replace, "_asdict": _asdict, "__repr__": _shown_row,
    "__getnewargs__": lambda self: tuple(self),
}  # fmt: skip
"""The methods that all classes of `NamedTuple` share."""


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function from an object to the tuple of its attributes of these names."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _equal(values: Callable[[Any], object]) -> Callable[[Any, object], bool]:
    def __eq__(self: Any, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    return __eq__


def _hash(values: Callable[[Any], object]) -> Callable[[Any], int]:
    return lambda self: hash(values(self))


def _repr(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse(self: object, name: str, value: object = None) -> None:
    raise FrozenInstanceError(f"the field {name!r} of {type(self).__name__} cannot be changed")


def _first_init(cls: Any, frozen: bool) -> Callable[..., None]:
    """Return the first `__init__` of a class: it compiles the real one, puts that in its own place,
    and calls it."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        cls.__init__ = written = _init(cls, frozen)
        written(self, *args, **kwargs)

    return __init__


def _init(cls: Any, frozen: bool) -> Callable[..., None]:
    known: dict[str, Any] = {"_set": object.__setattr__, "_MISSING": MISSING}
    params, lines = [], []
    for f in fields(cls):
        name, value = f.name, f.name
        if f.default is not MISSING:
            known[f"_of_{name}"] = f.default
            params.append(f"{name}=_of_{name}")
        elif f.default_factory is not MISSING:
            known[f"_of_{name}"] = f.default_factory
            params.append(f"{name}=_MISSING")
            value = f"_of_{name}() if {name} is _MISSING else {name}"
        else:
            params.append(name)
        lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    body = "\n ".join(lines or ["pass"])
    exec(f"def __init__(self, {', '.join(params)}):\n {body}", known)
    written = known["__init__"]
    written.__qualname__ = f"{cls.__qualname__}.__init__"
    return written
