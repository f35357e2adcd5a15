"""docs/operators.md says what the code does: an eighth of its rows, or all of them with
TINSMITH_FULL_CONFORMANCE=1."""

from __future__ import annotations

import os
import re
from zlib import crc32

import onnx
import pytest

from tests.frontends import support
from tests.frontends.refusals import refusals
from tests.frontends.support import PAGE, Row, line, names, page

SHARE = 1 if os.environ.get("TINSMITH_FULL_CONFORMANCE") else 8
TEXT = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
HOW = "python -m tests.frontends.support docs/operators.md"

pytestmark = pytest.mark.skipif(
    f"ONNX {onnx.__version__} " not in TEXT.replace("\n", " "),
    reason=f"docs/operators.md is of another version of ONNX than {onnx.__version__}",
)


def test_the_page_is_up_to_date() -> None:
    fresh = page(lambda name: crc32(name.encode()) % SHARE == 0).splitlines()
    missing = [text for text in fresh if text not in set(TEXT.splitlines())]
    assert not missing, f"{HOW} brings it up to date:\n" + "\n".join(missing)


def test_the_page_has_every_operator_once() -> None:
    rows = [text.split(" | ")[0].removeprefix("| ") for text in TEXT.splitlines() if "| " in text]
    wanted = [n.rpartition(".")[2] for domain in support.DOMAINS for n in names(domain)[0]]
    assert [r for r in rows if r != "operator"] == wanted, HOW


def test_refusals_are_read_from_the_importers() -> None:
    assert "it needs either scales or sizes" in refusals("Resize")
    assert "its attribute 'axis' needs operands of a known rank" in refusals("Add")  # of a helper
    assert refusals("Relu") == [] and refusals("NoSuchOperator") == []


def test_bars_do_not_break_the_table() -> None:
    assert len(re.split(r"(?<!\\)\|", line(Row("a", "1", "", "", "", "x | y")))) == 8
