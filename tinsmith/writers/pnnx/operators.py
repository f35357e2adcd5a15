"""What writes each of our operators as PNNX."""

from __future__ import annotations

from inspect import Parameter
from typing import Any

import numpy as np

from tinsmith.frontends.pnnx.images import RESIZES
from tinsmith.frontends.pnnx.layers import PAD_MODES
from tinsmith.frontends.pnnx.node import WORDS
from tinsmith.frontends.pnnx.recurrent import GATES
from tinsmith.frontends.pnnx.reductions import KINDS
from tinsmith.frontends.pnnx.rows import COMPARISONS, ROWS
from tinsmith.frontends.pnnx.select import END
from tinsmith.graph import Node, Value
from tinsmith.ops import OPS
from tinsmith.writers.pnnx.export import (
    Export,
    Refused,
    constant,
    number,
    only,
    plain,
    rank,
    size,
    whole,
    writes,
)

FORMULAS = {
    **{
        n.capitalize(): n
        for n in (
            "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf",
            "exp", "floor", "log", "neg", "reciprocal", "round", "rsqrt", "sign", "sin", "sinh",
            "sqrt", "tan", "add", "sub", "mul", "div", "pow", "atan2",
        )
    },
    "Max": "maximum", "Min": "minimum", "Mod": "fmod", "BitwiseAnd": "and", "BitwiseOr": "or",
    "BitwiseXor": "xor", "And": "and", "Or": "or", "Xor": "xor",
}  # fmt: skip
"""Our operator -> the function of a formula."""


@writes(*FORMULAS)
def formula(w: Export, node: Node) -> None:
    name = FORMULAS[node.op.name]
    only(len({v.dtype for v in node.inputs if v is not None}) == 1, "its operands have two types")
    if name == "fmod" and not node.attrs.get("fmod"):
        name = "remainder"
    if name == "div" and node.output.dtype.kind in "iu":
        w.put(node, "torch.div", "input other", rounding_mode="trunc")
        return
    texts, operands = [], []
    for v in node.inputs:
        literal = number(v)
        if literal is None or len(node.inputs) == 1:
            texts.append(f"@{len(operands)}")
            operands.append(v)
        else:
            texts.append(str(literal))
    w.add(
        "pnnx.Expression",
        node.name,
        operands,
        [node.output],
        {"expr": f"{name}({','.join(texts)})"},
    )


def by_row(w: Export, node: Node) -> None:
    """The first row whose fixed attributes are those of the node, and which says all others."""
    for op, types, attrs in ROWS:
        if op != node.op.name or "1" in attrs:
            continue
        values = {
            name: node.attrs.get(name, OPS[node.op.name].attrs[name])
            for name in OPS[node.op.name].attrs
        }
        said = {p: values[ours] for ours, (p, _) in attrs.items() if p}
        fixed = all(values[o] == d for o, (p, d) in attrs.items() if not p)
        same = all(said[p] == values[o] for o, (p, _) in attrs.items() if p)
        rest = all(values[n] == d for n, d in OPS[node.op.name].attrs.items() if n not in attrs)
        if fixed and same and rest and None not in said.values():
            defaults = {p: d for p, d in attrs.values() if d is not Parameter.empty}
            params = {
                p: v
                for p, v in said.items()
                if p not in defaults or v != defaults[p] or op == "Clip"
            }
            w.add(
                types.split()[0],
                node.name,
                [v for v in node.inputs if v is not None],
                node.outputs,
                params,
            )
            return
    plain(node)
    raise Refused("PNNX has none with such attributes")


_OWN = ("MatMul", "Unsqueeze", "GatherElements", "Clip")
writes(*{op for op, _, _ in ROWS if op not in _OWN})(by_row)


@writes("Clip")
def clip(w: Export, node: Node) -> None:
    if None not in (node.min, node.max):
        by_row(w, node)
    else:
        w.put(node, "torch.clamp", min=node.min, max=node.max)


@writes("Identity", "Declared")
def identity(w: Export, node: Node) -> None:
    w.same(node.output, node.inputs[0] or "")


@writes(*COMPARISONS.values(), "Where", "Not")
def compare(w: Export, node: Node) -> None:
    """Numbers are parameters, tensors operands."""
    names = {"Where": ("condition", "input", "other"), "Not": ("input",)}.get(
        node.op.name, ("input", "other")
    )
    given: dict[str, Any] = {}
    params = {}
    for name, v in zip(names, node.inputs, strict=True):
        literal = number(v) if name == "other" else None
        given[name], params[name] = (v, None) if literal is None else (None, literal)
    word = {"Where": "where", "Not": "logical_not"}.get(node.op.name)
    word = word or next(k for k, op in COMPARISONS.items() if op == node.op.name)
    w.add(
        f"torch.{word}",
        node.name,
        given,
        node.outputs,
        {k: v for k, v in params.items() if v is not None},
    )


@writes("Cast")
def cast(w: Export, node: Node) -> None:
    plain(node, "to")
    names = {dtype: word for word, dtype in WORDS.items()}
    w.put(node, "Tensor.to", dtype=f"torch.{names.get(node.to, node.to)}", copy=False)


# ---- layers


def _pads(node: Node) -> tuple[int, ...]:
    """The padding of each axis, the same before and after it."""
    pads = node.attrs.get("pad")
    rank_ = rank(node.inputs[0]) - 2
    pads = tuple(pads) if pads is not None else (0,) * 2 * rank_
    only(node.attrs.get("auto_pad", "NOTSET") == "NOTSET", "its padding is automatic")
    only(pads[:rank_] == pads[rank_:], f"its padding {pads} differs before and after an axis")
    return pads[:rank_]


def _each(node: Node, name: str, default: int = 1) -> tuple[int, ...]:
    value = node.attrs.get(name)
    return (default,) * (rank(node.inputs[0]) - 2) if value is None else tuple(value)


def _spatial(node: Node) -> int:
    found = rank(node.inputs[0]) - 2
    only(1 <= found <= 3, f"it has {found} spatial axes")
    return found


@writes("Conv", "ConvTranspose")
def conv(w: Export, node: Node) -> None:
    x, weight, bias = (*node.inputs, None)[:3]
    assert x is not None and weight is not None
    turned = node.op.name == "ConvTranspose"
    params: dict[str, Any] = {
        "stride": _each(node, "stride"), "dilation": _each(node, "dilation"), "groups": node.group,
    }  # fmt: skip
    if turned:
        only(node.output_shape is None, "its output has a given shape")
        params["output_padding"] = _each(node, "output_padding", 0)
    start: Value | str = x
    pads, count = node.attrs.get("pad"), _spatial(node)
    if not turned and pads is not None and tuple(pads[:count]) != tuple(pads[count:]):
        only(node.auto_pad == "NOTSET", "its padding is automatic")
        pairs = [p for i in reversed(range(count)) for p in (pads[i], pads[count + i])]
        start = w.step(node, "F.pad", x, pad=tuple(pairs), mode="constant", value=0.0)
        params["padding"] = (0,) * count
    else:
        params["padding"] = _pads(node)
    ins, outs = size(weight, 1), size(weight, 0)
    if turned:
        ins, outs = outs, ins * node.group
    else:
        ins *= node.group
    if weight.const is None or (bias is not None and bias.const is None):
        name = f"F.conv_transpose{count}d" if turned else f"F.conv{count}d"
        w.add(
            name,
            node.name,
            {"input": start, "weight": weight, "bias": bias},
            node.outputs,
            params | ({"bias": None} if bias is None else {}),
        )
        return
    params |= {"in_channels": ins, "out_channels": outs, "bias": bias is not None}
    params |= {"kernel_size": weight.const.shape[2:]} | (
        {} if turned else {"padding_mode": "zeros"}
    )
    w.add(
        f"nn.Conv{'Transpose' * turned}{count}d",
        node.name,
        [start],
        node.outputs,
        params,
        {"weight": weight, "bias": bias},
    )


@writes("MatMul")
def matmul(w: Export, node: Node) -> None:
    plain(node)
    a, b = node.inputs
    assert a is not None and b is not None
    if b.const is None or b.rank != 2 or rank(a) < 1:
        return w.put(node, "torch.matmul", "input other")
    params = {"in_features": b.const.shape[0], "out_features": b.const.shape[1], "bias": False}
    op = w.add("nn.Linear", node.name, [a], node.outputs, params, {"weight": b})
    w.set_weight(op, "weight", b.const.T)
    return None


@writes("BatchNorm", "InstanceNorm", "GroupNorm", "LayerNorm", "RMSNorm")
def norm(w: Export, node: Node) -> None:
    x, *more = node.inputs
    assert x is not None
    kind = node.op.name
    plain(node, "eps", "axis", "groups")
    names = ("weight", "bias", "running_mean", "running_var")
    given: dict[str, Any] = dict(zip(names, more, strict=False))
    params: dict[str, Any] = {"eps": node.eps}
    axes = 0
    if kind in ("LayerNorm", "RMSNorm"):
        axes = -node.axis if node.axis < 0 else rank(x) - node.axis
        params["normalized_shape"] = tuple(size(x, i) for i in range(rank(x) - axes, rank(x)))
    if kind == "GroupNorm":
        params["num_groups"] = node.groups
    if all(v is None or v.const is not None for v in more):
        if kind in ("LayerNorm", "RMSNorm"):
            params["elementwise_affine"] = bool(more) and more[0] is not None
        else:
            params |= {
                "affine": True,
                "num_channels" if kind == "GroupNorm" else "num_features": size(more[0], 0),
            }
        dims = f"{max(rank(x) - 2, 1)}d" if kind in ("BatchNorm", "InstanceNorm") else ""
        w.add(f"nn.{kind}{dims}", node.name, [x], node.outputs, params, given)
        return
    name = {"BatchNorm": "batch_norm", "InstanceNorm": "instance_norm", "GroupNorm": "group_norm"}
    name |= {"LayerNorm": "layer_norm", "RMSNorm": "rms_norm"}
    w.add(f"F.{name[kind]}", node.name, {"input": x, **given}, node.outputs, params)


@writes("GlobalPool")
def global_pool(w: Export, node: Node) -> None:
    only(node.kind in ("mean", "max"), f"its kind is {node.kind!r}")
    count = _spatial(node)
    name = "AdaptiveAvgPool" if node.kind == "mean" else "AdaptiveMaxPool"
    w.add(
        f"nn.{name}{count}d",
        node.name,
        [node.inputs[0]],
        node.outputs,
        {"output_size": (1,) * count},
    )


@writes("MaxPool", "AveragePool")
def pool(w: Export, node: Node) -> None:
    plain(node, "kernel", "stride", "pad", "ceil_mode", "count_include_pad", "dilation", "auto_pad")
    params: dict[str, Any] = {
        "kernel_size": tuple(node.kernel), "stride": _each(node, "stride"), "padding": _pads(node),
        "ceil_mode": node.ceil_mode,
    }  # fmt: skip
    if node.op.name == "MaxPool":
        params |= {"dilation": _each(node, "dilation"), "return_indices": False}
    else:
        only(set(_each(node, "dilation")) <= {1}, "it is dilated")
        params["count_include_pad"] = node.count_include_pad
    name = "MaxPool" if node.op.name == "MaxPool" else "AvgPool"
    w.add(f"nn.{name}{_spatial(node)}d", node.name, [node.inputs[0]], node.outputs, params)


@writes("PRelu")
def prelu(w: Export, node: Node) -> None:
    slope = constant(node.inputs[1], "slopes")
    only(
        slope.size in (1, size(node.inputs[0], 1))
        and slope.size == max(slope.shape, default=1)
        and slope.ndim < rank(node.inputs[0]),
        "its slopes are not one for each channel",
    )
    op = w.add(
        "nn.PReLU",
        node.name,
        [node.inputs[0]],
        node.outputs,
        {"num_parameters": slope.size},
        {"weight": node.inputs[1]},
    )
    w.set_weight(op, "weight", slope.reshape(-1))


@writes("LRN")
def lrn(w: Export, node: Node) -> None:
    only(node.size % 2, "its size is even")
    w.put(
        node, "nn.LocalResponseNorm", size=node.size, alpha=node.alpha, beta=node.beta, k=node.bias
    )


@writes("Softmax", "LogSoftmax")
def softmax(w: Export, node: Node) -> None:
    w.put(node, "F.softmax" if node.op.name == "Softmax" else "F.log_softmax", dim=node.axis)


@writes("Attention")
def attention(w: Export, node: Node) -> None:
    plain(node, "scale", "is_causal", "q_num_heads", "kv_num_heads")
    only(all(v is None for v in node.inputs[4:]), "it has a cache")
    names = ("query", "key", "value", "attn_mask")
    given: dict[str, Any] = dict(zip(names, node.inputs, strict=False))
    outputs: Any = node.outputs
    heads = node.q_num_heads or 1
    if rank(node.inputs[0]) == 3 and heads > 1:
        only(heads == node.kv_num_heads, "it has fewer heads of keys")
        outputs = [w.fresh(f"{node.name}/heads")]
        for key in names[:3]:
            cut = (heads, size(given[key], 2) // heads)
            given[key] = w.step(node, "Tensor.unflatten", given[key], dim=2, sizes=cut)
            given[key] = w.step(node, "torch.transpose", given[key], dim0=1, dim1=2)
    params = {"is_causal": node.is_causal, "dropout_p": 0.0, "scale": node.scale}
    whole_ = outputs is node.outputs
    name = node.name if whole_ else f"{node.name}/heads"
    op = w.add("F.scaled_dot_product_attention", name, given, outputs, params)
    if not whole_:
        back = w.step(node, "torch.transpose", op.outputs[0], dim0=1, dim1=2)
        params = {"start_dim": 2, "end_dim": 3}
        w.add("torch.flatten", node.name, {"input": back}, node.outputs, params)


@writes("Softplus")
def softplus(w: Export, node: Node) -> None:
    w.put(node, "F.softplus", beta=1.0, threshold=20.0)


@writes("LSTM", "GRU", "RNN")
def recurrent(w: Export, node: Node) -> None:
    """A layer, whose output is then cut into directions."""
    kind = f"nn.{node.op.name}"
    x, *more = node.inputs
    matrices, b, lengths, *states = (
        ([*more, *[None] * 6][i] for i in (0, 1)),
        *[*more, *[None] * 7][2:7],
    )
    own = (
        {"linear_before_reset"}
        if kind == "nn.GRU"
        else {"activations"}
        if kind == "nn.RNN"
        else set()
    )
    plain(node, "hidden_size", "direction", *own)
    only(node.direction != "reverse", "it runs backwards only")
    only(kind != "nn.GRU" or node.linear_before_reset, "it resets before the product")
    only(
        lengths is None and not any(v is not None for v in states[2:]),
        "it has lengths or peepholes",
    )
    nonlinear = (
        {str(a).lower() for a in node.attrs.get("activations") or ("tanh",)} if own else {"tanh"}
    )
    only(nonlinear in ({"tanh"}, {"relu"}), f"its activations are {sorted(nonlinear)}")
    ih, hh = (constant(m, "weights") for m in matrices)
    ends = ("", "_reverse")[: len(ih)]
    back = np.argsort(GATES[kind])

    def ordered(array: Any) -> Any:
        gates = np.split(array, len(back))
        return np.concatenate([gates[i] for i in back])

    params: dict[str, Any] = {
        "input_size": ih.shape[2], "hidden_size": hh.shape[2], "num_layers": 1,
        "batch_first": False, "bias": b is not None, "bidirectional": len(ends) == 2,
    }  # fmt: skip
    params |= {"nonlinearity": nonlinear.pop()} if kind == "nn.RNN" else {}
    out = w.fresh(f"{node.name}/rows")
    given = [s for s in states[:2] if s is not None]
    op = w.add(kind, node.name, [x, *given], [out, *node.outputs[1:]], params)
    for i, end in enumerate(ends):
        w.set_weight(op, f"weight_ih_l0{end}", ordered(ih[i]))
        w.set_weight(op, f"weight_hh_l0{end}", ordered(hh[i]))
        if b is not None:
            for name, part in zip(("ih", "hh"), np.split(constant(b, "biases")[i], 2), strict=True):
                w.set_weight(op, f"bias_{name}_l0{end}", ordered(part))
    if len(ends) == 1:
        w.add(
            "torch.unsqueeze",
            f"{node.name}/directions",
            {"input": out},
            node.outputs[:1],
            {"dim": 1},
        )
        return
    cut = w.step(node, "Tensor.unflatten", out, dim=2, sizes=(2, hh.shape[2]))
    w.add(
        "Tensor.permute",
        f"{node.name}/directions",
        {"input": cut},
        node.outputs[:1],
        {"dims": (0, 2, 1, 3)},
    )


# ---- shapes


@writes("Reshape")
def reshape(w: Export, node: Node) -> None:
    """0 is the size of the input there, which PNNX does not say but by its number."""
    x, shape = node.inputs
    assert x is not None
    if shape is not None and shape.const is None:
        return w.put(node, "Tensor.reshape", "input shape")
    sizes = list(whole(shape, "shape"))
    known = [d if isinstance(d, int) else None for d in x.shape or ()]
    if not node.allowzero:
        sizes = [known[i] if s == 0 and i < len(known) else s for i, s in enumerate(sizes)]
    if None in sizes:
        text = ",".join(f"size(@0,{i})" if s is None else str(s) for i, s in enumerate(sizes))
        shape = w.fresh(f"{node.name}/shape")
        w.add("pnnx.Expression", shape, [x], [shape], {"expr": f"[{text}]"})
        w.add("Tensor.reshape", node.name, {"input": x, "shape": shape}, node.outputs)
        return None
    return w.put(node, "Tensor.reshape", shape=tuple(sizes))


@writes("Flatten")
def flatten(w: Export, node: Node) -> None:
    only(node.axis == 1, f"its axis is {node.axis}")
    w.put(node, "torch.flatten", start_dim=1, end_dim=-1)


@writes("Transpose")
def transpose(w: Export, node: Node) -> None:
    perm = node.perm if node.perm is not None else range(rank(node.inputs[0]))[::-1]
    w.put(node, "Tensor.permute", dims=tuple(perm))


@writes("Squeeze")
def squeeze(w: Export, node: Node) -> None:
    x = node.inputs[0]
    axes = whole(node.inputs[1], "axes") if len(node.inputs) > 1 else ()
    axes = axes or tuple(i for i in range(rank(x)) if size(x, i) == 1)
    w.put(node, "torch.squeeze", dim=axes[0] if len(axes) == 1 else axes)


@writes("Unsqueeze")
def unsqueeze(w: Export, node: Node) -> None:
    x: Any = node.inputs[0]
    count = rank(x) + len(whole(node.inputs[1], "axes"))
    if count == rank(x) + 1:
        return w.put(node, "torch.unsqueeze", dim=whole(node.inputs[1], "axes")[0])
    *first, last = sorted(a % count for a in whole(node.inputs[1], "axes"))
    for axis in first:
        x = w.step(node, "torch.unsqueeze", x, dim=axis)
    w.add("torch.unsqueeze", node.name, {"input": x}, node.outputs, {"dim": last})
    return None


@writes("Concat")
def concat(w: Export, node: Node) -> None:
    w.add(
        "torch.cat",
        node.name,
        [v for v in node.inputs if v is not None],
        node.outputs,
        {"dim": node.axis},
    )


@writes("Split")
def split(w: Export, node: Node) -> None:
    x = node.inputs[0]
    given = node.inputs[1] if len(node.inputs) > 1 else None
    count = len(node.outputs)
    sizes = (
        whole(given, "sizes")
        if given is not None
        else tuple(size(v, node.axis) for v in node.outputs)
    )
    only(len(sizes) == count and x is not None, "its sizes are not known")
    w.put(node, "torch.split", "tensor", dim=node.axis, split_size_or_sections=sizes)


@writes("Slice")
def slice_(w: Export, node: Node) -> None:
    _, *lists = node.inputs
    starts, ends, axes, steps = ([*lists, None, None])[:4]
    at, end = whole(starts, "starts"), whole(ends, "ends")
    dims = whole(axes, "axes") if axes is not None else tuple(range(len(at)))
    step = whole(steps, "steps") if steps is not None else (1,) * len(at)
    if all(s == -1 for s in step) and all(a == -1 for a in at) and all(e < -END for e in end):
        return w.put(node, "torch.flip", dims=dims)
    only(min(step, default=1) > 0, "it goes backwards")
    end = tuple(min(max(e, -END), END) for e in end)
    if len(dims) == 1:
        return w.put(node, "Tensor.slice", dim=dims[0], start=at[0], end=end[0], step=step[0])
    return w.put(
        node, "Tensor.slice", dims=dims, starts=at, ends=end, steps=step, selects=(END,) * len(dims)
    )


@writes("Gather")
def gather(w: Export, node: Node) -> None:
    data, at = node.inputs
    assert data is not None and at is not None
    if (index := number(at)) is not None:
        return w.put(node, "Tensor.select", dim=node.axis, index=index)
    if node.axis == 0 and data.const is not None and data.rank == 2:
        params = {"num_embeddings": size(data, 0), "embedding_dim": size(data, 1)}
        w.add("nn.Embedding", node.name, [at], node.outputs, params, {"weight": data})
        return None
    if at.rank == 1:
        return w.put(node, "torch.index_select", "input index", dim=node.axis)
    places = w.fresh(f"{node.name}/index")
    text = ",".join(["None"] * (node.axis % rank(data)) + ["@0"])
    w.add("pnnx.Expression", f"{node.name}/index", [at], [places], {"expr": f"[{text}]"})
    w.add("Tensor.index", node.name, {"input": data, "expr": places}, node.outputs)
    return None


@writes("GatherElements")
def gather_elements(w: Export, node: Node) -> None:
    w.put(node, "torch.gather", "input index", dim=node.axis)


@writes("Expand", "Tile")
def expand(w: Export, node: Node) -> None:
    kind = "Tensor.expand" if node.op.name == "Expand" else "Tensor.repeat"
    sizes = node.inputs[1]
    if sizes is not None and sizes.const is None:
        w.put(node, kind, "input sizes")
    else:
        w.put(node, kind, sizes=whole(sizes, "sizes"))


@writes("Pad")
def pad(w: Export, node: Node) -> None:
    x, pads, value, axes = (*node.inputs, None, None)[:4]
    both = whole(pads, "pads")
    count = len(both) // 2
    at = whole(axes, "axes") if axes is not None else tuple(range(count))
    before = dict.fromkeys(range(rank(x)), (0, 0))
    before |= {a % rank(x): (both[i], both[count + i]) for i, a in enumerate(at)}
    first = min((a for a, p in before.items() if any(p)), default=rank(x) - 1)
    modes = {ours: theirs for theirs, ours in PAD_MODES.items()}
    fill = 0.0 if value is None else number(value)
    only(fill is not None, "its filler is computed")
    pairs = tuple(p for a in reversed(range(first, rank(x))) for p in before[a])
    constant_ = {"value": fill} if node.mode == "constant" else {}
    w.put(node, "F.pad", pad=pairs, mode=modes[node.mode], **constant_)


@writes("Reduce")
def reduce(w: Export, node: Node) -> None:
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    dims = whole(axes, "axes") if axes is not None else ()
    only(dims or not node.noop_with_empty_axes, "it reduces nothing")
    kind, dtype = node.kind, node.output.dtype
    only(kind not in ("sum", "prod") or dtype.kind == "f" or dtype == np.int64, f"it gives {dtype}")
    params: dict[str, Any] = {"dim": dims or None, "keepdim": node.keepdims}
    if kind in ("l1", "l2"):
        return w.put(node, "torch.norm", p=int(kind[1]), **params)
    names = {ours: theirs for theirs, ours in KINDS.items()}
    only(kind in names, f"its kind is {kind!r}")
    return w.put(node, f"torch.{names[kind]}", **params)


@writes("ArgReduce")
def arg_reduce(w: Export, node: Node) -> None:
    plain(node, "kind", "axis", "keepdims")
    w.put(node, f"torch.arg{node.kind}", dim=node.axis, keepdim=node.keepdims)


@writes("CumSum", "CumProd")
def cumulative(w: Export, node: Node) -> None:
    plain(node)
    w.put(node, f"torch.{node.op.name.lower()}", dim=whole(node.inputs[1], "axes")[0])


@writes("TopK")
def topk(w: Export, node: Node) -> None:
    k = whole(node.inputs[1], "numbers")[0]
    w.put(node, "torch.topk", k=k, dim=node.axis, largest=node.largest, sorted=node.sorted)


@writes("Trilu")
def trilu(w: Export, node: Node) -> None:
    k = whole(node.inputs[1], "diagonals")[0] if len(node.inputs) > 1 else 0
    w.put(node, "torch.triu" if node.upper else "torch.tril", diagonal=k)


@writes("Resize")
def resize(w: Export, node: Node) -> None:
    plain(node, "mode", "coordinate_transformation_mode", "nearest_mode", "axes", "antialias")
    x, _, scales, sizes = (*node.inputs, None, None)[:4]
    count = _spatial(node)
    aligned = node.coordinate_transformation_mode == "align_corners"
    found = [
        mode
        for mode, (kind, transform, nearest) in RESIZES.items()
        if kind == node.mode
        and (aligned or transform == node.coordinate_transformation_mode)
        and (kind != "nearest" or nearest == node.nearest_mode)
    ]
    if node.mode == "linear":
        found = found[count - 1 : count]
    only(found, f"its modes {node.mode}, {node.coordinate_transformation_mode} are not PyTorch's")
    given = constant(sizes if scales is None else scales, "sizes").tolist()
    axes = tuple(a % rank(x) for a in node.axes) if node.axes is not None else tuple(range(rank(x)))
    by_axis = dict(zip(axes, given, strict=True))
    fixed = [1 if scales is not None else size(x, i) for i in (0, 1)]
    only(all(by_axis.pop(i, f) == f for i, f in enumerate(fixed)), "it resizes batch or channels")
    only(len(by_axis) == count, "it resizes some of its axes")
    values = tuple(by_axis[i] for i in sorted(by_axis))
    params: dict[str, Any] = {
        "mode": found[0],
        ("size" if scales is None else "scale_factor"): values,
    }
    if node.mode != "nearest":
        params |= {"align_corners": aligned}
    w.put(node, "F.interpolate", **params, **({"antialias": True} if node.antialias else {}))


@writes("GridSample")
def grid_sample(w: Export, node: Node) -> None:
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(node.mode, node.mode)
    w.put(
        node,
        "F.grid_sample",
        "input grid",
        mode=mode,
        padding_mode=node.padding_mode,
        align_corners=node.align_corners,
    )


@writes("LpPool")
def lp_pool(w: Export, node: Node) -> None:
    plain(node, "kernel", "stride", "pad", "ceil_mode", "p")
    only(not any(_pads(node)), "it is padded")
    only(node.p in (2, 4, 6) and _spatial(node) < 3, f"its p is {node.p}")
    sizes = {"kernel_size": tuple(node.kernel), "stride": _each(node, "stride")}
    w.put(node, f"F.lp_pool{_spatial(node)}d", norm_type=node.p, ceil_mode=node.ceil_mode, **sizes)


@writes("Col2Im")
def fold(w: Export, node: Node) -> None:
    sizes = {
        k: whole(v, "sizes")
        for k, v in zip(("output_size", "kernel_size"), node.inputs[1:], strict=True)
    }
    pads = tuple(node.pad or (0,) * 4)
    only(len(sizes["output_size"]) == 2 and pads[:2] == pads[2:], "its images are not of two axes")
    w.put(
        node,
        "F.fold",
        padding=pads[:2],
        stride=tuple(node.stride or (1, 1)),
        dilation=tuple(node.dilation or (1, 1)),
        **sizes,
    )


@writes("AffineGrid")
def affine_grid(w: Export, node: Node) -> None:
    w.put(
        node,
        "F.affine_grid",
        "theta",
        size=whole(node.inputs[1], "sizes"),
        align_corners=node.align_corners,
    )


@writes("OneHot")
def one_hot(w: Export, node: Node) -> None:
    plain(node)
    depth, values = node.inputs[1:]
    assert values is not None
    only(
        whole(values, "values") == (0, 1) and values.dtype == np.int64, "its values are not 0 and 1"
    )
    w.put(node, "F.one_hot", num_classes=whole(depth, "numbers of classes")[0])
