"""Packed weights that programs share: an array is packed once, and lies once in memory.

Programs of one model for different input shapes mostly pack the same arrays. Each program has a
blob of its own, with what no earlier one has, and reads the rest from the blobs of earlier ones.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Hashable, Iterable
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np

from tinsmith.records import dataclass

Array = np.ndarray[Any, Any]
OPEN = 8
"""Programs read the blobs of at most so many others (the largest): a blob is kept as a whole."""

PROBE = 256  # bytes that are compared before all are


@dataclass(eq=False)
class Blob:
    """Packed weights in one aligned buffer. `rows` has (offset, bytes) of each array; `file` is the
    name of the stored program that holds them ("": none does), and `tag` tells that file from
    others of its name."""

    data: Array
    rows: tuple[tuple[int, int], ...] = ()
    file: str = ""
    tag: str = field(default_factory=lambda: os.urandom(8).hex())

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


class Key(NamedTuple):
    """What an array was made of: equal names mean equal arrays, while all owners of the memory
    that they mention live."""

    name: Hashable
    owners: tuple[Callable[[], Any], ...]

    @property
    def lives(self) -> bool:
        return all(owner() is not None for owner in self.owners)


class Kept(NamedTuple):
    """Where a packed array lies: `offset` bytes into `blob`. `blob` is None while the array belongs
    to the program that is being made, whose blob does not exist yet. `nbytes` is its size."""

    blob: Blob | None
    offset: int
    dtype: np.dtype[Any]
    nbytes: int


def key_of(*made: Array | Hashable) -> Key:
    """The key of an array as it lies in memory, or of what a function, which is first, gives for
    arrays and hashable values."""
    names: list[Hashable] = []
    owners: list[Callable[[], Any]] = []
    for arg in made:
        if isinstance(arg, np.ndarray):
            name, owner = _memory(arg)
            names.append(name)
            owners.append(owner)
        else:
            names.append((type(arg), arg))
    return Key(tuple(names), tuple(owners))


def _memory(array: Array) -> tuple[Hashable, Callable[[], Any]]:
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    address = array.__array_interface__["data"][0]
    return (address, array.strides, array.shape, array.dtype.str), weakref.ref(owner)


class Shelf:
    """The packed weights of the programs of one model. It keeps none of them alive. Not
    thread-safe."""

    def __init__(self) -> None:
        self._blobs: list[weakref.ref[Blob]] = []
        self._open: list[weakref.ref[Blob]] = []
        self._made: dict[Hashable, tuple[Key, weakref.ref[Blob], Kept]] = {}

    def made(self, key: Key) -> Kept | None:
        """Where what a key names lies already."""
        known, ref, kept = self._made.get(key.name, (None, None, None))
        if known is None or ref is None or kept is None or not known.lives:
            return None
        blob = ref()
        return None if blob is None or ref not in self._open else kept._replace(blob=blob)

    def same(self, array: Array) -> Kept | None:
        """Where an array of the same bytes lies already."""
        flat = array.reshape(-1).view(np.uint8)
        head = flat[:PROBE].tobytes()
        for blob in filter(None, (ref() for ref in self._open)):
            for offset, nbytes in blob.rows:
                if nbytes != flat.nbytes:
                    continue
                there = blob.data[offset : offset + nbytes]
                if there[:PROBE].tobytes() == head and np.array_equal(there, flat):
                    return Kept(blob, offset, array.dtype, nbytes)
        return None

    def add(self, blob: Blob, made: Iterable[tuple[Key, Kept]] = ()) -> None:
        """Offer a blob to programs that are made from now on."""
        ref = weakref.ref(blob)
        if ref not in self._blobs:
            self._blobs.append(ref)
        alive = [(b.nbytes, r) for r in self._blobs if (b := r()) is not None]
        self._blobs = [r for _, r in alive]
        self._open = [r for _, r in sorted(alive, key=lambda row: -row[0])[:OPEN]]
        self._made = {
            n: row for n, row in self._made.items() if row[0].lives and row[1]() is not None
        }
        for key, kept in made:
            self._made[key.name] = key, ref, kept
