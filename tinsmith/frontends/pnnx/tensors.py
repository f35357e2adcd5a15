"""Importers of operators that make, move or select elements."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.pnnx.expression import common, evaluate, size_of, trunc
from tinsmith.frontends.pnnx.layers import each, each_size
from tinsmith.frontends.pnnx.node import PnnxNode, operator
from tinsmith.graph import Value

END = 2**31 - 1
"""As an end of a slice: that of the axis. As an index of it: none."""


@operator("pnnx.Attribute")
def attribute(node: PnnxNode) -> Value:
    if "@data" not in node.attrs and len(node.op.weights) == 1:  # whatever it is called
        return node.tensor(node.weight(*node.op.weights))
    return node.tensor(node.weight("data"))


# ---- shapes


@operator("Tensor.reshape", "Tensor.view", "torch.reshape", "torch.view")
def reshape(node: PnnxNode, input: Value, *, shape: Any) -> Value:
    return reshaped(node, input, shape)


def reshaped(node: PnnxNode, x: Value, shape: Any) -> Value:
    """`x` in a shape, whose first number follows from the others where the batch is free."""
    if isinstance(shape, Value):
        return node.emit("Reshape", x, shape)
    shape = list(each_size(shape))
    first = x.shape[0] if x.shape else 1
    said = node.declared()
    if node.scope.free and shape and isinstance(first, str) and said and None not in said:
        inner = x.shape[1:] if x.shape else ()
        rest = [int(s or 0) for s in said[1:]]
        whole = all(isinstance(d, int) for d in inner) and prod(rest) == prod(map(int, inner))
        shape = [0 if whole else -1, *rest]
    return node.emit("Reshape", x, shape)


@operator("Tensor.reshape_as", "Tensor.view_as")
def reshape_as(node: PnnxNode, input: Value, other: Value) -> Value:
    return node.emit("Reshape", input, node.emit("Shape", other))


@operator("torch.flatten", "Tensor.flatten", "nn.Flatten")
def flatten(
    node: PnnxNode, input: Value, *, start_dim: int | None = None, end_dim: int = -1
) -> Value:
    start_dim = start_dim if start_dim is not None else int(node.type == "nn.Flatten")
    if input.rank == 0:
        return node.emit("Reshape", input, node.ints(1))
    first, last = node.axis(input, start_dim), node.axis(input, end_dim)
    if first == last:
        return input
    if first == 1 and last == node.rank(input) - 1:
        return node.emit("Flatten", input, axis=1)
    return _with_axis(node, input, first, last + 1, [-1])


def _with_axis(node: PnnxNode, x: Value, first: int, end: int, sizes: Sequence[Any]) -> Value:
    """`x` with these sizes in place of the axes from `first` to before `end`."""
    after = [size_of(node, x, i) for i in range(end, node.rank(x))]
    return node.emit("Reshape", x, [*[0] * first, *sizes, *after])


@operator("Tensor.unflatten", "torch.unflatten")
def unflatten(node: PnnxNode, input: Value, *, dim: int, sizes: Any) -> Value:
    axis = node.axis(input, dim)
    return _with_axis(node, input, axis, axis + 1, each_size(sizes))


@operator("torch.squeeze", "Tensor.squeeze")
def squeeze(node: PnnxNode, input: Value, *, dim: Any = None) -> Value:
    """Axes of 1 only; the others stay."""
    axes = range(node.rank(input)) if dim is None else [node.axis(input, d) for d in each_size(dim)]
    ones = [a for a in axes if input.shape is not None and input.shape[a] == 1]
    return node.emit("Squeeze", input, node.ints(*ones)) if ones else input


@operator("torch.unsqueeze", "Tensor.unsqueeze")
def unsqueeze(node: PnnxNode, input: Value, *, dim: int) -> Value:
    return node.emit("Unsqueeze", input, node.ints(dim))


@operator("Tensor.permute", "torch.permute")
def permute(node: PnnxNode, input: Value, *, dims: Any) -> Value:
    return node.emit("Transpose", input, perm=tuple(node.axis(input, d) for d in each_size(dims)))


@operator("torch.transpose", "Tensor.transpose")
def transpose(node: PnnxNode, input: Value, *, dim0: int, dim1: int) -> Value:
    order = list(range(node.rank(input)))
    a, b = node.axis(input, dim0), node.axis(input, dim1)
    order[a], order[b] = order[b], order[a]
    return node.emit("Transpose", input, perm=tuple(order))


@operator("torch.t", "Tensor.t", "Tensor.T", "Tensor.mT", "aten::mT", "aten::numpy_T")
def turned(node: PnnxNode, input: Value) -> Value:
    if node.rank(input) < 2:
        return input
    return (
        transpose(node, input, dim0=-2, dim1=-1)
        if input.rank != 2
        else node.emit("Transpose", input, perm=(1, 0))
    )


@operator("aten::movedim", "torch.movedim")
def movedim(node: PnnxNode, input: Value, *, source: Any, destination: Any) -> Value:
    goes = {
        node.axis(input, b): node.axis(input, a)
        for a, b in zip(each_size(source), each_size(destination), strict=True)
    }
    rest = iter([i for i in range(node.rank(input)) if i not in goes.values()])
    return node.emit(
        "Transpose",
        input,
        perm=tuple(goes[i] if i in goes else next(rest) for i in range(node.rank(input))),
    )


@operator("Tensor.size", "Tensor.dim")
def size(node: PnnxNode, input: Value, *, dim: Any = None) -> Any:
    if node.type == "Tensor.dim":
        return node.rank(input)
    return evaluate(node, "size(@0)" if dim is None else f"size(@0,{dim})")


@operator("Tensor.expand", "Tensor.expand_as", "torch.broadcast_to")
def expand(node: PnnxNode, input: Value, other: Any = None, *, sizes: Any = None) -> Value:
    if other is not None:
        return node.emit("Expand", input, node.emit("Shape", other))
    if isinstance(sizes, Value):
        return node.emit("Expand", input, sizes)
    kept = [1 if isinstance(s, int) and s == -1 else s for s in each_size(sizes)]  # -1: as it is
    return node.emit("Expand", input, kept)


@operator("Tensor.repeat", "torch.tile")
def repeat(node: PnnxNode, input: Value, *, sizes: Any = None, dims: Any = None) -> Value:
    times = sizes if dims is None else dims
    if isinstance(times, Value):
        return node.emit("Tile", input, times)
    times = list(each_size(times))
    rank = node.rank(input)
    times = [1] * (rank - len(times)) + times
    if len(times) > rank:
        input = node.emit("Unsqueeze", input, node.ints(*range(len(times) - rank)))
    return node.emit("Tile", input, times)


@operator("torch.repeat_interleave")
def repeat_interleave(node: PnnxNode, input: Value, *, repeats: int, dim: Any = None) -> Value:
    x = node.emit("Reshape", input, node.ints(-1)) if dim is None else input
    axis = node.axis(x, dim or 0)
    rank = node.rank(x)
    y = node.emit("Unsqueeze", x, node.ints(axis + 1))
    y = node.emit("Tile", y, node.ints(*[1] * (axis + 1), repeats, *[1] * (rank - axis - 1)))
    return _with_axis(node, y, axis, axis + 2, [-1])


# ---- selection


@operator("pnnx.SliceIndexes")
def slice_indexes(node: PnnxNode, *xs: Any, indexes: Any) -> list[Any]:
    """A list of numbers and of operands, `@n`."""
    return [node.inputs[int(i[1:])] if isinstance(i, str) else i for i in each_size(indexes)]


@operator("Tensor.slice", "torch.narrow")
def slice_(
    node: PnnxNode, input: Value, *, dim: Any = None, start: Any = 0, end: Any = END, step: Any = 1,
    dims: Any = None, starts: Any = None, ends: Any = None, steps: Any = None, selects: Any = None,
    length: Any = None,
) -> Value:  # fmt: skip
    if length is not None:
        end = (
            start + length if isinstance(start, int) else node.emit("Add", start, node.ints(length))
        )
    if dims is None:
        dims, starts, ends, steps = (dim,), [start], [end], [step]
    return sliced(node, input, each_size(dims), starts, ends, steps, selects)


def sliced(
    node: PnnxNode, x: Value, dims: Any, starts: Any, ends: Any, steps: Any, selects: Any
) -> Value:
    """Cut or, where it says an index, select along each axis of `dims`."""
    axes = [node.axis(x, d) for d in dims]
    lists = [
        list(v) if v is not None else [d] * len(axes)
        for v, d in ((starts, 0), (ends, END), (steps, 1), (selects, END))
    ]
    if any(len(v) != len(axes) for v in lists):
        raise Unsupported("its lists are not of one length")
    rows = list(zip(axes, *lists, strict=True))
    cuts = [
        (a, s or 0, END if e is None else e, t or 1)
        for a, s, e, t, at in rows
        if isinstance(at, int) and at == END
    ]
    picks = sorted(
        ((a, at) for a, *_, at in rows if not (isinstance(at, int) and at == END)),
        key=lambda p: -p[0],
    )
    cuts = [c for c in cuts if not all(isinstance(v, int) for v in c[1:]) or c[1:] != (0, END, 1)]
    if cuts:
        at, start, end, step = (list(v) for v in zip(*cuts, strict=True))
        x = node.emit("Slice", x, start, end, node.ints(*at), step)
    for axis, index in picks:
        x = select(node, x, dim=axis, index=index)
    return x


@operator("Tensor.select", "torch.select")
def select(node: PnnxNode, input: Value, *, dim: int, index: Any) -> Value:
    at = node.tensor(index)
    return node.emit(
        "Gather",
        input,
        at if at.rank == 0 else node.emit("Squeeze", at),
        axis=node.axis(input, dim),
    )


@operator("torch.index_select")
def index_select(node: PnnxNode, input: Value, index: Value, *, dim: int) -> Value:
    return node.emit("Gather", input, index, axis=node.axis(input, dim))


@operator("F.embedding", "nn.Embedding")
def embedding(node: PnnxNode, input: Value, weight: Any) -> Value:
    return node.emit("Gather", weight, input)


@operator("torch.gather", "torch.take_along_dim")
def gather(
    node: PnnxNode, input: Value, index: Any, *, dim: int, sparse_grad: bool = False
) -> Value:
    return node.emit("GatherElements", input, index, axis=dim)


@operator("Tensor.index")
def index(node: PnnxNode, input: Value, *, expr: Any) -> Value:
    """x[:, i, j]: one index after others that are None, or several of one shape side by side."""
    at = evaluate(node, expr) if isinstance(expr, str) else expr
    given = [
        (i, node.tensor(v))
        for i, v in enumerate(at if isinstance(at, list) else [at])
        if v is not None
    ]
    if not given:
        return input
    if any(v.dtype.kind == "b" for _, v in given):
        raise Unsupported("it is indexed by a mask: the size of the result is not known")
    first = given[0][0]
    if len(given) == 1:
        return node.emit("Gather", input, given[0][1], axis=node.axis(input, first))
    if [i for i, _ in given] != list(range(first, first + len(given))):
        raise Unsupported("its indices are not of neighbouring axes")
    shape = np.broadcast_shapes(
        *(tuple(node.size(v, i) for i in range(node.rank(v))) for _, v in given)
    )
    parts = [
        node.emit("Unsqueeze", node.emit("Expand", v, node.ints(*shape)), node.ints(-1))
        for _, v in given
    ]
    pairs = node.emit("Concat", *parts, axis=-1)
    front = [*range(first, first + len(given)), *range(first)]
    rank = node.rank(input)
    x = (
        node.emit("Transpose", input, perm=(*front, *range(first + len(given), rank)))
        if first
        else input
    )
    y = node.emit("GatherND", x, pairs)
    if not first:
        return y
    n, total = len(shape), rank - len(given) + len(shape)
    return node.emit(
        "Transpose", y, perm=(*range(n, n + first), *range(n), *range(n + first, total))
    )


@operator("torch.flip")
def flip(node: PnnxNode, input: Value, *, dims: Any) -> Value:
    axes = each_size(dims)
    ends = node.ints(*[-(2**63)] * len(axes))
    return node.slice(input, node.ints(*[-1] * len(axes)), ends, axes, node.ints(*[-1] * len(axes)))


@operator("torch.roll")
def roll(node: PnnxNode, input: Value, *, shifts: Any, dims: Any = None) -> Value:
    if dims in (None, ()):
        raise Unsupported("it has no dims")
    x = input
    for shift, dim in zip(each_size(shifts), each_size(dims), strict=True):
        size = x.shape[node.axis(x, dim)] if x.shape is not None else None
        shift = shift % size if isinstance(size, int) and size else shift
        if shift:
            tail = node.slice(x, node.ints(-shift), node.ints(END), [dim])
            x = node.emit(
                "Concat", tail, node.slice(x, node.ints(0), node.ints(-shift), [dim]), axis=dim
            )
    return x


@operator("torch.diag")
def diag(node: PnnxNode, input: Value, *, diagonal: int = 0) -> Value:
    down, right = max(-diagonal, 0), max(diagonal, 0)
    if input.rank == 1:
        n = node.size(input, 0)
        at = np.arange(n)
        zeros = np.zeros((n + down + right,) * 2, input.dtype)
        return node.emit("ScatterND", zeros, np.stack([at + down, at + right], -1), input)
    n = max(min(node.size(input, 0) - down, node.size(input, 1) - right), 0)
    at = np.arange(n)
    return node.emit("GatherND", input, np.stack([at + down, at + right], -1))


@operator("aten::tril", "aten::triu", "torch.tril", "torch.triu")
def triangle(node: PnnxNode, input: Value, *, diagonal: int = 0) -> Value:
    return node.emit("Trilu", input, np.array(diagonal, np.int64), upper=node.type.endswith("u"))


# ---- joins and parts


@operator("torch.cat", "torch.stack", "torch.hstack", "torch.vstack")
def cat(node: PnnxNode, *tensors: Any, dim: int = 0) -> Value:
    xs = [v for t in tensors for v in (t if isinstance(t, list) else [t])]
    if not xs:
        raise Unsupported("it has no inputs")
    xs = common(node, *xs)
    if node.type == "torch.stack":
        xs = [node.emit("Unsqueeze", x, node.ints(dim)) for x in xs]
    if node.type == "torch.hstack":
        dim = int(node.rank(xs[0]) > 1)
    return node.emit("Concat", *_to_batch(node, xs, dim), axis=dim)


def _to_batch(node: PnnxNode, xs: list[Value], dim: int) -> list[Value]:
    """Where the batch is free, what is joined with it is repeated for it."""
    free = [x for x in xs if x.shape and isinstance(x.shape[0], str)]
    if not node.scope.free or not free or dim == 0 or len(free) == len(xs):
        return xs
    batch = node.emit("Shape", free[0], start=0, end=1)

    def repeated(x: Value) -> Value:
        if x in free:
            return x
        first = node.slice(x, node.ints(0), node.ints(1), [0])
        ones = node.ints(*[1] * (node.rank(x) - 1))
        return node.emit("Expand", first, node.emit("Concat", batch, ones, axis=0))

    return [repeated(x) for x in xs]


@operator("torch.chunk", "torch.split", "torch.tensor_split", "torch.unbind")
def split(
    node: PnnxNode, input: Value, *, dim: int = 0, chunks: Any = None,
    split_size_or_sections: Any = None, split_size: Any = None, sections: Any = None, indices: Any = None,
) -> Any:  # fmt: skip
    axis = node.axis(input, dim)
    size = node.size(input, axis)
    sizes = _sizes(node, size, chunks, split_size_or_sections or split_size, sections, indices)
    made = node.emit("Split", input, node.ints(*sizes), axis=axis, num_outputs=len(sizes))
    parts = made if isinstance(made, tuple) else (made,)
    if node.type == "torch.unbind":
        parts = tuple(node.emit("Squeeze", p, node.ints(axis)) for p in parts)
    return parts if len(node.outputs) > 1 or len(parts) == 1 else [*parts]


def _sizes(
    node: PnnxNode, size: int, chunks: Any, split: Any, sections: Any, indices: Any
) -> list[int]:
    if node.type == "torch.unbind":
        split = 1
    if isinstance(split, tuple):
        return list(split)
    if indices is not None:
        ends = [max(0, min(i + size if i < 0 else i, size)) for i in each_size(indices)]
        return [max(b - a, 0) for a, b in zip([0, *ends], [*ends, size], strict=True)]
    if sections is not None:
        return [size // sections + (i < size % sections) for i in range(sections)]
    step = split if chunks is None else -(-size // chunks)
    if not isinstance(step, int) or step < 1:
        raise Unsupported("it does not say into how many parts it cuts")
    node.scope.shared.count_nodes(-(-size // step))
    return [min(step, size - at) for at in range(0, size, step)]


@operator("prim::TupleConstruct", "prim::ListConstruct")
def listed(node: PnnxNode, *xs: Any) -> list[Any]:
    return list(xs)


@operator("prim::TupleUnpack", "prim::ListUnpack")
def unlisted(node: PnnxNode, input: Any) -> Any:
    if not isinstance(input, list):
        raise Unsupported("what it reads is no tuple")
    return tuple(input)


# ---- new tensors


@operator(
    *(
        f"torch.{n}"
        for n in (
            "zeros",
            "ones",
            "full",
            "empty",
            "zeros_like",
            "ones_like",
            "full_like",
            "empty_like",
        )
    ),
    *(f"Tensor.{n}" for n in ("new_zeros", "new_ones", "new_full", "new_empty", "fill")),
)
def filled(
    node: PnnxNode,
    input: Any = None,
    *,
    size: Any = None,
    fill_value: Any = None,
    value: Any = None,
    dtype: Any = None,
) -> Value:
    kind, like = node.type, input if isinstance(input, Value) else None
    of_like = kind.endswith("_like") or kind == "Tensor.fill"
    value = 1 if "ones" in kind else value if fill_value is None else fill_value
    value = 0 if value is None else value
    fallback = "int64" if isinstance(value, int) and "full" in kind else "float32"
    name = node.dtype(
        dtype, like.dtype.name if like is not None and ("Tensor." in kind or of_like) else fallback
    )
    shape = (
        node.emit("Shape", like)
        if of_like
        else node.tensor(
            [*each_size(size if size is not None else input)]
            if not isinstance(size, Value)
            else size
        )
    )
    if isinstance(value, Value):
        return node.emit("Expand", node.cast(value, name), shape)
    return node.emit("ConstantOfShape", node.cast(shape, "int64"), value=value, dtype=name)


@operator("torch.arange")
def arange(node: PnnxNode, *, start: Any = 0, end: Any, step: Any = 1, dtype: Any = None) -> Value:
    numbers = [start, end, step]
    whole = all(
        isinstance(n, int) or (isinstance(n, Value) and n.dtype.kind in "iu") for n in numbers
    )
    name = node.dtype(dtype, "int64" if whole else "float32")
    return node.emit("Range", *(node.cast(n, name) for n in numbers))


@operator("Tensor.to", "Tensor.type_as")
def to(node: PnnxNode, input: Any, other: Any = None, *, dtype: Any = None) -> Value:
    x = node.tensor(input)
    name = other.dtype.name if other is not None else node.dtype(dtype, x.dtype.name)
    return (
        node.cast(
            trunc(node, x) if np.dtype(name).kind in "iu" and x.dtype.kind == "f" else x, name
        )
        if name != "bfloat16"
        else node.cast(x, name)
    )


@operator("aten::one_hot", "F.one_hot")
def one_hot(node: PnnxNode, input: Value, *, num_classes: int) -> Value:
    return node.emit("OneHot", input, np.array(num_classes, np.int64), np.array([0, 1], np.int64))


@operator("Tensor.index_put", "torch.scatter", "torch.scatter_add")
def scatter(
    node: PnnxNode,
    input: Value,
    index: Any = None,
    src: Any = None,
    *,
    dim: int = 0,
    reduce: Any = None,
    **_: Any,
) -> Value:
    if node.type == "Tensor.index_put":
        raise Unsupported("it writes at indices of several axes")
    kind = "add" if node.type == "torch.scatter_add" else reduce or "none"
    return node.emit(
        "ScatterElements",
        input,
        index,
        node.cast(src, input.dtype.name),
        axis=dim,
        reduction={"multiply": "mul"}.get(kind, kind),
    )


# ---- products of other shapes


@operator("torch.addmm", "torch.baddbmm", "torch.addmv")
def addmm(
    node: PnnxNode,
    input: Any,
    mat1: Any = None,
    mat2: Any = None,
    batch1: Any = None,
    batch2: Any = None,
    *,
    alpha: Any = 1,
    beta: Any = 1,
) -> Value:
    y = node.emit("MatMul", mat1 if batch1 is None else batch1, mat2 if batch2 is None else batch2)
    y = y if alpha == 1 else node.emit("Mul", y, node.number(alpha, y))
    x = input if beta == 1 else node.emit("Mul", input, node.number(beta, y))
    return node.emit("Add", x, y) if beta else y


@operator("aten::outer", "torch.outer", "torch.ger")
def outer(node: PnnxNode, input: Value, vec2: Value) -> Value:
    return node.emit("Mul", node.emit("Unsqueeze", input, node.ints(1)), vec2)


# ---- images


@operator("nn.PixelShuffle", "F.pixel_shuffle")
def pixel_shuffle(node: PnnxNode, input: Value, *, upscale_factor: int) -> Value:
    return node.emit("DepthToSpace", input, blocksize=upscale_factor, mode="CRD")


@operator("nn.PixelUnshuffle", "F.pixel_unshuffle")
def pixel_unshuffle(node: PnnxNode, input: Value, *, downscale_factor: int) -> Value:
    return node.emit("SpaceToDepth", input, blocksize=downscale_factor, mode="CRD")


@operator("nn.Unfold", "F.unfold")
def unfold(
    node: PnnxNode,
    input: Value,
    *,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Value:
    kernel = each(kernel_size, 2)
    channels, count = node.size(input, 1), prod(kernel)
    taps = np.tile(np.eye(count, dtype=input.dtype).reshape(count, 1, *kernel), (channels, 1, 1, 1))
    y = node.emit(
        "Conv",
        input,
        taps,
        stride=each(stride, 2),
        pad=each(padding, 2) * 2,
        dilation=each(dilation, 2),
        group=channels,
    )
    return (
        node.emit("Flatten", y, axis=2)
        if y.rank is None
        else node.emit("Reshape", y, node.ints(0, 0, -1))
    )


@operator("nn.Fold", "F.fold")
def fold(
    node: PnnxNode,
    input: Value,
    *,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Value:
    sizes = [node.ints(*each(v, 2)) for v in (output_size, kernel_size)]
    return node.emit(
        "Col2Im",
        input,
        *sizes,
        dilation=each(dilation, 2),
        pad=each(padding, 2) * 2,
        stride=each(stride, 2),
    )


@operator("F.grid_sample")
def grid_sample(
    node: PnnxNode,
    input: Value,
    grid: Value,
    *,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: Any = False,
) -> Value:
    modes = {"bilinear": "linear", "bicubic": "cubic"}
    return node.emit(
        "GridSample",
        input,
        grid,
        mode=modes.get(mode, mode),
        padding_mode=padding_mode,
        align_corners=bool(align_corners),
    )


@operator("F.affine_grid")
def affine_grid(node: PnnxNode, theta: Value, *, size: Any, align_corners: Any = False) -> Value:
    return node.emit("AffineGrid", theta, size, align_corners=bool(align_corners))


@operator("torchvision.ops.RoIAlign")
def roi_align(
    node: PnnxNode,
    input: Value,
    rois: Value,
    *,
    output_size: Any,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Value:
    parts = [node.slice(rois, node.ints(a), node.ints(b), [1]) for a, b in ((0, 1), (1, 5))]
    at = node.cast(node.emit("Squeeze", parts[0], node.ints(1)), "int64")
    height, width = each(output_size, 2)
    return node.emit(
        "RoiAlign", input, parts[1], at, output_height=height, output_width=width,
        spatial_scale=float(spatial_scale), sampling_ratio=max(sampling_ratio, 0),
        coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
    )  # fmt: skip
