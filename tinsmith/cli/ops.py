"""`tinsmith ops`: the operators and what they mean."""

from __future__ import annotations

import inspect
from typing import Any

import click

from tinsmith.cli import _show
from tinsmith.ops import OPS


@click.command(short_help="List the operators, or say what one of them means.")
@click.argument("name", required=False)
@click.option("--trait", help="Only operators with this trait, such as 'elementwise'.")
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
        if trait is not None and not rows:
            known = sorted(set().union(*(op.traits for op in OPS.rows())))
            raise click.BadParameter(f"no operator has it; traits are {', '.join(known)}")
        if json_:
            return _show.as_json(rows)
        return _show.table(
            f"{len(rows)} operators",
            ["operator", "inputs", "formula", "traits"],
            [
                (
                    r["name"],
                    r["signature"].split(", *, ")[0],
                    first_line(r["formula"]),
                    " ".join(r["traits"]),
                )
                for r in rows
            ],
            left=["inputs", "formula", "traits"],
        )
    row = describe(OPS[name])
    kernels = kernels_of(name, row["traits"])
    if json_:
        return _show.as_json(row | {"kernels": kernels})
    click.echo(f"{row['name']}({row['signature']})\n")
    click.echo("\n".join(f"    {line}" for line in row["formula"].splitlines()) + "\n")
    _show.pairs(
        "",
        {
            "traits": " ".join(row["traits"]) or "none",
            "kernels": ", ".join([*kernels, "reference"]),
        },
    )
    return None


def describe(op: Any) -> dict[str, Any]:
    """An operator as plain data."""
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
    """`x, w, b?, *, stride, group=1`: required attributes have no default."""
    parts = [n if i < op.required else f"{n}?" for i, n in enumerate(op.inputs)]
    if op.variadic:
        parts.append(f"*{op.variadic}")
    attributes = [k if v is inspect.Parameter.empty else f"{k}={v!r}" for k, v in op.attrs.items()]
    if attributes and not op.variadic:
        parts.append("*")
    return ", ".join([*parts, *attributes])


def kernels_of(name: str, traits: list[str]) -> list[str]:
    """Names of the native kernels that take an operator, best tier first."""
    from tinsmith.kernels._kernel import ELEMENTWISE, kernels_for

    found = [k.name for k in kernels_for(name)]
    if "elementwise" in traits:
        found += [k.name for k in kernels_for(ELEMENTWISE)]
    return found


def first_line(text: str) -> str:
    return text.strip().split("\n")[0]
