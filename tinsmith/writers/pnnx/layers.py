"""Writes convolutions, products, norms, pooling, recurrent layers and attention as PNNX."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.frontends.pnnx.recurrent import GATES
from tinsmith.graph import Node, Value
from tinsmith.ops.window import window
from tinsmith.writers.pnnx.export import Export, rank, size, writes
from tinsmith.writers.rows import constant, inputs_of, need, need_defaults


def _pads(node: Node) -> tuple[int, ...]:
    """Return the padding of each spatial axis of a node, one number each. Raises Inexpressible if
    it differs before and after an axis, or is automatic."""
    pads = node.attrs.get("pad")
    rank_ = rank(node.inputs[0]) - 2
    pads = (0,) * 2 * rank_ if pads is None else pads
    need(node.attrs.get("auto_pad", "NOTSET") == "NOTSET", "its padding is automatic")
    need(pads[:rank_] == pads[rank_:], f"its padding {pads} differs before and after an axis")
    return pads[:rank_]


def _padded(w: Export, node: Node, x: Any, fill: float) -> tuple[Value | str, tuple[int, ...]]:
    """Return (operand, padding of each axis) for the input x of a node with windows. If the padding
    differs before and after an axis, an operator F.pad with `fill` is added, and the padding is 0.
    Raises Inexpressible if it is automatic."""
    pads, count = node.attrs.get("pad"), spatial(node)
    if pads is None or pads[:count] == pads[count:]:
        return x, _pads(node)
    need(node.auto_pad == "NOTSET", "its padding is automatic")
    pairs = [p for i in reversed(range(count)) for p in (pads[i], pads[count + i])]
    return w.step(node, "F.pad", x, pad=tuple(pairs), mode="constant", value=fill), (0,) * count


def _each(node: Node, name: str, default: int = 1) -> tuple[int, ...]:
    value = node.attrs.get(name)
    return (default,) * (rank(node.inputs[0]) - 2) if value is None else value


def spatial(node: Node) -> int:
    found = rank(node.inputs[0]) - 2
    need(1 <= found <= 3, f"it has {found} spatial axes")
    return found


@writes("Conv", turned=False)
@writes("ConvTranspose", turned=True)
def conv(w: Export, node: Node, turned: bool) -> None:
    x, weight, bias = inputs_of(node)
    params: dict[str, Any] = {
        "stride": _each(node, "stride"), "dilation": _each(node, "dilation"), "groups": node.group,
    }  # fmt: skip
    if turned:
        need(node.output_shape is None, "its output has a given shape")
        params["output_padding"] = _each(node, "output_padding", 0)
    count = spatial(node)
    start, params["padding"] = (x, _pads(node)) if turned else _padded(w, node, x, 0.0)
    ins, outs = size(weight, 1), size(weight, 0)
    if turned:
        ins, outs = outs, ins * node.group
    else:
        ins *= node.group
    if weight.const is None or (bias is not None and bias.const is None):
        name = f"F.conv_transpose{count}d" if turned else f"F.conv{count}d"
        w.add(
            name, node.name, {"input": start, "weight": weight, "bias": bias}, node.outputs,
            params | ({"bias": None} if bias is None else {}),
        )  # fmt: skip
        return
    params |= {"in_channels": ins, "out_channels": outs, "bias": bias is not None}
    params |= {"kernel_size": weight.const.shape[2:]} | (
        {} if turned else {"padding_mode": "zeros"}
    )
    w.add(
        f"nn.Conv{'Transpose' * turned}{count}d", node.name, [start], node.outputs, params,
        {"weight": weight, "bias": bias},
    )  # fmt: skip


@writes("MatMul")
def matmul(w: Export, node: Node) -> None:
    need_defaults(node)
    a, b = node.operands
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
    need_defaults(node, "eps", "axis", "groups")
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
    need(node.kind in ("mean", "max"), f"its kind is {node.kind!r}")
    count = spatial(node)
    name = "AdaptiveAvgPool" if node.kind == "mean" else "AdaptiveMaxPool"
    w.add(
        f"nn.{name}{count}d", node.name, [node.inputs[0]], node.outputs,
        {"output_size": (1,) * count},
    )  # fmt: skip


@writes("MaxPool", name="MaxPool")
@writes("AveragePool", name="AvgPool")
def pool(w: Export, node: Node, name: str) -> None:
    windows = ("kernel", "stride", "pad", "ceil_mode", "dilation", "auto_pad")
    need_defaults(node, "count_include_pad", *windows)
    x: Any = node.inputs[0]
    if name == "MaxPool" or (node.count_include_pad and not node.ceil_mode):
        x, pads = _padded(w, node, x, float("-inf") if name == "MaxPool" else 0.0)
    else:
        pads = _pads(node)
    if node.ceil_mode and x is not node.inputs[0]:
        count = spatial(node)
        ends = [size(node.inputs[0], i + 2) + sum(node.pad[i::count]) for i in range(count)]
        seen = window(ends, node.kernel, node.stride, None, node.dilation, ceil_mode=True)
        need(seen.out == node.output.dims[2:], "a window begins in the padding after its input")
    params: dict[str, Any] = {
        "kernel_size": node.kernel, "stride": _each(node, "stride"), "padding": pads,
        "ceil_mode": node.ceil_mode,
    }  # fmt: skip
    if name == "MaxPool":
        params |= {"dilation": _each(node, "dilation"), "return_indices": False}
    else:
        need(set(_each(node, "dilation")) <= {1}, "it is dilated")
        params["count_include_pad"] = node.count_include_pad
    w.add(f"nn.{name}{spatial(node)}d", node.name, [x], node.outputs, params)


@writes("LpPool")
def lp_pool(w: Export, node: Node) -> None:
    need_defaults(node, "kernel", "stride", "pad", "ceil_mode", "p")
    need(not any(_pads(node)), "it is padded")
    need(node.p in (2, 4, 6) and spatial(node) < 3, f"its p is {node.p}")
    sizes = {"kernel_size": node.kernel, "stride": _each(node, "stride")}
    w.put(node, f"F.lp_pool{spatial(node)}d", norm_type=node.p, ceil_mode=node.ceil_mode, **sizes)


@writes("PRelu")
def prelu(w: Export, node: Node) -> None:
    slope = constant(node.inputs[1], "its slopes")
    need(
        slope.size in (1, size(node.inputs[0], 1))
        and slope.size == max(slope.shape, default=1)
        and slope.ndim < rank(node.inputs[0]),
        "its slopes are not one for each channel",
    )
    op = w.add(
        "nn.PReLU", node.name, [node.inputs[0]], node.outputs, {"num_parameters": slope.size},
        {"weight": node.inputs[1]},
    )  # fmt: skip
    w.set_weight(op, "weight", slope.reshape(-1))


@writes("LRN")
def lrn(w: Export, node: Node) -> None:
    need(node.size % 2, "its size is even")
    w.put(
        node, "nn.LocalResponseNorm", size=node.size, alpha=node.alpha, beta=node.beta, k=node.bias
    )


@writes("Softmax", type="F.softmax")
@writes("LogSoftmax", type="F.log_softmax")
def softmax(w: Export, node: Node, type: str) -> None:
    w.put(node, type, dim=node.axis)


@writes("Attention")
def attention(w: Export, node: Node) -> None:
    need_defaults(node, "scale", "is_causal", "q_num_heads", "kv_num_heads")
    need(all(v is None for v in node.inputs[4:]), "it has a cache")
    names = ("query", "key", "value", "attn_mask")
    given: dict[str, Any] = dict(zip(names, node.inputs, strict=False))
    outputs: Any = node.outputs
    heads = node.q_num_heads or 1
    if rank(node.inputs[0]) == 3 and heads > 1:
        need(heads == node.kv_num_heads, "it has fewer heads of keys")
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
    """Write a recurrent layer. Its output [T,N,D*H] is then reshaped and transposed to ours,
    [T,D,N,H]. Raises Inexpressible."""
    kind = f"nn.{node.op.name}"
    x, w_ih, w_hh, b, lengths, *states = inputs_of(node)
    own = {"nn.GRU": ["linear_before_reset"], "nn.RNN": ["activations"]}.get(kind, [])
    need_defaults(node, "hidden_size", "direction", *own)
    need(node.direction != "reverse", "it runs backwards only")
    need(kind != "nn.GRU" or node.linear_before_reset, "it resets before the product")
    need(lengths is None and not any(states[2:]), "it has lengths or peepholes")
    nonlinear = (
        {str(a).lower() for a in node.attrs.get("activations") or ("tanh",)} if own else {"tanh"}
    )
    need(nonlinear in ({"tanh"}, {"relu"}), f"its activations are {sorted(nonlinear)}")
    ih, hh = (constant(m, "its weights") for m in (w_ih, w_hh))
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
    need(kind != "nn.LSTM" or len(given) != 1, "it has one of its two states")
    op = w.add(kind, node.name, [x, *given], [out, *node.outputs[1:]], params)
    for i, end in enumerate(ends):
        w.set_weight(op, f"weight_ih_l0{end}", ordered(ih[i]))
        w.set_weight(op, f"weight_hh_l0{end}", ordered(hh[i]))
        if b is not None:
            biases = np.split(constant(b, "its biases")[i], 2)
            for name, part in zip(("ih", "hh"), biases, strict=True):
                w.set_weight(op, f"bias_{name}_l0{end}", ordered(part))
    if len(ends) == 1:
        w.add(
            "torch.unsqueeze", f"{node.name}/directions", {"input": out}, node.outputs[:1],
            {"dim": 1},
        )  # fmt: skip
        return
    cut = w.step(node, "Tensor.unflatten", out, dim=2, sizes=(2, hh.shape[2]))
    w.add(
        "Tensor.permute", f"{node.name}/directions", {"input": cut}, node.outputs[:1],
        {"dims": (0, 2, 1, 3)},
    )  # fmt: skip
