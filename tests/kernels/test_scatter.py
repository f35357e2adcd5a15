"""Scatters to constant places."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, levels
from tinsmith.kernels.move.scatter import _lines, _wrapped

rng = np.random.default_rng(0)


def r(*dims: int, dtype: str = "float32") -> np.ndarray:
    return (rng.standard_normal(dims) * 100).astype(dtype)


def i(values) -> np.ndarray:
    return np.array(values, np.int64)


SLICES = {
    "rows": (r(5, 19), i([[1], [4]]), r(2, 19)),
    "elements": (r(4, 5), i([[0, 1], [-1, -5], [2, 2]]), r(3)),
    "twice": (r(4, 5), i([[1], [1], [0], [1]]), r(4, 5)),
    "blocks": (r(3, 4, 2, 5), i([[[0, 1], [2, -1]]]), r(1, 2, 2, 5)),
    "large": (r(70, 300), i([[69], [0]]), r(2, 300)),
    "lines": (r(9, 7), i([*range(2, 4), *range(6, 8)])[:, None], r(4, 7)),
    "lines that end early": (r(9, 2), i([1, 2, 3, 4, 6, 7, 2])[:, None], r(7, 2)),
    "other types": (r(5, 3, dtype="int64"), i([[2], [-1]]), r(2, 3, dtype="int64")),
    "bytes": (r(5, 33, dtype="uint8"), i([[2]]), r(1, 33, dtype="uint8")),
}
ELEMENTS = {
    "vector": (r(6), i([3, -6, 4]), r(3), 0),
    "one element": (r(6), i([-1]), r(1), 0),
    "first axis": (r(4, 3), i([[0, 1, 2], [3, -4, 1]]), r(2, 3), 0),
    "last axis": (r(4, 5), i([[0, -1], [1, 2], [4, 3]]), r(3, 2), -1),
    "twice": (r(1, 5), i([[1, 1, -4]]), r(1, 3), 1),
    "volume": (r(3, 4, 5), i(rng.permutation(4)).reshape(1, 4, 1), r(1, 4, 1), 1),
}


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", SLICES)
def test_slices(name, target, kind):
    x, places, updates = SLICES[name]
    check("ScatterND", [x, places.astype(kind), updates], kernel="scatter_nd_constant",
          target=target, consts=(1,), rtol=0)  # fmt: skip


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", ELEMENTS)
def test_elements(name, target, kind):
    x, places, updates, axis = ELEMENTS[name]
    check("ScatterElements", [x, places.astype(kind), updates], {"axis": axis}, target=target,
          kernel="scatter_elements_constant", consts=(1,), rtol=0)  # fmt: skip


def test_places_of_large_arrays_do_not_wrap_around():
    wide = _wrapped(np.array([[7], [-1]], np.int32), 1 << 20) * (1 << 13)
    assert wide.tolist() == [[7 << 13], [(1 << 33) - (1 << 13)]]


def test_rows_one_behind_the_other_are_one_line():
    def lines(*rows, most=8):
        targets, sources, length = _lines(np.array(rows), most)
        return targets.tolist(), sources.tolist(), length

    assert lines(4, 5, 6, 9, 10, 11) == ([4, 9], [0, 3], 3)
    assert lines(*range(8)) == ([0], [0], 8)
    assert lines(2, 3, 4, 5, 8, 9) == ([2, 4, 8], [0, 2, 4], 2)
    assert lines(2, 3, 2, 3) == ([2], [2], 2)
    assert lines(5, 4, 3) == ([5, 4, 3], [0, 1, 2], 1)
    assert lines(1, 2, 0, 2, 3) == ([1, 0, 2, 3], [0, 2, 3, 4], 1)
    assert lines(*range(8), most=7) == ([0, 4], [0, 4], 4)
    assert lines(0, 1, most=0) == ([0, 1], [0, 1], 1)
    assert lines(7) == ([7], [0], 1)
