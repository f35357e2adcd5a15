"""Importers of convolutions, products, pooling and normalisations."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.nodes import bins_of
from tinsmith.frontends.pnnx.node import PnnxNode, operator
from tinsmith.graph import Value

PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
SPATIAL = ("1d", "2d", "3d")


def kinds(*names: str) -> list[str]:
    """The operator types nn.Conv1d, nn.Conv2d, nn.Conv3d for the name nn.Conv, and so on."""
    return [name + end for name in names for end in SPATIAL]


def each(value: Any, rank: int) -> tuple[int, ...]:
    """A whole number for each of `rank` axes, from one for all, or a list. Raises Unsupported for
    other values."""
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    if len(values) not in (1, rank) or not all(isinstance(v, int) for v in values):
        raise Unsupported(f"{value} are not whole numbers for {rank} axes")
    return values * rank if len(values) == 1 else values


def pad_mode(mode: str) -> str:
    if mode not in PAD_MODES:
        raise Unsupported(f"its mode {mode!r} is not one of {', '.join(PAD_MODES)}")
    return PAD_MODES[mode]


def batched(node: PnnxNode, x: Value, rank: int) -> Value:
    """x [N,C,*spatial], for `rank` spatial axes; without a batch, as PyTorch allows, it gets an
    axis of 1."""
    return node.emit("Unsqueeze", x, node.ints(0)) if x.rank == rank + 1 else x


def unbatched(node: PnnxNode, y: Value, x: Value, rank: int) -> Value:
    """y, which was computed from `batched(x)`, without a batch if x has none."""
    return node.emit("Squeeze", y, node.ints(0)) if x.rank == rank + 1 else y


# ---- convolutions and products


@operator(*kinds("nn.Conv", "F.conv"))
def conv(
    node: PnnxNode, input: Value, weight: Any, bias: Any = None, *, stride: Any = 1,
    padding: Any = 0, dilation: Any = 1, groups: int = 1, padding_mode: str = "zeros",
) -> Value:  # fmt: skip
    weight = node.tensor(weight)
    rank = int(node.type[-2])
    dilation = each(dilation, rank)
    if padding == "same":
        spans = [d * (node.size(weight, i + 2) - 1) for i, d in enumerate(dilation)]
        pads = [s // 2 for s in spans] + [s - s // 2 for s in spans]
    else:
        pads = list(each(0 if padding == "valid" else padding, rank)) * 2
    x = batched(node, input, rank)
    if padding_mode != "zeros" and any(pads):
        axes = node.ints(*range(2, rank + 2))
        x = node.emit("Pad", x, node.ints(*pads), None, axes, mode=pad_mode(padding_mode))
        pads = [0] * len(pads)
    y = node.emit(
        "Conv", x, weight, bias, stride=each(stride, rank), pad=tuple(pads), dilation=dilation,
        group=groups,
    )  # fmt: skip
    return unbatched(node, y, input, rank)


@operator(*kinds("nn.ConvTranspose", "F.conv_transpose"))
def conv_transpose(
    node: PnnxNode, input: Value, weight: Any, bias: Any = None, *, stride: Any = 1,
    padding: Any = 0, output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
    padding_mode: str = "zeros",
) -> Value:  # fmt: skip
    if padding_mode != "zeros":
        raise Unsupported(f"its padding_mode is {padding_mode!r}, where only 'zeros' has a meaning")
    rank = int(node.type[-2])
    stride, pads, grown, dilation = (
        each(v, rank) for v in (stride, padding, output_padding, dilation)
    )
    y = node.emit(
        "ConvTranspose", batched(node, input, rank), weight, bias, stride=stride, pad=pads * 2,
        dilation=dilation, group=groups, output_padding=grown if any(grown) else None,
    )  # fmt: skip
    return unbatched(node, y, input, rank)


@operator("nn.Linear", "F.linear")
def linear(node: PnnxNode, input: Value, weight: Any, bias: Any = None) -> Value:
    y = node.emit("MatMul", input, transposed(node, weight))
    return y if bias is None else node.emit("Add", y, bias)


def transposed(node: PnnxNode, matrix: Any) -> Value:
    if isinstance(matrix, Value):
        return node.emit("Transpose", matrix, perm=(1, 0)) if matrix.rank == 2 else matrix
    return node.const(matrix.T)


@operator("torchvision.ops.DeformConv2d")
def deform_conv(
    node: PnnxNode, input: Value, offset: Value, weight: Any, bias: Any = None, *,
    mask: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> Value:  # fmt: skip
    kernel = [node.size(node.tensor(weight), i) for i in (2, 3)]
    # PNNX lists the offset and the mask after the input, and the weights are attributes.
    of_each = node.size(offset, 1) // max(2 * kernel[0] * kernel[1], 1)
    stride, pads, dilation = (each(v, 2) for v in (stride, padding, dilation))
    return node.emit(
        "DeformConv", input, weight, offset, bias, mask, stride=stride, pad=pads * 2,
        dilation=dilation, group=groups, offset_group=of_each,
    )  # fmt: skip


# ---- pools


def _windows(kernel: Any, stride: Any, padding: Any, rank: int, ceil_mode: bool) -> dict[str, Any]:
    kernel = each(kernel, rank)
    stride = kernel if stride in (None, ()) else each(stride, rank)
    pad = each(padding, rank) * 2
    return {"kernel": kernel, "stride": stride, "pad": pad, "ceil_mode": ceil_mode}


@operator(*kinds("nn.MaxPool", "F.max_pool"))
def max_pool(
    node: PnnxNode, input: Value, *, kernel_size: Any, stride: Any = None, padding: Any = 0,
    dilation: Any = 1, ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    rank = int(node.type[-2])
    x, indices = batched(node, input, rank), return_indices and node.used(1)
    y = node.emit(
        "MaxPool", x, with_indices=indices, dilation=each(dilation, rank),
        **_windows(kernel_size, stride, padding, rank, ceil_mode),
    )  # fmt: skip
    if not indices:
        return unbatched(node, y, input, rank), None
    plane = int(np.prod([node.size(x, i) for i in range(2, rank + 2)]))  # in the plane, not in x
    at = node.emit("Mod", y[1], node.const(np.array(plane, np.int64)))
    return unbatched(node, y[0], input, rank), unbatched(node, at, input, rank)


@operator(*kinds("nn.AvgPool", "F.avg_pool"))
def average_pool(
    node: PnnxNode, input: Value, *, kernel_size: Any, stride: Any = None, padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Value:  # fmt: skip
    rank = int(node.type[-2])
    windows = _windows(kernel_size, stride, padding, rank, ceil_mode)
    if divisor_override is not None:
        if ceil_mode:
            raise Unsupported("it has a divisor_override and ceil_mode")
        count_include_pad = True
    y = node.emit(
        "AveragePool", batched(node, input, rank), count_include_pad=count_include_pad, **windows
    )
    if divisor_override is not None:
        y = node.emit("Mul", y, node.number(np.prod(windows["kernel"]) / divisor_override, y))
    return unbatched(node, y, input, rank)


@operator("nn.LPPool1d", "nn.LPPool2d", "F.lp_pool1d", "F.lp_pool2d")
def lp_pool(
    node: PnnxNode, input: Value, *, norm_type: float, kernel_size: Any, stride: Any = None,
    ceil_mode: bool = False,
) -> Value:  # fmt: skip
    rank = int(node.type[-2])
    windows = _windows(kernel_size, stride, 0, rank, ceil_mode)
    x = batched(node, input, rank)
    if norm_type in (2, 4, 6):
        return unbatched(node, node.emit("LpPool", x, p=int(norm_type), **windows), input, rank)
    x = x if norm_type == 1 else node.emit("Pow", x, node.number(norm_type, x))
    y = node.emit("AveragePool", x, count_include_pad=True, **windows)  # of powers with their signs
    y = node.emit("Mul", y, node.number(np.prod(windows["kernel"]), y))
    y = y if norm_type == 1 else node.emit("Pow", y, node.number(1 / norm_type, y))
    return unbatched(node, y, input, rank)


@operator(*kinds("nn.AdaptiveAvgPool", "F.adaptive_avg_pool"))
def adaptive_average_pool(node: PnnxNode, input: Value, *, output_size: Any) -> Value:
    return adaptive(node, input, output_size, int(node.type[-2]), "mean")


@operator(*kinds("nn.AdaptiveMaxPool", "F.adaptive_max_pool"))
def adaptive_max_pool(
    node: PnnxNode, input: Value, *, output_size: Any, return_indices: bool = False
) -> Any:
    rank, alone = int(node.type[-2]), len(node.outputs) < 2
    if not return_indices or not (alone or node.used(1)):
        return adaptive(node, input, output_size, rank, "max"), None
    x = batched(node, input, rank)
    wanted = {i: s or node.size(x, i) for i, s in enumerate(_targets(output_size, rank), 2)}
    y, at = _largest(node, x, wanted)
    both = [unbatched(node, v, input, rank) for v in (y, at)]
    return both if alone else tuple(both)


def _largest(node: PnnxNode, x: Value, wanted: dict[int, int]) -> tuple[Value, Value]:
    """Adaptive max pooling with indices: the maxima of the bins of x, wanted[axis] of them along
    each axis, and the index of each in its flat plane of x; of equal elements the first one counts.
    """
    at, step = node.const(np.array(0, np.int64)), 1
    for axis in sorted(wanted, reverse=True):
        size = node.size(x, axis)
        node.scope.shared.count_nodes(6 * wanted[axis])
        parts = []
        for a, b in bins_of(size, wanted[axis]):
            cut = node.slice(x, node.ints(a), node.ints(b), [axis])
            first = node.emit("ArgReduce", cut, kind="max", axis=axis, keepdims=True)
            place = node.emit("Mul", node.emit("Add", first, node.ints(a)), node.ints(step))
            if step > 1:
                inner = node.slice(at, node.ints(a), node.ints(b), [axis])
                inner = node.emit("GatherElements", inner, first, axis=axis)
                place = node.emit("Add", place, inner)
            parts.append((node.emit("GatherElements", cut, first, axis=axis), place))
        x, at = (node.emit("Concat", *v, axis=axis) for v in zip(*parts, strict=True))
        step *= size
    return x, at


def _targets(size: Any, rank: int) -> tuple[int | None, ...]:
    """The size for each of the `rank` axes of an adaptive pooling, from one for all, or a list; 0
    and None mean that of the input. Raises Unsupported for others."""
    given = tuple(size) if isinstance(size, list | tuple) else (size,) * rank
    if len(given) != rank or not all(s is None or isinstance(s, int) for s in given):
        raise Unsupported(f"{size} is no size of {rank} axes")
    return given


def adaptive(node: PnnxNode, input: Value, size: Any, rank: int, kind: str) -> Value:
    """Adaptive pooling (`kind` "mean" or "max") of the last `rank` axes of `input`, with or without
    a batch, to `size` (forms: `_targets`). Raises Unsupported where the input's sizes are not
    known, unless `size` is 1."""
    x = batched(node, input, rank)
    if each_size(size) in ((1,) * rank, (1,)):
        return unbatched(node, node.emit("GlobalPool", x, kind=kind), input, rank)
    wanted = {i: s for i, s in enumerate(_targets(size, rank), 2) if s}
    sizes = {i: node.size(x, i) for i in wanted}
    if all(sizes[i] % s == 0 for i, s in wanted.items()):
        steps = tuple(sizes[i] // wanted[i] if i in wanted else 1 for i in range(2, rank + 2))
        if max(steps) > 1:
            op = "AveragePool" if kind == "mean" else "MaxPool"
            x = node.emit(op, x, kernel=steps, stride=steps)
        return unbatched(node, x, input, rank)
    for axis, count in wanted.items():
        x = node.binned(x, axis, bins_of(sizes[axis], count), kind)
    return unbatched(node, x, input, rank)


# ---- normalisation


@operator(*kinds("nn.BatchNorm"), "F.batch_norm", "F.batchnorm")
def batch_norm(
    node: PnnxNode, input: Value, running_mean: Any, running_var: Any, weight: Any = None,
    bias: Any = None, *, eps: float = 1e-5,
) -> Value:  # fmt: skip
    mean = node.tensor(running_mean)
    scale, shift = _scale_shift(node, input, weight, bias, mean)
    return node.emit("BatchNorm", input, scale, shift, mean, running_var, eps=eps)


def _scale_shift(
    node: PnnxNode, x: Value, weight: Any, bias: Any, mean: Any = None
) -> tuple[Any, Any]:
    """The weight and the bias of a normalisation over the channels of x; for None, vectors of 1 and
    of 0 in the type of x, with as many elements as the others or `mean` have."""
    known = next((v for v in (mean, weight, bias) if v is not None), None)
    count = node.size(x, 1) if known is None else node.size(known, 0)
    scale = node.full(count, 1, x.dtype) if weight is None else weight
    return scale, node.full(count, 0, x.dtype) if bias is None else bias


@operator(*kinds("nn.InstanceNorm"), "F.instance_norm")
def instance_norm(
    node: PnnxNode, input: Value, running_mean: Any = None, running_var: Any = None,
    weight: Any = None, bias: Any = None, *, eps: float = 1e-5,
) -> Value:  # fmt: skip
    if running_mean is not None and node.type != "F.instance_norm":  # which has them to update
        return batch_norm(node, input, running_mean, running_var, weight, bias, eps=eps)
    scale, shift = _scale_shift(node, input, weight, bias)
    return node.emit("InstanceNorm", input, scale, shift, eps=eps)


@operator("nn.GroupNorm", "F.group_norm")
def group_norm(
    node: PnnxNode, input: Value, weight: Any = None, bias: Any = None, *, num_groups: int,
    eps: float = 1e-5,
) -> Value:  # fmt: skip
    scale, shift = _scale_shift(node, input, weight, bias)
    return node.emit("GroupNorm", input, scale, shift, groups=num_groups, eps=eps)


@operator("nn.LayerNorm", "F.layer_norm")
def layer_norm(
    node: PnnxNode, input: Value, weight: Any = None, bias: Any = None, *, normalized_shape: Any,
    eps: float = 1e-5,
) -> Value:  # fmt: skip
    axis = -len(each_size(normalized_shape))
    scale = weight
    if weight is None and bias is not None:
        scale = node.full(each_size(normalized_shape), 1, input.dtype)
    return node.emit("LayerNorm", input, scale, bias, axis=axis, eps=eps)


@operator("nn.RMSNorm", "F.rms_norm")
def rms_norm(
    node: PnnxNode, input: Value, weight: Any = None, *, normalized_shape: Any, eps: Any = None
) -> Value:
    shape = each_size(normalized_shape)
    scale = node.full(shape, 1, input.dtype) if weight is None else weight
    eps = float(np.finfo(input.dtype).eps) if eps is None else eps
    return node.emit("RMSNorm", input, scale, axis=-len(shape), eps=eps)


def each_size(shape: Any) -> tuple[int, ...]:
    """A list or tuple as a tuple; anything else as a tuple of one."""
    return tuple(shape) if isinstance(shape, list | tuple) else (shape,)


@operator("nn.LocalResponseNorm", "F.local_response_norm")
def local_response_norm(
    node: PnnxNode, input: Value, *, size: int, alpha: float = 1e-4, beta: float = 0.75,
    k: float = 1.0,
) -> Value:  # fmt: skip
    return node.local_norm(input, size=size, alpha=alpha, beta=beta, bias=float(k))


@operator("F.normalize")
def normalize(
    node: PnnxNode, input: Value, *, p: float = 2.0, dim: Any = 1, eps: float = 1e-12
) -> Value:
    from tinsmith.frontends.pnnx.reductions import norm

    length = norm(node, input, p=p, dim=dim, keepdim=True)
    return node.emit("Div", input, node.emit("Clip", length, min=eps))
