"""`tinsmith passes`: list the passes in their order, or say what one does."""

from __future__ import annotations

from typing import Any

import click

from tinsmith.cli import _show
from tinsmith.errors import UnknownName


@click.command(short_help="List the passes in the order in which they run, or the rules of one.")
@click.argument("name", required=False)
@click.option("--passes", "spec", help="Show what this choice (as for `run --passes`) would run.")
@click.option("--device", help="Only passes that support this device, such as 'cpu'.")
@_show.json_option
def command(name: str | None, spec: str | None, device: str | None, json_: bool) -> None:
    """List the passes in the order in which they run, or say what one of them does.

    Choose with --passes (on run, bench, verify, inspect, explain): a list separated by commas of
    -NAME (leave out), +NAME (add one that is off), NAME{option=value}, NAME@PRIORITY,
    stop-after=NAME (leave out the rest of its stage); TINSMITH_PASSES chooses likewise. Passes
    that an installed package brings are listed with its name.

    \b
    Examples:
      tinsmith passes
      tinsmith passes fold-into-conv
      tinsmith passes --passes=-merge-common,stop-after=fold-into-conv
    """
    from tinsmith.passes import PASSES, list_passes

    devices = {d for e in PASSES.rows() for d in e.devices or ()}
    if device is not None and device not in devices:
        raise UnknownName("device", device, devices)
    if name is not None:
        return one(PASSES[name], json_)
    document = [describe(e) for e in list_passes(device=device, spec=spec)]
    if json_:
        return _show.as_json(document)
    return _show.table(
        f"{len(document)} passes",
        ["stage", "priority", "pass", "rules", "devices", "what it does"],
        [
            (
                d["stage"],
                f"{d['priority']:g}",
                d["name"] + ("" if d["default"] else " (off)"),
                len(d["rules"]) or "",
                " ".join(d["devices"]) or "all",
                d["summary"] + ("" if d["from"] == "tinsmith" else f" ({d['from']})"),
            )
            for d in document
        ],
        left=["pass", "devices", "what it does"],
    )


def one(entry: Any, json_: bool) -> None:
    row = describe(entry)
    if json_:
        return _show.as_json(row)
    click.echo(f"{row['name']}: {row['summary']}\n")
    options = ", ".join(f"{k}={v!r}" for k, v in row["options"].items())
    _show.pairs(
        "",
        {
            "stage": f"{row['stage']}, priority {row['priority']:g}",
            "devices": " ".join(row["devices"]) or "all",
            "options": options or "none",
        },
    )
    for rule in row["rules"]:
        click.echo(f"\n  {rule['name']}")
        click.echo("\n".join(f"      {line}" for line in rule["formula"].splitlines()))
    return None


def describe(entry: Any) -> dict[str, Any]:
    """A pass as plain data; `rules` is empty for a pass that is not a set of rules."""
    from tinsmith.passes import PASSES

    made = entry.make() if not entry.options else None
    rules = getattr(made, "rules", ())
    return {
        "name": entry.name,
        "stage": entry.stage,
        "priority": entry.priority,
        "devices": sorted(entry.devices or ()),
        "default": entry.default,
        "options": entry.options,
        "summary": entry.summary,
        "from": PASSES.origin(entry.name) or "tinsmith",
        "rules": [{"name": r.name, "formula": r.formula} for r in rules],
    }
