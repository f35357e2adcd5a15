"""Transposed convolution on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, levels, one_node, site_of
from tests.kernels.window_cases import RELU6, conv_transposed, machine_code, normal, spills
from tests.kernels.window_shapes import PAD, TRANSPOSED, TRANSPOSED_FEW
from tinsmith.codegen.target import level
from tinsmith.kernels._kernel import KERNELS, Skip


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
