"""Memory of a session: where it begins, and what is said where there is none."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from tinsmith.errors import PlanError
from tinsmith.runtime.memory import LARGE, LEAST, aligned, contiguous


@pytest.mark.parametrize("get", [aligned, contiguous])
@pytest.mark.parametrize("nbytes", [0, 1, 64, LEAST - 1, LEAST, LARGE, LARGE + 4097])
def test_all_of_it_can_be_written(get, nbytes):
    memory = get(nbytes)
    assert memory.dtype == np.uint8 and memory.size == nbytes
    memory[...] = 255
    if nbytes:
        assert memory.ctypes.data % 64 == 0 and memory[-1] == 255


def test_what_is_worth_a_large_page_begins_with_one():
    assert contiguous(LEAST).ctypes.data % LARGE == 0


def test_systems_without_large_pages_have_small_ones(monkeypatch):
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert contiguous(LARGE).ctypes.data % 64 == 0


@pytest.mark.parametrize("get", [aligned, contiguous])
def test_what_cannot_be_had_is_said(get):
    with pytest.raises(PlanError, match="cannot be had"):
        get(1 << 60)
