"""Reads the protobuf wire format: the fields of a message as byte ranges, not copied."""

from __future__ import annotations

from collections.abc import Iterator

from tinsmith.errors import ModelFileError
from tinsmith.records import NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Field(NamedTuple):
    """One field of a message, as offsets in the `data` of `fields`: the tag begins at `begin`, the
    payload is `start:end`. `number` and `wire` are the tag's field number and wire type."""

    number: int
    wire: int
    begin: int
    start: int
    end: int


def fields(
    data: memoryview | bytes, begin: int, end: int, what: str = "message"
) -> Iterator[Field]:
    """Yield the fields of the message in `data[begin:end]`, which errors call `what`. Raises
    ModelFileError where it is damaged."""
    at = begin
    while at < end:
        first = at
        tag, at = varint(data, at, end, what)
        number, wire = tag >> 3, tag & 7
        if not number:
            raise ModelFileError(f"byte {first} of the {what}: field number 0 is not protobuf")
        if wire == VARINT:
            start, (_, at) = at, varint(data, at, end, what)
        elif wire == BYTES:
            size, start = varint(data, at, end, what)
            at = start + size
        elif wire in (FIXED64, FIXED32):
            start, at = at, at + (8 if wire == FIXED64 else 4)
        else:
            raise ModelFileError(f"byte {first} of the {what}: wire type {wire} is not protobuf")
        if at > end:
            raise ModelFileError(
                f"byte {first} of the {what}: field {number} needs {at - start} bytes, "
                f"{end - start} are left: the file is truncated or damaged"
            )
        yield Field(number, wire, first, start, at)


def varint(data: memoryview | bytes, at: int, end: int, what: str) -> tuple[int, int]:
    """Read the varint at `data[at]`; return (number, offset after it). Raises ModelFileError if it
    does not end before `end`, or has more than 10 bytes."""
    number = shift = 0
    for position in range(at, min(end, at + 10)):
        byte = data[position]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position + 1
        shift += 7
    why = "ends within a number" if end - at < 10 else "holds a number of more than 10 bytes"
    raise ModelFileError(f"byte {at}: the {what} {why}: the file is truncated or damaged")


def encode_varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
