"""Random models, made of what goes together badly: the machine code against numpy.

python -m tests.fuzz.test_models 1234       one seed, with its model as text
"""

from __future__ import annotations

import sys

import onnx
import pytest

import tinsmith as ts
from tests.fuzz.judge import UNSAID, judge
from tests.fuzz.models import draw
from tests.fuzz.seeds import chunks
from tinsmith.errors import TinsmithError

ALONE = 250
MOST_UNSAID = 0.06  # of the models of a chunk: one or two of 50 are usual


def check(seed: int) -> str:
    case = draw(seed)
    try:
        return judge(ts.load(case.model), case.feeds, case.options)
    except TinsmithError as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("part", chunks(ALONE), ids=str)
def test_random_models_equal_their_reference(part: range) -> None:
    found = {seed: check(seed) for seed in part}
    wrong = {seed: what for seed, what in found.items() if what not in ("", UNSAID)}
    assert not wrong
    assert sum(map(bool, found.values())) <= MOST_UNSAID * len(part) + 1


if __name__ == "__main__":
    for number in map(int, sys.argv[1:]):
        print(onnx.printer.to_text(draw(number).model), draw(number).options)
        print(number, check(number) or "right")
