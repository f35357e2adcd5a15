"""Arrays as memory: aligned bytes for a session, tensors inside them, and addresses of arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, NoReturn

import numpy as np

from tinsmith.errors import OutOfMemory, TinsmithError, size_text
from tinsmith.graph import Array, dtype_of
from tinsmith.plan.plan import Operand

LINE = 64  # bytes of a cache line


def aligned(nbytes: int) -> Array:
    """Return `nbytes` uninitialised bytes (uint8) that begin at a multiple of 64. Raises
    OutOfMemory if the system does not give them."""
    try:
        raw = np.empty(nbytes + LINE, np.uint8)
    except (MemoryError, ValueError) as error:
        raise OutOfMemory(
            f"{size_text(nbytes)} of memory cannot be had for this model's tensors; "
            "run it with a smaller batch or smaller inputs"
        ) from error
    shift = -address_of(raw) % LINE
    return raw[shift : shift + nbytes]


def window(memory: Array, offset: int, operand: Operand) -> Array:
    """Return the tensor of an operand of plain layout at `offset` in a byte array, not copied."""
    dtype = dtype_of(operand.dtype)
    count = prod(operand.dims)
    return memory[offset : offset + count * dtype.itemsize].view(dtype).reshape(operand.dims)


def owned(value: Any) -> Any:
    """Copy a result, since the memory of the original will be used again: an array, a list of
    results, None, or a map (a dict, whose values are numbers)."""
    if isinstance(value, list):
        return list(map(owned, value))
    if isinstance(value, dict):
        return dict(value)
    return None if value is None else np.array(value)


def _data_at() -> int:
    """Return the offset, in numpy's array object, of the pointer to the elements (PyArray_DATA in
    numpy's C interface), so that code can read it: right after Python's object header. 0 if a trial
    shows another place."""
    at, array = object.__basicsize__, np.empty(1)
    found = ctypes.c_void_p.from_address(id(array) + at).value
    return at if found == array.__array_interface__["data"][0] else 0


DATA_AT = _data_at()
_addressof, _first_byte = ctypes.addressof, ctypes.c_char.from_buffer


def addresses(arrays: Sequence[Any]) -> Iterable[int]:
    """Return the addresses of arrays' elements; 0 for an object that is no array (a list, None)."""
    try:
        return list(map(_addressof, map(_first_byte, arrays)))
    except (TypeError, ValueError):  # one is not an array, or is read-only, or empty
        return map(address_of, arrays)


def address_of(array: Any) -> int:
    try:
        return _addressof(_first_byte(array))
    except (TypeError, ValueError):
        return int(array.__array_interface__["data"][0]) if isinstance(array, np.ndarray) else 0


class OfThisProcess:
    """Base of objects that hold addresses of this process: copying or pickling one is an error."""

    def __reduce__(self) -> NoReturn:
        raise TinsmithError(
            f"a {type(self).__name__} is compiled for this process and can be neither copied nor "
            "pickled: any number of threads may call a Net; tinsmith.save(net, path) writes it for "
            "other processes"
        )
