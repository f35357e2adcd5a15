"""Shared weights: what the programs of a model pack, each array packed once and kept once.

Programs for different input shapes mostly pack the same arrays. Each program has a blob of its own
with the arrays that no earlier program has, and reads the others from earlier programs' blobs.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Hashable, Iterable
from dataclasses import field
from typing import Any

import numpy as np

from tinsmith.records import NamedTuple, dataclass

Array = np.ndarray[Any, Any]
OPEN = 8
"""The most other blobs (the largest) that a program reads from: a blob is kept in memory as a
whole. Estimated."""

PROBE = 256  # bytes that are compared before whole arrays are; estimated


@dataclass(eq=False)
class Blob:
    """Packed weights in one aligned buffer. `rows` has (offset, bytes) of each array. `file` is the
    name of the stored program that holds them ("" for none), `tag` identifies that file's content:
    another file may get the same name later."""

    data: Array
    rows: tuple[tuple[int, int], ...] = ()
    file: str = ""
    tag: str = field(default_factory=lambda: os.urandom(8).hex())

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


class Key(NamedTuple):
    """What identifies a packed array: what it was made of. Equal names mean equal arrays as long as
    all `owners` live, because a name contains addresses of memory that they own."""

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
    """The key of `key_of(array)`, by where the array lies in memory, or of the array that a
    function makes: `key_of(function, *arguments)`, arguments being arrays and hashable values."""
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


class SharedWeights:
    """The packed weights of the programs of one model. It does not keep them alive. Not
    thread-safe."""

    def __init__(self) -> None:
        self._blobs: list[weakref.ref[Blob]] = []
        self._open: list[weakref.ref[Blob]] = []
        self._made: dict[Hashable, tuple[Key, weakref.ref[Blob], Kept]] = {}

    def made(self, key: Key) -> Kept | None:
        """Where the array of a key lies, if some program has it."""
        known, ref, kept = self._made.get(key.name, (None, None, None))
        if known is None or ref is None or kept is None or not known.lives:
            return None
        blob = ref()
        return None if blob is None or ref not in self._open else kept._replace(blob=blob)

    def same(self, array: Array) -> Kept | None:
        """Where an array of the same bytes lies, if some program has it."""
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
