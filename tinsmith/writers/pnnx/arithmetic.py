"""Writes arithmetic as PNNX: formulas, operators that are one to one, comparisons, casts."""

from __future__ import annotations

from contextlib import suppress
from inspect import Parameter
from typing import Any

from tinsmith.frontends.pnnx.expression import PLAIN
from tinsmith.frontends.pnnx.node import WORDS
from tinsmith.frontends.pnnx.rows import COMPARISONS, ROWS
from tinsmith.graph import Node
from tinsmith.ops import OPS
from tinsmith.writers.pnnx.export import Export, number, writes
from tinsmith.writers.rows import Inexpressible, need, need_defaults

FORMULAS = {
    **{n.capitalize(): n for names in PLAIN.values() for n in names if n != "tanh"},
    **{n.capitalize(): n for n in ("add", "sub", "mul", "div", "pow", "atan2")},
    "Max": "maximum", "Min": "minimum", "Mod": "fmod", "BitwiseAnd": "and", "BitwiseOr": "or",
    "BitwiseXor": "xor", "And": "and", "Or": "or", "Xor": "xor",
}  # fmt: skip
"""Our operator -> the function in the formula of a pnnx.Expression."""


@writes(*FORMULAS)
def formula(w: Export, node: Node) -> None:
    name = FORMULAS[node.op.name]
    need(len({v.dtype for v in node.inputs if v is not None}) == 1, "its operands have two types")
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
        "pnnx.Expression", node.name, operands, [node.output],
        {"expr": f"{name}({','.join(texts)})"},
    )  # fmt: skip


def by_row(w: Export, node: Node) -> None:
    """Write a node by the first row of ROWS for its operator that can express all its attributes:
    those without a parameter in the row have the row's values, those that are not in the row the
    operator's defaults. Raises Inexpressible if there is none."""
    usual = OPS[node.op.name].attrs
    values = {name: node.attrs.get(name, default) for name, default in usual.items()}
    for op, types, attrs in ROWS:
        if op != node.op.name or "1" in attrs:
            continue
        said = {p: values[ours] for ours, (p, _) in attrs.items() if p}
        fixed = all(values[o] == d for o, (p, d) in attrs.items() if not p)
        same = all(said[p] == values[o] for o, (p, _) in attrs.items() if p)
        rest = all(values[n] == d for n, d in usual.items() if n not in attrs)
        if fixed and same and rest and None not in said.values():
            defaults = {p: d for p, d in attrs.values() if d is not Parameter.empty}
            params = {
                p: v
                for p, v in said.items()
                if p not in defaults or v != defaults[p] or op == "Clip"
            }
            w.add(
                types.split()[0], node.name, [v for v in node.inputs if v is not None],
                node.outputs, params,
            )  # fmt: skip
            return
    need_defaults(node)
    raise Inexpressible("PNNX has none with such attributes")


_OWN = ("MatMul", "Unsqueeze", "GatherElements", "Clip", "HardSigmoid", "HardSwish")
writes(*{op for op, _, _ in ROWS if op not in _OWN})(by_row)


@writes("Clip")
def clip(w: Export, node: Node) -> None:
    if None not in (node.min, node.max):
        by_row(w, node)
    else:
        w.put(node, "torch.clamp", min=node.min, max=node.max)


@writes("HardSigmoid", "HardSwish")
def hard(w: Export, node: Node) -> None:
    """Write HardSigmoid or HardSwish as PyTorch's operator, if alpha and beta are PyTorch's; else
    as clip(alpha x + beta, 0, 1), times x for HardSwish."""
    with suppress(Inexpressible):
        return by_row(w, node)
    x = node.inputs[0]
    line = w.fresh(f"{node.name}/line")
    w.add(
        "pnnx.Expression", f"{node.name}/line", [x], [line],
        {"expr": f"add(mul(@0,{node.alpha!r}),{node.beta!r})"},
    )  # fmt: skip
    if node.op.name == "HardSigmoid":
        bounds = {"min_val": 0.0, "max_val": 1.0}
        w.add("nn.Hardtanh", node.name, [line], node.outputs, bounds)
        return None
    part = w.step(node, "nn.Hardtanh", line, min_val=0.0, max_val=1.0)
    w.add("pnnx.Expression", node.name, [x, part], node.outputs, {"expr": "mul(@0,@1)"})
    return None


@writes("Identity", "Declared")
def identity(w: Export, node: Node) -> None:
    w.same(node.output, node.inputs[0] or "")


@writes(*COMPARISONS.values(), "Where", "Not")
def compare(w: Export, node: Node) -> None:
    """Write a comparison, Where or Not. The last operand, `other`, becomes a parameter if it is a
    constant number."""
    names = {"Where": ("condition", "input", "other")}.get(node.op.name, ("input", "other"))
    given: dict[str, Any] = dict(zip(names, node.inputs, strict=False))
    params: dict[str, Any] = {}
    if (literal := number(given.get("other"))) is not None:
        del given["other"]
        params["other"] = literal
    words = {op: word for word, op in COMPARISONS.items()}
    words |= {"Where": "where", "Not": "logical_not"}
    w.add(f"torch.{words[node.op.name]}", node.name, given, node.outputs, params)


@writes("Cast")
def cast(w: Export, node: Node) -> None:
    need_defaults(node, "to")
    names = {dtype: word for word, dtype in WORDS.items()}
    w.put(node, "Tensor.to", dtype=f"torch.{names.get(node.to, node.to)}", copy=False)
