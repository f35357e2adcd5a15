"""The glossary is in order, and explains words that the code or the documents use."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"
SHOWN = re.compile(r"c8\+|F\(|T=|lower bound \.\.\.")
"""Entries that are examples of what is printed, whose numbers stand nowhere."""


def entries() -> list[str]:
    lines = GLOSSARY.read_text(encoding="utf-8").splitlines()
    return [line[4 : line.index("**", 4)] for line in lines if line.startswith("- **")]


def test_entries_are_in_order_and_once():
    words = [word.casefold() for word in entries()]
    assert len(set(words)) == len(words)
    assert words == sorted(words)


def test_entries_are_words_that_are_used():
    files = [*(ROOT / "tinsmith").rglob("*.py"), *(ROOT / "docs").glob("*.md")]
    text = "\n".join(f.read_text(encoding="utf-8") for f in files if f != GLOSSARY).casefold()
    unused = [w for w in entries() if not SHOWN.match(w) and w.casefold() not in text]
    assert not unused


def test_words_that_newcomers_ask_for_are_explained():
    text = GLOSSARY.read_text(encoding="utf-8").casefold()
    asked = (
        "tier", "shaped", "c8+((1, 1), (1, 1))", "took in", "t=112 6x2", "taps", "anchor", "holder",
        "lower bound", "without sharing", "arena", "placed", "by its reference", "guard pages",
        "rooms",
    )  # fmt: skip
    assert not [
        word
        for word in asked
        if f"**{word}" not in text and f"**lower bound ..., {word}" not in text
    ]
