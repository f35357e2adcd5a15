"""Winograd convolution: exact matrices, bounded errors, awkward shapes, and nothing that leaks."""

from __future__ import annotations

import contextlib
import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.harness import (
    LEVELS,
    check,
    from_layout,
    level_param,
    levels,
    one_node,
    prepare,
    site_of,
)
from tests.kernels.window_cases import EPILOGUES, conv, spills
from tests.machines import machine_with
from tinsmith.codegen.jit import assembly
from tinsmith.codegen.target import level, runnable
from tinsmith.kernels import narrow
from tinsmith.kernels._kernel import KERNELS, Skip
from tinsmith.kernels.build import build_phase
from tinsmith.kernels.layout import spec_of
from tinsmith.kernels.winograd import tiling
from tinsmith.kernels.winograd.choose import MOST_SHARE, algorithms, best_plan, transforms
from tinsmith.kernels.winograd.kernel import plane_site
from tinsmith.kernels.winograd.matrices import bilinear, supported, with_whole_taps
from tinsmith.kernels.winograd.outliers import witnesses
from tinsmith.kernels.winograd.program import program

AXES = [
    (m, r, s)
    for s in (1, 2, 3)
    for r in range(1, 8)
    for m in range(1, 8 if s == 1 else 5)
    if supported(m, r, s) and r >= s
]


@pytest.mark.parametrize(("m", "r", "stride"), AXES)
def test_matrices_are_exact(m, r, stride):
    axis = bilinear(m, r, stride)
    for i in range(m):
        for k in range(r):
            for n in range(axis.reach):
                got = sum(
                    a * g[k] * b[n] for a, g, b in zip(axis.at[i], axis.g, axis.bt, strict=True)
                )
                assert got == (n == stride * i + k)


@pytest.mark.parametrize(("m", "r", "stride"), [(2, 2, 3), (4, 2, 4), (7, 3, 4), (6, 3, 3)])
def test_witnesses_cover_what_a_window_reads(m, r, stride):
    axis = bilinear(m, r, stride)
    for read in range(axis.reach):
        seen = any(axis.bt[p][read] for p, _ in witnesses(axis, axis))
        assert seen == (read % stride < r)


def test_unknown_sizes_are_refused():
    with pytest.raises(ValueError, match="9 results of 3 taps"):
        bilinear(9, 3)


@pytest.mark.parametrize(("m", "r", "stride"), AXES)
def test_programs_compute_their_matrix(m, r, stride):
    axis = bilinear(m, r, stride)
    for matrix in (axis.at, axis.bt, with_whole_taps(axis).g):
        code = program(matrix)
        values = list(np.eye(code.inputs))
        for step in code.steps:
            values.append(sum(c * values[k] for c, k in step))
        rows = [sum(c * values[k] for c, k in row) for row in code.rows]
        np.testing.assert_array_equal(rows, np.array(matrix, float))
        assert sorted(i for group in code.groups for i in group) == list(range(len(matrix)))


@pytest.mark.parametrize(("m", "r", "stride"), AXES)
def test_whole_taps_are_the_same_algorithm(m, r, stride):
    axis = bilinear(m, r, stride)
    whole = with_whole_taps(axis)
    assert whole.bt == axis.bt
    for i, k, j in itertools.product(range(m), range(axis.products), range(r)):
        assert whole.at[i][k] * whole.g[k][j] == axis.at[i][k] * axis.g[k][j]
    assert program(whole.g).operations <= program(axis.g).operations


def test_shared_sums_save_operations():
    assert [program(bilinear(m, 3).bt).operations for m in (2, 4, 6)] == [4, 12, 24]
    assert [program(bilinear(m, 3).g).operations for m in (2, 4, 6)] == [6, 13, 16]
    assert [program(with_whole_taps(bilinear(m, 3)).g).operations for m in (2, 4, 6)] == [3, 6, 9]


@pytest.fixture(autouse=True)
def _few_weights_may_be_narrow(monkeypatch):
    monkeypatch.setattr(narrow, "LEAST", 0)


needs_amx = pytest.mark.skipif(not runnable(level("amx")), reason="no amx here")
VECTORS = [*levels("winograd"), level_param("avx512", "winograd_narrow")]
ALL_VECTORS = [*VECTORS, *levels("winograd_taps")]
MACHINES = [*ALL_VECTORS, level_param("amx", "winograd_amx")]
TOO_LARGE = ["5x5", "few tiles, 5x5", "7x7", "1x7", "dilated 5x5"]  # tiles in split precision

PAD = {"pad": (1, 1, 1, 1)}
HALF = {"stride": (2, 2)}
SHAPES = {
    "exact tiles": (conv(1, 16, 16, (12, 12), (3, 3), **PAD), 0),
    "odd everything": (conv(2, 37, 21, (9, 11), (3, 3), pad=(1, 0, 2, 1)), 1),
    "no padding": (conv(1, 20, 33, (8, 10), (3, 3)), 0),
    "one row": (conv(3, 16, 16, (1, 23), (3, 3), **PAD), 0),
    "one column": (conv(1, 16, 16, (17, 1), (3, 3), **PAD), 2),
    "small": (conv(1, 48, 40, (7, 7), (3, 3), **PAD), 0),
    "wide padding": (conv(1, 16, 16, (5, 6), (3, 3), pad=(2, 3, 3, 2), bias=False), 0),
    "many blocks": (conv(1, 16, 80, (50, 37), (3, 3), **PAD), 0),
    "5x5": (conv(1, 20, 18, (13, 11), (5, 5), pad=(2, 2, 2, 2)), 0),
    "7x7": (conv(2, 16, 18, (9, 15), (7, 7), pad=(3, 2, 2, 3)), 1),
    "stride 2": (conv(2, 19, 37, (13, 16), (3, 3), **HALF, **PAD), 0),
    "stride 2, 5x5": (conv(1, 16, 20, (14, 15), (5, 5), pad=(2, 1, 1, 2), **HALF), 1),
    "stride beyond the taps": (conv(1, 16, 32, (23, 31), (3, 2), stride=(1, 3)), 0),
    "stride 2x1": (conv(1, 16, 16, (13, 11), (3, 3), stride=(2, 1), **PAD), 0),
    "1x7": (conv(1, 17, 16, (5, 20), (1, 7), pad=(0, 3, 0, 3)), 0),
    "5x1": (conv(1, 16, 32, (20, 3), (5, 1), pad=(2, 0, 2, 0)), 0),
    "1-D": (conv(2, 33, 30, (41,), (3,), pad=(1, 1)), 1),
    "dilated": (conv(2, 18, 33, (15, 14), (3, 3), pad=(2, 2, 2, 2), dilation=(2, 2)), 1),
    "dilated by half": (conv(1, 16, 20, (20, 11), (3, 3), pad=(12, 5, 12, 5), dilation=(12, 5)), 0),
    "dilated beyond": (conv(1, 16, 16, (5, 9), (3, 3), pad=(7, 3, 7, 3), dilation=(7, 3)), 0),
    "dilated unevenly": (conv(1, 16, 16, (23, 19), (3, 3), pad=(1, 4, 5, 0), dilation=(3, 4)), 2),
    "dilated along one axis": (
        conv(1, 16, 17, (9, 22), (3, 3), pad=(1, 2, 1, 2), dilation=(1, 2)),
        0,
    ),
    "dilated 5x5": (conv(1, 16, 16, (21, 24), (5, 5), pad=(4, 6, 4, 6), dilation=(2, 3)), 0),
    "dilated 1-D": (conv(2, 17, 16, (41,), (3,), pad=(4, 4), dilation=(4,)), 0),
    "frames": (conv(2, 18, 33, (4, 9, 8), (3, 3, 3), pad=(1,) * 6), 0),
    "frames, one tap deep": (conv(1, 16, 16, (3, 11, 8), (1, 3, 3), pad=(0, 1, 1, 0, 1, 1)), 1),
    "frames, strides": (conv(1, 17, 16, (7, 12, 9), (3, 3, 3), pad=(1,) * 6, stride=(2, 2, 2)), 0),
    "frames, dilated": (
        conv(1, 16, 18, (8, 9, 8), (2, 3, 3), pad=(3, 2, 2, 0, 2, 2), dilation=(3, 2, 2)),
        0,
    ),
    "frames, stride of depth": (
        conv(2, 16, 16, (6, 8, 8), (3, 3, 3), pad=(0, 1, 1, 2, 1, 1), stride=(3, 1, 1)),
        2,
    ),
    "same padding": (conv(1, 17, 31, (9, 8), (3, 3), auto_pad="SAME_LOWER"), 0),
    "few tiles, odd": (conv(2, 37, 21, (4, 5), (3, 3), pad=(1, 0, 2, 1)), 1),
    "few tiles, stride 2": (conv(1, 19, 37, (9, 8), (3, 3), **HALF, **PAD), 0),
    "few tiles, 5x5": (conv(1, 20, 18, (5, 4), (5, 5), pad=(2, 2, 2, 2)), 0),
    "few tiles, dilated": (
        conv(1, 18, 33, (6, 7), (3, 3), pad=(2, 1, 2, 1), dilation=(2, 1)),
        2,
    ),
    "few tiles, frames": (conv(1, 18, 33, (2, 4, 4), (3, 3, 3), pad=(1,) * 6), 0),
    "deep": (conv(1, 200, 48, (14, 14), (3, 3), **PAD), 0),
}
FEW = [
    *("exact tiles", "no padding", "one column", "small", "wide padding", "same padding"),
    *("5x1", "1-D", "dilated beyond", "dilated 1-D"),
]
"""The other shapes of few tiles."""
STEMS = {
    "resnet": conv(1, 3, 32, (30, 38), (7, 7), pad=(3, 3, 3, 3), **HALF),
    "one channel": conv(2, 1, 18, (9, 50), (5, 6), pad=(1, 2, 0, 2), **HALF),
    "four channels": conv(1, 4, 18, (3, 33), (4, 7), pad=(2, 4, 2, 4), bias=False, **HALF),
    "no padding": conv(1, 3, 16, (21, 67), (7, 7), **HALF),
    "narrow": conv(1, 2, 16, (40, 5), (3, 3), pad=(1, 1, 1, 1), **HALF),
}


def offers(case, kernel, target, precision="default"):
    arrays, attrs = case
    machine = level(target) if isinstance(target, str) else target
    node = one_node("Conv", arrays, attrs, (1, 2))
    return KERNELS[kernel].offer(site_of(node, machine, precision))


def pairs(names, machines):
    """Parameters (name, target, kernel); the cases for taps are those of few tiles."""
    return [
        pytest.param(name, *machine.values, marks=machine.marks)
        for name in names
        for machine in machines
        if "winograd_taps" not in machine.values or name.startswith("few tiles") or name in FEW
    ]


@pytest.mark.parametrize("name", TOO_LARGE)
def test_split_precision_declines_large_growth(name):
    with pytest.raises(Skip, match="no algorithm in split precision"):
        offers(SHAPES[name][0], "winograd_amx", "amx")


@needs_amx
@pytest.mark.parametrize("name", [name for name in SHAPES if name not in TOO_LARGE])
def test_shapes_of_split_precision(name):
    (arrays, attrs), extra = SHAPES[name]
    for pick in range(len(offers((arrays, attrs), "winograd_amx", "amx"))):
        check(
            "Conv", arrays, attrs, kernel="winograd_amx", target="amx", consts=(1, 2), pick=pick,
            extra_halo=extra, rtol=4e-5,
        )  # fmt: skip


@pytest.mark.parametrize(("name", "target", "kernel"), pairs(SHAPES, ALL_VECTORS))
def test_shapes(name, target, kernel):
    (arrays, attrs), extra = SHAPES[name]
    count = len(offers((arrays, attrs), kernel, target))
    at = list(SHAPES).index(name) + LEVELS.index(target)  # every algorithm on every machine
    for pick in {at % count, (at + 2) % count} if target == "avx512" else {at % count}:
        check(
            "Conv", arrays, attrs, kernel=kernel, target=target, consts=(1, 2), pick=pick,
            extra_halo=extra, rtol=2e-5,
        )  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", STEMS)
def test_stems(name, target):
    arrays, attrs = STEMS[name]
    count = len(offers((arrays, attrs), "winograd_stem", target))
    at = list(STEMS).index(name) + LEVELS.index(target)
    check(
        "Conv", arrays, attrs, kernel="winograd_stem", target=target, consts=(1, 2),
        pick=at % count, rtol=2e-5,
    )  # fmt: skip


@pytest.mark.parametrize(("target", "kernel"), MACHINES)
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues(name, target, kernel):
    arrays, attrs = conv(2, 20, 19, (6, 7), (3, 3), **PAD)
    pick = min(2, len(offers((arrays, attrs), kernel, target)) - 1)
    check(
        "Conv", arrays, attrs, kernel=kernel, target=target, consts=(1, 2), pick=pick,
        epilogue=EPILOGUES[name], extra_halo=1, rtol=2e-5,
    )  # fmt: skip


def result(case, pick, *, kernel="winograd", target="host", x=None):
    arrays, attrs = case
    arrays = [arrays[0] if x is None else x, *arrays[1:]]
    node = one_node("Conv", arrays, attrs, (1, 2))
    bench = prepare(node, {"x0": arrays[0]}, kernel, target, pick=pick)
    bench.run()
    inside, poison, layout = bench.outputs[0]
    return from_layout(inside, poison.shape, layout)


ERRORS = {  # of the largest result, twice what is measured at 256 channels
    "3x3": (conv(1, 256, 16, (13, 13), (3, 3), **PAD), [2e-6, 4e-6, 5e-6, 1.5e-5, 3e-5, 2e-5]),
    "3x3, stride 2": (conv(1, 256, 16, (25, 25), (3, 3), **HALF, **PAD), [1.5e-6, 2e-6, 3e-6]),
    "5x5": (conv(1, 128, 16, (13, 13), (5, 5), pad=(2, 2, 2, 2)), [5e-6, 1e-5, 2e-5, 3e-5]),
}
ERRORS_OF_SPLIT = {
    "3x3": (ERRORS["3x3"][0], [1.2e-5, 2.2e-5, 2.8e-5]),
    "3x3, stride 2": (ERRORS["3x3, stride 2"][0], [1.2e-5, 2.2e-5]),
    "5x1": (conv(1, 128, 16, (26, 6), (5, 1), pad=(2, 0, 2, 0)), [2.5e-5]),
    "1x3": (conv(1, 128, 16, (6, 26), (1, 3), pad=(0, 1, 0, 1)), [1e-5, 2e-5, 2.5e-5]),
    "frames": (conv(1, 32, 16, (4, 12, 12), (3, 3, 3), pad=(1,) * 6), [1.5e-5, 2.5e-5, 3e-5]),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_bounded(name):
    bounded(*ERRORS[name], "winograd")


@pytest.mark.skipif(level("host").registers < 32, reason="no machine for it")
@pytest.mark.parametrize("name", ERRORS)
def test_errors_of_24_bits_are_bounded(name):
    """Weights of 24 bits leave no more than the transforms do anyway."""
    bounded(*ERRORS[name], "winograd_narrow")


ERRORS_OF_TAPS = {
    "3x3": (
        conv(1, 256, 16, (7, 7), (3, 3), **PAD),
        [2e-6, 4e-6, 5e-6, 1.5e-5, 3.5e-5, 2e-5, 2e-5],
    ),
    "3x3, stride 2": (conv(1, 256, 16, (7, 7), (3, 3), **HALF, **PAD), [1.5e-6, 2e-6, 3e-6]),
    "5x5": (conv(1, 128, 16, (4, 4), (5, 5), pad=(2, 2, 2, 2)), [5e-6, 1e-5, 2e-5]),
}


@pytest.mark.parametrize("name", ERRORS_OF_TAPS)
def test_errors_of_weights_from_taps_are_bounded(name):
    """Transforms in single precision leave no more than those of data and results do."""
    bounded(*ERRORS_OF_TAPS[name], "winograd_taps")


@needs_amx
@pytest.mark.parametrize("name", ERRORS_OF_SPLIT)
def test_errors_of_split_precision_are_bounded(name):
    bounded(*ERRORS_OF_SPLIT[name], "winograd_amx")


def bounded(case, bounds, kernel):
    arrays, attrs = case
    node = one_node("Conv", [a.astype(np.float64) for a in arrays], attrs, (1, 2))
    want = node.op.evaluate([a.astype(np.float64) for a in arrays], node.attrs)[0]
    got = [result(case, i, kernel=kernel) for i in range(len(bounds))]
    errors = [np.abs(one - want).max() / np.abs(want).max() for one in got]
    assert len(offers(case, kernel, "host")) == len(bounds)
    assert all(e <= b for e, b in zip(errors, bounds, strict=True)), errors


def test_strict_precision_allows_small_tiles_only():
    case = conv(1, 64, 64, (28, 28), (3, 3), **PAD)
    assert [c.detail.split()[0] for c in offers(case, "winograd", "avx2", "strict")] == [
        "F(2x2,3x3)"
    ]
    with pytest.raises(Skip, match="precision is strict"):
        offers(case, "winograd_amx", "amx", "strict")
    with pytest.raises(Skip, match="no algorithm of strict precision"):
        offers(conv(1, 32, 32, (28, 28), (5, 5), pad=(2, 2, 2, 2)), "winograd", "avx2", "strict")


def test_tiles_of_unequal_sides_are_offered_where_they_need_fewer_products():
    def tiles(size):
        case = conv(1, 16, 16, (size, size), (3, 3), **PAD)
        return {c.detail.split()[0] for c in offers(case, "winograd", "avx2")}

    squares = {f"F({m}x{m},3x3)" for m in range(2, 7)}
    assert tiles(28) == squares | {"F(4x7,3x3)"}
    assert tiles(24) == squares


SPREAD = {
    "few tiles": conv(2, 19, 37, (4, 5), (3, 3), **PAD),
    "few tiles, five taps": conv(2, 20, 18, (3, 4), (5, 5), pad=(2, 2, 2, 2)),
    "few tiles, dilated": conv(1, 18, 33, (6, 7), (3, 3), dilation=(2, 1), pad=(2, 1, 2, 1)),
    "few tiles, stride": conv(2, 19, 37, (7, 6), (3, 3), **PAD, **HALF),
    "few tiles, frames": conv(2, 18, 33, (2, 4, 4), (1, 3, 3), pad=(0, 1, 1, 0, 1, 1)),
    "frames": conv(1, 16, 16, (4, 9, 8), (3, 3, 3), pad=(1,) * 6),
    "odd": conv(2, 19, 21, (13, 14), (3, 3), **PAD),
    "five taps": conv(1, 16, 16, (15, 12), (5, 5), pad=(2, 2, 2, 2)),
    "stride": conv(1, 16, 32, (21, 22), (3, 3), **PAD, **HALF),
    "dilated": conv(1, 16, 16, (15, 16), (3, 3), dilation=(2, 2), pad=(2, 2, 2, 2)),
    "1-D": conv(2, 16, 16, (30,), (3,), pad=(1, 1)),
    "whole and in blocks": conv(1, 32, 16, (60, 61), (3, 3), **PAD),
}


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize(("name", "target", "kernel"), pairs(SPREAD, MACHINES))
def test_what_is_not_finite_stays_in_the_windows_that_hold_it(name, bad, target, kernel):
    (x, *rest), attrs = SPREAD[name]
    rng = np.random.default_rng(1)
    x = x.copy()
    extents = x.shape[2:]
    for at in (
        *([0] * len(extents), [n - 1 for n in extents]),
        *rng.integers(0, extents, (4, len(extents))),
    ):
        x[(0, int(rng.integers(x.shape[1])), *at)] = bad
    if kernel == "winograd_amx" and "five taps" in name:
        with pytest.raises(Skip, match="no algorithm in split precision"):
            offers(([x, *rest], attrs), kernel, target)
        return
    check_all(("Conv", ([x, *rest], attrs)), target, kernel)


SPIKES = {
    "conv": conv(1, 32, 32, (56, 56), (3, 3), **PAD),
    "frames": conv(1, 16, 16, (4, 24, 24), (3, 3, 3), pad=(1,) * 6),
    "whole": conv(1, 64, 64, (28, 28), (3, 3), **PAD),
    "narrow": conv(1, 32, 32, (40, 10), (3, 3), **PAD),
    "few columns": conv(1, 48, 48, (28, 12), (3, 3), **PAD),
    "five taps": conv(1, 32, 32, (28, 28), (5, 5), pad=(2, 2, 2, 2)),
    "1-D": conv(1, 48, 48, (90,), (3,), pad=(1, 1)),
    "stem": conv(1, 3, 32, (96, 96), (7, 7), pad=(3, 3, 3, 3), **HALF),
}


def most_seen(plan, first, stop):
    """The most of these tiles that read one place of the data."""
    steps = [axis.m * axis.stride for axis in (plan.rows, plan.cols)]
    reach = plan.rows.reach, plan.cols.reach
    counts = np.zeros((plan.geo.batch, *np.multiply((plan.down, plan.across), steps) + reach), int)
    for tile in range(first, stop):
        image, *at = plan.coordinates(tile)
        place = [slice(i * n, i * n + r) for i, n, r in zip(at, steps, reach, strict=True)]
        counts[(image, *place)] += 1
    return counts.max()


@pytest.mark.parametrize("l2", [1 << 17, 1 << 20, 1 << 22])
@pytest.mark.parametrize("taps", [(3, 3), (5, 5), (7, 7), (1, 7), (5, 1)])
@pytest.mark.parametrize("size", [(56, 56), (40, 10), (12, 28), (15, 15), (3, 90), (224, 7)])
def test_a_number_is_part_of_few_tiles_of_a_block(size, taps, l2):
    """Counted in the blocks as they are cut, of which the smaller have a tile less."""
    target = machine_with("avx512", l2=l2, l3=16 * l2)
    pad = tuple(t // 2 for t in taps) * 2
    for channels in (16, 64, 256):
        geo = plane_site(
            site_of(one_node("Conv", *conv(2, channels, 32, size, taps, pad=pad), (1, 2)), target)
        ).geo
        for rows, cols in algorithms(geo, "default"):
            plan, _ = best_plan(target, geo, rows, cols)
            ends = [n * plan.total // plan.blocks for n in range(plan.blocks + 1)]
            most = max(most_seen(plan, *block) for block in itertools.pairwise(ends))
            assert plan.whole or most <= MOST_SHARE * plan.tiles, (channels, str(plan))


def test_the_share_of_a_blocks_tiles_that_a_number_is_part_of():
    """Against the tiles that each place of the data is read by, in blocks at any place."""
    target = level("avx512")
    node = one_node("Conv", *conv(1, 16, 16, (31, 27), (5, 3), pad=(2, 1, 2, 1)), (1, 2))
    geo = plane_site(site_of(node, target)).geo
    plan, _ = best_plan(target, geo, bilinear(3, 5), bilinear(4, 3))
    for tiles in range(1, plan.total + 1):
        firsts = range(plan.total - tiles + 1)
        most = max(most_seen(plan, first, first + tiles) for first in firsts)
        assert most <= replace(plan, tiles=tiles).seen_share * tiles + 1e-9, tiles


@pytest.mark.parametrize("target", ["avx512", "avx2"])
@pytest.mark.parametrize("held", [0.03, 0.2, 2.0])
@pytest.mark.parametrize(
    "name", ["odd everything", "7x7", "stride 2, 5x5", "dilated unevenly", "frames", "many blocks"]
)
def test_strips_of_any_length(name, held, target, monkeypatch):
    if not runnable(level(target)):
        pytest.skip(f"no {target} here")
    monkeypatch.setattr(tiling, "HELD", held)
    (arrays, attrs), extra = SHAPES[name]
    for pick in range(len(offers((arrays, attrs), "winograd", target))):
        check(
            "Conv", arrays, attrs, kernel="winograd", target=target, consts=(1, 2), pick=pick,
            extra_halo=extra, rtol=2e-5,
        )  # fmt: skip


def test_longer_strips_cost_less():
    target = level("avx512")
    node = one_node("Conv", *conv(1, 32, 32, (56, 56), (3, 3), **PAD), (1, 2))
    geo = plane_site(site_of(node, target)).geo
    plan, _ = best_plan(target, geo, bilinear(6, 3), bilinear(6, 3))
    assert plan.column_overlap == 2 and 1 < plan.strip(target.l1) <= plan.across
    short, long = (transforms(replace(target, l1=size), plan) for size in (1 << 10, 32 << 10))
    assert long < short


@pytest.mark.parametrize(("name", "target", "kernel"), pairs(SPIKES, MACHINES))
@pytest.mark.parametrize(("spike", "leak"), [(3e4, 5e-3), (-1e10, 1e-4), (1e30, 1e-4)])
def test_a_large_number_does_not_spoil_windows_that_do_not_hold_it(
    name, spike, leak, target, kernel
):
    arrays, attrs = SPIKES[name]
    if name == "stem" and kernel == "winograd_amx":
        with pytest.raises(Skip, match="3 to 32 channels"):
            offers((arrays, attrs), kernel, target)
        return
    kernel = "winograd_stem" if name == "stem" else kernel
    place = (0, 1, *[n // 2 for n in arrays[0].shape[2:]])
    x, held = arrays[0].copy(), np.zeros_like(arrays[0])
    x[place], held[place] = spike, 1
    node = one_node("Conv", [x, *arrays[1:]], attrs, (1, 2))
    (want,) = node.op.evaluate((x, *arrays[1:]), node.attrs)
    (sees,) = node.op.evaluate((held, np.ones_like(arrays[1])), node.attrs)
    blind = sees == 0
    count = len(KERNELS[kernel].offer(site_of(node, level(target))))
    assert count and blind.any()
    for pick in range(count):
        bench = prepare(node, {"x0": x}, kernel, target, pick=pick)
        bench.run()
        inside, poison, layout = bench.outputs[0]
        got = from_layout(inside, poison.shape, layout)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
        scale = np.abs(want[blind]).max()
        np.testing.assert_allclose(got[blind], want[blind], rtol=0, atol=leak * scale)


def check_all(case, target, kernel):
    """Every choice of Winograd gives what the definition gives, infinities and NaN included."""
    op, (arrays, attrs) = case
    node = one_node(op, arrays, attrs, (1, 2))
    (want,) = node.op.evaluate(tuple(arrays), node.attrs)
    scale = np.max(np.abs(want[np.isfinite(want)]))
    count = len(KERNELS[kernel].offer(site_of(node, level(target))))
    assert count and not np.isfinite(want).all() and np.isfinite(want).any()
    for pick in range(count):
        bench = prepare(node, {"x0": arrays[0]}, kernel, target, pick=pick)
        bench.run()
        inside, poison, layout = bench.outputs[0]
        got = from_layout(inside, poison.shape, layout)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * scale)


def test_the_best_choice_changes_with_the_shape():
    target = machine_with("avx512", l2=1 << 20, l3=32 << 20, peak=115e9, l2_bandwidth=100e9,
        l3_bandwidth=60e9, dram_bandwidth=28e9,
    )  # fmt: skip

    def best(*case, **attrs):
        found = [
            c
            for kernel in ("winograd", "conv_direct")
            for c in offers(conv(1, *case, **attrs), kernel, target)
        ]
        return min(found, key=lambda c: c.cost).detail.split()[0]

    assert best(64, 64, (112, 112), (3, 3), **PAD) == "F(6x6,3x3)"
    assert best(256, 256, (14, 14), (3, 3), **PAD) == "F(5x5,3x3)"
    assert best(512, 512, (7, 7), (3, 3), **PAD) == "F(3x3,3x3)"
    assert best(512, 512, (14, 14), (3, 3), **HALF, **PAD) == "tile"


def test_weights_are_made_from_taps_where_few_tiles_share_them():
    target = machine_with(
        "avx512", l1=32 << 10, l2=1 << 20, l3=32 << 20, peak=115e9, l2_bandwidth=100e9,
        l3_bandwidth=60e9, dram_bandwidth=32e9, dram_together=35e9,
    )  # fmt: skip

    def best(case):
        kernels = ("winograd", "winograd_narrow", "winograd_taps", "conv_direct")
        found = {}
        for kernel in kernels:
            with contextlib.suppress(Skip):
                found[kernel] = min(c.cost for c in offers(case, kernel, target))
        return min(found, key=found.__getitem__), found

    kernel, costs = best(conv(1, 512, 512, (7, 7), (3, 3), **PAD))
    assert kernel == "winograd_taps" and costs[kernel] < 0.95 * costs["winograd_narrow"]
    kernel, costs = best(conv(1, 256, 256, (14, 14), (3, 3), **PAD))
    assert kernel != "winograd_taps"


def test_blocks_may_be_whole_images_of_a_batch():
    target = machine_with("avx512", l2=2 << 20, l3=64 << 20, peak=170e9, l2_bandwidth=60e9,
        l3_bandwidth=25e9, dram_bandwidth=14e9,
    )  # fmt: skip
    found = offers(conv(8, 256, 256, (56, 56), (3, 3), **PAD), "winograd", target)
    assert min(found, key=lambda c: c.cost).detail.split()[:2] == ["F(4x7,3x3)", "T=112"]


def products(case, target, kernel):
    """The assembly of the products of every choice."""
    arrays, attrs = case
    site = site_of(one_node("Conv", arrays, attrs, (1, 2)), level(target))
    for choice in KERNELS[kernel].offer(site):
        reads = [
            None if v is None or layout is None else spec_of(v.dtype, v.dims, layout)
            for v, layout in zip(site.operands, choice.reads, strict=True)
        ]
        writes = [spec_of(site.out.dtype, site.out.dims, choice.writes[0])]
        whole = len(choice.phases) > 1
        code = build_phase(
            site, choice, int(whole), reads, writes, [np.dtype("f4")] * len(choice.packed)
        )
        text = assembly(code.text, site.target)
        if not whole:
            text = next(f for f in re.split(r"(?m)^(?=\w+:)", text) if f.startswith("products:"))
        yield choice.detail, text


@pytest.mark.parametrize(("target", "kernel"), VECTORS)
@pytest.mark.parametrize(
    "case",
    [
        conv(1, 64, 64, (56, 56), (3, 3), **PAD),
        conv(1, 96, 80, (7, 7), (3, 3), **PAD),
        conv(1, 192, 384, (7, 7), (3, 3), **PAD),
    ],
    ids=["blocks", "whole", "few tiles"],
)
def test_products_do_not_spill(case, target, kernel):
    assert [
        (detail, found)
        for detail, text in products(case, target, kernel)
        if (found := spills(text))
    ] == []


@pytest.mark.parametrize(
    ("kernel", "case", "consts", "why"),
    [
        ("winograd", conv(1, 32, 32, (8, 8), (3, 3), group=2), (1, 2), "group is 2"),
        ("winograd", conv(1, 32, 32, (9, 9), (3, 3), dilation=(2, 2), **HALF), (1, 2), "with dil"),
        ("winograd", conv(1, 32, 32, (9, 9), (1, 1)), (1, 2), "no algorithm"),
        ("winograd", conv(1, 3, 32, (9, 9), (3, 3)), (1, 2), "do not fill"),
        ("winograd", conv(1, 32, 32, (9, 9), (3, 3)), (2,), "not a constant"),
        ("winograd", conv(1, 32, 32, (5, 5, 5), (3, 1, 1)), (1, 2), "no algorithm"),
        ("winograd_stem", conv(1, 3, 32, (9, 9), (7, 7)), (1, 2), "stride is 1x1"),
        ("winograd_stem", conv(1, 5, 32, (9, 9), (7, 7), **HALF), (1, 2), "5 input channels"),
        ("winograd_amx", conv(1, 32, 32, (9, 9), (3, 3)), (1, 2), "needs amx"),
        ("winograd_narrow", conv(1, 32, 32, (9, 9), (3, 3), group=2), (1, 2), "group is 2"),
        ("winograd_narrow", conv(1, 32, 32, (9, 9), (3, 3)), (1, 2), "in 16 registers"),
        ("winograd_taps", conv(1, 32, 32, (99, 99), (3, 3)), (1, 2), "sums of so many tiles"),
    ],
)
def test_declines(kernel, case, consts, why):
    arrays, attrs = case
    with pytest.raises(Skip, match=why):
        KERNELS[kernel].offer(site_of(one_node("Conv", arrays, attrs, consts), level("avx2")))


@pytest.mark.parametrize("value", [np.inf, np.nan, -2e38, 1e16])
def test_taps_whose_sums_may_overflow_are_transformed_ahead(value):
    arrays, attrs = conv(1, 32, 32, (5, 5), (3, 3), **PAD)
    arrays[1][3, 2, 1, 0] = value
    with pytest.raises(Skip, match="might not be finite"):
        offers((arrays, attrs), "winograd_taps", "avx2")


@pytest.mark.parametrize("kernel", ["winograd", "winograd_taps"])
def test_weights_that_would_be_denormal_are_not_transformed(kernel):
    arrays, attrs = conv(1, 32, 32, (5, 5), (3, 3), **PAD)
    arrays[1] *= np.float32(1e-38)
    with pytest.raises(Skip, match="less exact"):
        offers((arrays, attrs), kernel, "avx2")
    arrays[1][31, 31, 2, 2] = 1.0
    if kernel == "winograd":
        assert offers((arrays, attrs), kernel, "avx2")


def test_few_taps_stay_in_cache_as_weights(monkeypatch):
    monkeypatch.setattr(narrow, "LEAST", 10**5)
    with pytest.raises(Skip, match="seldom come from memory"):
        offers(conv(1, 32, 32, (5, 5), (3, 3), **PAD), "winograd_taps", "avx2")
