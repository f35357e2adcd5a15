"""Shared weights: what the programs of a model pack, each array packed once and kept once.

Programs for different input shapes mostly pack the same arrays. Each has a blob with those that no
earlier program has, and reads the others from earlier blobs.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Hashable, Iterable
from dataclasses import field
from typing import Any

import numpy as np

from tinsmith.graph import Array
from tinsmith.records import NamedTuple, dataclass

OPEN = 8
"""How many earlier blobs, the largest, a program may read from. Reading one array keeps the whole
blob in memory. Estimated."""

PROBE = 256  # bytes that are compared before whole arrays are; estimated


@dataclass(eq=False)
class Blob:
    """The packed weights that one program brought, in one aligned buffer.

    data  the bytes
    rows  (offset in bytes, bytes) of each array in it
    file  the name of the stored program that holds them; "" if none does
    tag   identifies that file's content, because another file may get the same name later
    """

    data: Array
    rows: tuple[tuple[int, int], ...] = ()
    file: str = ""
    tag: str = field(default_factory=lambda: os.urandom(8).hex())

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


class Key(NamedTuple):
    """What identifies a packed array: `name` tells by which function and of which constants it was
    made. Arrays of equal names are equal as long as all `owners` live (weak references): a name
    contains addresses of memory that these own."""

    name: Hashable
    owners: tuple[Callable[[], Any], ...]

    @property
    def lives(self) -> bool:
        """Whether all owners live."""
        return all(owner() is not None for owner in self.owners)


class Kept(NamedTuple):
    """Where a packed array lies: `offset` bytes into `blob`, `nbytes` long. `blob` is None while
    the array belongs to the program that is being made, whose blob does not exist yet."""

    blob: Blob | None
    offset: int
    dtype: np.dtype[Any]
    nbytes: int


def key_of(*made: Array | Hashable) -> Key:
    """The key of an array. `key_of(array)` identifies it by where it lies in memory;
    `key_of(function, *arguments)` by the function that makes it and its arguments, which are arrays
    and hashable values."""
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
    """(a name for an array: its address, strides, shape and dtype; a weak reference to the array
    that owns its memory)."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    address = array.__array_interface__["data"][0]
    return (address, array.strides, array.shape, array.dtype.str), weakref.ref(owner)


class SharedWeights:
    """Finds arrays that earlier programs of one model have packed, so that a later one does not
    pack them again. It does not keep their blobs alive. Not thread-safe."""

    def __init__(self) -> None:
        self._blobs: list[weakref.ref[Blob]] = []
        self._open: list[weakref.ref[Blob]] = []
        self._made: dict[Hashable, tuple[Key, weakref.ref[Blob], Kept]] = {}

    def made(self, key: Key) -> Kept | None:
        """Where the array of this key lies; None if none of the OPEN largest living blobs has
        it."""
        known, ref, kept = self._made.get(key.name, (None, None, None))
        if known is None or ref is None or kept is None or not known.lives:
            return None
        blob = ref()
        return None if blob is None or ref not in self._open else kept._replace(blob=blob)

    def same(self, array: Array) -> Kept | None:
        """Where an array of the same bytes lies among the OPEN largest blobs, whatever it was made
        of; else None."""
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
        """Offer a blob to programs that are made from now on. `made` are the keys of the arrays in
        it, and where each lies, its `Kept.blob` not set yet (`Built.made`)."""
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
