"""Damaged .tin files: refused in words, or a model that compiles; never a crash."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import tinsmith as ts
from tests.fuzz.models import draw
from tests.fuzz.seeds import chunks
from tinsmith.errors import TinsmithError

ALONE = 200
MOST_REFUSED = 0.9  # of the files of a chunk: much of a file is holes and weights


@cache
def whole(seed: int, folder: Path) -> bytes:
    """The file of a random model, with its code where it is of fixed shapes."""
    case = draw(seed)
    path = folder / f"{seed}.tin"
    net = ts.compile(ts.load(case.model), cache=False)
    net.run([case.feeds[n] for n in net.inputs])
    ts.save(net, path, code=True)
    return path.read_bytes()


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    made = bytearray(data)
    at = int(rng.integers(len(made)))
    how = int(rng.integers(6))
    if how == 0:
        made[at] ^= 1 << int(rng.integers(8))
    elif how == 1:  # in the head, where every byte counts
        made[at % 1200] = int(rng.integers(256))
    elif how == 2:
        del made[at:]
    elif how == 3:
        made[at : at + 8] = rng.bytes(8)
    elif how == 4:
        digits = [i for i, b in enumerate(made[16:1200], 16) if 48 <= b <= 57]
        made[digits[at % len(digits)]] = 48 + int(rng.integers(10))
    else:
        page = at // 4096 * 4096
        made[page : page + 4096] = made[: min(4096, len(made) - page)]
    return bytes(made)


def compiles(seed: int, folder: Path) -> bool:
    """Whether the damaged file is a model. Its code is not run: it is not trusted."""
    path = folder / "damaged.tin"
    path.write_bytes(damaged(whole(seed % 12, folder), np.random.default_rng(seed)))
    try:
        str(ts.load(path))
        ts.compile(path, cache=False)
    except TinsmithError as error:
        assert str(error).strip()
        return False
    return True


@pytest.mark.parametrize("part", chunks(ALONE), ids=str)
def test_damaged_files(part: range, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "tin"
    folder.mkdir(exist_ok=True)
    compiled = sum(compiles(seed, folder) for seed in part)
    assert len(part) - compiled <= MOST_REFUSED * len(part)
