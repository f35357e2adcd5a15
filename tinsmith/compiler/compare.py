"""How far two arrays are apart: the measure of `verify`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tinsmith.records import dataclass

Array = np.ndarray[Any, Any]
ROUNDING = 1e-6
"""A relative difference that sums in float32 have when only their order differs."""


@dataclass(frozen=True)
class Difference:
    """Between what an output is (`got`) and what it should be (`want`), at the worst element.

    `relative` is max|got - want| / max|want| over finite elements; infinite where dtypes, shapes
    or the places of NaN and infinity differ. Integers, booleans and strings must be equal.
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

    @property
    def is_rounding(self) -> bool:
        """Whether it is no more than rounding may come to."""
        return self.type.startswith("float32") and self.relative <= ROUNDING

    def __str__(self) -> str:
        if self.note:
            return f"{self.name}: {self.type}: {self.note}"
        text = (
            f"{self.name}: {self.type}: max error {self.maximum:.3g}, relative {self.relative:.3g}"
        )
        if self.ok or self.place is None:
            return text
        return f"{text}; at {list(self.place)} it is {self.got}, not {self.want}"


def compare(name: str, got: Any, want: Any, tolerance: float) -> Difference:
    """The difference of two arrays; within `tolerance` of the greatest element is `ok`."""
    got, want = np.asarray(got), np.asarray(want)
    shown = f"{_dtype(want)}{list(want.shape)}"

    def unequal(note: str) -> Difference:
        return Difference(name, shown, float("inf"), float("inf"), None, "", "", False, note)

    if _dtype(got) != _dtype(want) or got.shape != want.shape:
        return unequal(f"it is {_dtype(got)}{list(got.shape)}, not {shown}")
    if want.size == 0:
        return Difference(name, shown, 0.0, 0.0, None, "", "", True)
    if _dtype(want) == "string":
        wrong = got != want
        if not wrong.any():
            return Difference(name, shown, 0.0, 0.0, None, "", "", True)
        place = _first(wrong)
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
    exact = want.dtype.kind in "biu"
    ok = maximum == 0 if exact else relative <= tolerance
    return Difference(
        name, shown, maximum, relative, place, str(got[place]), str(want[place]), bool(ok)
    )


def compare_all(
    got: Mapping[str, Any], want: Mapping[str, Any], tolerance: float
) -> list[Difference]:
    """One Difference for each name of `want` that `got` has."""
    return [compare(n, got[n], want[n], tolerance) for n in want if n in got]


def _dtype(array: Array) -> str:
    return "string" if array.dtype.kind in "OUST" else array.dtype.name


def _first(where: Any) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(where)[0])
