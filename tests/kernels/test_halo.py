"""Halos are zeroed, whole or in shares, and nothing else is."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.kernels.harness import LEVELS, from_layout
from tinsmith.codegen.library import load_library
from tinsmith.codegen.target import level, runnable
from tinsmith.kernels.halo import zero_halo
from tinsmith.kernels.layout import Layout, block_of, spec_of

CASES = {
    "row": ((2, 5, 7), ((1, 2),)),
    "plane": ((1, 40, 5, 3), ((1, 0), (2, 1))),
    "batch": ((3, 17, 4, 4), ((0, 3), (0, 1))),
    "above and below": ((1, 16, 6, 2), ((2, 1), (0, 0))),
    "volume": ((1, 9, 3, 4, 5), ((1, 1), (0, 2), (1, 0))),
    "one element": ((1, 1, 1, 1), ((1, 1), (1, 1))),
}


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("isa", LEVELS)
def test_all_but_the_elements_is_zero(isa: str, name: str, parts: int) -> None:
    target = level(isa)
    if not runnable(target):
        pytest.skip(f"no {isa} here")
    dims, halo = CASES[name]
    layout = Layout(block_of(target), halo)
    spec = spec_of(np.float32, dims, layout)
    code, tiles = zero_halo(spec, target, parts)
    loaded = load_library({code.symbol: code.text}, target)
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
        loaded.address(code.symbol)
    )
    room = np.full(spec.size + 32, 7, np.float32)
    inside = room[16:-16]
    for tile in reversed(range(tiles)):
        run(inside.ctypes.data + spec.before * 4, tile, tile + 1)
    assert (room[:16] == 7).all() and (room[-16:] == 7).all(), "writes beside the tensor"
    assert (from_layout(inside.copy(), dims, layout) == 7).all(), "writes elements"
    elements = np.prod(dims) // dims[1] * spec.blocks * layout.block
    assert np.count_nonzero(inside) == elements, "leaves some of the halo"
