"""Our data classes do what the standard library's do."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, field
from typing import Any, get_type_hints

import pytest

from tinsmith.records import NamedTuple, dataclass


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 2
    seen: list[int] = field(default_factory=list, compare=False)


@dataclass(frozen=True)
class Deep(Point):
    z: float = 0.5

    def __post_init__(self) -> None:
        if self.z < 0:
            raise ValueError("z is negative")


@dataclass
class Open:
    """Not frozen."""

    x: int = 1


@dataclass(eq=False)
class Same:
    x: int


@dataclass(frozen=True)
class Empty:
    pass


def twin(cls: type, **options: bool) -> Any:
    """The same class by the standard library."""
    names = {n: cls.__annotations__[n] for n in cls.__annotations__}
    body: dict[str, Any] = {"__annotations__": names, "__qualname__": cls.__qualname__}
    for f in dataclasses.fields(cls):
        if f.name in names and f.default_factory is not dataclasses.MISSING:
            body[f.name] = field(default_factory=f.default_factory, compare=f.compare)
        elif f.name in names and f.default is not dataclasses.MISSING:
            body[f.name] = f.default
    return dataclasses.dataclass(**options)(type(cls.__name__, (), body))


@pytest.mark.parametrize(
    ("cls", "options", "args"),
    [
        (Point, {"frozen": True}, [(1,), (1, 3), (2, 3, [4])]),
        (Open, {}, [(), (5,)]),
        (Same, {"eq": False}, [(1,), (1,)]),
        (Empty, {"frozen": True}, [(), ()]),
    ],
)
def test_as_the_standard_library(
    cls: Any, options: dict[str, bool], args: list[tuple[Any, ...]]
) -> None:
    standard = twin(cls, **options)
    ours, theirs = [cls(*a) for a in args], [standard(*a) for a in args]
    assert list(map(dataclasses.asdict, ours)) == list(map(dataclasses.asdict, theirs))
    assert [a == b for a in ours for b in ours] == [a == b for a in theirs for b in theirs]
    assert (cls.__hash__ is None) == (standard.__hash__ is None)
    if options.get("frozen"):
        assert list(map(hash, ours)) == list(map(hash, theirs))
    if cls is not Same:
        assert list(map(repr, ours)) == list(map(repr, theirs))


def test_fields_of_bases_come_first() -> None:
    deep = Deep(1, z=2.0)
    assert (deep.x, deep.y, deep.seen, deep.z) == (1, 2, [], 2.0)
    assert deep == Deep(1, seen=[3], z=2.0)
    assert deep != Point(1)
    assert [f.name for f in dataclasses.fields(Deep)] == ["x", "y", "seen", "z"]
    with pytest.raises(ValueError, match="negative"):
        dataclasses.replace(deep, z=-1.0)


def test_defaults_are_made_anew() -> None:
    assert Point(1).seen is not Point(1).seen


def test_frozen() -> None:
    point = Point(1)
    with pytest.raises(FrozenInstanceError, match="'x' of Point"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del point.x
    assert copy.deepcopy(point) == pickle.loads(pickle.dumps(point)) == point


def test_wrong_arguments_name_the_class() -> None:
    for _ in range(2):
        with pytest.raises(TypeError, match=r"Point.__init__\(\) missing .* 'x'"):
            Point()  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="unexpected keyword argument 'w'"):
            Point(1, w=2)  # type: ignore[call-arg]


class Row(NamedTuple):
    """What it is for."""

    name: str
    sizes: tuple[int, ...] = ()
    twice: int = 2
    """What it means."""

    @property
    def label(self) -> str:
        return f"{self.name}!"

    def __str__(self) -> str:
        return self.label


def test_a_named_tuple_is_one() -> None:
    row = Row("a", twice=3)
    assert row == ("a", (), 3) and row._replace(name="b").label == "b!" and str(row) == "a!"
    assert repr(row) == "Row(name='a', sizes=(), twice=3)" and Row.__doc__ == "What it is for."
    assert Row._fields == ("name", "sizes", "twice") and isinstance(row, tuple)
    assert pickle.loads(pickle.dumps(row)) == row and copy.copy(row) == row
    assert get_type_hints(Row) == {"name": str, "sizes": tuple[int, ...], "twice": int}
    with pytest.raises(TypeError):
        Row()  # type: ignore[call-arg]  # a field has no value
