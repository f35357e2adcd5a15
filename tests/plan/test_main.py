"""What the segments of all plans call: taking tiles."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tinsmith.codegen.library import load_library
from tinsmith.codegen.target import host
from tinsmith.plan.main import BEGIN, END, NUMBERS, OWN, TRIED, helpers_text
from tinsmith.plan.plan import LINE


def take_of(threads):
    library = load_library({"helpers": helpers_text(threads, host())}, host())
    take = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * len(NUMBERS))(
        library.address("take")
    )

    def call(own, line, *numbers):
        take(own.ctypes.data, line.ctypes.data, *numbers)
        first, last, begin, end = map(int, own[:4])
        return [(n, t) for n in range(first, last) for t in range(begin, end)]

    call.library = library
    return call


@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize("tiles", [1, 2, 5, 64, 101])
@pytest.mark.parametrize("sweeps", [1, 3, 11])
def test_threads_take_each_tile_once(threads, tiles, sweeps):
    take = take_of(threads)
    random = np.random.default_rng(tiles)
    line = np.zeros(LINE * (1 + threads), np.int64)
    own = np.zeros((threads, OWN), np.int64)
    groups, pieces = min(sweeps, 4), max(1, min(4, tiles // threads))
    taken, busy = [], list(range(threads))
    while busy:
        t = int(random.choice(busy))
        found = take(own[t], line, sweeps, groups, tiles, pieces, t)
        taken += found
        if not found:
            busy.remove(t)
    assert sorted(taken) == [(s, t) for s in range(sweeps) for t in range(tiles)]
    assert line[0] == sweeps * tiles
    assert not own[:, [BEGIN, END, TRIED]].any()  # ready for the next call


@pytest.mark.parametrize("threads", [2, 3])
def test_a_thread_begins_with_its_own_part_of_the_first_sweeps(threads):
    take = take_of(threads)
    for t in range(threads):
        line, own = np.zeros(LINE * (1 + threads), np.int64), np.zeros(OWN, np.int64)
        found = take(own, line, 6, 3, 10 * threads, 2, t)
        assert found == [(s, 10 * t + i) for s in range(2) for i in range(5)]
