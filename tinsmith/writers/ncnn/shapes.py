"""Writes operators that move elements as ncnn's layers."""

from __future__ import annotations

from typing import Any

from tinsmith.frontends.ncnn.node import LETTERS
from tinsmith.frontends.ncnn.pool import PAD_MODES
from tinsmith.frontends.ncnn.shapes import AUTO, ORDERS
from tinsmith.frontends.ncnn.window import AXES
from tinsmith.graph import Node
from tinsmith.writers.ncnn import fewer
from tinsmith.writers.ncnn.layers import windows
from tinsmith.writers.ncnn.writer import Writer, writes
from tinsmith.writers.rows import constant, inputs_of, need, numbers


@writes("Concat")
def concat(w: Writer, node: Node) -> None:
    axis, rank = node.attrs["axis"] % (node.output.rank or 1) - 1, len(w.dims(node.output))
    need(axis >= 0, "it is along the batch")
    names = [w.blob(v, rank) for v in inputs_of(node)]
    w.layer("Concat", node.name, names, [node.output], {"axis": axis})


@writes("Split")
def split(w: Writer, node: Node) -> None:
    axis = node.attrs["axis"] % (inputs_of(node)[0].rank or 1)
    sizes = [v.shape[axis] if v.shape else None for v in node.outputs]
    need(axis and all(isinstance(s, int) for s in sizes), "it is of the batch, or of unknown sizes")
    if node.attrs["num_outputs"] and len(set(sizes)) == 1:
        sizes = [AUTO] * len(sizes)
    given = {"slices": tuple(sizes), "axis": axis - 1}
    w.layer("Slice", node.name, [w.blob(inputs_of(node)[0])], list(node.outputs), given)


@writes("Slice")
def crop(w: Writer, node: Node) -> None:
    x, first, last, along, by = inputs_of(node)
    starts, ends = (numbers(v, "its part") for v in (first, last))
    axes = numbers(along, "its axes") if along else range(len(starts))
    steps = numbers(by, "its steps") if by else [1] * len(starts)
    at = [a % (x.rank or 1) - 1 for a in axes]
    need(min(at, default=0) >= 0, "it is along the batch")
    if not at:
        return w.alias(node.output, x)
    if all(s == -1 for s in (*steps, *starts)) and max(ends) < -(1 << 62):
        return w.layer("Flip", node.name, [w.blob(x)], [node.output], {"axes": tuple(at)})
    need(all(s == 1 for s in steps), "it takes steps")
    stops = [AUTO if e >= 1 << 30 else e for e in ends]
    need(0 not in stops and AUTO not in starts and min(stops) >= AUTO, "its part is empty")
    given = {"starts": starts, "ends": tuple(stops), "axes": tuple(at)}
    return w.layer("Crop", node.name, [w.blob(x)], [node.output], given)


@writes("Transpose")
def permute(w: Writer, node: Node) -> None:
    rank = len(w.dims(node.output))
    perm = node.attrs["perm"] or tuple(reversed(range(rank + 1)))
    need(perm[0] == 0 and rank > 1, "it moves the batch")
    name = "".join(LETTERS[rank][p - 1] for p in reversed(perm[1:]))
    given = {"order_type": ORDERS[rank].index(name)}
    w.layer_of("Permute", node, given)


@writes("Reshape", "Flatten")
def reshape(w: Writer, node: Node) -> None:
    x, dims = inputs_of(node)[0], w.dims(node.output)
    batches = {v.shape[0] for v in (x, node.output) if v.shape}
    need(sum(isinstance(n, int) for n in batches) < 2, "it moves the batch")
    if fewer.flat_for_all(w, node) or (x in w.vectors and len(dims) == 1):
        if fewer.is_vector(w, node.output):
            w.vectors.add(node.output)
        return w.alias(node.output, x)
    sizes = list(dims)
    if len(node.inputs) > 1:
        told = numbers(node.inputs[1], "its shape")[1:]
        sizes = [-1 if t == -1 else d for t, d in zip(told, dims, strict=True)] if told else [1]
    if sum(not isinstance(s, int) for s in sizes) == 1:
        sizes = [s if isinstance(s, int) else -1 for s in sizes]
    need(
        all(isinstance(s, int) for s in sizes) and sizes.count(-1) < 2,
        f"its sizes {dims} are not known",
    )
    given = dict(zip(LETTERS[len(sizes)], sizes, strict=True))
    return w.layer("Reshape", node.name, [w.blob(x)], [node.output], given)


@writes("Squeeze", type="Squeeze")
@writes("Unsqueeze", type="ExpandDims")
def squeeze(w: Writer, node: Node, type: str) -> None:
    x, y = inputs_of(node)[0], node.output
    if y.rank == 1 or x.rank == 1:
        need(y.rank == 2 or x.rank == 2, "it is of a value that ncnn has not")
        return w.alias(y, x)
    large = max(x.rank or 1, y.rank or 1)
    at = tuple(a % large - 1 for a in numbers(inputs_of(node)[1], "its axes"))
    need(min(at) >= 0, "it is of the batch")
    return w.layer_of(type, node, {"axes": at})


@writes("Pad")
def pad(w: Writer, node: Node) -> None:
    rank = len(w.dims(node.output))
    told = constant(inputs_of(node)[1], "its pads").reshape(2, -1).tolist()
    x, _, value, axes = inputs_of(node)
    need(axes is None, "it names axes")
    mode = node.attrs["mode"]
    need(mode in PAD_MODES and min(map(min, told)) >= 0, f"its mode is {mode}, or it cuts")
    if mode == "constant" and fewer.edge_of_pool(w, node, told):
        return None
    given: dict[str, Any] = {"type": PAD_MODES.index(mode)}
    if value is not None:
        given["value"] = float(constant(value, "its value").reshape(-1)[0])
    names = {"w": ("left", "right"), "h": ("top", "bottom")} | {
        3: {"c": ("front", "behind")},
        4: {"d": ("front", "behind")},
    }.get(rank, {})
    need(told[0][0] == told[1][0] == 0 and len(told[0]) > rank, "it pads the batch")
    for i, a in enumerate(LETTERS[rank], 1):
        need(a in names or told[0][i] == told[1][i] == 0, "it pads too many axes")
        if a in names:
            given |= {names[a][0]: told[0][i], names[a][1]: told[1][i]}
    return w.layer("Padding", node.name, [w.blob(x)], [node.output], given)


@writes("Tile")
def tile(w: Writer, node: Node) -> None:
    first, *times = numbers(inputs_of(node)[1], "its repeats")
    need(first == 1, "it repeats the batch")
    w.layer_of("Tile", node, {"repeats": tuple(times)})


@writes("ChannelShuffle")
def shuffle(w: Writer, node: Node) -> None:
    channels, *others = w.dims(node.output)
    if node.attrs["groups"] in (1, channels):
        return w.alias(node.output, inputs_of(node)[0])
    need(len(others) > 1, "ncnn has one channel in vectors and matrices")
    return w.layer_of("ShuffleChannel", node, {"group": node.attrs["groups"]})


@writes("CumSum")
def cumulative(w: Writer, node: Node) -> None:
    (x, axis), a = inputs_of(node), node.attrs
    at = numbers(axis, "its axis")[0] % (x.rank or 1) - 1
    need(at >= 0 and not a["exclusive"] and not a["reverse"], "it is another sum than ncnn's")
    w.layer_of("CumulativeSum", node, {"axis": at})


@writes("DepthToSpace", type="PixelShuffle")
@writes("SpaceToDepth", type="Reorg")
def blocks(w: Writer, node: Node, type: str) -> None:
    w.layer_of(type, node, {"mode": int(node.attrs["mode"] == "DCR")})


@writes("Expand")
def expand(w: Writer, node: Node) -> None:
    x, y = inputs_of(node)[0], node.output
    need(x.rank == y.rank, "it adds axes")
    sizes = list(zip(w.dims(x), w.dims(y), strict=True))
    need(all(a == b or a == 1 for a, b in sizes), "its sizes are not known")
    times = tuple(1 if a == b else b for a, b in sizes)
    need(all(isinstance(n, int) for n in times), "its sizes are not known")
    if set(times) == {1}:
        return w.alias(y, x)
    return w.layer("Tile", node.name, [w.blob(x)], [y], {"repeats": times})


@writes("Col2Im")
def fold(w: Writer, node: Node) -> None:
    image = numbers(inputs_of(node)[1], "its image")
    kernel = numbers(inputs_of(node)[2], "its block")
    need(len(image) == 2, "it is of pictures only")
    given = {"output_h": image[0], "output_w": image[1]}
    given |= {"kernel_h": kernel[0], "kernel_w": kernel[1]}
    w.layer_of("Fold", node, given | windows(node, AXES[2], ("stride", "dilation")))
