"""The shapes of inputs that a file leaves open, guessed from the layers that read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from tinsmith.formats.ncnn.param import Layer
from tinsmith.frontends.ncnn.node import LETTERS
from tinsmith.frontends.ncnn.recurrent import GATES
from tinsmith.frontends.ncnn.window import spatial

Told = tuple[int, int, int]
"""What is known of a value: (its rank, an axis, the size of that axis, 0 for an unknown one)."""
RANKS = {"Pooling1D": 2, "Pooling3D": 4, "Embed": 1, "Spectrogram": 1, "Fold": 2}
CHANNELS = ("BatchNorm", "InstanceNorm", "GroupNorm")


def free_sizes(blob: str, readers: Mapping[str, Layer]) -> tuple[int | str, ...]:
    """The shape (without a batch) of the input `blob`, which the file leaves open: symbols such as
    "x_w" for as many axes as its first reader takes, and numbers that follow from the weights of
    that layer; () where it does not tell. A cache of an attention is (heads, symbol, width of a
    head). `readers`: value -> the first layer that reads it."""
    for reader, name in _readers(blob, readers):
        values = reader.schema.values(reader.given)
        if (
            reader.type == "MultiHeadAttention"
            and name in reader.inputs[-2:]
            and values["kv_cache"]
        ):
            heads = max(values["num_heads"], 1)
            return heads, f"{blob}_h", max(values["embed_dim"] // heads, 1)
        if (told := _told(reader.type, values)) is not None:
            rank, axis, size = told
            dims: list[Any] = [f"{blob}_{letter}" for letter in LETTERS[rank]]
            if size > 0 and reader.inputs[0] == name:
                dims[axis] = size
            return tuple(dims)
    return ()


def _readers(blob: str, readers: Mapping[str, Layer]) -> Iterator[tuple[Layer, str]]:
    """(layer, name) for the first reader of the value `blob`, and of each copy of it (by Split or
    Noop) called `name`."""
    waiting, seen = [blob], set[str]()
    while waiting:
        name = waiting.pop(0)
        reader = readers.get(name)
        if reader is None or name in seen:
            continue
        seen.add(name)
        if reader.type in ("Split", "Noop"):
            waiting += reader.outputs
        else:
            yield reader, name


def _told(type: str, values: Mapping[str, Any]) -> Told | None:
    """What the type and the parameters of a layer say of its first input: (rank, an axis, its size
    or 0). None where they say nothing."""
    weights, outputs = values.get("weight_data_size", 0), max(values.get("num_output", 0), 1)
    if type.startswith(("Convolution", "Deconvolution", "Deformable")):
        letters = spatial(type)
        taps = max(prod(values[f"kernel_{a}"] for a in letters), 1)
        return len(letters) + 1, 0, weights * values.get("group", 1) // (outputs * taps)
    if type == "InnerProduct":
        return 1, 0, weights // outputs
    if type in GATES:
        count = (2 if values["direction"] == 2 else 1) * len(GATES[type])
        return 2, 1, weights // (count * max(values.get("hidden_size", outputs), 1))
    if type == "MultiHeadAttention":
        return 2, 1, weights // max(values["embed_dim"], 1)
    if type == "Gemm":
        return 2, 1, values["constantK"] if values["constantB"] and not values["transA"] else 0
    if type in CHANNELS:
        return 3, 0, values["channels"]
    return (RANKS[type], 0, 0) if type in RANKS else None
