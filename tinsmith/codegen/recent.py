"""Memory of a process for what it used last, up to a size."""

from __future__ import annotations

from _thread import allocate_lock
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """Values by key, up to `limit` in the sum of `size_of(key, value)`. The values not used for the
    longest time go first; `get` is a use, and gives None for an unknown key. `put` keeps an earlier
    value of its key. Thread-safe."""

    def __init__(self, limit: int, size_of: Callable[[Any, T], int]) -> None:
        self.limit, self.size_of = limit, size_of
        self.size = 0
        self.values: OrderedDict[Any, T] = OrderedDict()
        self._lock = allocate_lock()

    def get(self, key: Any) -> T | None:
        with self._lock:
            value = self.values.get(key)
            if value is not None:
                self.values.move_to_end(key)
            return value

    def put(self, key: Any, value: T) -> None:
        with self._lock:
            if key not in self.values:
                self.values[key] = value
                self.size += self.size_of(key, value)
            while self.size > self.limit:
                self.size -= self.size_of(*self.values.popitem(last=False))

    def clear(self) -> None:
        with self._lock:
            self.values.clear()
            self.size = 0
