"""Damaged .tin files: refused in words, or a model that compiles; never a crash."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.fuzz.models import draw
from tests.fuzz.seeds import chunks
from tinsmith.errors import TinsmithError
from tinsmith.formats.container import Container, write_container

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


VALUES = [
    None, True, -1, 0, 0.5, float("inf"), float("nan"), 2**70, "", "x", "object", [], {}, [[]],
]  # fmt: skip


def places(data: Any) -> list[tuple[Any, Any]]:
    """(list or object, index or key) of everything in a document."""
    keys = range(len(data)) if isinstance(data, list) else list(data)
    inner = [place for k in keys if isinstance(data[k], list | dict) for place in places(data[k])]
    return [(data, k) for k in keys] + inner


def crafted(data: bytes, path: Path, rng: np.random.Generator) -> None:
    """A file whose checks are right, and one value of its JSON, or number of its text, another."""
    path.write_bytes(data)
    found = Container(path)
    sections = {name: found.array(name).tobytes() for name in found.index["sections"]}
    names = [name for name in ("made", "program", "table", "rows", "explain") if name in sections]
    name = names[int(rng.integers(len(names)))]
    root = [json.loads(sections[name])]
    spots = places(root)
    holder, key = spots[int(rng.integers(len(spots)))]
    how = int(rng.integers(5))
    if how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, list):
        holder.append(holder[key])
    else:
        holder[key] = VALUES[int(rng.integers(len(VALUES)))]
    sections[name] = json.dumps(root[0] if root else None).encode()
    write_container(path, sections)


def crafted_is_refused_in_words(seed: int, folder: Path) -> bool:
    path = folder / "crafted.tin"
    crafted(whole(seed % 12, folder), path, np.random.default_rng(seed))
    try:
        str(ts.load(path))
        net = ts.compile(path, cache=False, trust=True)
        net.explain() if net.outputs else None
    except TinsmithError as error:
        assert str(error).strip()
        return True
    return False


@pytest.mark.parametrize("part", chunks(ALONE), ids=str)
def test_files_with_other_values(part: range, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Their code is loaded, but not run."""
    folder = tmp_path_factory.getbasetemp() / "tin"
    folder.mkdir(exist_ok=True)
    assert sum(crafted_is_refused_in_words(seed, folder) for seed in part) > len(part) // 4


@pytest.mark.parametrize("part", chunks(ALONE), ids=str)
def test_damaged_files(part: range, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "tin"
    folder.mkdir(exist_ok=True)
    compiled = sum(compiles(seed, folder) for seed in part)
    assert len(part) - compiled <= MOST_REFUSED * len(part)
