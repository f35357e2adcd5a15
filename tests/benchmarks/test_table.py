"""Results of every benchmark as a table in a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.table import BY_ENGINE, BY_NUMBER, main

MACHINE = {"cpu": "a CPU", "cores": 2, "peak_gflops": 170.4}


def rows(kind: str) -> list[dict[str, Any]]:
    if kind in BY_ENGINE:
        key = BY_ENGINE[kind]
        return [
            {"model": "one", "engine": "tinsmith", key: 123.4},
            {"model": "one", "engine": "other", "failed": "it cannot"},
            {"model": "two", "engine": "tinsmith", key: 1.234},
            {"model": "two", "engine": "other", key: 12.34},
        ]
    return [
        {"model": "one", "engine": engine} | dict.fromkeys(BY_NUMBER[kind].values(), value)
        for engine, value in (("tinsmith", 1.5), ("other", 2.5))
    ]


@pytest.mark.parametrize("kind", [*BY_ENGINE, *BY_NUMBER])
def test_a_table_takes_the_place_of_its_kind(kind: str, tmp_path: Path) -> None:
    data, page = tmp_path / "data.json", tmp_path / "page.md"
    data.write_text(json.dumps({"machine": MACHINE, "results": rows(kind)}))
    page.write_text(f"above\n<!-- {kind} -->\nold\n<!-- {kind} -->\nbelow\n")
    got = CliRunner().invoke(main, [str(data), str(page)])
    assert got.exit_code == 0, got.output
    text = page.read_text()
    assert text.startswith("above\n") and text.endswith("below\n") and "old" not in text
    assert "On one machine (a CPU, 2 cores, measured peak 170 GFLOP/s a core)." in text
    if kind in BY_ENGINE:
        assert "| model | tinsmith | other |" in text
        assert "| one | 123 | - |" in text and "| two | 1.23 | 12.3 |" in text
    else:
        assert f"| model | {' | '.join(BY_NUMBER[kind])} |" in text
        assert "1.50" in text and "2.50" not in text


def test_a_page_without_the_place(tmp_path: Path) -> None:
    data, page = tmp_path / "data.json", tmp_path / "page.md"
    data.write_text(json.dumps({"machine": MACHINE, "results": rows("memory")}))
    page.write_text("<!-- startup -->\n<!-- startup -->\n")
    got = CliRunner().invoke(main, [str(data), str(page)])
    assert got.exit_code == 1 and "has no two lines" in got.output
