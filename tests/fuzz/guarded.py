"""Random models with guard pages: odd seeds before each tensor, even ones behind it.

python -m tests.fuzz.guarded 1234       one seed, in a process that its fault ends
"""

from __future__ import annotations

import sys

from tests.fuzz import cage, test_models
from tests.guard import SIDES, guarded

RIGHT = "right"


def check(seed: int) -> str:
    """RIGHT, UNSAID or what is wrong. An access outside of the tensors ends the process."""
    with guarded(SIDES[seed % 2]):
        try:
            return test_models.check(seed // 2) or RIGHT
        except Exception as error:
            return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    for number in map(int, sys.argv[1:]):
        print(number, cage.run(__spec__.name, range(number, number + 1))[number])
