"""Operators whose inputs do not fit each other refuse them, and touch nothing outside."""

from __future__ import annotations

import pytest

from tests.fuzz import cage, unequal

COUNT = len(unequal.samples())
PARTS = [range(at, min(at + 14, COUNT)) for at in range(0, COUNT, 14)]


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_inputs_that_do_not_fit_each_other(part: range) -> None:
    assert {s: what for s, what in cage.run(unequal.__name__, part).items() if what} == {}
