"""What writes operators that move elements as ncnn's layers."""

from __future__ import annotations

from typing import Any

from tinsmith.frontends.ncnn.node import LETTERS
from tinsmith.frontends.ncnn.shapes import AUTO
from tinsmith.graph import Node
from tinsmith.writers.ncnn import fewer
from tinsmith.writers.ncnn.writer import Writer, constant, inputs_of, need, writes


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
    x = inputs_of(node)[0]
    starts, ends = (constant(node, i, "part").reshape(-1).tolist() for i in (1, 2))
    several = len(inputs_of(node))
    axes = (
        constant(node, 3, "axes").reshape(-1).tolist()
        if several > 3 and inputs_of(node)[3]
        else range(len(starts))
    )
    steps = (
        constant(node, 4, "steps").reshape(-1).tolist()
        if several > 4 and inputs_of(node)[4]
        else [1] * len(starts)
    )
    at = [a % (x.rank or 1) - 1 for a in axes]
    need(min(at) >= 0, "it is along the batch")
    if all(s == -1 for s in steps) and starts == [-1] * len(at) and max(ends) < -(1 << 62):
        return w.layer("Flip", node.name, [w.blob(x)], [node.output], {"axes": tuple(at)})
    need(all(s == 1 for s in steps), "it takes steps")
    last = [AUTO if e >= 1 << 30 else e for e in ends]
    need(0 not in last and AUTO not in starts and min(last) >= AUTO, "its part is empty")
    given = {"starts": tuple(starts), "ends": tuple(last), "axes": tuple(at)}
    return w.layer("Crop", node.name, [w.blob(x)], [node.output], given)


ORDERS = {2: "wh hw", 3: "whc hwc wch cwh hcw chw", 4: "whdc hwdc wdhc dwhc hdwc dhwc whcd hwcd "
          "wchd cwhd hcwd chwd wdch dwch wcdh cwdh dcwh cdwh hdcw dhcw hcdw chdw "
          "dchw cdhw"}  # fmt: skip


@writes("Transpose")
def permute(w: Writer, node: Node) -> None:
    rank = len(w.dims(node.output))
    perm = node.attrs["perm"] or tuple(reversed(range(rank + 1)))
    need(perm[0] == 0 and rank > 1, "it moves the batch")
    name = "".join(LETTERS[rank][p - 1] for p in reversed(perm[1:]))
    given = {"order_type": ORDERS[rank].split().index(name)}
    w.layer("Permute", node.name, [w.blob(inputs_of(node)[0])], [node.output], given)


@writes("Reshape", "Flatten")
def reshape(w: Writer, node: Node) -> None:
    x, dims = inputs_of(node)[0], w.dims(node.output)
    if fewer.flat_for_all(w, node) or (x in w.vectors and len(dims) == 1):
        if fewer.is_vector(w, node.output):
            w.vectors.add(node.output)
        return w.alias(node.output, x)
    sizes = list(dims)
    if node.op.name == "Reshape":
        told = constant(node, 1, "shape").reshape(-1).tolist()[1:]
        sizes = [-1 if t == -1 else d for t, d in zip(told, dims, strict=True)] if told else [1]
    if sum(not isinstance(s, int) for s in sizes) == 1:
        sizes = [s if isinstance(s, int) else -1 for s in sizes]
    need(
        all(isinstance(s, int) for s in sizes) and sizes.count(-1) < 2,
        f"its sizes {dims} are not known",
    )
    given = dict(zip(LETTERS[len(sizes)], sizes, strict=True))
    return w.layer("Reshape", node.name, [w.blob(x)], [node.output], given)


@writes("Squeeze", "Unsqueeze")
def squeeze(w: Writer, node: Node) -> None:
    x, y = inputs_of(node)[0], node.output
    if y.rank == 1 or x.rank == 1:
        need(y.rank == 2 or x.rank == 2, "it is of a value that ncnn has not")
        return w.alias(y, x)
    axes = constant(node, 1, "axes").reshape(-1).tolist()
    large = (x if node.op.name == "Squeeze" else y).rank or 1
    at = [a % large - 1 for a in axes]
    need(min(at) >= 0, "it is of the batch")
    type = "Squeeze" if node.op.name == "Squeeze" else "ExpandDims"
    return w.layer(type, node.name, [w.blob(x)], [y], {"axes": tuple(at)})


@writes("Pad")
def pad(w: Writer, node: Node) -> None:
    rank = len(w.dims(node.output))
    told = constant(node, 1, "pads").reshape(2, -1).tolist()
    need(len(inputs_of(node)) < 4 or inputs_of(node)[3] is None, "it names axes")
    mode = node.attrs["mode"]
    kinds = {"constant": 0, "edge": 1, "reflect": 2}
    need(mode in kinds and min(map(min, told)) >= 0, f"its mode is {mode}, or it cuts")
    if mode == "constant" and fewer.edge_of_pool(w, node, told):
        return None
    value = inputs_of(node)[2] if len(inputs_of(node)) > 2 else None
    given: dict[str, Any] = {"type": kinds[mode]}
    if value is not None:
        given["value"] = float(constant(node, 2, "value").reshape(-1)[0])
    names = {"w": ("left", "right"), "h": ("top", "bottom")} | {
        3: {"c": ("front", "behind")},
        4: {"d": ("front", "behind")},
    }.get(rank, {})
    need(told[0][0] == told[1][0] == 0, "it pads the batch")
    for i, a in enumerate(LETTERS[rank], 1):
        need(a in names or told[0][i] == told[1][i] == 0, "it pads too many axes")
        if a in names:
            given |= {names[a][0]: told[0][i], names[a][1]: told[1][i]}
    return w.layer("Padding", node.name, [w.blob(inputs_of(node)[0])], [node.output], given)


@writes("Tile", "DepthToSpace", "SpaceToDepth", "ChannelShuffle", "CumSum")
def blocks(w: Writer, node: Node) -> None:
    op, a, x = node.op.name, node.attrs, inputs_of(node)[0]
    if op == "Tile":
        times = constant(node, 1, "repeats").tolist()
        need(times[0] == 1, "it repeats the batch")
        return w.layer("Tile", node.name, [w.blob(x)], [node.output], {"repeats": tuple(times[1:])})
    if op == "ChannelShuffle":
        return w.layer(
            "ShuffleChannel", node.name, [w.blob(x)], [node.output], {"group": a["groups"]}
        )
    if op == "CumSum":
        axis = int(constant(node, 1, "axis").reshape(-1)[0]) % (x.rank or 1) - 1
        need(axis >= 0 and not a["exclusive"] and not a["reverse"], "it is another sum than ncnn's")
        return w.layer("CumulativeSum", node.name, [w.blob(x)], [node.output], {"axis": axis})
    type, name = ("PixelShuffle", "upscale_factor") if op == "DepthToSpace" else ("Reorg", "stride")
    given = {name: a["blocksize"], "mode": int(a["mode"] == "DCR")}
    return w.layer(type, node.name, [w.blob(x)], [node.output], given)


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
    a, image = node.attrs, constant(node, 1, "image").reshape(-1).tolist()
    kernel = constant(node, 2, "block").reshape(-1).tolist()
    need(len(image) == 2, "it is of pictures only")
    given = {"output_h": image[0], "output_w": image[1]}
    given |= {"kernel_h": kernel[0], "kernel_w": kernel[1]}
    for name in ("stride", "dilation"):
        given |= {f"{name}_{c}": n for c, n in zip("hw", a[name] or (1, 1), strict=True)}
    sides = ("top", "left", "bottom", "right")
    given |= {f"pad_{side}": n for side, n in zip(sides, a["pad"] or (0,) * 4, strict=True)}
    w.layer("Fold", node.name, [w.blob(inputs_of(node)[0])], [node.output], given)
