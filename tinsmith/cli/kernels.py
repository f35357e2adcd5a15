"""`tinsmith kernels`: list the rows of the kernel table."""

from __future__ import annotations

import click

from tinsmith.cli import _show
from tinsmith.cli.ops import kernel_rows_of, without_kernel
from tinsmith.errors import UnknownName, counted


@click.command(short_help="List the kernels, of all operators or of one.")
@click.argument("name", required=False)
@_show.json_option
def command(name: str | None, json_: bool) -> None:
    """List the kernels that generate machine code, best tier first: all, those of an operator, or
    the one called NAME.

    The planner takes the best tier that does not decline, and within it the least cost, that of
    the conversions between layouts included. Many operators without a kernel are rewritten into
    others by passes; whatever is left that no kernel takes runs as its numpy reference. Force one
    with --kernels (on run, bench, verify, inspect, explain) or TINSMITH_KERNELS: 'Conv=reference',
    'layer1.0.conv1=NAME', 'reference'; '-NAME' leaves a kernel out. Kernels that an installed
    package brings are listed with its name.

    \b
    Examples:
      tinsmith kernels
      tinsmith kernels Conv
      tinsmith kernels conv_direct
    """
    from tinsmith.kernels._kernel import ELEMENTWISE, KERNELS
    from tinsmith.ops import OPS

    rows = sorted(KERNELS.rows(), key=lambda k: (k.op, -k.tier, k.name))
    if name is not None and name in OPS:
        taken = kernel_rows_of(OPS[name])
        rows = [k for k in rows if k.op in taken]
    elif name is not None:
        names = [*OPS, ELEMENTWISE, *sorted({k.name for k in rows})]
        if name not in names:
            raise UnknownName("operator or kernel", name, names, OPS.command)
        rows = [k for k in rows if name in (k.op, k.name)]
    document = [
        {
            "name": k.name,
            "op": k.op,
            "tier": k.tier.name.lower(),
            "backend": k.backend,
            "dtypes": sorted(k.dtypes),
            "isas": sorted(k.isas),
            "cores": sorted(k.cores),
            "from": KERNELS.origin(k.name) or "tinsmith",
            "summary": k.summary,
        }
        for k in rows
    ]
    if json_:
        return _show.as_json(document)
    if not rows and name is not None:
        return click.echo(without_kernel(OPS[name]))
    return _show.table(
        counted(len(rows), "kernel"),
        ["operator", "kernel", "tier", "dtypes", "needs", "what it does"],
        [
            (
                d["op"],
                d["name"],
                d["tier"],
                " ".join(d["dtypes"]) or "all",
                ", ".join([" ".join(d["isas"]), *d["cores"]]).strip(", ") or "any",
                d["summary"] + ("" if d["from"] == "tinsmith" else f" ({d['from']})"),
            )
            for d in document
        ],
        left=["kernel", "tier", "dtypes", "needs", "what it does"],
    )
