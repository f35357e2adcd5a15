"""Random models between guard pages: no kernel reads or writes outside of its tensors."""

from __future__ import annotations

import pytest

from tests.fuzz import cage, guarded
from tests.fuzz.judge import UNSAID
from tests.fuzz.seeds import chunks

ALONE = 100


@pytest.mark.parametrize("part", chunks(ALONE), ids=str)
def test_random_models_keep_to_their_tensors(part: range) -> None:
    found = cage.run(guarded.__name__, part)
    assert {s: what for s, what in found.items() if what not in (guarded.RIGHT, UNSAID)} == {}
