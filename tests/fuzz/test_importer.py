"""Mutants of random ONNX models: refused in words, or imported; and what is imported is computed
alike by the machine code and by numpy.

    python -m tests.fuzz.test_importer 1234       one seed, with what came of it
"""

from __future__ import annotations

import sys
import warnings

import onnx
import pytest
from google.protobuf.message import EncodeError

import tinsmith as ts
from tests.fuzz.judge import UNSAID, judge
from tests.fuzz.mutants import mutant
from tests.fuzz.seeds import chunks
from tinsmith.errors import TinsmithError

ALONE = 300
MOST_REFUSED = 0.85  # of the mutants of a chunk


def check(seed: int) -> str:
    """'' where the mutant is right, UNSAID where it is refused, else what is wrong. Raises what is
    no TinsmithError."""
    case = mutant(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return judge(ts.load(case.model), case.feeds, {"threads": 1})
        except TinsmithError as error:
            assert str(error).strip(), type(error)
            return UNSAID


@pytest.mark.parametrize("part", chunks(ALONE), ids=str)
def test_mutants_are_refused_in_words_or_right(part: range) -> None:
    found = {}
    for seed in part:
        try:
            found[seed] = check(seed)
        except Exception as error:
            found[seed] = f"{type(error).__name__}: {error}"
    wrong = {seed: what for seed, what in found.items() if what not in ("", UNSAID)}
    assert not wrong
    assert sum(what == UNSAID for what in found.values()) <= MOST_REFUSED * len(part)


if __name__ == "__main__":
    for number in map(int, sys.argv[1:]):
        try:
            print(onnx.printer.to_text(mutant(number).model))
        except (EncodeError, TypeError, ValueError, RuntimeError) as error:
            print(error)
        print(number, check(number) or "right")
