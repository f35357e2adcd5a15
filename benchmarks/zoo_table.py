"""The zoo's results as a Markdown page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks._zoo_check import TOLERANCE

Row = dict[str, Any]


def markdown(rows: Sequence[Row]) -> str:
    """A summary, what does not agree and why, what is slower, and one line a model."""
    lines = [
        "# The zoo",
        "",
        "Architectures with random weights, exported by torch to ONNX, compiled here, compared",
        "with what torch computes, and timed in turns with ONNX Runtime. Made by",
        "`python -m benchmarks.zoo`; do not edit.",
        "",
        *_summary(rows),
        *_trouble(rows),
        *_fallbacks(rows),
        *_slower(rows),
        "## All models",
        "",
        "*native*: share of the run's time in generated code. *error*: max\\|y - torch\\| /",
        "max\\|torch\\|, the worst output. *ms*: the median time on one thread. *ratio*: that over",
        "ONNX Runtime's.",
        "",
        "| family | model | input | nodes | steps | native | error | ms | ratio | |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    lines += [_line(r) for r in rows]
    return "\n".join(lines) + "\n"


def ratio(row: Row) -> float | None:
    """Our time over ONNX Runtime's, where both ran and are right."""
    if row["status"] != "agrees" or not row.get("ms") or _peer_trouble(row):
        return None
    return row["ms"] / row["ort_ms"]


def _peer_trouble(row: Row) -> str:
    if row.get("ort_failed"):
        return "ONNX Runtime fails"
    if not row.get("ort_ms"):
        return "not timed"
    return "" if row["ort_error"] <= TOLERANCE else "ONNX Runtime differs"


def _summary(rows: Sequence[Row]) -> list[str]:
    exported = [r for r in rows if r["status"] != "not exported"]
    good = [r for r in exported if r["status"] == "agrees"]
    share = 100 * len(good) / max(1, len(exported))
    native = [r["native_share"] for r in good if r.get("native_share") is not None]
    whole = sum(n > 0.999 for n in native)
    families = {r["family"] for r in exported}
    counts = Counter(r["status"] for r in rows)
    many = {"agrees": "agree", "differs": "differ"}
    found = ", ".join(f"{n} {s if n == 1 else many.get(s, s)}" for s, n in counts.most_common())
    return [
        f"{len(rows)} architectures: {found}. Of the {len(exported)} that torch exports, from "
        f"{len(families)} families, **{len(good)} agree ({share:.1f} %)**; "
        f"{whole} of these run in generated code alone.",
        "",
        *_speeds([r for r in map(ratio, rows) if r is not None]),
    ]


def _speeds(ratios: Sequence[float]) -> list[str]:
    if not ratios:
        return []
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    faster = sum(r < 1 for r in ratios)
    return [
        f"Our time over ONNX Runtime's, one thread each: **{mean:.2f}** in the geometric mean of "
        f"{len(ratios)} models, from {min(ratios):.2f} to {max(ratios):.2f}; "
        f"less than 1 in {faster}.",
        "",
    ]


def _trouble(rows: Sequence[Row]) -> list[str]:
    bad = [r for r in rows if r["status"] != "agrees"]
    if not bad:
        return []
    lines = ["## What does not agree, and why", "", "| model | | why |", "|---|---|---|"]
    lines += [f"| {r['source']}/{r['name']} | {r['status']} | {_cell(_why(r))} |" for r in bad]
    return [*lines, ""]


def _fallbacks(rows: Sequence[Row]) -> list[str]:
    used: dict[str, list[str]] = {}
    for r in rows:
        for op in r.get("numpy", ()):
            used.setdefault(op, []).append(r["name"])
    if not used:
        return []
    lines = ["## Operators that ran in numpy", "", "| operator | models | among them |"]
    lines.append("|---|--:|---|")
    for op, names in sorted(used.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(f"| {op} | {len(names)} | {', '.join(names[:5])} |")
    return [*lines, ""]


def _slower(rows: Sequence[Row]) -> list[str]:
    slow = [(found, r) for r in rows if (found := ratio(r)) is not None and found > 1]
    if not slow:
        return []
    lines = [
        "## What takes longer than with ONNX Runtime",
        "",
        "With the kernels that take most of the time: their share of it, the steps that they",
        "compute, and how much of the processor's peak they reach.",
        "",
        "| model | ratio | ms | where the time goes |",
        "|---|--:|--:|---|",
    ]
    for found, r in sorted(slow, key=lambda pair: -pair[0]):
        kernels = "; ".join(map(_heavy, r.get("heaviest", ())))
        lines.append(f"| {r['source']}/{r['name']} | {found:.2f} | {r['ms']:.3g} | {kernels} |")
    return [*lines, ""]


def _heavy(kernel: Row) -> str:
    rate = "" if kernel["peak"] is None else f", {kernel['peak']:.0%} of peak"
    steps = "1 step" if kernel["steps"] == 1 else f"{kernel['steps']} steps"
    return f"{kernel['kernel']} {kernel['share']:.0%} ({steps}{rate})"


def _why(row: Row) -> str:
    """The reason that was told; of a result that differs, what else computes it how well."""
    if row["status"] != "differs":
        return " ".join(str(row.get("reason", "")).split())[:300]
    told = f"error {row['error']:.2g}; {row['reference_error']:.2g} in numpy"
    if row.get("ort_ms"):
        told += f"; {row['ort_error']:.2g} in ONNX Runtime"
    return told


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _line(r: Row) -> str:
    def number(key: str, form: str) -> str:
        value = r.get(key)
        return "" if value is None else format(value, form)

    found = ratio(r)
    cells = [
        r["family"],
        f"{r['source']}/{r['name']}",
        "x".join(map(str, r["shape"])),
        number("nodes", "d"),
        number("steps", "d"),
        number("native_share", ".0%"),
        number("error", ".0e"),
        number("ms", ".3g"),
        "" if found is None else f"{found:.2f}",
        _peer_trouble(r) if r["status"] == "agrees" else r["status"],
    ]
    return f"| {' | '.join(cells)} |"
