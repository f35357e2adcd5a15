"""`tinsmith ops`: list the operators, or say what one means."""

from __future__ import annotations

import inspect
from typing import Any

import click

from tinsmith.cli import _show
from tinsmith.ops import OPS
from tinsmith.ops._op import TRAITS


@click.command(short_help="List the operators, or say what one of them means.")
@click.argument("name", required=False)
@click.option("--trait", type=click.Choice(sorted(TRAITS)), help="Only operators with this trait.")
@_show.json_option
def command(name: str | None, trait: str | None, json_: bool) -> None:
    """List the operators, or say what one of them means and which kernels compute it.

    Operators are Tinsmith's own set; importers translate a format's operators into them.

    \b
    Examples:
      tinsmith ops                  all of them
      tinsmith ops Conv             inputs, attributes, formula, kernels
      tinsmith ops --trait anchor   those that carry an epilogue
    """
    if name is None:
        rows = [describe(op) for op in OPS.rows() if trait is None or trait in op.traits]
        if json_:
            return _show.as_json(rows)
        return _show.table(
            f"{len(rows)} operators",
            ["operator", "inputs", "formula", "traits"],
            [
                (
                    r["name"],
                    r["signature"].split(", *, ")[0],
                    r["formula"].strip().split("\n")[0],
                    " ".join(r["traits"]),
                )
                for r in rows
            ],
            left=["inputs", "formula", "traits"],
        )
    row = describe(OPS[name])
    kernels = kernels_of(OPS[name])
    if json_:
        return _show.as_json(row | {"kernels": kernels, "passes": rewriters_of(OPS[name])})
    click.echo(f"{row['name']}({row['signature']})\n")
    click.echo("\n".join(f"    {line}" for line in row["formula"].splitlines()) + "\n")
    _show.pairs(
        "",
        {
            "traits": " ".join(row["traits"]) or "none",
            "kernels": ", ".join([*kernels, "reference"]) if kernels else without_kernel(OPS[name]),
        },
    )
    return None


def describe(op: Any) -> dict[str, Any]:
    """An operator as data for JSON: its name, inputs, attributes with defaults (None: they have
    none), traits, formula, signature, and whether it is variadic."""
    attributes = {k: None if v is inspect.Parameter.empty else v for k, v in op.attrs.items()}
    inputs = [{"name": n, "optional": i >= op.required} for i, n in enumerate(op.inputs)]
    return {
        "name": op.name,
        "inputs": inputs,
        "variadic": op.variadic,
        "attributes": attributes,
        "traits": sorted(op.traits),
        "formula": op.formula,
        "signature": signature(op),
    }


def signature(op: Any) -> str:
    """Inputs and attributes as text, "x, w, b?, *, stride, group=1": `?` marks optional inputs;
    attributes without a default are required."""
    parts = [n if i < op.required else f"{n}?" for i, n in enumerate(op.inputs)]
    if op.variadic:
        parts.append(f"*{op.variadic}")
    attributes = [k if v is inspect.Parameter.empty else f"{k}={v!r}" for k, v in op.attrs.items()]
    if attributes and not op.variadic:
        parts.append("*")
    return ", ".join([*parts, *attributes])


def kernels_of(op: Any) -> list[str]:
    """The names of the kernels that compute an operator, best tier first."""
    from tinsmith.kernels._kernel import kernels_for

    return [k.name for row in kernel_rows_of(op) for k in kernels_for(row)]


def kernel_rows_of(op: Any) -> list[str]:
    """The names in the kernel table under which the kernels of an operator are: its own, and for
    elementwise operators and fused nodes `ELEMENTWISE`."""
    from tinsmith.kernels._kernel import ELEMENTWISE

    elementwise = "elementwise" in op.traits or op.name == "Fused"
    return [op.name, ELEMENTWISE] if elementwise else [op.name]


def rewriters_of(op: Any) -> dict[str, list[str]]:
    """The default passes that may replace an operator, in order: name -> names of the rules whose
    pattern has it as last node; [] for a pass that is not a set of rules."""
    from tinsmith.passes import list_passes

    found: dict[str, list[str]] = {}
    for entry in list_passes(spec=""):
        made: Any = entry.make()
        rules = made.rules.rules_of(op) if hasattr(made, "rules") else []
        if rules or op.name in getattr(made, "operators", ()):
            found[entry.name] = [r.name for r in rules]
    return found


def without_kernel(op: Any) -> str:
    """Say in words how an operator without kernels is computed."""
    passes = rewriters_of(op)
    named = [f"{name} ({', '.join(rules)})" if rules else name for name, rules in passes.items()]
    ways = []
    if "view" in op.traits:
        ways.append("it moves no data where its input lies without gaps")
    if named:
        ways.append(f"passes replace it where their rules apply: {', '.join(named)}")
    last = "what is left runs as its numpy reference" if ways else "it runs as its numpy reference"
    return f"no kernel takes {op.name} itself; {'; '.join([*ways, last])}"
