"""Transposed convolution on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, level_param, levels, one_node, site_of
from tests.kernels.window_cases import RELU6, conv_transposed, machine_code, normal, spills
from tests.kernels.window_shapes import PAD, TRANSPOSED, TRANSPOSED_FEW
from tinsmith.codegen.target import level
from tinsmith.kernels._kernel import KERNELS, Skip
from tinsmith.kernels.window import transposed_few, transposed_plan
from tinsmith.kernels.window.transposed_ways import savings


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", TRANSPOSED)
def test_shapes(name, target):
    arrays, attrs = TRANSPOSED[name]
    check(
        "ConvTranspose", arrays, attrs, kernel="conv_transposed", target=target, consts=(1, 2),
        extra_halo=len(name) % 3,
    )  # fmt: skip


@pytest.mark.parametrize("target", levels())
def test_epilogue(target):
    arrays, attrs = conv_transposed(2, 16, 19, (4, 5), (2, 2), stride=(2, 2))
    tail = [("Mul", ("const", normal(1, 19, 1, 1, seed=5))), ("Add", normal(2, 19, 8, 10, seed=6))]
    check(
        "ConvTranspose", arrays, attrs, kernel="conv_transposed", target=target, consts=(1, 2),
        epilogue=[*tail, ("Relu",)], extra_halo=1,
    )  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("kernel", [2, 3])
def test_inner_loops_do_not_spill(kernel, target):
    case = conv_transposed(1, 64, 64, (14, 14), (kernel, kernel), stride=(2, 2))
    for epilogue in ((), RELU6):
        assert (
            spills(machine_code("ConvTranspose", *case, "conv_transposed", target, epilogue)) == []
        ), epilogue


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", TRANSPOSED_FEW)
def test_few_outputs(name, threads, target):
    arrays, attrs = TRANSPOSED_FEW[name]
    for kernel in ("conv_transposed", "conv_transposed_few"):
        check(
            "ConvTranspose", arrays, attrs, kernel=kernel, target=target, consts=(1, 2),
            threads=threads,
        )  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("outputs", range(1, 9))
@pytest.mark.parametrize("stride", [1, 2, 3, 4, 5, 16, 17])
def test_few_outputs_of_any_stride(stride, outputs, target):
    arrays, attrs = conv_transposed(1, 5, outputs, (18,), (2 * stride + 1,), stride=(stride,))
    check(
        "ConvTranspose", arrays, attrs, kernel="conv_transposed_few", target=target, consts=(1, 2)
    )  # fmt: skip


@pytest.mark.parametrize("target", levels())
def test_epilogue_of_few_outputs(target):
    arrays, attrs = conv_transposed(2, 16, 3, (4, 9), (4, 4), stride=(2, 2), pad=PAD)
    tail = [("Mul", ("const", normal(1, 3, 1, 1, seed=5))), ("Add", normal(2, 3, 8, 18, seed=6))]
    check(
        "ConvTranspose", arrays, attrs, kernel="conv_transposed_few", target=target, consts=(1, 2),
        epilogue=[*tail, ("Tanh",)],
    )  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("kernel", ["conv_transposed", "conv_transposed_few"])
@pytest.mark.parametrize("name", ["9x9 stride 2", "frames, channels in parts", "4x4 stride 2"])
def test_infinity_reaches_what_its_taps_reach(name, kernel, target):
    (x, w, b), attrs = TRANSPOSED_FEW[name]
    x = x.copy()
    x[0, 0, ..., 3], x[0, -1, ..., -1], x[0, 2, ..., 0] = np.inf, np.nan, -np.inf
    with np.errstate(all="ignore"):
        check("ConvTranspose", [x, w, b], attrs, kernel=kernel, target=target, consts=(1, 2))


@pytest.mark.parametrize("target", levels())
def test_zeros_around_the_image_meet_no_infinite_weight(target):
    (x, w, b), attrs = TRANSPOSED_FEW["4x4 stride 2"]
    w = w.copy()
    w[0, 0, 0, 0], w[1, 1, 3, 3] = np.inf, np.nan
    site = site_of(one_node("ConvTranspose", [x, w, b], attrs, (1, 2)), level(target))
    with pytest.raises(Skip, match="infinite"):
        KERNELS["conv_transposed_few"].offer(site)
    with np.errstate(all="ignore"):
        check(
            "ConvTranspose", [x, w, b], attrs, kernel="conv_transposed", target=target,
            consts=(1, 2),
        )  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize(
    "case",
    [
        conv_transposed(1, 64, 3, (32, 32), (4, 4), stride=(2, 2), pad=PAD),
        conv_transposed(1, 56, 1, (16, 128), (9, 9), stride=(3, 3), pad=(3,) * 4),
        conv_transposed(1, 514, 1, (126,), (512,), stride=(128,)),
    ],
)
def test_sums_of_few_outputs_do_not_spill(case, target):
    assert spills(machine_code("ConvTranspose", *case, "conv_transposed_few", target)) == []


@pytest.mark.parametrize("channels", [5, 200])
@pytest.mark.parametrize("size", [(9, 16), (16, 33), (5, 40)])
def test_what_is_around_the_image_stays_where_channels_come_in_parts(size, channels):
    case = conv_transposed(2, channels, 3, size, (4, 6), stride=(2, 3), pad=PAD)
    check("ConvTranspose", *case, kernel="conv_transposed_few", consts=(1, 2))


FEWER = {f"F({a.m},{a.r})": a for a in savings(4, 4, "default")}
FMA = [level_param(name) for name in ("avx512", "avx2")]


def fewer(name, target):
    """The arrays of a shape of `TRANSPOSED_FEW`, and the detail of what is chosen for it."""
    arrays, attrs = TRANSPOSED_FEW[name]
    site = site_of(one_node("ConvTranspose", arrays, attrs, (1, 2)), level(target))
    return arrays, attrs, KERNELS["conv_transposed_few"].offer(site)[0].detail


@pytest.fixture
def only(monkeypatch):
    """Makes one algorithm the only one, and chosen wherever there is a plan for it."""

    def use(algorithm):
        plan = transposed_plan.plan_few.__wrapped__
        found = {"default": [algorithm]}
        monkeypatch.setattr(transposed_plan, "savings", lambda _, __, p: found.get(p, []))
        monkeypatch.setattr(transposed_plan, "seconds", lambda _, few: 1.0 if few.saves else 2.0)
        monkeypatch.setattr(transposed_few, "plan_few", plan)

    return use


@pytest.mark.parametrize("target", FMA)
@pytest.mark.parametrize("algorithm", ["F(2,2)", "F(3,3)", "F(4,2)"])
def test_sums_by_fewer_products_do_not_spill(algorithm, target, only):
    only(FEWER[algorithm])
    case = conv_transposed(1, 56, 1, (32, 128), (9, 9), stride=(4, 4), pad=(3, 3, 2, 2))
    assert spills(machine_code("ConvTranspose", *case, "conv_transposed_few", target)) == []


@pytest.mark.parametrize("target", FMA)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("algorithm", FEWER)
@pytest.mark.parametrize(
    "name",
    [
        "9x9 stride 2", "9x9 stride 3", "frames, 4 taps", "frames in parts, 2 taps", "3x3 of rows",
        "frames, taps of unequal counts", "stride 1", "3-D", "groups", "pad beyond the kernel",
    ],
)  # fmt: skip
def test_fewer_products(name, algorithm, threads, target, only):
    only(FEWER[algorithm])
    arrays, attrs, detail = fewer(name, target)
    assert algorithm in detail
    check(
        "ConvTranspose", arrays, attrs, kernel="conv_transposed_few", target=target, consts=(1, 2),
        threads=threads,
    )  # fmt: skip


@pytest.mark.parametrize("target", FMA)
@pytest.mark.parametrize("large", [np.inf, np.nan, 1e6, 1e20, 0.0])
@pytest.mark.parametrize("name", ["frames, 4 taps", "3x3 of rows"])
def test_inputs_of_unlike_sizes_are_computed_by_the_definition(name, large, target, only):
    only(FEWER["F(3,4)" if "frames" in name else "F(4,2)"])
    (x, w, b), attrs, detail = fewer(name, target)
    assert "F(" in detail
    x, small = x.copy(), x.copy()
    x[0, 3, ..., 5] = large
    small[0, :, ..., 6:] *= 0 if large else 1e-30
    with np.errstate(all="ignore"):
        for data in (x, small):
            check(
                "ConvTranspose", [data, w, b], attrs, kernel="conv_transposed_few", target=target,
                consts=(1, 2),
            )  # fmt: skip


@pytest.mark.parametrize("target", FMA)
def test_large_weights_are_multiplied_as_they_are(target, only):
    only(FEWER["F(3,4)"])
    (x, w, b), attrs, detail = fewer("frames, 4 taps", target)
    assert "F(" in detail
    w = w.copy()
    w[0, 0, 0] = 1e30
    site = site_of(one_node("ConvTranspose", [x, w, b], attrs, (1, 2)), level(target))
    assert "F(" not in KERNELS["conv_transposed_few"].offer(site)[0].detail
