"""The zoo's results as a Markdown page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


def markdown(rows: Sequence[Row]) -> str:
    """A summary, what does not agree and why, and one line a model."""
    lines = [
        "# The zoo",
        "",
        "Architectures with random weights, exported by torch to ONNX, compiled here, and compared",
        "with what torch computes. Made by `python -m benchmarks.zoo`; do not edit.",
        "",
        *_summary(rows),
        *_trouble(rows),
        *_fallbacks(rows),
        "## All models",
        "",
        "*native*: share of the run's time in generated code. *error*: max\\|y - torch\\| /",
        "max\\|torch\\|, the worst output. *ORT*: our time over ONNX Runtime's, one thread each.",
        "",
        "| family | model | input | nodes | steps | native | error | ms | ORT | |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    lines += [_line(r) for r in rows]
    return "\n".join(lines) + "\n"


def _summary(rows: Sequence[Row]) -> list[str]:
    exported = [r for r in rows if r["status"] != "not exported"]
    good = [r for r in exported if r["status"] == "agrees"]
    share = 100 * len(good) / max(1, len(exported))
    native = [r["native_share"] for r in good if r.get("native_share") is not None]
    whole = sum(n > 0.999 for n in native)
    families = {r["family"] for r in exported}
    counts = Counter(r["status"] for r in rows)
    found = ", ".join(f"{n} {status}" for status, n in counts.most_common())
    return [
        f"{len(rows)} architectures: {found}. Of the {len(exported)} that torch exports, from "
        f"{len(families)} families, **{len(good)} agree ({share:.1f} %)**; "
        f"{whole} of these run in generated code alone.",
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


def _why(row: Row) -> str:
    return " ".join(str(row.get("reason", "")).split())[:300]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _line(r: Row) -> str:
    def number(key: str, form: str) -> str:
        value = r.get(key)
        return "" if value is None else format(value, form)

    ratio = r["ms"] / r["ort_ms"] if r.get("ort_ms") and r.get("ms") else None
    cells = [
        r["family"],
        f"{r['source']}/{r['name']}",
        "x".join(map(str, r["shape"])),
        number("nodes", "d"),
        number("steps", "d"),
        number("native_share", ".0%"),
        number("error", ".0e"),
        number("ms", ".3g"),
        "" if ratio is None else f"{ratio:.2f}",
        "" if r["status"] == "agrees" else r["status"],
    ]
    return f"| {' | '.join(cells)} |"
