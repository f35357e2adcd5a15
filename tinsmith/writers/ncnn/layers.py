"""What writes each operator as ncnn's layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.formats.ncnn.schema import LARGEST
from tinsmith.graph import Node, Value
from tinsmith.writers.ncnn.writer import Writer, constant, inputs_of, need, writes

AUTO = -233
PLAIN = {
    "Erf": "Erf", "Mish": "Mish", "Sigmoid": "Sigmoid", "Softplus": "Softplus", "Relu": "ReLU",
}  # fmt: skip
NAMED = {
    "Celu": ("CELU", {"alpha": "alpha"}), "Elu": ("ELU", {"alpha": "alpha"}),
    "HardSigmoid": ("HardSigmoid", {"alpha": "alpha", "beta": "beta"}),
    "HardSwish": ("HardSwish", {"alpha": "alpha", "beta": "beta"}),
    "Selu": ("SELU", {"alpha": "alpha", "gamma": "lambda"}),
    "Shrink": ("Shrink", {"bias": "bias", "lambd": "lambd"}),
    "LeakyRelu": ("ReLU", {"alpha": "slope"}),
}  # fmt: skip
UNARY = {
    "Abs": 0, "Neg": 1, "Floor": 2, "Ceil": 3, "Sqrt": 5, "Rsqrt": 6, "Exp": 7, "Log": 8, "Sin": 9,
    "Cos": 10, "Tan": 11, "Asin": 12, "Acos": 13, "Atan": 14, "Reciprocal": 15, "Tanh": 16,
    "Round": 18, "Sign": 20, "Sinh": 22, "Asinh": 23, "Cosh": 24, "Acosh": 25, "Atanh": 26,
}  # fmt: skip
BINARY = {name: i for i, name in enumerate(["Add", "Sub", "Mul", "Div", "Max", "Min", "Pow"])} | {
    "Atan2": 10,
    "Mod": 12,
}
TURNED = {0: 0, 1: 7, 2: 2, 3: 8, 4: 4, 5: 5, 6: 9, 10: 11, 12: 13}
"""The numbers of b op a, by those of a op b."""


@writes(*PLAIN)
def plain(w: Writer, node: Node) -> None:
    w.layer(PLAIN[node.op.name], node.name, [w.blob(inputs_of(node)[0])], [node.output])


@writes(*NAMED)
def named(w: Writer, node: Node) -> None:
    type, names = NAMED[node.op.name]
    given = {theirs: float(node.attrs[ours]) for ours, theirs in names.items()}
    w.layer(type, node.name, [w.blob(inputs_of(node)[0])], [node.output], given)


@writes(*UNARY)
def unary(w: Writer, node: Node) -> None:
    type = "TanH" if node.op.name == "Tanh" else "AbsVal" if node.op.name == "Abs" else "UnaryOp"
    given = {"op_type": UNARY[node.op.name]} if type == "UnaryOp" else {}
    w.layer(type, node.name, [w.blob(inputs_of(node)[0])], [node.output], given)


@writes("Clip", "Gelu", "Swish", "Softmax", "Identity", "Cast")
def special(w: Writer, node: Node) -> None:
    x, a, op = inputs_of(node)[0], node.attrs, node.op.name
    if op in ("Identity", "Cast"):
        need(op == "Identity" or node.output.dtype == x.dtype, "ncnn has float32 only")
        return w.alias(node.output, x)
    given: dict[str, Any] = {}
    if op == "Clip":
        given = {"min": LARGEST if a["min"] is None else float(a["min"])}
        given["max"] = -LARGEST if a["max"] is None else float(a["max"])
    elif op == "Gelu":
        given = {"fast_gelu": int(a["approximate"] == "tanh")}
    elif op == "Swish":
        need(a["alpha"] == 1, "its alpha is not 1")
    else:
        axis = a["axis"] % (x.rank or 1) - 1
        need(axis >= 0, "it is over the batch")
        given = {"axis": axis, "fixbug0": 1}
    type = {"Gelu": "GELU"}.get(op, op)
    return w.layer(type, node.name, [w.blob(x)], [node.output], given)


@writes("PRelu")
def prelu(w: Writer, node: Node) -> None:
    slope, dims = constant(node, 1, "slope"), w.dims(node.output)
    along = (
        slope.reshape((1,) * (len(dims) - slope.ndim) + slope.shape)
        if slope.ndim <= len(dims)
        else slope[0]
    )
    need(slope.size in (1, along.shape[0]), "its slope is not one of each channel")
    given = {"num_slope": slope.size}
    w.layer("PReLU", node.name, [w.blob(inputs_of(node)[0])], [node.output], given, slope=slope)


@writes(*BINARY)
def binary(w: Writer, node: Node) -> None:
    op, (a, b) = BINARY[node.op.name], inputs_of(node)[:2]
    need(op != 12 or node.attrs["fmod"], "only C's fmod is there")
    rank = len(w.dims(node.output))
    for one, other, code in ((b, a, op), (a, b, TURNED[op])):
        if one.const is not None and one.const.size == 1 and other.rank == node.output.rank:
            given = {"op_type": code, "with_scalar": 1, "b": float(one.const.reshape(-1)[0])}
            return w.layer("BinaryOp", node.name, [w.blob(other)], [node.output], given)
    for v in (a, b):
        need(v.const is not None or v.rank == node.output.rank, f"{v.name!r} is of another rank")
    names = [w.blob(v, rank) for v in (a, b)]
    return w.layer("BinaryOp", node.name, names, [node.output], {"op_type": op})


# ---- moves


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
LETTERS = {1: "w", 2: "hw", 3: "chw", 4: "cdhw"}


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
    w.layer("Reshape", node.name, [w.blob(x)], [node.output], given)


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
    w.layer("Padding", node.name, [w.blob(inputs_of(node)[0])], [node.output], given)


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


# ---- convolutions and products

SPATIAL = {1: ("w",), 2: ("h", "w"), 3: ("d", "h", "w")}
BEGINS = {"w": "pad_left", "h": "pad_top", "d": "pad_front"}
ENDS = {"w": "pad_right", "h": "pad_bottom", "d": "pad_behind"}
CODES = {"SAME_UPPER": -233, "SAME_LOWER": -234}


def _windows(node: Node, letters: tuple[str, ...], names: tuple[str, ...]) -> dict[str, Any]:
    n, a = len(letters), node.attrs
    given = {f"{k}_{c}": v for k in names for c, v in zip(letters, a[k] or (1,) * n, strict=True)}
    pad = a["pad"] or (0,) * 2 * n
    return (
        given
        | {BEGINS[c]: pad[i] for i, c in enumerate(letters)}
        | {ENDS[c]: pad[n + i] for i, c in enumerate(letters)}
    )


def _activation(w: Writer, v: Value) -> tuple[Value, dict[str, Any]]:
    """The activation that the same layer computes: the value behind it, and parameters."""
    user = w.only_user(v, "Relu", "LeakyRelu", "Clip", "Sigmoid", "Mish", "HardSwish")
    if user is None or (user.op.name == "Clip" and None in (user.attrs["min"], user.attrs["max"])):
        return v, {}
    kinds: dict[str, tuple[int, tuple[str, ...]]] = {
        "Relu": (1, ()), "LeakyRelu": (2, ("alpha",)), "Clip": (3, ("min", "max")),
        "Sigmoid": (4, ()), "Mish": (5, ()), "HardSwish": (6, ("alpha", "beta")),
    }  # fmt: skip
    kind, names = kinds[user.op.name]
    w.taken.add(user)
    params = tuple(float(user.attrs[n]) for n in names)
    return user.output, {"activation_type": kind, "activation_params": params}


@writes("Conv", "ConvTranspose")
def convolution(w: Writer, node: Node) -> None:
    a, group, back = node.attrs, node.attrs["group"], node.op.name == "ConvTranspose"
    array, n = constant(node, 1, "weight"), len(w.dims(node.output)) - 1
    need(n in SPATIAL, "it slides over too many axes")
    biased = len(inputs_of(node)) > 2 and inputs_of(node)[2] is not None
    letters, kernel = SPATIAL[n], array.shape[2:]
    given = _windows(node, letters, ("stride", "dilation"))
    given |= {f"kernel_{c}": k for c, k in zip(letters, kernel, strict=True)}
    if a["auto_pad"] != "NOTSET":
        need(a["auto_pad"] in CODES and not back, f"its padding is {a['auto_pad']}")
        given |= {name[c]: CODES[a["auto_pad"]] for name in (BEGINS, ENDS) for c in letters}
    if back:
        need(not a["output_shape"], "it tells the size of its output")
        pads = ("output_pad_right", "output_pad_bottom", "output_pad_behind")
        given |= dict(zip(pads, reversed(a["output_padding"] or (0,) * n), strict=False))
        inner = array.reshape(group, -1, *array.shape[1:]).swapaxes(1, 2)
        outputs = array.shape[1] * group
        array = np.ascontiguousarray(inner)
    else:
        outputs = array.shape[0]
    given |= {"num_output": outputs, "weight_data_size": array.size, "bias_term": int(biased)}
    weights = {"weight": array} | ({"bias": constant(node, 2, "bias")} if biased else {})
    type = ("Deconvolution" if back else "Convolution") + ("DepthWise" if group > 1 else "")
    type += {1: "1D", 2: "", 3: "3D"}[n]
    given |= {"group": group} if group > 1 else {}
    y, activation = _activation(w, node.output)
    w.layer(type, node.name, [w.blob(inputs_of(node)[0])], [y], given | activation, **weights)


@writes("MatMul")
def product(w: Writer, node: Node) -> None:
    a, b = inputs_of(node)[:2]
    if b.const is None or b.const.ndim != 2 or a.const is not None:
        need(all(v.rank and v.rank > 2 for v in (a, b)), "one side is a vector, or constant")
        rank = len(w.dims(node.output))
        return w.layer("MatMul", node.name, [w.blob(v, rank) for v in (a, b)], [node.output])
    need(a.rank in (2, 3), "its rows are not those of a matrix")
    array, y = np.ascontiguousarray(b.const.T), node.output
    given = {"num_output": array.shape[0], "weight_data_size": array.size}
    weights = {"weight": array}
    term = w.only_user(y, "Add")
    if term is not None:
        (other,) = (v for v in inputs_of(term) if v is not y)
        if other.const is not None and other.const.size == array.shape[0] == other.const.shape[-1]:
            w.taken.add(term)
            weights["bias"], given["bias_term"], y = other.const, 1, term.output
    y, activation = _activation(w, y)
    return w.layer("InnerProduct", node.name, [w.blob(a)], [y], given | activation, **weights)


# ---- statistics


@writes("BatchNorm", "InstanceNorm", "GroupNorm")
def norms(w: Writer, node: Node) -> None:
    arrays = [constant(node, i, "weight") for i in range(1, len(inputs_of(node)))]
    given: dict[str, Any] = {"channels": arrays[0].size, "eps": float(node.attrs["eps"])}
    names: tuple[str, ...] = ("scale", "shift")
    if node.op.name == "BatchNorm":
        names = ("slope", "bias", "mean", "var")
    if node.op.name == "GroupNorm":
        given["group"] = node.attrs["groups"]
    weights = dict(zip(names, arrays, strict=True))
    w.layer(node.op.name, node.name, [w.blob(inputs_of(node)[0])], [node.output], given, **weights)


@writes("LayerNorm", "RMSNorm")
def layer_norm(w: Writer, node: Node) -> None:
    need(len(node.outputs) == 1, "its statistics are outputs")
    arrays = [
        constant(node, i, "weight") for i in range(1, len(inputs_of(node))) if inputs_of(node)[i]
    ]
    dims, axis = w.dims(node.output), node.attrs["axis"]
    inner = dims[axis % (node.output.rank or 1) - 1 :]
    need(all(isinstance(d, int) for d in inner), "its sizes are not known")
    count = int(np.prod(inner))
    arrays = arrays or [np.ones(count, np.float32)]
    if node.op.name == "LayerNorm" and len(arrays) < 2:
        arrays.append(np.zeros(count, np.float32))
    need(all(a.size == count for a in arrays), "its weights repeat")
    given = {"affine_size": count, "eps": float(node.attrs["eps"])}
    weights = dict(zip(("scale", "shift"), arrays, strict=False))
    w.layer(node.op.name, node.name, [w.blob(inputs_of(node)[0])], [node.output], given, **weights)


@writes("LRN")
def lrn(w: Writer, node: Node) -> None:
    names = {"local_size": "size", "alpha": "alpha", "beta": "beta", "bias": "bias"}
    given = {theirs: node.attrs[ours] for theirs, ours in names.items()}
    w.layer("LRN", node.name, [w.blob(inputs_of(node)[0])], [node.output], given)


REDUCE = {"sum": 0, "sumsquare": 2, "mean": 3, "max": 4, "min": 5, "prod": 6, "l1": 7, "l2": 8,
          "logsum": 9, "logsumexp": 10}  # fmt: skip


@writes("Reduce")
def reduce(w: Writer, node: Node) -> None:
    x, a = inputs_of(node)[0], node.attrs
    axes = (
        constant(node, 1, "axes").reshape(-1).tolist()
        if len(inputs_of(node)) > 1 and inputs_of(node)[1]
        else []
    )
    at = sorted(i % (x.rank or 1) - 1 for i in axes)
    need(at and at[0] >= 0, "it is over the batch")
    given = {"operation": REDUCE[a["kind"]], "keepdims": int(a["keepdims"]), "fixbug0": 1}
    given |= {"reduce_all": 0, "axes": tuple(at)}  # type: ignore[dict-item]
    w.layer("Reduction", node.name, [w.blob(x)], [node.output], given)


@writes("GlobalPool")
def global_pool(w: Writer, node: Node) -> None:
    """ncnn's gives a vector, as the reshape that mostly follows."""
    kind, n = node.attrs["kind"], len(w.dims(node.output)) - 1
    need(kind in ("mean", "max") and n in SPATIAL, f"it is of the kind {kind}")
    given = {"global_pooling": 1, "pooling_type": int(kind == "mean")}
    user = w.only_user(node.output, "Reshape", "Flatten")
    y = node.output
    if user is not None and user.output.rank == 2:
        w.taken.add(user)
        y = user.output
        return w.layer(_pool(n), node.name, [w.blob(inputs_of(node)[0])], [y], given)
    w.layer(_pool(n), node.name, [w.blob(inputs_of(node)[0])], [y], given)
    inner, sizes = w.blobs[y], dict(zip(LETTERS[n + 1], (-1, *(1,) * n), strict=True))
    return w.layer("Reshape", f"{node.name}_axes", [inner], [y], sizes)


def _pool(n: int) -> str:
    return "Pooling" + {1: "1D", 2: "", 3: "3D"}[n]


@writes("MaxPool", "AveragePool")
def pool(w: Writer, node: Node) -> None:
    a, mean, n = node.attrs, node.op.name == "AveragePool", len(w.dims(node.output)) - 1
    need(n in SPATIAL and all(d == 1 for d in a["dilation"] or ()), "it has gaps, or too many axes")
    need(len(node.outputs) == 1, "its places are an output")
    letters = SPATIAL[n]
    given = _windows(node, letters, ("kernel", "stride")) | {"pooling_type": int(mean)}
    modes = {"NOTSET": 0 if a["ceil_mode"] else 1, "VALID": 1, "SAME_UPPER": 2, "SAME_LOWER": 3}
    given["pad_mode"] = modes[a["auto_pad"]]
    if mean:
        include = bool(a["count_include_pad"])
        need(not (include and a["ceil_mode"]), "windows behind the padding count otherwise in ncnn")
        need(include or given["pad_mode"] < 2, "ncnn counts this padding")
        given["avgpool_count_include_pad"] = int(include)
    w.layer(_pool(n), node.name, [w.blob(inputs_of(node)[0])], [node.output], given)


@writes("Resize")
def resize(w: Writer, node: Node) -> None:
    a, x, dims = node.attrs, inputs_of(node)[0], w.dims(node.output)
    kinds = {"nearest": 1, "linear": 2, "cubic": 3}
    where = a["coordinate_transformation_mode"]
    need(
        not (a["antialias"] or a["exclude_outside"]) and len(dims) == 3, "it is another than ncnn's"
    )
    given: dict[str, Any] = {
        "resize_type": kinds[a["mode"]],
        "align_corner": int(where == "align_corners"),
    }
    if a["mode"] == "nearest":
        need(where == "asymmetric" and a["nearest_mode"] == "floor", "its nearest is not ncnn's")
    else:
        need(
            where in ("half_pixel", "pytorch_half_pixel", "align_corners"), f"it counts by {where}"
        )
        need(a["mode"] == "linear" or a["cubic_coeff_a"] == -0.75, "its cubic is not ncnn's")
    scales = (
        inputs_of(node)[2].const
        if len(inputs_of(node)) > 2 and inputs_of(node)[2] is not None
        else None
    )
    if scales is not None and a["mode"] == "nearest":
        given |= {"height_scale": float(scales[-2]), "width_scale": float(scales[-1])}
    else:
        need(
            dims[0] == w.dims(x)[0] and all(isinstance(d, int) for d in dims[1:]), "sizes are free"
        )
        given |= {"output_height": dims[1], "output_width": dims[2]}
    w.layer("Interp", node.name, [w.blob(x)], [node.output], given)


# ---- boxes


@writes("PriorDetection")
def prior_detection(w: Writer, node: Node) -> None:
    a = node.attrs
    given = {
        "num_class": a["classes"], "nms_threshold": a["overlap"], "nms_top_k": a["candidates"],
        "keep_top_k": a["most"], "confidence_threshold": a["least"],
    }  # fmt: skip
    given |= {f"variance{i}": v for i, v in enumerate(a["variances"] or ())}
    w.layer(
        "DetectionOutput", node.name, [w.blob(v) for v in inputs_of(node)], [node.output], given
    )


@writes("GridDetection")
def grid_detection(w: Writer, node: Node) -> None:
    a = node.attrs
    given = {
        "num_class": a["classes"], "num_box": a["boxes"], "biases": tuple(map(float, a["anchors"])),
        "confidence_threshold": a["least"], "nms_threshold": a["overlap"],
    }  # fmt: skip
    if a["scales"]:
        given |= {
            "mask": tuple(map(float, a["mask"])),
            "anchors_scale": tuple(map(float, a["scales"])),
        }
    type = "Yolov3DetectionOutput" if a["scales"] else "YoloDetectionOutput"
    w.layer(type, node.name, [w.blob(v) for v in inputs_of(node)], [node.output], given)


@writes("RegionProposal", "PlaceRoiPool", "GridSample", "RotaryEmbedding")
def others(w: Writer, node: Node) -> None:
    a, names = node.attrs, [w.blob(v) for v in inputs_of(node) if v is not None]
    if node.op.name == "RegionProposal":
        given: dict[str, Any] = {
            "feat_stride": a["stride"], "base_size": a["base"], "pre_nms_topN": a["candidates"],
            "after_nms_topN": a["most"], "nms_thresh": a["overlap"], "min_size": a["least"],
        }  # fmt: skip
        wanted = node.outputs[1].uses or node.outputs[1] in w.graph.outputs
        return w.layer(
            "Proposal", node.name, names, list(node.outputs[: 2 if wanted else 1]), given
        )
    if node.op.name == "PlaceRoiPool":
        rows, columns = a["pooled_shape"]
        given = {"pooled_width": columns, "pooled_height": rows, "output_dim": a["channels"]}
        given |= {"spatial_scale": a["spatial_scale"]}
        return w.layer("PSROIPooling", node.name, names, [node.output], given)
    if node.op.name == "GridSample":
        kinds = {"linear": 1, "bilinear": 1, "nearest": 2, "cubic": 3, "bicubic": 3}
        edges = {"zeros": 1, "border": 2, "reflection": 3}
        given = {"sample_type": kinds[a["mode"]], "padding_mode": edges[a["padding_mode"]]}
        given |= {"align_corner": int(a["align_corners"])}
        return w.layer("GridSample", node.name, names, [node.output], given)
    plain = len(names) == 3 and not a["rotary_embedding_dim"] and a["num_heads"] is None
    need(plain, "it turns a part of the elements, or at told positions")
    given = {"interleaved": int(a["interleaved"])}
    return w.layer("RotaryEmbed", node.name, names, [node.output], given)


@writes("Attention")
def attention(w: Writer, node: Node) -> None:
    a, values = node.attrs, inputs_of(node)
    alone = all(v is None for v in values[4:]) and len(node.outputs) == 1
    ranks = all(v is not None and v.rank == 4 for v in values[:3])
    bare = (
        not (a["is_causal"] or a["softcap"])
        and a["left_window_size"] == a["right_window_size"] == -1
    )
    need(alone and ranks and bare, "it has caches, windows, or heads that are not apart")
    mask = values[3] if len(values) > 3 else None
    given: dict[str, Any] = {"attn_mask": int(mask is not None), "scale": float(a["scale"] or 0)}
    names = [w.blob(v) for v in values[:4] if v is not None]
    w.layer("SDPA", node.name, names, [node.output], given)


@writes("DeformConv")
def deformable(w: Writer, node: Node) -> None:
    array = constant(node, 1, "weight")
    bias = inputs_of(node)[3] if len(inputs_of(node)) > 3 else None
    mask = inputs_of(node)[4] if len(inputs_of(node)) > 4 else None
    need(node.attrs["group"] == 1, "it has groups")
    given = _windows(node, SPATIAL[2], ("stride", "dilation"))
    given |= {
        "num_output": len(array),
        "weight_data_size": array.size,
        "bias_term": int(bias is not None),
    }
    given |= {"kernel_h": array.shape[2], "kernel_w": array.shape[3]}
    weights = {"weight": array} | ({"bias": constant(node, 3, "bias")} if bias is not None else {})
    names = [w.blob(v) for v in (inputs_of(node)[0], inputs_of(node)[2], mask) if v is not None]
    y, activation = _activation(w, node.output)
    w.layer("DeformableConv2D", node.name, names, [y], given | activation, **weights)
