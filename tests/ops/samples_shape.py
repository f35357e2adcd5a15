"""Sample calls of the operators that move, index, select and make elements."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np

from tests.ops.samples import BF16, add, data, i64, text

FAR, NEAR = np.iinfo(np.int64).max, np.iinfo(np.int64).min

# ---- shapes

for shape in ((2, 3, 4), (), (0, 2)):
    add("Shape", data(shape))
    add("Size", data(shape))
add("Shape", data((2, 3, 4)), start=-2)
add("Shape", data((2, 3, 4)), start=1, end=-1)
add("Shape", data((2, 3, 4)), start=-9, end=9)
for target in ((6, 4), (-1,), (0, -1), (0, 0, 0), (2, 3, 4, 1), (4, 0, -1), (-1, 8)):
    add("Reshape", data((2, 3, 4)), i64(*target))
add("Reshape", data((0, 3)), i64(3, 0), allowzero=True)
add("Reshape", data((0, 3)), i64(0, -1))
add("Reshape", data(()), i64())
add("Reshape", data((1,)), i64())
for axis in (0, 1, 3, -1, -3):
    add("Flatten", data((2, 3, 4)), axis=axis)
add("Flatten", data(()), axis=0)
add("Flatten", data((0, 3)))
for claimed in ((2, 3, 4), (None, 3, None), (None, None, None)):
    add("Declared", data((2, 3, 4)), shape=claimed)
add("Required", np.array(True), message="it must hold")
add("Required", np.array([False]), value=False, message="it must not")
add("Transpose", data((2, 3, 4)))
add("Transpose", data((2, 3, 4)), perm=(1, 2, 0))
add("Transpose", data((0, 3)), perm=(1, 0))
add("Transpose", data(()))
add("Squeeze", data((1, 3, 1)))
add("Squeeze", data((1, 3, 1)), i64(-1))
add("Squeeze", data((1, 3, 1)), i64(0, 2))
add("Unsqueeze", data((2, 3)), i64(0, -1))
add("Unsqueeze", data(()), i64(0))
add("Unsqueeze", data((2,)), i64(2, 0))
add("Expand", data((3, 1)), i64(2, 1, 4))
add("Expand", data((3, 1)), i64(1))
add("Expand", data(()), i64(0, 2))
add("ChannelShuffle", data((2, 6, 2)), groups=3)
add("Tile", data((2, 3)), i64(2, 1))
add("Tile", data((2, 3)), i64(0, 2))
add("Tile", data(()), i64())
add("Concat", data((2, 3)), data((2, 1)), data((2, 0)), axis=-1)
add("Concat", data((2,), BF16), data((3,), BF16), axis=0)
add("Concat", text("a"), text("b", "c"), axis=0)
add("Split", data((5, 2)), i64(2, 0, 3))
add("Split", data((2, 7)), None, axis=-1, num_outputs=3)
add("Split", data((5,)), None, num_outputs=4)
add("Split", data((5,)), i64(5), num_outputs=1)
for start, end, step in (
    (1, 4, 1), (0, FAR, 1), (-3, -1, 1), (FAR, NEAR, -1), (-1, NEAR, -2), (-100, NEAR, -1),
    (100, 0, 1), (3, 3, 1), (0, 4, 3), (3, -100, -1), (2, -1, -1), (NEAR, FAR, 2),
):  # fmt: skip
    add("Slice", data((5,)), i64(start), i64(end), i64(0), i64(step))
add("Slice", data((3, 4)), i64(1, 0), i64(3, 2))
add("Slice", data((3, 4)), i64(1), i64(3), i64(-1))
add("Slice", data((0, 4)), i64(-1, 0), i64(NEAR, 2), i64(0, 1), i64(-1, 1))
PADS = ((1, 0, 2, 1), (0, -1, 0, 2), (0, 0, 0, 0), (3, 0, 5, 0))
for mode, pads in itertools.product(("constant", "reflect", "edge", "wrap"), PADS):
    add("Pad", data((3, 4)), i64(*pads), mode=mode)
add("Pad", data((3, 4)), i64(1, 2), np.float32(7), i64(-1))
add("Pad", data((3, 4)), i64(-2, 0, -1, 0))
add("Pad", data((2,), BF16), i64(1, 1), np.array(2).astype(BF16))
add("Pad", data((2,), bool), i64(1, 1))
add("Pad", text("a"), i64(1, 0))
add("Pad", data((0, 2)), i64(1, 0, 1, 0))
add("CenterCropPad", data((5, 4)), i64(2, 7))
add("CenterCropPad", data((5, 4)), i64(8), axes=(-2,))
for k, upper in itertools.product((None, np.int64(-1), np.int64(2)), (True, False)):
    add("Trilu", data((2, 3, 4)), k, upper=upper)
add("ReverseSequence", data((4, 3)), i64(1, 4, 2))
add("ReverseSequence", data((3, 4, 2)), i64(1, 4, 0), batch_axis=0, time_axis=1)
for mode in ("DCR", "CRD"):
    add("DepthToSpace", data((1, 8, 2, 3)), blocksize=2, mode=mode)
    add("SpaceToDepth", data((1, 2, 4, 6)), blocksize=2, mode=mode)

# ---- places

add("Gather", data((3, 4)), i64(0, -1, 2), axis=1)
add("Gather", data((3, 4)), np.int32([[0, 2], [1, 1]]))
add("Gather", data((3, 4)), np.int64(-1), axis=-1)
add("Gather", text("a", "b"), i64(1))
add("GatherElements", data((3, 4)), np.int64([[0, -1], [1, 2]]), axis=1)
add("GatherElements", data((3, 4)), np.int64([[0, -1, 1, 2]]), axis=0)
add("GatherND", data((2, 3, 4)), np.int64([[0, 1], [1, -1]]))
add("GatherND", data((2, 3, 4)), np.int64([[0, 1, 2]]))
add("GatherND", data((2, 3, 4)), np.int64([[1], [2]]), batch_dims=1)
add("GatherND", data((2, 3, 4)), np.int64([[[0], [1], [2]]] * 2), batch_dims=1)
add("GatherND", data((2, 3, 4)), np.int64([[[0], [1], [-1]]] * 2), batch_dims=2)
for reduction, dtype in itertools.product(
    ("none", "add", "mul", "max", "min"), ("float32", "int8", "float16", BF16)
):
    x = data((3, 4), dtype, 1, 5)
    indices = np.int64([[0, 0], [1, -1]])
    add("ScatterElements", x, indices, data((2, 2), dtype, 1, 5), axis=1, reduction=reduction)
    add("ScatterND", x, np.int64([[0], [-1]]), data((2, 4), dtype, 1, 5), reduction=reduction)
add("ScatterND", data((3, 4)), np.int64([[[0, 1], [2, 3]]]), data((1, 2)))
add("TensorScatter", data((2, 5, 3)), data((2, 2, 3)), i64(0, 3))
add("TensorScatter", data((2, 5, 3)), data((2, 2, 3)), i64(4, 3), mode="circular")
add("TensorScatter", data((2, 2, 5)), data((2, 2, 4)), None, axis=-1)
add("Col2Im", data((1, 8, 9)), i64(4, 4), i64(2, 2))
add("Col2Im", data((2, 4, 4)), i64(3, 3), i64(2, 2), stride=(2, 2), pad=(0, 0, 1, 1))
add("Col2Im", data((1, 8, 4)), i64(4, 4), i64(2, 2), dilation=(2, 2), stride=(1, 1))

# ---- selection

for largest, axis in itertools.product((True, False), (0, -1)):
    add("TopK", data((3, 4)), i64(2), largest=largest, axis=axis)
    add("TopK", np.uint8([[3, 0, 255, 3]] * 3), i64(3), largest=largest, axis=axis)
add("TopK", data((3,), BF16), i64(0))
for x in (data((2, 3), bool), np.float32(3), np.float32(0), data((0,)), text("", "a")):
    add("NonZero", x)
add("Compress", data((3, 2)), np.array([True, False, True]), axis=0)
add("Compress", data((3, 2)), np.array([False, True]))
REPEATED = (np.float32([2, 1, 1, 3]), text("b", "a", "b"), data((0,)), np.int64([[1, 0], [1, 0]]))
for is_sorted, x in itertools.product((True, False), REPEATED):
    add("Unique", x, sorted=is_sorted)
    add("Unique", x, sorted=is_sorted, axis=-1)
add("OneHot", i64(0, -1, 5), np.int64(3), np.float32([2, 5]))
add("OneHot", np.float32([[1, 0]]), i64(3), np.int32([0, 1]), axis=0)
add("OneHot", np.int64(1), np.float32(3), np.array([False, True]))
add("OneHot", np.uint8([2, 200]), np.int64(4), np.float32([0, 1]), axis=1)

# ---- made from numbers

for numbers in ((0, 5, 2), (5, 0, -2), (3, 3, 1), (0, 3, -1), (-7, 8, 3)):
    add("Range", *map(np.int64, numbers))
    add("Range", *map(np.float32, numbers))
add("Range", *(np.array(n, np.float32).astype(BF16) for n in (0, 1, 0.25)))
add("Range", np.float32(1), np.float32(0), np.float32(-0.3))
add("ConstantOfShape", i64(2, 0, 3))
add("ConstantOfShape", i64(2), value=3, dtype="int8")
add("ConstantOfShape", i64(), value=True, dtype="bool")
add("ConstantOfShape", i64(2), value="a", dtype="string")
for k in (0, 1, -2):
    add("EyeLike", data((2, 3)), k=k)
add("EyeLike", data((2, 3)), dtype="bfloat16")

# ---- random

add("RandomNormal", shape=(2, 3), mean=1.0, scale=2.0)
add("RandomNormal", shape=(), dtype="float16", seed=1.5)
add("RandomUniform", shape=(4,), low=2.0, high=3.0, dtype="float64")
add("RandomNormalLike", data((2, 3), BF16))
add("RandomUniformLike", data((2, 3)), dtype="float64", low=-1.0)
add("Bernoulli", data((2, 3), low=0, high=1), dtype="int32")
add("Multinomial", data((2, 3)), sample_size=5)

# ---- signals

add("DFT", data((2, 6, 1)))
add("DFT", data((2, 6, 2)), None, np.int64(1), inverse=True)
add("DFT", data((2, 5, 3, 1)), np.int64(8), np.int64(-3))
add("DFT", data((2, 6, 1)), np.int64(4), None, onesided=True)
add("DFT", data((2, 4, 2)), None, None, onesided=True, inverse=True)
add("DFT", data((2, 4, 2)), np.int64(5), None, onesided=True, inverse=True)
add("STFT", data((2, 16, 1)), np.int64(4), data((8,)))
add("STFT", data((1, 17, 2)), np.int64(4), None, np.int64(8), onesided=False)
add("STFT", data((1, 9, 1), "float64"), np.int64(1))
for name, periodic in itertools.product(
    ("HannWindow", "HammingWindow", "BlackmanWindow"), (True, False)
):
    add(name, np.int64(10), periodic=periodic)
    add(name, np.int32(1), periodic=periodic, dtype="float64")
    add(name, np.int64(0), periodic=periodic)
mel = (np.int64(8), np.int64(64), np.int64(8000), np.float32(0), np.float32(4000))
add("MelWeightMatrix", *mel)
add("MelWeightMatrix", *mel, dtype="float64")

# ---- strings

add("StringConcat", text("a", "b"), text("x"))
add("StringConcat", np.array("a", object), text())
add("RegexFullMatch", text("www.a.com", "b"), pattern=r"www\..*")
add("StringSplit", text("a b  c", "", "d"))
add("StringSplit", text("a,b,,c", "d"), delimiter=",", maxsplit=2)
add("StringSplit", text())
add(
    "StringNormalizer", text("Monday", "tuesday"), stopwords=("monday",), case_change_action="UPPER"
)
add("StringNormalizer", text("x").reshape(1, 1), stopwords=("x",))
add("StringNormalizer", text("X"), is_case_sensitive=True, stopwords=("x",))
tf = dict(
    min_gram_length=1, max_gram_length=2, ngram_counts=(0, 4), ngram_indexes=(0, 1, 2, 3, 4, 5, 6)
)  # fmt: skip
add("TfIdfVectorizer", i64(1, 1, 3, 3, 3, 7), mode="TF", max_skip_count=0,
    pool_int64s=(2, 3, 5, 4, 5, 6, 7, 8, 6, 7), **tf)  # fmt: skip
add("TfIdfVectorizer", text("a", "b").reshape(1, 2), mode="IDF", max_skip_count=5,
    pool_strings=("a", "b", "c", "d", "a", "b", "x", "y", "b", "c"), **tf)  # fmt: skip
add("Gather", data((2, 2), "int8").astype(ml_dtypes.int4), i64(1))
