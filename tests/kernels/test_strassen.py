"""Convolutions by Strassen's method: awkward shapes, bounded errors, and no spills."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, from_layout, levels, one_node, prepare, site_of
from tests.kernels.window_cases import RELU6, conv, normal, spills
from tinsmith.codegen.jit import assembly
from tinsmith.codegen.target import level
from tinsmith.kernels._kernel import KERNELS, Skip
from tinsmith.kernels.build import build_phase
from tinsmith.kernels.layout import block_of, spec_of, to_layout

SHAPES = {
    "even": (conv(1, 64, 64, (6, 6), (1, 1)), 0),
    "odd pixels": (conv(1, 64, 64, (5, 5), (1, 1)), 0),
    "batch": (conv(3, 96, 160, (7, 9), (1, 1)), 0),
    "in a halo": (conv(2, 64, 96, (5, 5), (1, 1)), 1),
    "without bias": (conv(1, 96, 64, (5, 7), (1, 1), bias=False), 1),
    "stride": (conv(2, 64, 64, (9, 7), (1, 1), stride=(2, 2)), 0),
    "stride on one axis": (conv(1, 64, 64, (9, 9), (1, 1), stride=(3, 1)), 2),
    "1-D": (conv(2, 64, 64, (19,), (1,)), 1),
    "3-D": (conv(1, 64, 96, (3, 4, 5), (1, 1, 1)), 1),
    "3-D stride": (conv(1, 64, 64, (5, 4, 5), (1, 1, 1), stride=(2, 1, 1)), 0),
    "tail panel": (conv(1, 64, 448, (5, 5), (1, 1)), 0),
}


def pick(weights, target, wanted):
    """Which choice is of the wanted level, or skip the test where there is none."""
    lanes = block_of(level(target))
    found = [v for v in (1, 2) if all(n % (2**v * lanes) == 0 for n in weights.shape[:2])]
    if wanted not in found:
        pytest.skip(f"{weights.shape[:2]} has no level {wanted} here")
    return found.index(wanted)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name, depth, target):
    (arrays, attrs), extra = SHAPES[name]
    choice = check(
        "Conv", arrays, attrs, kernel="conv_strassen", target=target, consts=(1, 2),
        extra_halo=extra, pick=pick(arrays[1], target, depth),
    )  # fmt: skip
    assert choice.packed[0].nbytes == choice.packed[0].make().nbytes


EPILOGUES = {
    "residual": [("Add", normal(2, 96, 5, 7, seed=5)), ("Relu",)],
    "channels": [("Mul", ("const", normal(1, 96, 1, 1, seed=6))), ("Sigmoid",)],
    "scalar": [("Add", ("const", normal(1, seed=7)))],
    "pixels": [("Mul", normal(2, 1, 5, 7, seed=8)), ("HardSwish",)],
    "long": [("Gelu",), ("Add", normal(2, 96, 5, 7, seed=9))],
}


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("halo", [0, 1])
def test_epilogues(name, halo, depth, target):
    arrays, attrs = conv(2, 64, 96, (5, 7), (1, 1))
    check(
        "Conv", arrays, attrs, kernel="conv_strassen", target=target, consts=(1, 2),
        epilogue=EPILOGUES[name], extra_halo=halo, pick=pick(arrays[1], target, depth),
    )  # fmt: skip


@pytest.mark.parametrize("halo", [0, 1])
def test_outputs_may_lie_where_a_residual_lies(halo):
    """Every result is finished once, after its residual was read: halves that overlap as well."""
    arrays, attrs = conv(1, 64, 64, (7, 7), (1, 1))
    residual = normal(1, 64, 7, 7, seed=3)
    node = one_node("Conv", arrays, attrs, (1, 2), [("Add", residual), ("Relu",)])
    bench = prepare(node, {"x0": arrays[0], "e0": residual}, "conv_strassen", extra_halo=halo)
    function, pointers, tiles = bench.functions[0]
    assert len(bench.functions) == 1
    inside, poison, layout = bench.outputs[0]
    inside[...] = to_layout(residual, layout)
    pointers = [pointers[0], pointers[2], *pointers[2:]]  # the residual is read from the output
    function(*pointers, 0, tiles)
    want = node.op.evaluate((arrays[0], arrays[1], arrays[2], residual), node.attrs)[0]
    np.testing.assert_allclose(from_layout(inside, poison.shape, layout), want, atol=2e-5)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("shape", [(256, 128, 9), (512, 64, 5), (96, 512, 12)])
def test_errors_are_bounded(shape, depth, target):
    channels, outputs, size = shape
    arrays, attrs = conv(1, channels, outputs, (size, size), (1, 1))
    node = one_node("Conv", arrays, attrs, (1, 2))
    number = pick(arrays[1], target, depth)
    bench = prepare(node, {"x0": arrays[0]}, "conv_strassen", target, pick=number)
    bench.run()
    inside, poison, layout = bench.outputs[0]
    got = from_layout(inside, poison.shape, layout)[0].reshape(outputs, -1)
    x, w, b = (a.astype(np.float64) for a in arrays)
    want = w[:, :, 0, 0] @ x.reshape(channels, -1) + b[:, None]
    assert np.abs(got - want).max() <= 3e-6 * np.abs(want).max()


@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan, 1e30])
@pytest.mark.parametrize("pixel", [0, 20, 48])
def test_what_is_not_finite_stays_in_its_pixel(pixel, odd):
    arrays, attrs = conv(1, 64, 96, (7, 7), (1, 1))
    node, got = one_node("Conv", arrays, attrs, (1, 2)), []
    odder = arrays[0].copy()
    odder[0, 5].reshape(-1)[pixel] = odd
    for x in (arrays[0], odder):
        bench = prepare(node, {"x0": x}, "conv_strassen")
        bench.run()
        inside, poison, layout = bench.outputs[0]
        got.append(from_layout(inside, poison.shape, layout)[0].reshape(96, -1))
    others = np.arange(49) != pixel
    np.testing.assert_allclose(got[1][:, others], got[0][:, others], atol=1e-5)
    want = node.op.evaluate((odder, *arrays[1:]), node.attrs)[0].reshape(96, -1)
    np.testing.assert_allclose(got[1][:, pixel], want[:, pixel], rtol=1e-4)


@pytest.mark.parametrize("epilogue", [(), RELU6], ids=["bare", "clip"])
@pytest.mark.parametrize("target", ["avx512", "avx2"])
@pytest.mark.parametrize("shape", [(256, 256, 14), (128, 96, 28), (512, 64, 7), (64, 320, 9)])
def test_inner_loops_do_not_spill(shape, target, epilogue):
    channels, outputs, size = shape
    arrays, attrs = conv(1, channels, outputs, (size, size), (1, 1))
    site = site_of(one_node("Conv", arrays, attrs, (1, 2), epilogue), level(target))
    choice = KERNELS["conv_strassen"].offer(site)[0]
    layout = choice.writes[0]
    x, y = (spec_of(np.float32, v.dims, layout) for v in (site.inputs[0], site.out))
    packed = [p.make().dtype for p in choice.packed]
    phase = next(i for i, p in enumerate(choice.phases) if i == 0 or p.tiles < 64)
    reads = [x, *(None for _ in site.operands[1:])]
    text = build_phase(site, choice, phase, reads, [y], packed).text
    assert spills(assembly(text, site.target)) == []


@pytest.mark.parametrize(
    ("case", "precision", "why"),
    [
        (conv(1, 64, 64, (4, 4), (1, 1)), "strict", "strict precision"),
        (conv(1, 64, 64, (4, 4), (1, 1), group=2), "default", "group is 2"),
        (conv(1, 64, 64, (4, 4), (3, 3)), "default", "only pointwise"),
        (conv(1, 64, 64, (4, 4), (1, 1), pad=(1, 1, 1, 1)), "default", "only pointwise"),
        (conv(1, 64, 8, (5, 5), (1, 1)), "default", "cannot be halved"),
        (conv(1, 72, 64, (5, 5), (1, 1)), "default", "cannot be halved"),
        (conv(1, 64, 64, (1, 1), (1, 1)), "default", "1 rows"),
    ],
    ids=["strict", "groups", "taps", "padded", "narrow", "odd blocks", "pixel"],
)
def test_declines(case, precision, why):
    site = site_of(one_node("Conv", *case, (1, 2)), level("avx2"), precision)
    with pytest.raises(Skip, match=why):
        KERNELS["conv_strassen"].offer(site)


@pytest.mark.parametrize(
    ("shape", "wins"), [((256, 1024, 14), True), ((512, 256, 28), True), ((512, 512, 14), True),
                        ((64, 64, 56), False), ((32, 192, 28), False), ((512, 512, 1), False)]
)  # fmt: skip
def test_cost_picks_large_products_only(shape, wins):
    channels, outputs, size = shape
    arrays, attrs = conv(1, channels, outputs, (size, size), (1, 1))
    site = site_of(one_node("Conv", arrays, attrs, (1, 2)), level("avx512"))
    direct = KERNELS["conv_direct"].offer(site)[0].cost
    try:
        ours = min(choice.cost for choice in KERNELS["conv_strassen"].offer(site))
    except Skip:
        ours = float("inf")
    assert (ours < direct) == wins
