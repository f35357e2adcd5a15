"""Writes operators that make, move or select elements as PNNX."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.frontends.pnnx.layers import PAD_MODES
from tinsmith.frontends.pnnx.reductions import KINDS
from tinsmith.frontends.pnnx.select import END
from tinsmith.graph import Node
from tinsmith.writers.pnnx.export import Export, number, rank, size, writes
from tinsmith.writers.rows import inputs_of, need, need_defaults, numbers


@writes("Reshape")
def reshape(w: Export, node: Node) -> None:
    """Write a Reshape. A 0 in its shape means the input's size on that axis: it is written as that
    number or, where it is not known, as a formula."""
    x, shape = node.inputs
    assert x is not None
    if shape is not None and shape.const is None:
        return w.put(node, "Tensor.reshape", "input shape")
    sizes = list(numbers(shape, "its shape"))
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
    need(node.axis == 1 < rank(node.inputs[0]), f"its axis is {node.axis}")
    w.put(node, "torch.flatten", start_dim=1, end_dim=-1)


@writes("Transpose")
def transpose(w: Export, node: Node) -> None:
    perm = node.perm if node.perm is not None else range(rank(node.inputs[0]))[::-1]
    w.put(node, "Tensor.permute", dims=tuple(perm))


@writes("Squeeze")
def squeeze(w: Export, node: Node) -> None:
    x = node.inputs[0]
    axes = numbers(node.inputs[1], "its axes") if len(node.inputs) > 1 else ()
    axes = axes or tuple(i for i in range(rank(x)) if size(x, i) == 1)
    w.put(node, "torch.squeeze", dim=axes[0] if len(axes) == 1 else axes)


@writes("Unsqueeze")
def unsqueeze(w: Export, node: Node) -> None:
    x: Any = node.inputs[0]
    count = rank(x) + len(numbers(node.inputs[1], "its axes"))
    if count == rank(x) + 1:
        return w.put(node, "torch.unsqueeze", dim=numbers(node.inputs[1], "its axes")[0])
    *first, last = sorted(a % count for a in numbers(node.inputs[1], "its axes"))
    for axis in first:
        x = w.step(node, "torch.unsqueeze", x, dim=axis)
    w.add("torch.unsqueeze", node.name, {"input": x}, node.outputs, {"dim": last})
    return None


@writes("Concat")
def concat(w: Export, node: Node) -> None:
    w.add(
        "torch.cat", node.name, [v for v in node.inputs if v is not None], node.outputs,
        {"dim": node.axis},
    )  # fmt: skip


@writes("Split")
def split(w: Export, node: Node) -> None:
    _, given = inputs_of(node)
    if given is not None:
        sizes = numbers(given, "its sizes")
    else:
        sizes = tuple(size(v, node.axis) for v in node.outputs)
    need(len(sizes) == len(node.outputs), "its sizes are not known")
    w.put(node, "torch.split", "tensor", dim=node.axis, split_size_or_sections=sizes)


@writes("Slice")
def slice_(w: Export, node: Node) -> None:
    _, starts, ends, axes, steps = inputs_of(node)
    at, end = numbers(starts, "its starts"), numbers(ends, "its ends")
    dims = numbers(axes, "its axes") if axes is not None else tuple(range(len(at)))
    step = numbers(steps, "its steps") if steps is not None else (1,) * len(at)
    if all(s == -1 for s in step) and all(a == -1 for a in at) and all(e < -END for e in end):
        return w.put(node, "torch.flip", dims=dims)
    need(min(step, default=1) > 0, "it goes backwards")
    end = tuple(min(max(e, -END), END) for e in end)
    if len(dims) == 1:
        return w.put(node, "Tensor.slice", dim=dims[0], start=at[0], end=end[0], step=step[0])
    return w.put(
        node, "Tensor.slice", dims=dims, starts=at, ends=end, steps=step, selects=(END,) * len(dims)
    )


@writes("Gather")
def gather(w: Export, node: Node) -> None:
    data, at = node.operands
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


def _places(w: Export, node: Node, at: Any) -> str:
    """Convert index tuples `at` [..., axes] to PyTorch's indexing, a list of index tensors, one for
    each axis. Return the name of that list's operand."""
    count = size(at, rank(at) - 1)
    need(count > 0, "its index tuples are empty")
    if at.const is None:
        columns: list[Any] = [
            w.step(node, "Tensor.select", at, dim=-1, index=i) for i in range(count)
        ]
    else:
        columns = [w.array(node, f"index_{i}", at.const[..., i]) for i in range(count)]
    places = w.fresh(f"{node.name}/index")
    text = ",".join(f"@{i}" for i in range(count))
    w.add("pnnx.Expression", f"{node.name}/index", columns, [places], {"expr": f"[{text}]"})
    return places


@writes("GatherND")
def gather_nd(w: Export, node: Node) -> None:
    data, at = node.operands
    need(not node.batch_dims, f"its batch_dims is {node.batch_dims}")
    w.add("Tensor.index", node.name, {"input": data, "expr": _places(w, node, at)}, node.outputs)


@writes("ScatterND")
def scatter_nd(w: Export, node: Node) -> None:
    data, at, values = node.operands
    need(node.reduction in ("none", "add"), f"its reduction is {node.reduction!r}")
    given = {"input": data, "indices": _places(w, node, at), "values": values}
    more = {"accumulate": node.reduction == "add"}
    w.add("Tensor.index_put", node.name, given, node.outputs, more)


@writes("DFT")
def dft(w: Export, node: Node) -> None:
    """Write a DFT. The last axis of its input has two elements for complex numbers, or one for real
    numbers."""
    x, length, axis = inputs_of(node)
    n = None if length is None else numbers(length, "its length")[0]
    at = -2 if axis is None else numbers(axis, "its axis")[0]
    dim, parts = at % rank(x), size(x, rank(x) - 1)
    if parts == 1:
        z = w.step(node, "torch.squeeze", x, dim=-1)
    else:
        z = w.step(node, "torch.view_as_complex", x)
    kind = "i" * node.inverse + "r" * node.onesided + "fft"
    need(parts == 1 or kind != "rfft", "its input is complex, its result onesided")
    y = w.step(node, f"torch.fft.{kind}", z, dim=dim, **({} if n is None else {"n": n}))
    if kind == "irfft":
        w.add("torch.unsqueeze", node.name, {"input": y}, node.outputs, {"dim": -1})
    else:
        w.add("torch.view_as_real", node.name, [y], node.outputs)


@writes("STFT")
def stft(w: Export, node: Node) -> None:
    signal, step, window, length = inputs_of(node)
    need(size(signal, 2) == 1, "its signal is complex")
    if length is not None:
        n = numbers(length, "its length")[0]
    else:
        n = size(*((signal, 1) if window is None else (window, 0)))
    params = {
        "center": False, "hop_length": numbers(step, "its step")[0], "n_fft": n,
        "normalized": False, "onesided": node.onesided, "return_complex": False, "win_length": n,
    }  # fmt: skip
    x, y = w.step(node, "torch.squeeze", signal, dim=-1), w.fresh(f"{node.name}/stft")
    w.add("torch.stft", f"{node.name}/stft", {"input": x, "window": window}, [y], params)
    w.add("Tensor.permute", node.name, {"input": y}, node.outputs, {"dims": (0, 2, 1, 3)})


@writes("GatherElements")
def gather_elements(w: Export, node: Node) -> None:
    w.put(node, "torch.gather", "input index", dim=node.axis)


@writes("ScatterElements")
def scatter_elements(w: Export, node: Node) -> None:
    names = {"none": ("torch.scatter", {}), "add": ("torch.scatter_add", {})}
    names["mul"] = "torch.scatter", {"reduce": "multiply"}
    need(node.reduction in names, f"its reduction is {node.reduction!r}")
    kind, params = names[node.reduction]
    w.put(node, kind, "input index src", dim=node.axis, **params)


@writes("Compress")
def compress(w: Export, node: Node) -> None:
    need(rank(node.inputs[0]) == 1 and node.axis in (0, None), "its input has several axes")
    w.put(node, "torch.masked_select", "input mask")


@writes("Expand", kind="Tensor.expand")
@writes("Tile", kind="Tensor.repeat")
def expand(w: Export, node: Node, kind: str) -> None:
    sizes = node.inputs[1]
    if sizes is not None and sizes.const is None:
        w.put(node, kind, "input sizes")
    else:
        w.put(node, kind, sizes=numbers(sizes, "its sizes"))


@writes("Pad")
def pad(w: Export, node: Node) -> None:
    x, pads, value, axes = inputs_of(node)
    both = numbers(pads, "its pads")
    count = len(both) // 2
    at = numbers(axes, "its axes") if axes is not None else tuple(range(count))
    before = dict.fromkeys(range(rank(x)), (0, 0))
    before |= {a % rank(x): (both[i], both[count + i]) for i, a in enumerate(at)}
    first = min((a for a, p in before.items() if any(p)), default=rank(x) - 1)
    modes = {ours: theirs for theirs, ours in PAD_MODES.items()}
    fill = 0.0 if value is None else number(value)
    need(fill is not None, "its filler is computed")
    pairs = tuple(p for a in reversed(range(first, rank(x))) for p in before[a])
    constant_ = {"value": fill} if node.mode == "constant" else {}
    w.put(node, "F.pad", pad=pairs, mode=modes[node.mode], **constant_)


@writes("Reduce")
def reduce(w: Export, node: Node) -> None:
    _, axes = inputs_of(node)
    dims = numbers(axes, "its axes") if axes is not None else ()
    need(dims or not node.noop_with_empty_axes, "it reduces nothing")
    kind, dtype = node.kind, node.output.dtype
    need(kind not in ("sum", "prod") or dtype.kind == "f" or dtype == np.int64, f"it gives {dtype}")
    params: dict[str, Any] = {"dim": dims or None, "keepdim": node.keepdims}
    if kind in ("l1", "l2"):
        return w.put(node, "torch.norm", p=int(kind[1]), **params)
    names = {ours: theirs for theirs, ours in KINDS.items()}
    need(kind in names, f"its kind is {kind!r}")
    return w.put(node, f"torch.{names[kind]}", **params)


@writes("ArgReduce")
def arg_reduce(w: Export, node: Node) -> None:
    need_defaults(node, "kind", "axis", "keepdims")
    w.put(node, f"torch.arg{node.kind}", dim=node.axis, keepdim=node.keepdims)


@writes("CumSum", "CumProd")
def cumulative(w: Export, node: Node) -> None:
    need_defaults(node)
    w.put(node, f"torch.{node.op.name.lower()}", dim=numbers(node.inputs[1], "its axes")[0])


@writes("TopK")
def topk(w: Export, node: Node) -> None:
    k = numbers(node.inputs[1], "its numbers")[0]
    w.put(node, "torch.topk", k=k, dim=node.axis, largest=node.largest, sorted=node.sorted)


@writes("Trilu")
def trilu(w: Export, node: Node) -> None:
    k = numbers(node.inputs[1], "its diagonals")[0] if len(node.inputs) > 1 else 0
    w.put(node, "torch.triu" if node.upper else "torch.tril", diagonal=k)
