"""ncnn's .bin files: the weights of all layers, one after the other, without names.

Arrays of the kinds T and Q (`schema`) begin with a tag, their encoding. Numbers of elements follow
from the layers' parameters, so a file of another length belongs to other layers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tinsmith import budget
from tinsmith.errors import ModelFileError
from tinsmith.formats.ncnn.param import Layer
from tinsmith.formats.ncnn.schema import Slot
from tinsmith.graph import Array

HALVES, BYTES, SINGLES = 0x01306B47, 0x000D4B38, 0x0002C056
"""Tags: float16, int8, float32. 0 is float32, too. Any other tag is the first element of a table of
BOOK float32, after which each weight is an index of one byte."""
BOOK = 256


def read_weights(layers: Iterable[Layer], data: memoryview, model: str) -> None:
    """Set `weights` of layers from the bytes of a .bin file: flat arrays of float32 or int8, views
    of `data` where it holds these. Raises ModelFileError where it is too short, or too long."""
    at = 0

    def take(size: int, where: str) -> memoryview:
        nonlocal at
        if size > len(data) - at:
            raise ModelFileError(
                f"{model} is too short: {where} needs {size} bytes at {at}, "
                f"{len(data) - at} are left"
            )
        at += size
        return data[at - size : at]

    for layer in layers:
        for slot in layer.schema.slots(layer.given, f"layer {layer.name!r} ({layer.type})"):
            where = f"{slot.name} of {layer.name!r} ({layer.type})"
            layer.weights[slot.name] = _weight(slot, take, where)
    if at != len(data):
        raise ModelFileError(
            f"{model} is too long: the layers have {at} bytes of weights, the file {len(data)}"
        )


def _weight(slot: Slot, take: Any, where: str) -> Array:
    """Read one array, flat. `take(size, where)` returns the next `size` bytes; arrays are padded to
    multiples of 4 bytes."""
    n = slot.count
    tag = int.from_bytes(take(4, where), "little") if slot.tagged and n else 0
    if tag == HALVES:
        return np.frombuffer(take(-(-2 * n // 4) * 4, where), "<f2", n).astype(np.float32)
    if tag == BYTES:
        return np.frombuffer(take(-(-n // 4) * 4, where), np.int8, n)
    if tag in (0, SINGLES):
        return np.frombuffer(take(4 * n, where), "<f4", n)
    first = np.frombuffer(tag.to_bytes(4, "little"), "<f4")
    book = np.concatenate([first, np.frombuffer(take(4 * BOOK - 4, where), "<f4")])
    return book[np.frombuffer(take(-(-n // 4) * 4, where), np.uint8, n)]


def write_weights(layers: Iterable[Layer], halves: bool = False) -> Iterable[bytes]:
    """Yield the pieces of a .bin file, layer by layer. Tagged int8 arrays are written as int8,
    others as float32 or, with `halves`, if tagged and their values fit, as float16. Raises
    ModelFileError for arrays of another size than the parameters say."""
    for layer in layers:
        for slot in layer.schema.slots(layer.given, f"layer {layer.name!r} ({layer.type})"):
            array = np.ascontiguousarray(layer.weights.get(slot.name, ())).reshape(-1)
            if array.size != slot.count:
                raise ModelFileError(
                    f"{slot.name} of {layer.name!r} has {array.size} elements, not {slot.count}"
                )
            if array.dtype == np.int8 and slot.tagged:
                tag, raw = BYTES, array.tobytes()
            elif halves and slot.tagged and _fits(array):
                tag, raw = HALVES, array.astype("<f2").tobytes()
            else:
                tag, raw = 0, array.astype("<f4").tobytes()
            if slot.tagged and array.size:
                yield tag.to_bytes(4, "little")
            yield raw + bytes(-len(raw) % 4)


def _fits(array: Array) -> bool:
    """Whether all values are in the range of float16."""
    return bool(np.abs(array).max(initial=0) <= np.finfo(np.float16).max)


_POSITIVE = {"slope", "var", "scale", "scale_in", "scale_out"}
"""Weights that are drawn around 1; others are drawn around 0."""
_SCALES = ("_scales", "_scale")
"""Suffixes of the names of scales of integer weights."""


def draw_weights(layers: Iterable[Layer], seed: int, model: str) -> None:
    """Set `weights` of layers to random numbers, the same for a seed on every machine. Weights of
    products are scaled so that activations neither vanish nor grow. Raises BudgetExceeded."""
    count = total = 0
    for layer in layers:
        slots = layer.schema.slots(layer.given, f"layer {layer.name!r} ({layer.type})")
        total += 4 * sum(slot.count for slot in slots)
        budget.check("constants", total, f"random weights of {model}")
        values = layer.schema.values(layer.given)
        outputs = max(values.get("num_output", 0) or values.get("embed_dim", 0), 1)
        scale = 40.0
        for slot in slots:
            rng = np.random.default_rng([seed, count])
            count += 1
            u = rng.random(slot.count, np.float32) * np.float32(2) - np.float32(1)
            radius = (6 * outputs / max(slot.count, 1)) ** 0.5 if slot.tagged else 0.1
            if slot.bits:  # integers: their scale is a later slot
                scale = ((1 << (slot.bits - 1)) - 1) / radius
                layer.weights[slot.name] = np.round(u * np.float32(127)).astype(np.int8)
                continue
            if slot.name.endswith(_SCALES):
                u, radius = np.ones_like(u), scale
            elif slot.name in _POSITIVE or slot.name.endswith("_input"):
                u, radius = u / 4 + np.float32(1), 1.0
            layer.weights[slot.name] = u * np.float32(radius)
