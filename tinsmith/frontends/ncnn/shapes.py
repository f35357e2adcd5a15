"""Importers of layers that make, move or select elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.ncnn.expression import sizes_of
from tinsmith.frontends.ncnn.node import LETTERS, Node, Result, Size, known, layer, rank, shape
from tinsmith.frontends.ncnn.pool import PAD_MODES
from tinsmith.graph import Value

AUTO, NO_BATCH = -233, 233
FAR = np.iinfo(np.int64).max


@layer("MemoryData")
def memory_data(node: Node) -> Result:
    node.ignore("load_type")
    sizes = [node.attr(n) for n in "cdhw" if node.attr(n)]
    return node.const(node.weight("data", 1, *(sizes or [1])).astype(np.float32))


@layer("Split", "DeepCopy", "Noop", "Packing")
def same(node: Node) -> Result:
    node.ignore("out_elempack", "use_padding", "cast_from", "cast_to")
    return (node[0],) * len(node.outputs) if node.type == "Split" else tuple(node.inputs)


@layer("Cast")
def cast(node: Node) -> Result:
    node.ignore("type_from")
    kinds = {0: "", 1: "float32", 2: "float16", 3: "int8", 4: "bfloat16"}
    to = kinds.get(node.attr("type_to"))
    if to is None:
        raise Unsupported(f"it has no element type {node.attr('type_to')}")
    return node.emit("Cast", node[0], to=to) if to else node[0]


@layer("Concat")
def concat(node: Node) -> Result:
    values = node.alike(*node.present)
    return node.emit("Concat", *values, axis=node.axis(node.attr("axis"), rank(values[0])))


@layer("Slice")
def split(node: Node) -> Result:
    x, count = node[0], len(node.outputs)
    axis = node.axis(node.attr("axis"), rank(x))
    size, slices, indices = shape(x)[axis], node.attr("slices"), node.attr("indices")
    given = list(indices or slices)
    if len(given) not in (count, count - 1 if indices else count):
        raise Unsupported(f"it tells {len(given)} parts of {count}")
    alike = not indices and all(s == AUTO for s in slices)
    if not isinstance(size, int) or (alike and count > 1 and size % count == 0):
        if alike and isinstance(size, int):
            return node.emit("Split", x, axis=axis, num_outputs=count)
        if alike:
            return node.emit("Split", x, _parts(node, node.dim(x, axis), count), axis=axis)
        raise Unsupported(f"the size of its axis ({size}) is not known")
    if indices:
        ends = [i if i >= 0 else size + i for i in given[: count - 1]] + [size]
        sizes = [b - a for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    else:
        sizes, left = [], size
        for i, s in enumerate(given):
            sizes.append(left // (count - i) if s == AUTO else s)
            left -= sizes[-1]
    if count == 1:
        ends_, axes = node.ints(sizes[0]), node.ints(axis)
        return node.emit("Slice", x, node.ints(0), ends_, axes)
    if sum(sizes) < size:
        sizes.append(size - sum(sizes))
    got = node.emit("Split", x, node.ints(*sizes), axis=axis)
    return got[:count]


def _parts(node: Node, size: Size, count: int) -> Value:
    """The sizes, an int64 Value [count], of `count` parts of an axis whose `size` is known only in
    the run: they differ by at most 1, the smaller ones first."""
    whole = node.emit("Div", size, node.ints(count))
    rest = node.emit("Sub", size, node.emit("Mul", whole, node.ints(count)))
    larger = node.emit("Less", node.const(np.arange(count)[::-1]), rest)
    return node.emit("Add", whole, node.emit("Cast", larger, to="int64"))


@layer("Reshape")
def reshape(node: Node) -> Result:
    x, expression = node[0], node.attr("shape_expr")
    batched = {node.attr("in_batch_axis"), node.attr("out_batch_axis")} != {NO_BATCH}
    told = {n: node.attr(n) for n in "whdc"}
    if expression:
        sizes = sizes_of(node, expression)
        if batched:
            return _batch_moved(node, x, sizes[::-1])
        if len(sizes) not in LETTERS:
            raise Unsupported(f"its expression {expression!r} tells {len(sizes)} sizes")
        told = {n: AUTO for n in "whdc"} | dict(zip(LETTERS[len(sizes)][::-1], sizes, strict=True))
    names = [n for n in "cdhw" if isinstance(told[n], Value) or told[n] != AUTO]
    if tuple(names) not in [tuple(v) for v in LETTERS.values()]:
        raise Unsupported(f"it tells the sizes {told}, which make no shape")
    if batched:
        return _batch_moved(node, x, [told[n] for n in names])
    kept = [n for n in names if isinstance(told[n], int) and told[n] == 0]
    return node.reshaped(x, *(node.size(x, n) if n in kept else told[n] for n in names))


def _batch_moved(node: Node, x: Value, sizes: list[Size]) -> Value:
    """A Reshape of x that includes the batch. The layer's in_batch_axis says which axis of ncnn's
    input the batch is, out_batch_axis which of `sizes`, the sizes of the output; 233: none, as the
    batch is 1. A size 0 is that of the input's axis at the same place."""
    before, after = node.attr("in_batch_axis"), node.attr("out_batch_axis")
    if before == NO_BATCH:
        if shape(x)[0] != 1:
            raise Unsupported("it has no axis for a batch: give the batch a size of 1 (batch=1)")
        y = node.emit("Squeeze", x, node.ints(0))
    else:
        at = node.axis(before, rank(x) + 1) - 1
        order = (*range(1, at + 1), 0, *range(at + 1, rank(x) + 1))
        y = node.emit("Transpose", x, perm=order) if at else x
    if any(isinstance(s, int) and s == 0 and i >= (y.rank or 0) for i, s in enumerate(sizes)):
        raise Unsupported(f"its sizes {sizes} keep an axis that its input has not")
    zeros = [isinstance(s, int) and s == 0 for s in sizes]
    full = [node.dim(y, i) if z else s for i, (z, s) in enumerate(zip(zeros, sizes, strict=True))]
    y = node.emit("Reshape", y, node.joined(full))
    if after == NO_BATCH:
        return node.emit("Unsqueeze", y, node.ints(0))
    at = node.axis(after, len(sizes)) - 1
    others = [i for i in range(len(sizes)) if i != at]
    return node.emit("Transpose", y, perm=(at, *others)) if at else y


@layer("Flatten")
def flatten(node: Node) -> Result:
    return node.reshaped(node[0], -1)


@layer("Permute")
def permute(node: Node) -> Result:
    """Import Permute: `order_type` is an index into ORDERS[rank] (innermost axis first); 0 keeps
    the order."""
    x, number = node[0], node.attr("order_type")
    orders = ORDERS.get(rank(x), ())
    if rank(x) == 1:
        return x
    if not 0 <= number < len(orders):
        raise Unsupported(f"it has no order {number} of {rank(x)} axes")
    letters = LETTERS[rank(x)]
    perm = [letters.index(a) + 1 for a in reversed(orders[number])]
    return node.emit("Transpose", x, perm=(0, *perm)) if number else x


ORDERS = {
    2: ("wh", "hw"),
    3: ("whc", "hwc", "wch", "cwh", "hcw", "chw"),
    4: (
        "whdc", "hwdc", "wdhc", "dwhc", "hdwc", "dhwc", "whcd", "hwcd", "wchd", "cwhd", "hcwd",
        "chwd", "wdch", "dwch", "wcdh", "cwdh", "dcwh", "cdwh", "hdcw", "dhcw", "hcdw", "chdw",
        "dchw", "cdhw",
    ),
}  # fmt: skip


@layer("Squeeze")
def squeeze(node: Node) -> Result:
    x, axes = node[0], node.attr("axes")
    flags = {n: node.attr(f"squeeze_{n}") for n in "whdc"}
    if axes:
        at = [node.axis(a, rank(x)) for a in axes]
    else:
        at = [i + 1 for i, n in enumerate(LETTERS[rank(x)]) if flags[n]]
    # an axis that is named is meant to be of 1, whatever the run tells
    at = [a for a in at if shape(x)[a] == 1 or (axes and isinstance(shape(x)[a], str))]
    if len(at) == rank(x):
        at = at[:-1]
    return node.emit("Squeeze", x, node.ints(*at)) if at else x


@layer("ExpandDims")
def expand_dims(node: Node) -> Result:
    x, axes = node[0], node.attr("axes")
    node.ignore("expand_w", "expand_h", "expand_d", "expand_c")  # as in ncnn, which did read them
    at = [node.axis(a, rank(x) + len(axes)) for a in axes]
    return node.emit("Unsqueeze", x, node.ints(*at)) if at else x


# ---- parts


@layer("Crop")
def crop(node: Node) -> Result:
    x, n = node[0], node.rank()
    letters = LETTERS[n]
    lists = [node.attr(f"{name}_expr") for name in ("starts", "ends", "axes")]
    given = [node.attr(name) for name in ("starts", "ends", "axes")]
    offsets = {a: (node.attr(f"{a}offset"), node.attr(f"{a}offset2")) for a in "whdc"}
    sizes = {a: node.attr(f"out{a}") for a in "whdc"}
    if lists[0] and lists[1]:
        starts, ends, axes = (sizes_of(node, e) if e else () for e in lists)
        return _numbered(node, x, starts, ends, axes)
    if given[0] and given[1]:
        return _numbered(node, x, *given)
    if not any(sizes.values()) and not any(second for _, second in offsets.values()):
        return _like(node, x, {a: first for a, (first, _) in offsets.items()})
    starts, ends, axes = [], [], []
    for axis, a in enumerate(letters, 1):
        first, second = offsets[a]
        total, most = node.dim(x, axis), sizes[a]
        end: Size = -second if second else FAR
        if most not in (AUTO, 0) or (most == 0 and n == 4):
            end = _least(node, total, second, first + most)
        starts.append(first)
        ends.append(end)
        axes.append(axis)
    return _cut(node, x, starts, ends, axes)


def _least(node: Node, total: Size, second: int, most: int) -> Size:
    """min(total - second, most): where a Crop ends on an axis of size `total`, `second` before its
    end or at `most`."""
    if isinstance(total, int):
        return min(total - second, most)
    return (
        most
        if not second
        else node.emit("Min", node.emit("Sub", total, node.ints(second)), node.ints(most))
    )


def _cut(
    node: Node, x: Value, starts: Sequence[Size], ends: Sequence[Size], axes: list[int]
) -> Value:
    return node.emit("Slice", x, node.joined(starts), node.joined(ends), node.ints(*axes))


def _numbered(
    node: Node, x: Value, starts: Sequence[Size], ends: Sequence[Size], axes: Sequence[Size]
) -> Value:
    """x cut from starts[i] to ends[i] along ncnn's axis axes[i]; without `axes`, along axis i. AUTO
    as a start means 0; AUTO or 0 as an end means the end of the axis. Raises Unsupported for lists
    of unequal lengths, or an axis that only the run knows."""
    at = [node.axis(a, rank(x)) if isinstance(a, int) else 0 for a in axes or range(len(starts))]
    first = [0 if isinstance(s, int) and s == AUTO else s for s in starts]
    last = [_end(node, e) for e in ends]
    if not len(first) == len(last) == len(at) or 0 in at:
        raise Unsupported(f"it has {len(first)} starts, {len(last)} ends, and {len(at)} axes")
    return _cut(node, x, first, last, at)


def _end(node: Node, told: Size) -> Size:
    """The end of a slice for the end `told` in a Crop: AUTO and 0 mean the end of the axis."""
    if isinstance(told, int):
        return FAR if told in (AUTO, 0) else told
    if told.producer is not None and told.producer.op.name == "Shape":
        return told
    nothing = node.emit("Equal", told, node.ints(0))
    return node.emit("Where", nothing, node.ints(FAR), told)


def _like(node: Node, x: Value, offsets: dict[str, int]) -> Value:
    """x cut to the size of the second input, from `offsets` (letter of an axis -> start) on; not
    along channels if the ranks differ."""
    like = node[1]
    if offsets["w"] == AUTO:
        raise Unsupported("its offsets and sizes are numbers of another value")
    letters = LETTERS[min(rank(x), rank(like))]
    letters = letters if rank(like) == rank(x) else letters.replace("c", "")
    axes = [LETTERS[rank(x)].index(a) + 1 for a in letters]
    starts = [offsets[a] for a in letters]
    ends: list[Size] = []
    for a, start in zip(letters, starts, strict=True):
        size = node.size(like, a)
        ends.append(
            size + start if isinstance(size, int) else node.emit("Add", size, node.ints(start))
        )
    return _cut(node, x, starts, ends, axes)


@layer("CopyTo")
def copy_to(node: Node) -> Result:
    """Import CopyTo: the first input with a part replaced by the second, which is padded and chosen
    by a constant mask."""
    x, part = node[0], node[1]
    starts, axes = node.attr("starts"), node.attr("axes")
    sizes, small = known(x, "it"), known(part, "its part")
    at = [0] * rank(x)
    for i, name in enumerate(LETTERS[rank(x)]):
        at[i] = node.attr(f"{name}offset")
    node.ignore("woffset", "hoffset", "doffset", "coffset")
    if starts:
        at = [0] * rank(x)
        for a, s in zip(axes or range(len(starts)), starts, strict=True):
            axis = node.axis(a, rank(x)) - 1
            at[axis] = 0 if s == AUTO else s + sizes[axis] if s < 0 else s
    behind = [n - s - m for n, s, m in zip(sizes, at, small, strict=True)]
    if min(behind) < 0 or min(at) < 0:
        raise Unsupported(f"a part of {small} at {at} is not inside of {sizes}")
    pads = node.ints(0, *at, 0, *behind)
    there = np.zeros((1, *sizes), np.bool_)
    there[(0, *(slice(s, s + m) for s, m in zip(at, small, strict=True)))] = True
    return node.emit("Where", node.const(there), node.emit("Pad", part, pads), x)


@layer("Padding")
def padding(node: Node) -> Result:
    x, n = node[0], node.rank()
    kind, value = node.attr("type"), node.attr("value")
    node.ignore("per_channel_pad_data_size")
    outer = {3: "c", 4: "d"}.get(n, "")
    ends = {
        "w": (node.attr("left"), node.attr("right")), "h": (node.attr("top"), node.attr("bottom")),
        outer: (node.attr("front"), node.attr("behind")),
    }  # fmt: skip
    pairs = [(0, 0), *(ends.get(a, (0, 0)) for a in LETTERS[n])]
    pads = node.ints(*(p[0] for p in pairs), *(p[1] for p in pairs))
    if kind not in (0, 1, 2):
        raise Unsupported(f"its type {kind} is not known")
    if not node.has("values") or not node.weight("values").size or kind:
        mode = PAD_MODES[kind]
        number = node.number(value, x) if not kind else None
        return node.emit("Pad", x, pads, number, mode=mode)
    away = node.channels(node.weight("values"), x)
    return node.emit("Add", node.emit("Pad", node.emit("Sub", x, away), pads), away)


@layer("Tile")
def tile(node: Node) -> Result:
    x, axis, count = node[0], node.attr("axis"), node.attr("tiles")
    repeats = list(node.attr("repeats"))
    if not repeats:
        repeats = [1] * rank(x)
        repeats[node.axis(axis, rank(x)) - 1] = count
    if len(repeats) < rank(x):
        repeats = [1] * (rank(x) - len(repeats)) + repeats
    if more := range(len(repeats) - rank(x)):  # depths of one, where only these are missing
        behind = 2 if rank(x) == 3 else 1
        x = node.emit("Unsqueeze", x, node.ints(*(behind + i for i in more)))
    return node.emit("Tile", x, node.ints(1, *repeats))


@layer("Flip")
def flip(node: Node) -> Result:
    return node.flipped(node[0], *(node.axis(a, node.rank()) for a in node.attr("axes")))


@layer("Diag")
def diag(node: Node) -> Result:
    """Import Diag: of a vector [n] the square matrix of side n + |k| with it on diagonal k (k > 0:
    above the main one), of a matrix its diagonal k. Raises Unsupported for unknown sizes, or
    without such a diagonal."""
    k, sizes = node.attr("diagonal"), known(node[0], "it")
    rows = np.arange(max(sizes))
    if len(sizes) == 1:
        n = sizes[0] + abs(k)
        places = np.full((n, n), sizes[0])
        places[rows + max(-k, 0), rows + max(k, 0)] = rows
        more = node.emit("Pad", node[0], node.ints(0, 0, 0, 1))
        return node.emit("Gather", more, node.const(places), axis=1)
    count = min(sizes[0] - max(-k, 0), sizes[1] - max(k, 0))
    if count <= 0 or len(sizes) != 2:
        raise Unsupported(f"{sizes} has no diagonal {k}")
    places = (rows[:count] + max(-k, 0)) * sizes[1] + rows[:count] + max(k, 0)
    return node.emit("Gather", node.reshaped(node[0], -1), node.const(places), axis=1)
