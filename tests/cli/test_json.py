"""The keys of `--json` are those that docs/json.md has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.harness import LABELS, MODEL, SEVEN, parsed, tinsmith

PAGE = Path(__file__).resolve().parents[2] / "docs" / "json.md"
RESIDUAL = str(PAGE.parents[1] / "examples" / "quantize" / "residual.onnx")
CALLS = [
    ["run", MODEL, SEVEN, "--labels", LABELS],
    ["run", MODEL, "--backend", "numpy"],
    ["bench", MODEL, "--repeat", "3", "--runs"],
    ["bench", MODEL, "--repeat", "3", "--no-layers", "--backend", "numpy"],
    ["inspect", MODEL],
    ["inspect", MODEL, "--at", "plan"],
    ["inspect", MODEL, "--memory"],
    ["inspect", MODEL, "--measure"],
    ["explain", MODEL],
    ["explain", MODEL, "conv1", "--kernels", "conv1=reference"],
    ["explain", MODEL, "--backend", "numpy"],
    ["verify", MODEL],
    ["kernels", "Conv"],
    ["ops"],
    ["ops", "Conv"],
    ["convert", MODEL, "OUT.onnx", "--verify"],
    ["optimize", MODEL, "OUT.tin", "--verify"],
    [
        "quantize",
        RESIDUAL,
        "OUT.onnx",
        "--data",
        RESIDUAL.replace("residual.onnx", "calibration.npz"),
    ],
    ["passes"],
    ["passes", "fold-into-conv"],
]


def documented(command: str) -> set[str]:
    """The keys of a command's section, and all that they go through."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {command}\n")[1].split("\n## ")[0]
    cells = " ".join(line.split("|")[1] for line in section.splitlines() if line[:3] == "| `")
    found: set[str] = set()
    for key in re.findall(r"`([\w.\[\]]+)`", cells):
        parts = re.findall(r"\[\]|\w+", key)
        for n in range(1, len(parts) + 1):
            found.add(".".join(parts[:n]))
    return found


def placed(arguments: list[str], folder: Path) -> list[str]:
    """The arguments, with files that are written in a folder."""
    return [str(folder / a) if a.startswith("OUT.") else a for a in arguments]


def keys_of(value: Any, known: set[str], at: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        named = f"{at}.NAME".lstrip(".") in known
        for key, inner in value.items():
            path = f"{at}.{'NAME' if named else key}".lstrip(".")
            yield path
            yield from keys_of(inner, known, path)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner, known, f"{at}.[]".lstrip("."))


@pytest.mark.parametrize("arguments", CALLS, ids=lambda a: " ".join(Path(p).name for p in a))
def test_every_key_is_documented(arguments: list[str], tmp_path: Path) -> None:
    known = documented(arguments[0])
    got = parsed(*placed(arguments, tmp_path))
    if arguments[0] in ("ops", "passes") and isinstance(got, dict):
        rows = {"kernels", "passes"} & set(got) if arguments[0] == "ops" else set()
        got = [{k: v for k, v in got.items() if k not in rows}]
    assert set(keys_of(got, known)) <= known


@pytest.mark.parametrize("command", sorted({c[0] for c in CALLS}))
def test_what_is_documented_is_printed(command: str, tmp_path: Path) -> None:
    known, seen = documented(command), set()
    for arguments in CALLS:
        if arguments[0] == command:
            seen |= {k.split(".")[0] for k in keys_of(parsed(*placed(arguments, tmp_path)), known)}
    assert {k.split(".")[0] for k in known} <= seen | {"[]"}


@pytest.mark.parametrize("command", sorted({c[0] for c in CALLS}))
def test_defaults_are_told_plainly(command: str) -> None:
    assert "default: (" not in " ".join(tinsmith(command, "--help").stdout.split())
