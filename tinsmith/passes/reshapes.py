"""One spelling for shapes and moves: no-ops dropped, chains collapsed, numbers where known."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.conditions import by_formula
from tinsmith.graph import Node, Value
from tinsmith.ops import OPS
from tinsmith.ops._move import moves_of
from tinsmith.ops.conv import transposed_window
from tinsmith.ops.window import window
from tinsmith.passes.facts import i64, is_of_shapes, reshaped, shape_of, target_of
from tinsmith.passes.manager import register
from tinsmith.passes.shapes import misfits
from tinsmith.rewrite import RuleSet, Skip, copy_with, p, with_
from tinsmith.sizes import same

rules = RuleSet("canonicalise-shapes", "No-op shapes and moves dropped, chains collapsed.")
register("portable")(rules)


# ---- reshape: Flatten, Squeeze, Unsqueeze and Reshape become one Reshape with known numbers


@rules.rule(
    p.Flatten("x").named("y") | p.Squeeze("x", ...).named("y") | p.Unsqueeze("x", ...).named("y"),
    x=(2, 1, 3),
    y=({}, {"#1": i64(1)}, {"#1": i64(1)}),
)
def reshape_from_view(x: Value, y: Node) -> Value:
    """flatten, squeeze, unsqueeze -> reshape, if all dims but one are known or stay in place."""
    dims = shape_of(y.output)
    if y.op.name == "Squeeze" and [d for d in shape_of(x) if d != 1] != [d for d in dims if d != 1]:
        raise Skip("what it drops is not known to be 1")
    return reshaped(x, dims)


@rules.rule(p.Reshape("x", "shape").named("y"), shape=i64(2, -1))
def explicit_shape(x: Value, shape: Value, y: Node) -> Value:
    """reshape(x, s) -> reshape(x, constant), where s follows from shapes and constants alone: 0 or
    -1 stands for a symbol."""
    if shape.const is not None and 0 in shape.const and not y.allowzero:
        raise Skip("the shape says what stays")
    if not is_of_shapes(shape):
        raise Skip("the shape arrives in the run, and may not fit")
    if shape.const is None and misfits(x.shape or (), shape_of(y.output)):
        raise Skip("a size need not fit")
    target = target_of(shape_of(y.output), x.shape or ())
    if shape.const is not None and tuple(shape.const.reshape(-1)) == target:
        raise Skip("the shape is explicit")
    return OPS["Reshape"](x, i64(*target))


@rules.rule(
    p.Reshape(p.Reshape("x", ...).named("inner").shared(), "shape").named("y"),
    inner={"#1": i64(6, 4)},
    shape=i64(4, 6),
)
def collapse_reshapes(x: Value, y: Node) -> Value:
    """reshape(reshape(x)) -> reshape(x)."""
    return reshaped(x, shape_of(y.output))


# ---- transpose


@rules.rule(p.Transpose("x", perm=None).named("t"))
def explicit_permutation(x: Value, t: Node) -> Value:
    """transpose(x), without `perm` -> transpose(x, reversed axes)."""
    return with_(t, perm=tuple(reversed(range(len(shape_of(x))))))


@rules.rule(
    p.Transpose(p.Transpose("x").named("inner").shared()).named("outer"),
    inner={"perm": (1, 2, 0)},
    outer={"perm": (0, 2, 1)},
)
def collapse_transposes(x: Value, inner: Node, outer: Node) -> Value:
    """transpose(transpose(x)) -> transpose(x), or x if no axis moves."""
    if inner.perm is None or outer.perm is None:
        raise Skip("a permutation is not explicit")
    perm = tuple(inner.perm[a] for a in outer.perm)
    return x if perm == tuple(range(len(perm))) else OPS["Transpose"](x, perm=perm)


@rules.rule(p.Transpose("x").named("t"), x=(1, 3, 1, 4), t={"perm": (2, 1, 0, 3)})
def reshape_from_transpose(x: Value, t: Node) -> Value:
    """transpose(x) -> reshape(x), where only axes of size 1 move."""
    shape = shape_of(x)
    if t.perm is None:
        raise Skip("the permutation is not explicit")
    kept = [a for a in t.perm if not same(shape[a], 1)]
    if kept != sorted(kept):
        raise Skip("axes that are larger than 1 move")
    return reshaped(x, tuple(shape[a] for a in t.perm))


# ---- moves that move nothing


@rules.rule(
    p.trait("move")("x", ...).named("y") | p.trait("view")("x", ...).named("y"),
    x=(2, 3, 4, 5),
    y={
        "Slice": {"#1": i64(0), "#2": i64(1 << 40), "#3": i64(1), "#4": i64(1)},
        "Split": {"num_outputs": 1},
        "Concat": {"axis": 1},
        "Pad": {"#1": i64(*[0] * 8)},
        "Expand": {"#1": i64(1, 4, 5)},
        "Tile": {"#1": i64(1, 1, 1, 1)},
        "Transpose": {"perm": (0, 1, 2, 3)},
        "DepthToSpace": {"blocksize": 1},
        "SpaceToDepth": {"blocksize": 1},
        "Reshape": {"#1": i64(2, 3, 4, 5)},
    },
)
def drop_move_of_nothing(x: Value, y: Node) -> Value:
    """move(x) -> x, where all elements keep their places."""
    with by_formula():
        if len(y.outputs) > 1 or x.shape != y.output.shape:
            raise Skip("{} becomes {}", x.type, y.output.type)
        move = moves_of(y)[0]
        if move is None or x.shape != move.dims:
            raise Skip("{} becomes {}", x.type, y.output.type)
        if len(move.parts) != 1 or not move.parts[0].is_whole(x.shape):
            raise Skip("elements move")
    return x


@rules.rule(
    p.Resize("x", ...).named("r"),
    x=(1, 2, 3, 4),
    r={"#1": None, "#2": np.ones(4, np.float32), "mode": "linear"},
)
def drop_resize_to_same(x: Value, r: Node) -> Value:
    """resize(x) -> x, where the size stays and each output lies on an input element."""
    if r.coordinate_transformation_mode == "tf_crop_and_resize":
        raise Skip("it crops")
    if not x.type.is_static or x.shape != r.output.shape:
        raise Skip(f"{x.type} becomes {r.output.type}")
    scales = r.inputs[2] if len(r.inputs) > 2 else None
    if scales is not None and (scales.const is None or np.any(scales.const != 1)):
        raise Skip("a scale is not 1")
    return x


# ---- auto_pad becomes numbers


def _known(sizes: tuple[Any, ...], auto_pad: str) -> tuple[int, ...]:
    if auto_pad == "NOTSET":
        raise Skip("the pads are explicit")
    if auto_pad != "VALID" and any(isinstance(d, str) for d in sizes):
        raise Skip("a spatial size is not known")
    return sizes


_POOLED = {"auto_pad": "SAME_LOWER", "stride": (2, 2), "kernel": (3, 3)}


@rules.rule(
    p.Conv("x", "w", ...).named("n")
    | p.MaxPool("x").named("n")
    | p.AveragePool("x").named("n")
    | p.LpPool("x").named("n"),
    x=(1, 2, 7, 6),
    w=(2, 2, 3, 3),
    n=({"auto_pad": "SAME_UPPER", "stride": (2, 2)}, _POOLED, _POOLED, _POOLED),
)
def explicit_pads(x: Value, n: Node, w: Value | None = None) -> tuple[Value, ...]:
    """conv(auto_pad), pool(auto_pad) -> the same with pads in numbers, where sizes are known."""
    sizes = _known(shape_of(x)[2:], n.auto_pad)
    kernel: Any = n.kernel if w is None else shape_of(w)[2:]
    if w is not None and any(isinstance(d, str) for d in kernel):
        raise Skip("the kernel's size is not known")
    ceil = n.attrs.get("ceil_mode", False)
    win = window(sizes, kernel, n.stride, n.pad, n.dilation, n.auto_pad, ceil)
    return copy_with(n, auto_pad="NOTSET", pad=win.begin + win.end).outputs


@rules.rule(
    p.ConvTranspose("x", "w", ...).named("n"),
    x=(1, 2, 4, 5),
    w=(2, 2, 3, 3),
    n={"auto_pad": "SAME_UPPER", "stride": (2, 2)},
)
def explicit_transposed_pads(x: Value, w: Value, n: Node) -> Value:
    """conv_transpose(auto_pad or output_shape) -> conv_transpose(pads in numbers), where sizes are
    known and the output is no larger than without pads (`output_padding` stays)."""
    if n.output_shape is None:
        _known(shape_of(x)[2:], n.auto_pad)
    sizes, kernel = shape_of(x)[2:], shape_of(w)[2:]
    if any(isinstance(d, str) for d in (*sizes, *kernel)):
        raise Skip("a spatial size is not known")
    numbers: Any = kernel
    rest = (n.stride, n.pad, n.dilation, n.output_padding)
    win = transposed_window(sizes, numbers, *rest, n.output_shape, n.auto_pad)
    full = transposed_window(sizes, numbers, n.stride, win.begin + win.end, *rest[2:])
    if full.out != win.out:
        raise Skip("the output is larger than the full sum")
    return with_(n, auto_pad="NOTSET", output_shape=None, pad=win.begin + win.end)
