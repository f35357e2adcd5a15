"""Strided copies against the references."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import LEVELS, check, levels, one_node, site_of
from tinsmith.codegen.target import level
from tinsmith.kernels._kernel import KERNELS
from tinsmith.kernels.build import build_phase
from tinsmith.kernels.layout import spec_of

rng = np.random.default_rng(0)


def r(*dims: int, dtype: str = "float32") -> np.ndarray:
    return (rng.standard_normal(dims) * 100).astype(dtype)


def i(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


CASES = [
    ("Transpose", "transpose_strided", (r(5, 7),), {"perm": (1, 0)}, ()),
    ("Transpose", "transpose_strided", (r(33, 50),), {}, ()),
    ("Transpose", "transpose_strided", (r(2, 17, 3, 35),), {"perm": (0, 2, 3, 1)}, ()),
    ("Transpose", "transpose_strided", (r(2, 3, 16, 32),), {"perm": (0, 2, 1, 3)}, ()),
    ("Transpose", "transpose_strided", (r(3, 4, 5, 6, 2),), {"perm": (4, 1, 3, 0, 2)}, ()),
    ("Transpose", "transpose_strided", (r(19, 40, dtype="int64"),), {"perm": (1, 0)}, ()),
    ("Transpose", "transpose_strided", (r(65, 70, dtype="uint8"),), {"perm": (1, 0)}, ()),
    ("Transpose", "transpose_strided", (r(20, 37, dtype="int16"),), {"perm": (1, 0)}, ()),
    (
        "Transpose",
        "transpose_strided",
        (r(2, 3, 7, 9, dtype="float32"),),
        {"perm": (0, 2, 3, 1)},
        (),
    ),
    (
        "Transpose",
        "transpose_strided",
        (r(2, 7, 9, 3, dtype="float32"),),
        {"perm": (0, 3, 1, 2)},
        (),
    ),
    ("Transpose", "transpose_strided", (r(2, 3, 7, 9, dtype="int8"),), {"perm": (0, 2, 3, 1)}, ()),
    ("Transpose", "transpose_strided", (r(40, 5, dtype="int8"),), {"perm": (1, 0)}, ()),
    ("Transpose", "transpose_strided", (r(5, 40, dtype="int16"),), {"perm": (1, 0)}, ()),
    ("Transpose", "transpose_strided", (r(2, 50, dtype="int64"),), {"perm": (1, 0)}, ()),
    ("Transpose", "transpose_strided", (r(50, 3, dtype="int64"),), {"perm": (1, 0)}, ()),
    ("Transpose", "transpose_strided", (r(7, 31, dtype="float32"),), {"perm": (1, 0)}, ()),
    ("Transpose", "transpose_strided", (r(31, 7, dtype="uint8"),), {"perm": (1, 0)}, ()),
    ("Transpose", "transpose_strided", (r(1, 33, 5, 5, dtype="int8"),), {"perm": (0, 2, 3, 1)}, ()),
    ("Transpose", "transpose_strided", (r(13, 2, 40, dtype="float32"),), {"perm": (2, 1, 0)}, ()),
    ("Transpose", "transpose_strided", (r(4, 2, 40, dtype="int16"),), {"perm": (2, 1, 0)}, ()),
    ("Transpose", "transpose_strided", (r(17, 16, dtype="int16"),), {"perm": (1, 0)}, ()),
    ("Transpose", "transpose_strided", (r(3, 3, dtype="float32"),), {"perm": (1, 0)}, ()),
    ("Transpose", "transpose_strided", (r(2, 2, dtype="int64"),), {"perm": (1, 0)}, ()),
    ("Transpose", "transpose_strided", (r(6, 3, 20, dtype="uint8"),), {"perm": (2, 1, 0)}, ()),
    ("Slice", "slice_strided", (r(4, 9), i(1), i(8), i(1), i(2)), {}, (1, 2, 3, 4)),
    (
        "Slice",
        "slice_strided",
        (r(4, 9), i(-1, 100), i(-100, -100), i(0, 1), i(-1, -3)),
        {},
        (1, 2, 3, 4),
    ),
    ("Slice", "slice_strided", (r(2, 33, 20), i(0, 3), i(2, 30)), {}, (1, 2)),
    ("Expand", "expand_strided", (r(3, 1, 5), i(2, 3, 4, 5)), {}, (1,)),
    ("Expand", "expand_strided", (r(3, 1), i(3, 40)), {}, (1,)),
    ("Bounded", "bounded_copy", (i(*range(-2, 40)),), {"least": -2, "most": 39}, ()),
    ("Tile", "tile_strided", (r(2, 3, 17), i(2, 1, 3)), {}, (1,)),
    ("Concat", "concat_strided", (r(2, 3, 5), r(2, 1, 5), r(2, 4, 5)), {"axis": 1}, ()),
    ("Concat", "concat_strided", (r(20, 3), r(20, 18)), {"axis": -1}, ()),
    ("Split", "split_strided", (r(4, 21), i(3, 16, 2)), {"axis": 1}, (1,)),
    ("Split", "split_strided", (r(9, 4),), {"axis": 0, "num_outputs": 3}, ()),
    ("Pad", "pad_constant", (r(2, 3, 5), i(0, 1, 2, 1, 0, 3), np.float32([7.5])), {}, (1, 2)),
    ("Pad", "pad_constant", (r(4, 30), i(0, -2, 0, 3)), {}, (1,)),
    ("Gather", "gather_constant", (r(5, 7, 3), np.array([[0, -1], [4, 6]])), {"axis": 1}, (1,)),
    ("Gather", "gather_constant", (r(10, 40), np.array(3)), {"axis": 0}, (1,)),
    ("Gather", "gather_rows", (r(5, 7, 3), np.array([[0, -1], [4, 6]])), {"axis": 1}, ()),
    ("Gather", "gather_rows", (r(9, 40), np.array([8, -9, 0], np.int32)), {"axis": 0}, (0,)),
    ("DepthToSpace", "depthtospace_strided", (r(2, 12, 3, 5),), {"blocksize": 2}, ()),
    (
        "DepthToSpace",
        "depthtospace_strided",
        (r(2, 12, 3, 5),),
        {"blocksize": 2, "mode": "CRD"},
        (),
    ),
    ("DepthToSpace", "depth_to_space_blocks", (r(2, 128, 3, 5),), {"blocksize": 2}, ()),
    (
        "DepthToSpace",
        "depth_to_space_blocks",
        (r(2, 144, 2, 7).astype(np.int8),),
        {"blocksize": 3},
        (),
    ),
    ("SpaceToDepth", "spacetodepth_strided", (r(2, 3, 4, 6),), {"blocksize": 2}, ()),
    ("ChannelShuffle", "channelshuffle_strided", (r(2, 6, 3, 5),), {"groups": 3}, ()),
]


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("case", range(len(CASES)))
def test_copies_equal_the_reference(case: int, target: str) -> None:
    op, kernel, arrays, attrs, consts = CASES[case]
    check(op, arrays, attrs, kernel=kernel, target=target, consts=consts, rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
@pytest.mark.parametrize("target", LEVELS)
def test_the_code_of_a_transpose_does_not_grow_with_the_matrix(target: str, dtype: str) -> None:
    def lines(size: int) -> int:
        node = one_node("Transpose", (r(size, size, dtype=dtype),), {"perm": (1, 0)})
        site = site_of(node, level(target))
        choice = KERNELS["transpose_strided"].offer(site)[0]
        spec = spec_of(np.dtype(dtype), (size, size), choice.reads[0])
        return build_phase(site, choice, 0, [spec], [spec], []).text.count("\n")

    assert lines(99) <= 1.2 * lines(33)
