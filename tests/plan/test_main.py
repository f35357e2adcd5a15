"""What the segments of all plans call: taking tiles."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tinsmith.codegen.library import load_library
from tinsmith.codegen.target import host
from tinsmith.plan.main import OWN, helpers_text
from tinsmith.plan.plan import LINE


@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize("tiles", [1, 2, 5, 64, 101])
@pytest.mark.parametrize("chunk", [1, 4])
def test_threads_take_each_tile_once(threads, tiles, chunk):
    library = load_library({"helpers": helpers_text(threads, host())}, host())
    take = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3)(
        library.address("take")
    )
    random = np.random.default_rng(tiles)
    line = np.zeros(LINE * (1 + threads), np.int64)
    own = np.zeros((threads, OWN), np.int64)
    taken, busy = [], list(range(threads))
    while busy:
        t = int(random.choice(busy))
        take(own[t].ctypes.data, line.ctypes.data, tiles, chunk, t)
        begin, end = map(int, own[t, :2])
        if begin < end:
            assert end - begin <= chunk
            taken += range(begin, end)
        else:
            busy.remove(t)
    assert sorted(taken) == list(range(tiles))
    assert line[0] == tiles
    assert not own.any()  # ready for the next call


@pytest.mark.parametrize("threads", [2, 3])
def test_a_thread_begins_with_its_own_part(threads):
    library = load_library({"helpers": helpers_text(threads, host())}, host())
    take = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3)(
        library.address("take")
    )
    for t in range(threads):
        line, own = np.zeros(LINE * (1 + threads), np.int64), np.zeros(OWN, np.int64)
        take(own.ctypes.data, line.ctypes.data, 10 * threads, 4, t)
        assert list(own) == [10 * t, 10 * t + 4, 0]
