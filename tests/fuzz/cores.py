"""Small ONNX graphs whose sizes depend on data, and data for them: such as agree, and others.

`CORES` has a function for each way in which a size can depend on data. It draws nodes into a
`Sketch` and returns the names of its results. Each operand that is fed has one or more choices.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from tests.fuzz.base import Array
from tests.fuzz.mutants import Dice

ML = "ai.onnx.ml"


@dataclass
class Sketch:
    """Nodes, weights and fed operands of a graph, and the dice."""

    dice: Dice
    nodes: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)
    feeds: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """For each input its choices: arrays, lists of arrays, or arrays and None."""
    count: int = 0

    def name(self, stem: str = "v") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def feed(self, *choices: Any) -> str:
        name = self.name("x")
        self.feeds[name] = choices
        return name

    def const(self, array: Any) -> str:
        name = self.name("c")
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, op: str, *inputs: str, outputs: int = 1, **attrs: Any) -> Any:
        """The name of the result, or the list of names where there are several."""
        names = [self.name() for _ in range(outputs)]
        attrs = {k: v for k, v in attrs.items() if v is not None}
        self.nodes.append(helper.make_node(op, list(inputs), names, **attrs))
        return names[0] if outputs == 1 else names

    def size(self, *choices: Any) -> str:
        """An operand that tells a size: fed, or computed from what is fed."""
        name = self.feed(*choices)
        if self.dice.chance(0.3):
            zero = self.feed(np.zeros((), np.asarray(choices[0]).dtype))
            return str(self.node("Add", name, zero))
        return name

    def data(self, array: Any) -> str:
        """An operand that tells none: fed, now and then a constant, or computed."""
        if self.dice.chance(0.1):
            return self.const(array)
        name = self.feed(array)
        if array.dtype == np.float32 and self.dice.chance(0.3):
            return str(self.node("Abs", name))
        return name


Core = Callable[[Sketch], Sequence[str]]
CORES: dict[str, Core] = {}


def core(function: Core) -> Core:
    CORES[function.__name__] = function
    return function


def f32(*shape: int) -> Array:
    rng = np.random.default_rng(sum(shape))
    return rng.standard_normal(shape).astype(np.float32) * 3


def i64(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def i32(*numbers: int) -> Array:
    return np.array(numbers, np.int32)


def scalars(*numbers: Any, dtype: Any = np.int64) -> list[Array]:
    return [np.array(n, dtype) for n in numbers]


def text(*items: str) -> Array:
    return np.array(items, object)


X, IMAGE = f32(4, 6), f32(1, 3, 6, 4)
HOLED = np.where(X > 0, X, 0).astype(np.float32)
ROUND = np.round(X).astype(np.int64)

Row = tuple[str, list[Any], dict[str, Any], int]


def row(op: str, *operands: Any, outputs: int = 1, **attrs: Any) -> Row:
    """A core of one node. A list is an operand that tells a size: its choices."""
    return op, list(operands), attrs, outputs


ROWS = {
    "reshape": row("Reshape", X, [i64(4, 6), i64(2, 12), i64(-1, 3), i64(0, -1), i64(5, 5)]),
    "reshape_flat": row("Reshape", X, [i64(24), i64(-1), i64(23)]),
    "reshape_4d": row("Reshape", X, [i64(1, 2, 3, 4), i64(2, 2, 6, 1), i64(1, 3, 2, 4)]),
    "squeeze": row("Squeeze", f32(1, 4, 1, 5), [i64(0), i64(2), i64(-2), i64(1)]),
    "unsqueeze": row("Unsqueeze", X, [i64(0, 1), i64(1, 2), i64(0, -1), i64(0, 7)]),
    "unsqueeze_1": row("Unsqueeze", X, [i64(0), i64(2), i64(1)]),
    "expand": row("Expand", f32(4, 1), [i64(4, 6), i64(1, 1), i64(4, 2), i64(3, 3)]),
    "expand_rank": row("Expand", f32(6), [i64(2, 4, 6), i64(1, 1, 1), i64(3, 1, 5)]),
    "tile": row("Tile", X, [i64(1, 1), i64(2, 1), i64(1, 3), i64(3, 2), i64(0, 1)]),
    "tile_1": row("Tile", f32(4), [i64(1), i64(3), i64(0), i64(-1)]),
    "split": row("Split", f32(4, 6), [i64(1, 3), i64(3, 1), i64(2, 2), i64(4, 0)], outputs=2),
    "split_1": row(
        "Split", f32(2, 9), [i64(3, 3, 3), i64(1, 2, 6), i64(4, 4, 4)], outputs=3, axis=1
    ),
    "slice": row(
        "Slice", X, [i64(0, 1), i64(1, 0)], [i64(2, 5), i64(4, 6), i64(0, 0)], i64(0, 1),
        [i64(1, 1), i64(2, 1), i64(-1, 2)],
    ),
    "slice_axes": row("Slice", X, [i64(1)], [i64(3), i64(9)], [i64(0), i64(1)]),
    "pad": row("Pad", X, [i64(0, 1, 2, 0), i64(1, 1, 1, 1), i64(0, -2, 0, 0), i64(-9, 0, 0, 0)]),
    "pad_edge": row("Pad", X, [i64(0, 0, 0, 0), i64(2, 0, 0, 3)], mode="edge"),
    "center_crop_pad": row("CenterCropPad", X, [i64(2, 8), i64(4, 6), i64(9, 1)]),
    "col2im": row("Col2Im", f32(1, 4, 9), [i64(4, 4), i64(3, 3)], [i64(2, 2), i64(1, 4)]),
    "reduce": row("ReduceSum", X, [i64(0), i64(1), i64(-1)], keepdims=0),
    "reduce_keep": row("ReduceMax", f32(2, 3, 4), [i64(0, 1), i64(1, 2), i64(2, 2)]),
    "topk": row("TopK", X, [i64(2), i64(4), i64(0), i64(6), i64(7)], outputs=2),
    "topk_rows": row("TopK", X, [i64(1), i64(3), i64(5)], outputs=2, axis=0),
    "nonzero": row("NonZero", [HOLED, X, np.zeros_like(X)]),
    "compress": row(
        "Compress", X, [np.array([1, 0, 1, 1], bool), np.ones(4, bool), np.zeros(4, bool)], axis=0
    ),
    "compress_flat": row("Compress", X, [np.arange(20) % 3 == 0, np.arange(20) > 3]),
    "unique": row("Unique", [ROUND, np.zeros_like(ROUND)], outputs=4),
    "unique_rows": row("Unique", [ROUND, np.zeros_like(ROUND)], axis=0),
    "one_hot": row("OneHot", i64(0, 2, 1), scalars(3, 5, 1, -2), np.float32([0, 1])),
    "range": row("Range", scalars(0, 1), scalars(4, 9, -3), scalars(1, 2, 0)),
    "constant_of_shape": row("ConstantOfShape", [i64(2, 3), i64(4, 0), i64(1, 7), i64(-1, 2)]),
    "dft": row("DFT", f32(1, 8, 1), scalars(8, 5, 11), np.array(1)),
    "dft_axis": row("DFT", f32(2, 8, 6, 1), "", scalars(1, 2), onesided=1),
    "stft": row("STFT", f32(1, 32, 1), scalars(4, 8, 16), f32(8)),
    "stft_length": row("STFT", f32(1, 32, 1), scalars(4), "", scalars(8, 16, 40)),
    "hann": row("HannWindow", scalars(8, 3, 0)),
    "hamming": row("HammingWindow", scalars(8, 3, 1)),
    "blackman": row("BlackmanWindow", scalars(8, 3, 1)),
    "mel": row(
        "MelWeightMatrix", scalars(4, 6), scalars(16, 8), scalars(8000), *map(np.float32, (0, 3000))
    ),
    "string_split": row("StringSplit", [text("a b", "c d e"), text("a", "b")], outputs=2),
    "string_normalizer": row(
        "StringNormalizer", [text("a", "b", "c"), text("a", "a", "b"), text("b", "b", "b")],
        stopwords=["b"], is_case_sensitive=1,
    ),
    "suppress": row(
        "NonMaxSuppression", [abs(f32(1, 9, 4)), np.zeros((1, 9, 4), np.float32)],
        [f32(1, 2, 9), np.ones((1, 2, 9), np.float32)], scalars(9, 2, 0),
        np.float32([0.5]), np.float32([0.1]),
    ),
    "resize": row("Resize", IMAGE, "", "", [i64(1, 3, 12, 8), i64(1, 3, 3, 4), i64(1, 3, 0, 2)]),
    "resize_scales": row("Resize", IMAGE, "", [np.float32([1, 1, s, 2]) for s in (2, 1, 0.5)]),
    "affine_grid": row("AffineGrid", f32(1, 2, 3), [i64(1, 3, 4, 5), i64(1, 3, 2, 2)]),
    "max_unpool": row(
        "MaxUnpool", f32(1, 1, 2, 2), np.arange(4).reshape(1, 1, 2, 2), [i64(1, 1, 4, 4),
        i64(1, 1, 5, 6), i64(1, 1, 1, 1)], kernel_shape=[2, 2], strides=[2, 2],
    ),
    "rnn": row("RNN", f32(3, 2, 3), f32(1, 2, 3), f32(1, 2, 2), f32(1, 4),
               [i32(3, 1), i32(2, 2), i32(4, 0)], hidden_size=2, outputs=2),
    "gru": row("GRU", f32(3, 2, 3), f32(1, 6, 3), f32(1, 6, 2), f32(1, 12),
               [i32(3, 1), i32(0, 2), i32(4, 0)], hidden_size=2, outputs=2),
    "lstm": row("LSTM", f32(3, 2, 3), f32(1, 8, 3), f32(1, 8, 2), f32(1, 16),
                [i32(3, 1), i32(0, 2), i32(4, 0)], hidden_size=2, outputs=3),
    "zip_map": row("ZipMap", [f32(2, 3), f32(2, 3) + 1], classlabels_int64s=[1, 2, 5], domain=ML),
}  # fmt: skip


def of_row(drawn: Row) -> Core:
    """Draws the one node of a row."""

    def draw(m: Sketch) -> Sequence[str]:
        op, operands, attrs, outputs = drawn
        names = [
            "" if isinstance(o, str) else m.size(*o) if isinstance(o, list) and not is_text(o[0])
            else m.feed(*o) if isinstance(o, list) else m.data(np.asarray(o))
            for o in operands
        ]  # fmt: skip
        found = m.node(op, *names, outputs=outputs, **attrs)
        return [found] if outputs == 1 else found

    return draw


def is_text(a: Any) -> bool:
    return bool(np.asarray(a).dtype == object or np.asarray(a).dtype == bool)


CORES.update({name: of_row(drawn) for name, drawn in ROWS.items()})


def bitmap(wide: int, high: int) -> Array:
    """The bytes of a BMP file of one grey."""
    rows = (b"\x40\x50\x60" * wide + b"\0" * (-3 * wide % 4)) * high
    head = struct.pack("<2sIHHI", b"BM", 54 + len(rows), 0, 0, 54)
    info = struct.pack("<IiiHHIIiiII", 40, wide, high, 1, 24, 0, len(rows), 0, 0, 0, 0)
    return np.frombuffer(head + info + rows, np.uint8)


@core
def image(m: Sketch) -> Sequence[str]:
    return [m.node("ImageDecoder", m.feed(bitmap(4, 3), bitmap(3, 4)))]


@core
def found_places(m: Sketch) -> Sequence[str]:
    x = m.feed(X, HOLED)
    places = m.node("Transpose", m.node("NonZero", m.node("Relu", x)), perm=[1, 0])
    return [m.node("GatherND", x, places), places]


@core
def two_unknowns(m: Sketch) -> Sequence[str]:
    """A size from one reshape meets that of another."""
    a = m.node("Reshape", m.feed(X), m.size(i64(4, 6), i64(8, 3), i64(1, 24)))
    b = m.node("Reshape", m.feed(X + 1), m.size(i64(4, 6), i64(24, 1), i64(4, -1)))
    return [m.node(m.dice.one(["Add", "Mul", "Sub"]), a, b), a]


@core
def shape_of_shape(m: Sketch) -> Sequence[str]:
    """A tensor takes the shape of one that depends on data."""
    a = m.node("Tile", m.feed(X), m.size(i64(1, 1), i64(2, 1), i64(3, 2)))
    flat = m.node("Reshape", a, m.const(i64(-1)))
    return [m.node("Reshape", flat, m.node("Shape", a)), m.node("Shape", a)]


@core
def views_of_views(m: Sketch) -> Sequence[str]:
    a = m.node("Reshape", m.data(X), m.size(i64(4, 6), i64(1, 24), i64(3, 8)))
    b = m.node("Unsqueeze", a, m.size(i64(0), i64(2)))
    return [m.node("Squeeze", b, m.size(i64(0), i64(2))), b]


@core
def halves(m: Sketch) -> Sequence[str]:
    parts = m.node("Split", m.data(f32(4, 6)), m.size(i64(2, 2), i64(1, 3), i64(3, 1)), outputs=2)
    return [m.node("Concat", *parts[::-1], axis=0), *parts]


def sequence_of(m: Sketch) -> str:
    if m.dice.chance(0.4):
        return m.feed([f32(2, 3), f32(2, 3) + 1], [f32(1, 3), f32(2, 3)], [f32(4, 3)])
    sizes = m.size(i64(2, 2), i64(1, 3)) if m.dice.chance(0.5) else m.size(*scalars(2, 1, 3))
    return str(m.node("SplitToSequence", m.data(f32(4, 3)), sizes, axis=0))


@core
def sequences(m: Sketch) -> Sequence[str]:
    given = sequence_of(m)
    at = m.feed(*scalars(0, 1, -1, 5))
    how = m.dice.one(["at", "erase", "insert", "length", "concat", "map", "whole"])
    if how == "at":
        return [m.node("SequenceAt", given, at)]
    if how == "length":
        return [m.node("SequenceLength", given)]
    if how == "concat":
        return [m.node("ConcatFromSequence", given, axis=0)]
    if how == "map":
        info = helper.make_tensor_value_info
        tile = helper.make_node("Tile", ["e", "times"], ["t"])
        body = helper.make_graph([tile], "each", [info("e", 1, None), info("times", 7, [2])],
                                 [info("t", 1, None)])  # fmt: skip
        times = m.size(i64(1, 1), i64(2, 1), i64(1, 3))
        given = m.node("SequenceMap", given, times, body=body)
    if how == "erase":
        given = m.node("SequenceErase", given, at)
    if how == "insert":
        given = m.node("SequenceInsert", given, m.feed(f32(2, 3), f32(5, 3)), at)
    return [m.node("SequenceAt", given, m.const(np.array(0))), m.node("Identity", given)]


@core
def new_sequences(m: Sketch) -> Sequence[str]:
    a = m.node("Reshape", m.feed(X), m.size(i64(4, 6), i64(2, 12)))
    b = m.node("Tile", m.feed(X), m.size(i64(1, 1), i64(2, 1)))
    held = m.node("SequenceConstruct", a, b) if m.dice.chance(0.5) else m.node("SequenceEmpty")
    held = m.node("SequenceInsert", held, a, *([m.feed(np.array(0))] if m.dice.chance(0.5) else []))
    return [m.node("SequenceAt", held, m.feed(*scalars(0, -1, 2))), held]


@core
def optionals(m: Sketch) -> Sequence[str]:
    a = m.node("Reshape", m.feed(X), m.size(i64(4, 6), i64(2, 12), i64(5, 5)))
    held = m.node("Optional", a)
    return [m.node("OptionalGetElement", held), m.node("OptionalHasElement", held)]


@core
def given_optionals(m: Sketch) -> Sequence[str]:
    held = m.feed(f32(2, 3), None, f32(4, 1))
    return [m.node("OptionalHasElement", held), m.node("OptionalGetElement", held)]
