"""Writes convolutions, products, norms and pooling as ncnn's layers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tinsmith.frontends.ncnn.activation import REDUCE
from tinsmith.frontends.ncnn.node import ACTIVATIONS as NUMBERED
from tinsmith.frontends.ncnn.node import LETTERS
from tinsmith.frontends.ncnn.window import AXES, BEGINS, ENDS, MORE, SAME, SAME_LOWER
from tinsmith.graph import Array, Node, Value
from tinsmith.ops.window import window
from tinsmith.writers.ncnn import fewer
from tinsmith.writers.ncnn.several import source
from tinsmith.writers.ncnn.writer import Writer, claims, writes
from tinsmith.writers.rows import constant, inputs_of, need, numbers

CODES = {"SAME_UPPER": SAME, "SAME_LOWER": SAME_LOWER}
ACTIVATIONS = {op: (number, names) for number, (op, names) in NUMBERED.items()}


def windows(node: Node, letters: tuple[str, ...], names: tuple[str, ...]) -> dict[str, Any]:
    """Return the padding and the attributes `names` of a node's windows as ncnn's parameters, such
    as "stride_w". `letters`: ncnn's names of the node's spatial axes, in order, as ("h", "w")."""
    n, a = len(letters), node.attrs
    given = {f"{k}_{c}": v for k in names for c, v in zip(letters, a[k] or (1,) * n, strict=True)}
    pad = a["pad"] or (0,) * 2 * n
    return (
        given
        | {BEGINS[c]: pad[i] for i, c in enumerate(letters)}
        | {ENDS[c]: pad[n + i] for i, c in enumerate(letters)}
    )


def activation(w: Writer, v: Value) -> tuple[Value, dict[str, Any]]:
    """If only an activation reads v that v's layer can compute as well, mark it as taken, and
    return (its output, the layer's parameters for it). Else (v, {})."""
    user = w.only_user(v, *ACTIVATIONS)
    kind, names = ACTIVATIONS[user.op.name] if user is not None else (0, ())
    params = [user.attrs[n] for n in names] if user is not None else []
    if user is None or None in params:
        return v, {}
    w.taken.add(user)
    return user.output, {"activation_type": kind, "activation_params": tuple(map(float, params))}


def conv_layer(
    w: Writer, node: Node, sizes: Sequence[int], back: bool = False
) -> tuple[str, dict[str, Any]]:
    """Return (type of the layer, parameters) of a convolution, with `back` a transposed one, for
    weights of shape `sizes`. The caller adds `bias_term`. Raises Inexpressible."""
    a, group = node.attrs, node.attrs["group"]
    n = len(w.dims(node.output)) - 1
    need(n in AXES, "it slides over too many axes")
    letters = AXES[n]
    given = windows(node, letters, ("stride", "dilation"))
    given |= {f"kernel_{c}": k for c, k in zip(letters, sizes[2:], strict=True)}
    if a["auto_pad"] != "NOTSET":
        need(a["auto_pad"] in CODES and not back, f"its padding is {a['auto_pad']}")
        given |= {name[c]: CODES[a["auto_pad"]] for name in (BEGINS, ENDS) for c in letters}
        spans = [(given[f"kernel_{c}"] - 1) * given[f"dilation_{c}"] + 1 for c in letters]
        if any(s < given[f"stride_{c}"] for s, c in zip(spans, letters, strict=True)):
            own = _sized(w, inputs_of(node)[0])
            seen = window(own, sizes[2:], a["stride"], None, a["dilation"], a["auto_pad"])
            given |= {BEGINS[c]: b for c, b in zip(letters, seen.begin, strict=True)}
            given |= {ENDS[c]: e for c, e in zip(letters, seen.end, strict=True)}
    if back:
        need(not a["output_shape"], "it tells the size of its output")
        given |= {MORE[c]: m for c, m in zip(letters, a["output_padding"] or (0,) * n, strict=True)}
    given |= {"num_output": sizes[1] * group if back else sizes[0]}
    given |= {"weight_data_size": prod(sizes)} | ({"group": group} if group > 1 else {})
    type = ("Deconvolution" if back else "Convolution") + ("DepthWise" if group > 1 else "")
    return type + {1: "1D", 2: "", 3: "3D"}[n], given


def _sized(w: Writer, x: Value) -> list[int]:
    """Return the spatial sizes of x, whose windows ncnn counts or pads otherwise than we do. Raises
    Inexpressible if one is unknown."""
    dims = w.dims(x)[1:]
    sizes = [d for d in dims if isinstance(d, int)]
    need(len(sizes) == len(dims), f"ncnn pads otherwise, and its sizes {dims} are not known")
    return sizes


@writes("Conv", back=False)
@writes("ConvTranspose", back=True)
def convolution(w: Writer, node: Node, back: bool) -> None:
    x, weight, bias = inputs_of(node)
    array = constant(weight, "its weight")
    type, given = conv_layer(w, node, array.shape, back)
    if back:
        inner = array.reshape(node.attrs["group"], -1, *array.shape[1:]).swapaxes(1, 2)
        array = np.ascontiguousarray(inner)
    given["bias_term"] = int(bias is not None)
    weights = {"weight": array} | _biases(bias)
    y, more = activation(w, node.output)
    w.layer(type, node.name, [w.blob(x)], [y], given | more, **weights)


@claims("Conv", back=False)
@claims("ConvTranspose", back=True)
def dynamic(w: Writer, node: Node, back: bool) -> None:
    """Write a convolution whose weights and bias other nodes compute, as a layer that reads them as
    inputs (`dynamic_weight`). ncnn's have no batch: the nodes must be Squeezes of a batch of one.
    Raises Inexpressible for constant weights, unknown sizes, and weights made otherwise."""
    x, weight, bias = inputs_of(node)
    sizes = weight.shape or ()
    need(weight.const is None and sizes, "its weights are constants")
    need(all(isinstance(n, int) for n in sizes), "the sizes of its weights are not known")
    type, given = conv_layer(w, node, sizes, back)
    taken = set[Node]()
    shaped = weight.producer
    if shaped is not None and shaped.op.name == "Reshape":
        taken.add(source(w, weight, "Reshape"))
        weight = shaped.inputs[0]
    read = [source(w, v, "Squeeze") for v in (weight, bias) if v is not None]
    need(all(numbers(n.inputs[1], "its axis") == (0,) for n in read), "its weights have no batch")
    del given["weight_data_size"]
    given |= {"bias_term": int(bias is not None), "dynamic_weight": 1}
    y, more = activation(w, node.output)
    values = [x, *(n.inputs[0] for n in read)]
    w.claim_as(node, taken | set(read), type, values, [y], given | more)


def _biases(bias: Value | None) -> dict[str, Array]:
    return {} if bias is None else {"bias": constant(bias, "its bias")}


@writes("DeformConv")
def deformable(w: Writer, node: Node) -> None:
    x, weight, offset, bias, mask = inputs_of(node)
    array = constant(weight, "its weight")
    need(node.attrs["group"] == 1, "it has groups")
    given = windows(node, AXES[2], ("stride", "dilation"))
    given |= {
        "num_output": len(array),
        "weight_data_size": array.size,
        "bias_term": int(bias is not None),
    }
    given |= {"kernel_h": array.shape[2], "kernel_w": array.shape[3]}
    weights = {"weight": array} | _biases(bias)
    names = [w.blob(v) for v in (x, offset, mask) if v is not None]
    y, more = activation(w, node.output)
    w.layer("DeformableConv2D", node.name, names, [y], given | more, **weights)


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
    y, more = activation(w, y)
    return w.layer("InnerProduct", node.name, [w.blob(a)], [y], given | more, **weights)


# ---- statistics


@writes("BatchNorm", names=("slope", "bias", "mean", "var"))
@writes("InstanceNorm", "GroupNorm", names=("scale", "shift"))
def norms(w: Writer, node: Node, names: tuple[str, ...]) -> None:
    _, *weights = inputs_of(node)
    arrays = {name: constant(v, "its weight") for name, v in zip(names, weights, strict=True)}
    given: dict[str, Any] = {"channels": arrays[names[0]].size, "eps": float(node.attrs["eps"])}
    type = node.op.name
    if type == "InstanceNorm" and len(w.dims(node.output)) < 3:
        type = "GroupNorm"  # ncnn's InstanceNorm takes a matrix as one channel
    if type == "GroupNorm":
        given["group"] = node.attrs.get("groups", given["channels"])
    w.layer_of(type, node, given, **arrays)


@writes("LayerNorm", names=("scale", "shift"))
@writes("RMSNorm", names=("scale",))
def layer_norm(w: Writer, node: Node, names: tuple[str, ...]) -> None:
    need(len(node.outputs) == 1, "its statistics are outputs")
    _, *weights = inputs_of(node)
    dims, axis = w.dims(node.output), node.attrs["axis"]
    inner = dims[axis % (node.output.rank or 1) - 1 :]
    need(all(isinstance(d, int) for d in inner), "its sizes are not known")
    need(len(inner) < max(len(dims), 2), "it is over all axes, where ncnn takes each row alone")
    count = int(np.prod(inner))
    usual = {"scale": np.ones(count, np.float32), "shift": np.zeros(count, np.float32)}
    arrays = {
        name: usual[name] if v is None else constant(v, "its weight")
        for name, v in zip(names, weights, strict=True)
    }
    need(all(a.size == count for a in arrays.values()), "its weights repeat")
    given = {"affine_size": count, "eps": float(node.attrs["eps"])}
    w.layer_of(node.op.name, node, given, **arrays)


@writes("LRN")
def lrn(w: Writer, node: Node) -> None:
    need(len(w.dims(node.output)) == 3, "its input is no image of channels, rows and columns")
    need(node.attrs["size"] % 2, "its window has one channel more after the middle than before")
    w.layer_of("LRN", node)


KINDS = {kind: number for number, kind in enumerate(REDUCE)}


@writes("Reduce")
def reduce(w: Writer, node: Node) -> None:
    (x, axes), a = inputs_of(node), node.attrs
    at = sorted(i % (x.rank or 1) - 1 for i in (numbers(axes, "its axes") if axes else ()))
    need(at and at[0] >= 0, "it is over the batch")
    given = {"operation": KINDS[a["kind"]], "keepdims": int(a["keepdims"]), "fixbug0": 1}
    given |= {"reduce_all": 0, "axes": tuple(at)}  # type: ignore[dict-item]
    y, more = fewer.coefficient(w, node.output)
    return w.layer("Reduction", node.name, [w.blob(x)], [y], given | more)


@writes("GlobalPool")
def global_pool(w: Writer, node: Node) -> None:
    """Write a pooling of whole planes. Its result is an image of one pixel, in ncnn a vector. If
    only a Reshape or Flatten to [N, C] reads it, that needs no layer; else a Reshape to an image is
    added, unless all readers take vectors: reshapes, and arithmetic with images of as many channels
    (`fewer.vector_for_all`)."""
    kind, n = node.attrs["kind"], len(w.dims(node.output)) - 1
    need(kind in ("mean", "max") and n in AXES, f"it is of the kind {kind}")
    given = {"global_pooling": 1, "pooling_type": int(kind == "mean")}
    user, y = w.only_user(node.output, "Reshape", "Flatten"), node.output
    if user is not None and user.output.rank == 2:
        w.taken.add(user)
        return w.layer(pool_type(n), node.name, [w.blob(node.inputs[0])], [user.output], given)
    w.layer_of(pool_type(n), node, given)
    if fewer.vector_for_all(w, y):
        return w.vectors.add(y)
    inner, sizes = w.aside(y), dict(zip(LETTERS[n + 1], (-1, *(1,) * n), strict=True))
    return w.layer("Reshape", f"{node.name}_axes", [inner], [y], sizes)


def pool_type(n: int) -> str:
    return "Pooling" + {1: "1D", 2: "", 3: "3D"}[n]


@writes("MaxPool", mean=False)
@writes("AveragePool", mean=True)
def pool(w: Writer, node: Node, mean: bool) -> None:
    a, n = node.attrs, len(w.dims(node.output)) - 1
    need(n in AXES and all(d == 1 for d in a["dilation"] or ()), "it has gaps, or too many axes")
    need(len(node.outputs) == 1, "its places are an output")
    letters = AXES[n]
    given = windows(node, letters, ("kernel", "stride")) | {"pooling_type": int(mean)}
    if edges := w.edges.get(inputs_of(node)[0]):
        for i, c in enumerate(letters):
            given[BEGINS[c]] += edges[i]
            given[ENDS[c]] += edges[n + i]
    modes = {"NOTSET": 0 if a["ceil_mode"] else 1, "VALID": 1, "SAME_UPPER": 2, "SAME_LOWER": 3}
    given["pad_mode"] = modes[a["auto_pad"]]
    axes = [(c, given[f"kernel_{c}"], given[f"stride_{c}"]) for c in letters]
    counted = any(k < s + given[ENDS[c]] for c, k, s in axes)
    for (c, k, _), size in zip(axes, w.dims(inputs_of(node)[0])[1:], strict=True):
        counted |= isinstance(size, int) and size + given[BEGINS[c]] + given[ENDS[c]] < k
    if given["pad_mode"] != 1 and counted:
        sizes = _sized(w, inputs_of(node)[0])
        seen = window(sizes, *(a[k] for k in ("kernel", "stride", "pad")),
                      auto_pad=a["auto_pad"], ceil_mode=a["ceil_mode"])  # fmt: skip
        for (c, k, s), size, b, count in zip(axes, sizes, seen.begin, seen.out, strict=True):
            given |= {BEGINS[c]: b, ENDS[c]: max(0, (int(count) - 1) * s + k - size - b)}
        given["pad_mode"] = 1
    if mean:
        include = bool(a["count_include_pad"])
        need(not (include and a["ceil_mode"]), "windows behind the padding count otherwise in ncnn")
        need(include or given["pad_mode"] < 2, "ncnn counts this padding")
        given["avgpool_count_include_pad"] = int(include)
    w.layer_of(pool_type(n), node, given)
