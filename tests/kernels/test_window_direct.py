"""Direct convolution: awkward shapes on every instruction set, epilogues, and no spills."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tests.kernels.harness import check, levels, one_node, site_of
from tests.kernels.window_cases import EPILOGUES, RELU6, conv, machine_code, spills
from tests.machines import machine_with
from tinsmith.codegen.target import level, runnable
from tinsmith.kernels._kernel import KERNELS, Skip
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.window import convolve, direct, order, tiles
from tinsmith.kernels.window.geometry import conv_geometry

SHAPES = {
    "one pixel": (conv(1, 16, 16, (1, 1), (1, 1)), 0),
    "one pixel, many channels": (conv(3, 64, 80, (1, 1), (1, 1)), 1),
    "3x3 without padding": (conv(1, 16, 16, (5, 5), (3, 3)), 0),
    "odd channels, batch": (conv(2, 19, 37, (7, 9), (3, 3), pad=(1, 1, 1, 1)), 2),
    "everything odd": (
        conv(1, 3, 5, (8, 8), (3, 2), stride=(2, 1), pad=(1, 0, 0, 1), dilation=(2, 1)),
        0,
    ),
    "pointwise, half vector": (conv(1, 40, 24, (6, 6), (1, 1)), 0),
    "pointwise in a halo": (conv(2, 24, 33, (5, 7), (1, 1)), 1),
    "pointwise with stride": (conv(1, 24, 130, (14, 14), (1, 1), stride=(2, 2)), 0),
    "pointwise, padded": (conv(1, 8, 16, (4, 4), (1, 1), pad=(1, 1, 1, 1)), 0),
    "1-D": (conv(1, 33, 70, (9,), (3,), pad=(1, 1)), 1),
    "3-D": (conv(1, 20, 20, (4, 5, 6), (2, 3, 3), pad=(0, 1, 1, 1, 1, 1)), 0),
    "3-D pointwise": (conv(1, 20, 20, (4, 5, 6), (1, 1, 1)), 1),
    "large dilation": (
        conv(1, 16, 16, (13, 13), (3, 3), dilation=(4, 5), pad=(4, 5, 4, 5), bias=False),
        0,
    ),
    "few outputs": (conv(1, 64, 2, (9, 9), (3, 3), pad=(1, 1, 1, 1)), 0),
    "seven channels": (conv(1, 7, 48, (9, 9), (3, 3), pad=(2, 0, 1, 3)), 0),
    "windows that miss the end": (conv(1, 16, 16, (10, 10), (2, 2), stride=(3, 4)), 0),
    "same padding": (conv(1, 17, 31, (9, 8), (4, 3), stride=(2, 2), auto_pad="SAME_UPPER"), 0),
    "many panels": (conv(1, 48, 211, (7, 7), (3, 3), pad=(1, 1, 1, 1)), 0),
}


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name, target):
    (arrays, attrs), extra = SHAPES[name]
    check(
        "Conv", arrays, attrs, kernel="conv_direct", target=target, consts=(1, 2), extra_halo=extra
    )


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("kernel", [1, 3])
def test_epilogues(name, kernel, target):
    pad = kernel // 2
    arrays, attrs = conv(2, 20, 19, (6, 7), (kernel, kernel), pad=(pad,) * 4)
    check(
        "Conv", arrays, attrs, kernel="conv_direct", target=target, consts=(1, 2),
        epilogue=EPILOGUES[name], extra_halo=kernel // 2,
    )  # fmt: skip


@pytest.mark.parametrize("target", levels())
def test_the_next_weights_are_asked_for_where_they_are_far(target):
    near = level(target)
    panel = 4 * 48 * tiles.MOST_VECTORS * block_of(near)
    far = replace(near, l2=4 * panel)
    arrays, attrs = conv(2, 40, 211, (9, 9), (1, 1))
    plain = machine_code("Conv", arrays, attrs, "conv_direct", near)
    ahead = machine_code("Conv", arrays, attrs, "conv_direct", far)
    assert "prefetcht1" not in plain
    if target != "scalar":  # plain x86-64 has no prefetch
        assert "prefetcht1" in ahead
    check("Conv", arrays, attrs, kernel="conv_direct", target=far, consts=(1, 2))


@pytest.mark.parametrize("target", levels())
def test_channels_are_asked_for_early_where_every_one_is_in_another_plane(target):
    for window in (1, 3):
        arrays, attrs = conv(1, 40, 24, (9, 9), (window, window))
        code = machine_code("Conv", arrays, attrs, "conv_direct", target)
        assert ("prefetcht0" in code) == (window == 1)


def test_more_pixels_share_a_stream_of_weights_that_crowds_the_cache():
    machine = machine_with("avx512", l2=2 << 20, wide=2.0)
    few, many = (tiles.tiling(machine, 7, 7, (16, 16), depth) for depth in (256, 4608))
    assert few.rows[0][1] * few.cols[0][1] == 7 < many.rows[0][1] * many.cols[0][1]


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize(("l2", "parts"), [(50_000, 2), (70_000, 8), (79_000, 4), (200_000, 1)])
def test_a_batch_is_cut_so_that_least_is_fetched_again(l2, parts, target):
    small = replace(level(target), l2=l2)
    arrays, attrs = conv(4, 40, 211, (9, 9), (1, 1))
    geo = conv_geometry(site_of(one_node("Conv", arrays, attrs, (1, 2)), small))
    assert order.portions(small, geo, arrays[1].nbytes, panels=3)[0] == parts
    check("Conv", arrays, attrs, kernel="conv_direct", target=small, consts=(1, 2))


@pytest.mark.parametrize("wide", [1.0, 2.0])
def test_half_a_vector_is_for_machines_that_gain_by_it(wide):
    machine = machine_with("avx512", wide=wide)
    assert machine.pipes == wide
    found = tiles.panels(machine, 24, 1, 3136, 144)
    assert (found.tail or found.main) == ((16, 8) if wide == 1 else (16, 16))
    if runnable(machine):
        arrays, attrs = conv(1, 40, 24, (6, 6), (1, 1))
        check("Conv", arrays, attrs, kernel="conv_direct", target=machine, consts=(1, 2))


@pytest.mark.parametrize(("length", "most"), [(1, 26), (7, 4), (13, 5), (56, 6)])
def test_pieces_are_numbered_in_order(length, most):
    pieces = tiles.cut(length, most)
    starts = list(_starts(pieces))
    assert [tiles.pieces_before(pieces, start, n) for start, n in starts] == [*range(len(starts))]


def _starts(pieces):
    start = 0
    for count, size in pieces:
        for _ in range(count):
            yield start, size
            start += size


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize(
    "case",
    [
        conv(1, 64, 64, (56, 56), (3, 3), pad=(1, 1, 1, 1)),
        conv(1, 64, 256, (28, 28), (1, 1)),
        conv(1, 256, 512, (7, 7), (3, 3), pad=(1, 1, 1, 1)),
        conv(1, 48, 24, (28, 28), (5, 5), stride=(2, 2), pad=(2, 2, 2, 2)),
        conv(1, 128, 80, (1, 1), (1, 1)),
    ],
    ids=lambda case: "x".join(map(str, case[0][1].shape)),
)
def test_inner_loops_do_not_spill(case, target):
    assert spills(machine_code("Conv", *case, "conv_direct", target)) == []


@pytest.mark.parametrize(
    ("attrs", "consts", "why"),
    [({"group": 2}, (1, 2), "group is 2"), ({}, (2,), "not a constant")],
)
def test_declines(attrs, consts, why):
    arrays, more = conv(1, 8, 8, (4, 4), (1, 1), group=attrs.get("group", 1))
    node = one_node("Conv", arrays, more, consts)
    with pytest.raises(Skip, match=why):
        KERNELS["conv_direct"].offer(site_of(node, level("avx2")))


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("vectors", [1, 2, 3, 4, 5, 6])
def test_no_tile_that_fits_spills(vectors, target, monkeypatch):
    """The largest tiles that `fits` admits, alone and with an epilogue that holds constants."""
    machine = level(target)
    width = block_of(machine)
    pixels = max((p for p in range(1, 27) if tiles.fits(machine, p, vectors)), default=0)
    panel = tiles.Panels(2, (width,) * vectors, (), 1.0)
    for wide in {pixels, pixels - 1} - {0, -1}:
        plan = tiles.Tiling(((3, 1),), ((3, wide),), 1.0)
        for module in (direct, convolve):
            monkeypatch.setattr(module, "tiling", lambda *_, plan=plan: plan)
        monkeypatch.setattr(direct, "panels", lambda *_: panel)
        for kernel, epilogue in itertools.product((1, 3), ((), RELU6)):
            shape = (1, 4 * width, 2 * vectors * width, (3, 3 * wide), (kernel, kernel))
            arrays, attrs = conv(*shape, stride=(1, 1), pad=(kernel // 2,) * 4)
            text = machine_code("Conv", arrays, attrs, "conv_direct", target, epilogue)
            assert spills(text) == [], (wide, kernel, epilogue)
