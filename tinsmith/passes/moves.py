"""Channel and pixel shuffles and writes into boxes are recognised; constant factors pass moves and
products to where they cost nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Array, Node, Value
from tinsmith.ops import OPS
from tinsmith.ops._move import MOST, Part, moves_of
from tinsmith.passes.facts import i64, need_float, number, reshaped, shape_of
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, const, opt, p, with_
from tinsmith.sizes import NUMBER

rules = RuleSet(
    "recognise-moves", "Channel and pixel shuffles by name; factors pass moves.", halves=False
)
register("portable")(rules)


_moved = p.Transpose(p.Reshape("x", ...).named("split")).named("move")
_joined = p.Reshape(_moved, ...).named("y")


@rules.rule(
    _joined,
    x=(2, 6, 3, 5),
    split={"#1": np.array([2, 2, 3, 3, 5])},
    move={"perm": (0, 2, 1, 3, 4)},
    y={"#1": np.array([2, 6, 3, 5])},
)
def channel_shuffle(x: Value, split: Node, move: Node, y: Node) -> Value:
    """reshape(transpose(reshape(x, [N, g, C/g, ...]))) -> channel_shuffle(x, g)."""
    shape, inner = shape_of(x), shape_of(split.output)
    # the spatial axes may be joined while the channels are exchanged
    if len(inner) < 3 or len(shape) < 2 or move.perm[:3] != (0, 2, 1):
        raise Skip("the channel groups are not exchanged")
    if move.perm != (0, 2, 1, *range(3, len(inner))) or inner[0] != shape[0]:
        raise Skip("other axes move too")
    groups, each = inner[1], inner[2]
    if not isinstance(groups, NUMBER) or not isinstance(each, NUMBER) or groups * each != shape[1]:
        raise Skip("the groups do not divide the channels")
    return reshaped(OPS["ChannelShuffle"](x, groups=groups), shape_of(y.output))


@rules.rule(
    _joined,
    x=(2, 8, 3, 5),
    split={"#1": np.array([2, 2, 2, 2, 3, 5])},
    move={"perm": (0, 1, 4, 2, 5, 3)},
    y={"#1": np.array([2, 2, 6, 10])},
)
def depth_to_space(x: Value, split: Node, move: Node, y: Node) -> Value:
    """reshape(transpose(reshape(x, [N, C, r, r, H, W]))) -> depth_to_space(x), in the mode CRD;
    from [N, r, r, C, H, W] in the mode DCR."""
    inner, out = shape_of(split.output), shape_of(y.output)
    if len(shape_of(x)) != 4 or len(inner) != 6 or len(out) < 2:
        raise Skip("it is not from an image")
    modes = {(0, 1, 4, 2, 5, 3): ("CRD", 2), (0, 3, 4, 1, 5, 2): ("DCR", 1)}
    if move.perm not in modes:
        raise Skip(f"the permutation is {move.perm}")
    mode, place = modes[move.perm]
    r, again = inner[place : place + 2]
    depth = inner[1] if mode == "CRD" else inner[3]
    if r != again or not isinstance(r, NUMBER) or inner[0] != shape_of(x)[0]:
        raise Skip("the block is not a square")
    if inner[4:] != shape_of(x)[2:] or shape_of(x)[1] != depth * r * r:
        raise Skip("the spatial axes are divided in another way")
    return reshaped(OPS["DepthToSpace"](x, blocksize=r, mode=mode), out)


@rules.rule(
    p.ScatterND("x", "places", "updates").named("y"),
    x=(3, 5, 2),
    places=np.stack(np.meshgrid([1, 2], [0, 1, 2], indexing="ij"), -1),
    updates=(2, 3, 2),
)
def insert_box(x: Value, places: Value, updates: Value, y: Node) -> Value:
    """scatter_nd(x, all indices of a box, u) -> concat(x before, u, x after) along each axis that
    the box does not fill, at most two."""
    if y.reduction != "none":
        raise Skip(f"the reduction is {y.reduction}")
    columns, shape = _columns(places), shape_of(x)
    box = columns[0].shape
    if len(box) != len(columns) or shape_of(updates) != (*box, *shape[len(box) :]):
        raise Skip("the places are not those of a box")
    ranges = [_range(c, axis, shape[axis]) for axis, c in enumerate(columns)]
    open_axes = [a for a, r in enumerate(ranges) if r != range(shape[a])]  # type: ignore[arg-type]
    if len(open_axes) > 2:
        raise Skip(f"the box leaves places on {len(open_axes)} axes, which takes as many copies")
    for axis in reversed(open_axes):
        outer, r = {a: ranges[a] for a in open_axes if a < axis}, ranges[axis]
        around: tuple[range, range] = (range(r.start), range(r.stop, shape[axis]))  # type: ignore[arg-type]
        before, after = ([_cut(x, {**outer, axis: s})] if s else [] for s in around)
        updates = OPS["Concat"](*before, updates, *after, axis=axis)
    return updates


def _cut(x: Value, ranges: dict[int, range]) -> Value:
    rows = [(r.start, r.stop, axis) for axis, r in ranges.items()]
    return OPS["Slice"](x, *(np.array(column, np.int64) for column in zip(*rows, strict=True)))


def _range(numbers: Array, axis: int, size: Any) -> range:
    """The indices into an axis of `size` that an array `numbers` names, as a range: the array must
    count up by one along its own axis `axis`, and repeat along its others. Raises Skip if it does
    not, or if the indices are not consecutive on the axis of `size`."""
    line = numbers[tuple(slice(None) if a == axis else 0 for a in range(numbers.ndim))]
    across = np.expand_dims(line, [a for a in range(numbers.ndim) if a != axis])
    others = [a for a in range(numbers.ndim) if a != axis and numbers.shape[a] > 1]
    repeats = not any(numbers.strides[a] for a in others) or bool((numbers == across).all())
    if not repeats or (np.diff(line) != 1).any():
        raise Skip("the places are not those of a box")
    first, last = int(line[0]), int(line[-1])
    if not isinstance(size, int) or not -size <= first <= last < size or first < 0 <= last:
        raise Skip(f"places {first} to {last} do not lie side by side on an axis of {size}")
    return range(first % size, last % size + 1)


@rules.rule(
    p.Transpose(
        p.ScatterND(p.Transpose("x").named("there").shared(), "places", "updates")
        .named("y")
        .shared()
    ).named("back"),
    x=(2, 3, 5, 4),
    places=np.array([[4], [1]]),
    updates=(2, 3, 2, 4),
    there={"perm": (2, 1, 0, 3)},
    back={"perm": (2, 1, 0, 3)},
)
def scatter_along_axis(
    x: Value, places: Value, updates: Value, there: Node, y: Node, back: Node
) -> Value:
    """back(scatter_nd(there(x), places, u)) -> back(there(scatter_elements(x, places, u'))), along
    the axis that the transpose `there` puts first; u' is u in the order of x's axes. `places` is
    [n, 1], and all readers of the scatter's result are transposes."""
    if there.perm is None or back.perm is None:
        raise Skip("a permutation is not explicit")
    axis, order = there.perm[0], range(len(there.perm))
    if y.reduction != "none" or len(shape_of(places)) != 2 or shape_of(places)[1] != 1:
        raise Skip("it does not overwrite whole slices of one axis, in a row of places")
    if not all("perm" in n.attrs for n in y.output.uses):
        raise Skip("what it gives is read in the order of its axes, too")
    moved = OPS["Transpose"](updates, perm=tuple(map(there.perm.index, order)))
    column = np.array([-1 if k == axis else 1 for k in order], np.int64)
    column = OPS["Reshape"](OPS["Cast"](places, to="int64"), column)
    places = OPS["Expand"](column, OPS["Shape"](moved))
    written = OPS["ScatterElements"](x, places, moved, axis=axis)
    perm = tuple(there.perm[k] for k in back.perm)
    return written if perm == tuple(order) else OPS["Transpose"](written, perm=perm)


def _columns(value: Value) -> list[Array]:
    """The indices [..., K] of a ScatterND as K arrays [...], one for each axis, in which repeated
    numbers are not copied. `value` must be a constant, a constant that nodes repeat, or a
    concatenation of these along the last axis. Raises Skip if it is not, or is empty."""
    move = None if value.producer is None else moves_of(value.producer)[value.index]
    sources = [value]
    if move is not None and value.producer is not None and len(move.parts) > 1:
        if move.axis % len(move.dims) != len(move.dims) - 1:
            raise Skip("the places are joined along another axis")
        if not all(part.is_whole(_source(value, part).shape) for part in move.parts):
            raise Skip("parts of the places are joined")
        sources = [_source(value, part) for part in move.parts]
    arrays = [_repeated(v) for v in sources]
    found = [a[..., k] for a in arrays for k in range(a.shape[-1])] if arrays[0].ndim else []
    if not found or not found[0].size:
        raise Skip("there are no places")
    return found


def _source(value: Value, part: Part) -> Value:
    assert value.producer is not None
    return value.producer.operand(part.source)


def _repeated(value: Value) -> Array:
    """The numbers of a constant, or of a constant that nodes repeat, as an array that repeats them
    by strides of 0. Raises Skip for other values, or if more than `MOST` would have to be copied.
    """
    steps: list[tuple[Part, tuple[Any, ...]]] = []
    while value.const is None:
        move = None if value.producer is None else moves_of(value.producer)[value.index]
        if move is None or len(move.parts) != 1 or not value.type.is_static:
            raise Skip("the places are computed")
        (part,) = move.parts
        if any(a.axis is not None and a.places is not None for a in part.axes):
            raise Skip("the places are moved")
        steps.append((part, move.dims))
        value = _source(value, part)
    numbers = value.const
    for part, dims in reversed(steps):
        numbers = _viewed(part.read(_viewed(numbers, part.dims)), dims)
    return numbers


def _viewed(numbers: Array, dims: tuple[int, ...]) -> Array:
    """An array reshaped to `dims`. Raises Skip for more than `MOST` numbers, as numpy might copy
    them, unless the dims differ only in ones: then the result is a view."""
    alike = [n for n in numbers.shape if n != 1] == [n for n in dims if n != 1]
    if not alike and numbers.size > MOST:
        raise Skip("the places are arranged anew")
    return numbers.reshape(dims)


_product = p.MatMul("a", const("w"))
_dense = _product | p.Add(_product, const("b")) | p.Conv("a", const("v"), opt(const("d")))


@rules.rule(
    p.Mul(p.Transpose(_dense).named("t"), const("c"))
    | p.Add(p.Transpose(_dense).named("t"), const("c")),
    tolerance=1e-5,
    a=(2, 3, 4),
    w=(4, 4),
    v=(3, 3, 1),
    d=(3,),
    b=(4,),
    t={"perm": (0, 2, 1)},
    c=(4, 1),
)
def constant_before_transpose(root: Node, t: Node, c: Array) -> Value:
    """transpose(x) * c -> transpose(x * c'), and the same for +, with c' = c in the order of x's
    axes: the product or convolution that makes x takes c' into its weights."""
    x = t.operand(0)
    rank = len(shape_of(x))
    if t.perm is None or c.ndim > rank or shape_of(root.output) != shape_of(t.output):
        raise Skip("the constant makes the result larger")
    padded = c.reshape((1,) * (rank - c.ndim) + c.shape)
    moved = padded.transpose(np.argsort(t.perm))
    while moved.ndim and moved.shape[0] == 1:
        moved = moved[0]
    return OPS["Transpose"](OPS[root.op.name](x, np.ascontiguousarray(moved)), perm=t.perm)


@rules.rule(
    p.MatMul(p.Mul("a", const("c")), "b").named("product")
    | p.MatMul("a", p.Mul("b", const("c"))).named("product"),
    tolerance=1e-5,
    a=(2, 3, 4),
    b=(2, 4, 5),
    c=np.float32(0.3),
)
def factor_after_product(product: Node, a: Value, b: Value, c: Array) -> Value:
    """(a * c) @ b, a @ (b * c) -> (a @ b) * c, for one number c, in float32 or float64: behind the
    product the factor is free."""
    if a.dtype.itemsize < 4 or a.dtype.kind != "f":
        raise Skip(f"a product of {a.dtype} may overflow without the factor")
    number(c)
    if c.ndim > 1:
        raise Skip("the factor has a rank of its own")
    return OPS["Mul"](with_(product, a=a, b=b), c.reshape(()))


@rules.rule(
    p.Div(p.MatMul("a", "b").named("mm"), const("c")),
    tolerance=1e-5,
    a=(3, 4),
    b=(4, 5),
    c=np.float32(3.0),
)
def factor_of_product(mm: Node, c: Array) -> Value:
    """(a @ b) / c -> (a @ b) * (1 / c), for one number c."""
    need_float(mm.output)
    wide = number(c)
    if wide == 0 or not np.isfinite(wide):
        raise Skip(f"the divisor is {wide}")
    return OPS["Mul"](mm.output, np.asarray(1 / wide, c.dtype).reshape(c.shape))


# ---- gathers

gathers = RuleSet("slice-gathers", "Gathers of neighbouring constant places become slices.")
register("machine")(gathers)


@gathers.rule(
    p.Gather("x", const("places")).named("g"), x=(1, 3, 4), places=np.array(-2), g={"axis": 1}
)
def gather_neighbours(x: Value, g: Node) -> Value:
    """gather(x, i) -> squeeze(x[i : i + 1]); gather(x, [i, i + 1, ...]) -> x[i : i + n]. The axis
    is of known size, and all axes before it are of size 1, so that the slice lies in one piece."""
    shape = shape_of(x)
    move = moves_of(g)[0]
    cut = None if move is None else move.parts[0].cut(shape)
    if move is None or cut is None or len(move.dims) > len(shape) or not np.size(cut[1]):
        raise Skip("the places are not known, or have a shape of their own")
    axis, places = cut
    if any(d != 1 for d in shape[:axis]) or not isinstance(shape[axis], NUMBER):
        raise Skip("the slice would lie in pieces, or the size is not known")
    first, last = int(places[0]), int(places[-1]) + 1
    if list(places) != list(range(first, last)):
        raise Skip("the places are not neighbours")
    part = OPS["Slice"](x, *map(i64, (first, last, axis)))
    return part if len(move.dims) == len(shape) else OPS["Squeeze"](part, i64(axis))
