"""Compares an output with its expected value: the measure of `verify`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tinsmith.formats.npz import parts
from tinsmith.graph import Array, kind_of, shown
from tinsmith.records import dataclass

ROUNDING = 1e-6
"""A relative difference that sums in float32 reach when only the order of their terms differs."""


@dataclass(frozen=True)
class Difference:
    """How an output differs from its expected value.

    name, type  of the output; dtype and shape as text
    maximum     max|got - want| over finite elements
    relative    maximum / max|want| (maximum where that is 0); infinite where dtypes, shapes or
                the places of NaN and infinity differ
    place       index of the element that differs most; None if there is none
    got, want   this element in both, as text
    ok          whether they agree within the tolerance; integers, booleans, strings: are equal
    note        the difference in words where it is no number
    item        of a sequence or map, the name of the worst part, as in an .npz
    at          the sizes of the call, where several are compared
    """

    name: str
    type: str
    maximum: float
    relative: float
    place: tuple[int, ...] | None
    got: str
    want: str
    ok: bool
    note: str = ""
    item: str = ""
    at: str = ""

    @property
    def is_rounding(self) -> bool:
        """Whether another order of float32 sums can explain the difference."""
        return self.type.startswith("float32") and self.relative <= ROUNDING

    def __str__(self) -> str:
        name = f"{self.name} at {self.at}" if self.at else self.name
        if self.note:
            return f"{name}: {self.type}: {self.item}{': ' * bool(self.item)}{self.note}"
        text = f"{name}: {self.type}: max error {self.maximum:.3g}, relative {self.relative:.3g}"
        if self.ok or self.place is None:
            return text
        where = f"{self.item}{list(self.place)}" if self.item else list(self.place)
        return f"{text}; at {where} it is {self.got}, not {self.want}"


QUANTUM = 2 / 255
"""What one quantum counts in a layer that rounds inside, relative to the greatest result: two of
numbers from -1 to 1."""
RARE = 1e-4
"""The share of elements that may be rounded the other way (docs/numerics.md)."""


def compare(
    name: str, got: Any, want: Any, tolerance: float, quantum: float | None = None,
    near: Array | None = None,
) -> Difference:  # fmt: skip
    """Compare an output with its expected value. It is `ok` if it differs by at most `tolerance` *
    max|want|; integers, booleans, strings: if equal. `quantum`: the step of a rounded result
    (`quanta.rounded`), by which a share of RARE elements may differ, and all elements where `near`
    is true; 0: a result of unknown steps, which may differ by QUANTUM * max|want|. Of a sequence or
    map, the worst part is returned."""
    if isinstance(got, np.ndarray | np.generic) and not _holds(want):
        return _compared(name, got, want, tolerance, quantum, near)
    ours, theirs = parts(name, got), parts(name, want)
    if _holds(got) != _holds(want) or ours.keys() != theirs.keys():
        note = f"it is {shown(got)}, not {shown(want)}"
        return Difference(name, shown(want), np.inf, np.inf, None, "", "", False, note)
    found = [_compared(part, ours[part], theirs[part], tolerance) for part in theirs]
    nothing = Difference(name, shown(want), 0.0, 0.0, None, "", "", True)
    worst = max(found, key=lambda d: (not d.ok, d.relative), default=nothing)
    item = "" if worst.ok or worst.name == name else worst.name
    return replace(worst, name=name, type=shown(want), item=item)


def _holds(value: Any) -> bool:
    """Whether a value is compared part by part: a map, a sequence of arrays or maps, or None."""
    if isinstance(value, list | tuple):
        return not value or isinstance(value[0], np.ndarray | Mapping)
    return value is None or isinstance(value, Mapping)


def _compared(
    name: str, got: Any, want: Any, tolerance: float, quantum: float | None = None,
    near: Array | None = None,
) -> Difference:  # fmt: skip
    got, want = np.asarray(got), np.asarray(want)
    type_ = shown(want)

    def unequal(note: str) -> Difference:
        return Difference(name, type_, np.inf, np.inf, None, "", "", False, note)

    if shown(got) != type_:
        return unequal(f"it is {shown(got)}, not {type_}")
    is_text = kind_of(want) == "string"
    if want.size == 0 or (is_text and (got == want).all()):
        return Difference(name, type_, 0.0, 0.0, None, "", "", True)
    if is_text:
        place = _first(got != want)
        return unequal(f"at {list(place)} it is {str(got[place])!r}, not {str(want[place])!r}")
    a, b = (x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (got, want))
    odd = (np.isfinite(a) != np.isfinite(b)) | (~np.isfinite(b) & (a != b))
    odd &= ~(np.isnan(a) & np.isnan(b))
    if odd.any():
        place = _first(odd)
        return unequal(f"at {list(place)} it is {got[place]!s}, not {want[place]!s}")
    finite = np.isfinite(b)
    off = np.abs(np.where(finite, a, 0) - np.where(finite, b, 0))
    greatest = float(np.abs(b[finite]).max(initial=0))
    maximum = float(off.max())
    relative = maximum / greatest if greatest else maximum
    place = tuple(int(i) for i in np.unravel_index(int(off.argmax()), off.shape))
    ok = relative <= (max(tolerance, QUANTUM) if quantum == 0 else tolerance)
    if want.dtype.kind in "biu":
        ok = np.array_equal(got, want)
        place = place if ok or maximum else _first(got != want)  # float64 may be too coarse
    if quantum and maximum <= quantum * (1 + 1e-3):
        mean = RARE * off.size  # and three standard deviations
        wrong = (off > quantum / 2) & (True if near is None else ~near)
        ok |= np.count_nonzero(wrong) <= max(1, mean + 3 * mean**0.5)
    return Difference(
        name, type_, maximum, relative, place, str(got[place]), str(want[place]), bool(ok)
    )


def compare_all(
    got: Mapping[str, Any], want: Mapping[str, Any], tolerance: float
) -> list[Difference]:
    """Compare the outputs whose names are in both `got` and `want`."""
    return [compare(n, got[n], want[n], tolerance) for n in want if n in got]


def _first(where: Any) -> tuple[int, ...]:
    """Return the index of the first true element."""
    return tuple(int(i) for i in np.argwhere(where)[0])
