"""Layers of inputs whose sizes the file does not tell, as in all files that pnnx writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tinsmith.errors import ImportFailed

Array = np.ndarray[Any, Any]


def numbers(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def model(*rows: str, size: str = "") -> bytes:
    """Layers of one input and one output each, one after the other."""
    lines = [f"Input x 0 1 v0 {size}"]
    for i, row in enumerate(rows):
        type, _, params = row.partition(" ")
        lines.append(f"{type} layer{i} 1 1 v{i} v{i + 1} {params}")
    return f"7767517\n{len(lines)} {len(lines)}\n{chr(10).join(lines)}\n".encode()


def computed(x: Array, *rows: str, size: str = "", **options: Any) -> Array:
    graph = ts.load(model(*rows, size=size), random_weights=0, **options)
    return ts.compile(graph)(x)


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("sizes", ["8=3 18=2", "8=1 18=4", "8=7 18=5", "8=-233 18=3"])
def test_windows_of_a_told_number_are_those_of_known_sizes(kind: int, sizes: str) -> None:
    row, x = f"Pooling 0={kind} 7=1 {sizes}", numbers(2, 3, 8, 9)
    wanted = computed(x, row, size="0=9 1=8 2=3")
    np.testing.assert_allclose(computed(x, row), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "expression, height, width",
    [
        ("floor(*(0w,1.7)),floor(*(0h,1.7))", 13, 15), ("ceil(/(0w,2)),//(0h,2)", 4, 5),
        ("trunc(+(0w,0.5)),round(*(0h,0.8))", 6, 9), ("max(0w,3),min(0h,3)", 3, 9),
        ("round(/(0w,2)),abs(-(2,0h))", 6, 5), ("trunc(*(-(0w,13.5),-1)),//(-(0h,20),-2)", 6, 4),
    ],
)  # fmt: skip
def test_sizes_are_computed_with_their_fractions(expression: str, height: int, width: int) -> None:
    row, x = f'Interp 0=2 9="{expression}"', numbers(1, 3, 8, 9)
    found = computed(x, row)
    assert found.shape == (1, 3, height, width)
    np.testing.assert_allclose(found, computed(x, row, size="0=9 1=8 2=3"), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
@pytest.mark.parametrize("size", [4, 5, 6, 7])
def test_parts_of_a_free_axis_are_those_of_a_known_one(count: int, size: int) -> None:
    if size < count:
        return
    tops = " ".join(f"y{i}" for i in range(count))
    row = f"Slice s 1 {count} x {tops} -23300={count}{',-233' * count} 1=1\n"
    x = numbers(2, 3, size)
    found = [
        ts.compile(
            f"7767517\n2 {count + 1}\nInput x 0 1 x\n{row}".encode(), input_shapes={"x": told}
        ).run([x])
        for told in (("N", 3, "w"), ("N", 3, size))
    ]
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("scale", [(1.2, 2.0), (1.02, 1.3), (2.0, 1.1), (0.7, 1.5), (3.0, 1.0)])
@pytest.mark.parametrize("kind", [1, 2])
def test_axes_that_keep_their_size_do_so_at_any_size(scale: tuple[float, float], kind: int) -> None:
    row = f"Interp 0={kind} 1={scale[0]} 2={scale[1]}"
    for h, w in ((4, 5), (40, 5), (2, 1)):
        x = numbers(1, 2, h, w)
        wanted = computed(x, row, size=f"0={w} 1={h} 2=2")
        np.testing.assert_allclose(computed(x, row), wanted, rtol=1e-5, atol=1e-5)


def test_a_resize_of_known_sizes_is_one_node() -> None:
    rows = model("Interp 0=1 1=3.0 2=2.2", size="0=9 1=3 2=5")
    assert [node.op.name for node in ts.load(rows).nodes] == ["Resize"]


def test_an_end_of_a_crop_that_is_computed_may_be_all() -> None:
    for h in (1, 2, 4):
        row, x = 'Crop 19="0" 20="-(0h,1)" 21="1"', numbers(1, 2, h, 3)
        np.testing.assert_array_equal(computed(x, row), computed(x, row, size=f"0=3 1={h} 2=2"))


def test_a_named_axis_of_a_squeeze_is_one() -> None:
    x = numbers(2, 3, 4, 1)
    np.testing.assert_array_equal(computed(x, "Squeeze -23303=1,-1"), x[..., 0])


def test_channels_are_those_that_a_layer_tells() -> None:
    for row in ("InstanceNorm 0=4 1=1e-5 2=0", "GroupNorm 0=2 1=4 2=1e-5"):
        x = numbers(2, 4, 5, 6)
        np.testing.assert_allclose(
            computed(x, row), computed(x, row, size="0=6 1=5 2=4"), rtol=1e-5
        )


def test_a_reshape_may_count_the_batch_as_an_axis() -> None:
    x = numbers(2, 6, 1, 4)
    both = computed(x, 'Reshape 12=0 13=0 6="-1,3,0n"')
    np.testing.assert_array_equal(both, x.reshape(2, 3, 8))
    moved = computed(x, 'Reshape 12=1 13=2 6="4,0n,6"')
    wanted = x.transpose(1, 0, 2, 3).reshape(6, 2, 4).transpose(2, 0, 1)
    assert moved.shape == (4, 6, 2)
    np.testing.assert_array_equal(moved, wanted)
    gone = computed(x, "Reshape 12=0 0=-1")
    np.testing.assert_array_equal(gone, x.reshape(1, -1))
    new = computed(x[:1], "Reshape 13=0 0=4 1=3 2=2", batch=1)
    np.testing.assert_array_equal(new, x[0].reshape(2, 3, 4))
    with pytest.raises(ImportFailed, match="give the batch a size of 1"):
        computed(x, "Reshape 13=0 0=4 1=3 2=2")


def test_what_pnnx_tells_of_one_group_is_no_other_layer() -> None:
    row, x = "Convolution 0=6 1=3 5=1 6=216", numbers(1, 4, 8, 9)
    np.testing.assert_array_equal(computed(x, row + " 7=1"), computed(x, row))


@pytest.mark.parametrize(
    "row, sizes",
    [
        ("Convolution 0=6 1=3 6=216", [4, "x_h", "x_w"]),
        ("ConvolutionDepthWise 0=4 1=3 6=36 7=4", [4, "x_h", "x_w"]),
        ("Deconvolution1D 0=6 1=3 6=72", [4, "x_w"]), ("InnerProduct 0=6 2=30", [5]),
        ("LSTM 0=3 1=160 2=2 3=4", ["x_h", 5]), ("GRU 0=4 1=60", ["x_h", 5]),
        ("MultiHeadAttention 0=8 1=2 2=320 3=40 4=40", ["x_h", 40]),
        ("BatchNorm 0=7", [7, "x_h", "x_w"]),
        ("Gemm 3=1 5=1 6=1 8=6 9=5 10=-1", ["x_h", 5]), ("ReLU", ["x_c", "x_h", "x_w"]),
        ("Pooling3D 0=1 4=1", ["x_c", "x_d", "x_h", "x_w"]), ("Embed 0=5 1=9 3=45", ["x_w"]),
    ],
)  # fmt: skip
def test_an_input_has_the_sizes_that_its_readers_tell(row: str, sizes: list[Any]) -> None:
    text = model(row).decode().replace("v0", "x").replace("7767517\n2 2", "7767517\n4 5")
    text = text.replace(" 1 1 x v1", " 1 1 x2 v1") + "Split s 1 2 x x1 x2\nReLU other 1 1 x1 y\n"
    rows = text.splitlines()
    ordered = "\n".join([*rows[:3], *rows[4:], rows[3]])
    (x, *_) = ts.load(ordered.encode(), random_weights=0).inputs
    assert list(x.shape or ())[1:] == sizes


def test_signals_of_spectra_leave_the_batch_free() -> None:
    row, size = "InverseSpectrogram 0=16 1=1 2=4 3=12 4=2 5=0 7=2", "0=2 1=10 2=9"
    x = numbers(3, 9, 10, 2)
    found = computed(x, row, size=size)
    assert ts.load(model(row, size=size), random_weights=0).outputs[0].shape == ("N", 52)
    np.testing.assert_allclose(found, computed(x, row, size=size, batch=3), rtol=1e-5, atol=1e-6)


def test_a_constant_that_is_joined_leaves_the_batch_free() -> None:
    text = b"7767517\n3 3\nInput x 0 1 x 0=4 1=3\nMemoryData token 0 1 token 0=4 1=1\n"
    graph = ts.load(text + b"Concat join 2 1 token x y\n", random_weights=0)
    assert graph.outputs[0].shape == ("N", 4, 4)
    x = numbers(3, 3, 4)
    found = ts.compile(graph)(x)
    np.testing.assert_array_equal(found[:, 1:], x)
    np.testing.assert_array_equal(found[:, :1], found[:1, :1].repeat(3, 0))


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_halves_of_a_gate_at_any_size(size: int) -> None:
    x, half = numbers(2, 4, size), size // 2
    want = x[:, :, :half] / (1 + np.exp(-x[:, :, half : 2 * half]))
    free = computed(x, "GLU 0=1", input_shapes={"v0": ("N", 4, "w")})
    for y in (free, computed(x, "GLU 0=1", size=f"0={size} 1=4")):
        np.testing.assert_allclose(y, want, rtol=1e-5)


def test_windows_behind_the_end_need_known_sizes() -> None:
    row = "Pooling 0=0 1=2 2=2 3=1"
    with pytest.raises(ImportFailed, match="behind the end"):
        ts.load(model(row), random_weights=0, input_shapes={"v0": ("N", 4, "h", "w")})
    assert computed(numbers(2, 4, 5, 5), row, size="0=5 1=5 2=4").shape == (2, 4, 4, 4)


def test_one_depth_is_resized_as_a_picture() -> None:
    x = numbers(2, 3, 1, 5, 4)
    y = computed(x, "Interp 0=1 1=2.0 2=2.0", size="0=4 1=5 11=1 2=3")
    np.testing.assert_array_equal(y, x[:, :, 0].repeat(2, axis=2).repeat(2, axis=3))


@pytest.mark.parametrize(
    "row, axes",
    [
        ("Convolution3D 0=2 1=1 6=2", 4), ("Convolution1D 0=2 1=1 6=2", 2),
        ("Deconvolution3D 0=2 1=1 6=2", 4), ("Pooling1D 0=0 1=1", 2), ("Pooling3D 0=0 1=1", 4),
        ("Softmax 0=3 1=1", 4), ("LSTM 0=4 1=16 2=0", 2), ("GRU 0=4 1=12 2=0", 2),
    ],
)  # fmt: skip
def test_a_layer_that_takes_other_axes_than_were_guessed_says_how_to_give_them(
    row: str, axes: int
) -> None:
    hint = r"axes of the input 'v0'.*input_shapes=\{'v0': .*--input-shape v0="
    with pytest.raises(ImportFailed, match=hint):
        ts.load(model("ReLU", row), random_weights=0)
    shape = {"v0": ("N", *"cdhw"[:axes])} if axes != 2 else {"v0": ("N", 1, 1)}
    ts.load(model("ReLU", row), random_weights=0, input_shapes=shape)
    with pytest.raises(ImportFailed) as raised:  # a shape is given: no hint
        ts.load(model("ReLU", "Permute 0=99"), random_weights=0, input_shapes=shape)
    assert "--input-shape" not in str(raised.value)


@pytest.mark.parametrize(
    "size, row",
    [("0=6 1=1", "Pooling1D 0=1 1=4 2=3 6=1"), ("0=6 1=6 2=1", "Pooling 0=1 1=3 2=2 6=1")],
)
def test_averages_that_count_an_added_end_need_known_sizes(size: str, row: str) -> None:
    axes = ("N", *"chw"[: len(size.split())])
    with pytest.raises(ImportFailed, match="counts what is added at the end"):
        ts.load(model(row), input_shapes={"v0": axes})
    assert ts.load(model(row, size=size)).outputs[0].shape[0] == "N"
    ts.load(model(f"{row} 5=1"), input_shapes={"v0": axes})


@pytest.mark.parametrize(
    "row, shapes",
    [
        ("BinaryOp", (("c", "h", "w"), ("k",))), ("BinaryOp", ((3, "h", "w"), ("k",))),
        ("BinaryOp", (("c", "h", "w"), (3,))), ("BinaryOp", (("h", "w"), ("w",))),
        ("Gemm", (("m", "k"), ("k", "n"), ("q",))), ("Gemm", (("m", "k"), ("k", "n"), ("m",))),
        ("Gemm", ((2, "k"), ("k", "n"), (2,))), ("Gemm", (("m", 2), (2, 3), ("q",))),
    ],
)  # fmt: skip
def test_a_vector_that_may_be_a_row_or_a_column_is_refused(row: str, shapes: Any) -> None:
    with pytest.raises(ImportFailed, match="is known only in a run"):
        _of_inputs(row, shapes)


@pytest.mark.parametrize(
    "row, shapes",
    [
        ("BinaryOp", (("c", "h", "w"), ("c", "h", "w"))), ("BinaryOp", (("c", "h", "w"), ("c",))),
        ("BinaryOp", (("c", "h", "w"), ("c", "h"))), ("BinaryOp", (("c", "h", "w"), (1,))),
        ("Gemm", (("m", "k"), ("k", "n"), ("n",))), ("Gemm", (("m", "k"), ("k", "n"), (1,))),
        ("Gemm", (("m", 2), (2, 3), (3,))), ("Gemm", ((4, "k"), ("k", 3), (4,))),
        ("Gemm", (("m", "k"), ("k", "n"), ("m", "n"))),
    ],
)  # fmt: skip
def test_operands_of_one_rank_or_of_equal_sizes_are_taken(row: str, shapes: Any) -> None:
    _of_inputs(row, shapes)


def _of_inputs(row: str, shapes: Any) -> None:
    """Read a layer of several inputs with these sizes behind the batch."""
    names = [f"in{i}" for i in range(len(shapes))]
    lines = [f"Input {n} 0 1 {n}" for n in names] + [f"{row} f {len(names)} 1 {' '.join(names)} y"]
    text = "\n".join(["7767517", f"{len(lines)} {len(lines)}", *lines, ""])
    told = {n: ("N", *sizes) for n, sizes in zip(names, shapes, strict=True)}
    ts.load(text.encode(), input_shapes=told)
