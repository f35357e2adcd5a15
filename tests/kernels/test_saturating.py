"""Convolutions and products of bytes by sums of two products in 16 bits, which saturate: exact."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tinsmith as ts
from tests.kernels.byte_cases import ends
from tests.kernels.harness import check, level_param, one_node, site_of
from tinsmith import ops
from tinsmith.codegen.target import level
from tinsmith.graph import Graph, Type
from tinsmith.kernels._kernel import KERNELS, Skip
from tinsmith.kernels.dot import saturating
from tinsmith.ops.interpret import run_graph

KERNEL, PRODUCT = "conv_integer_saturating", "matmul_integer_saturating"
RNG = np.random.default_rng(5)
MACHINES = [level_param(n) for n in ("avx2", "avx512")]
CONVS = [
    ((1, 16, 4, 4), (20, 16, 1, 1), {}),
    ((2, 32, 9, 7), (24, 32, 1, 1), {}),
    ((1, 48, 14, 14), (70, 48, 1, 1), {}),
    ((1, 32, 9, 9), (33, 32, 1, 1), {"stride": (2, 2)}),
    ((1, 16, 9, 8), (20, 16, 3, 3), {"pad": (1, 2, 1, 0)}),
    ((2, 16, 15, 15), (16, 16, 3, 3), {"pad": (1, 1, 1, 1), "stride": (2, 2)}),
    ((1, 32, 9, 9), (16, 32, 3, 3), {"pad": (2, 2, 2, 2), "dilation": (2, 2)}),
    ((1, 16, 40), (9, 16, 5), {"stride": (3,), "pad": (2, 1)}),
    ((2, 16, 17, 12), (24, 16, 1, 1), {"stride": (1, 3)}),
    ((1, 16, 7, 8, 5), (24, 16, 1, 1, 1), {"stride": (2, 3, 1)}),
    ((1, 16, 3, 131), (24, 16, 2, 3), {"pad": (0, 1, 0, 1)}),
    ((1, 16, 21, 13), (40, 16, 3, 3), {"pad": (1, 1, 1, 1)}),
    ((1, 16, 4, 5, 6), (9, 16, 2, 3, 2), {"pad": (0, 1, 1, 1, 1, 0), "stride": (1, 2, 1)}),
]


def weights(*shape):
    """Small numbers, and pairs of the ends of the range in as many places as are allowed."""
    w = RNG.integers(-64, 65, shape).astype(np.int8)
    pairs = w.reshape(shape[0], shape[1] // 2, 2, -1)
    for _ in range(int(saturating.DENSE * w.size)):
        n, j, t = (RNG.integers(pairs.shape[i]) for i in (0, 1, 3))
        pairs[n, j, :, t] = RNG.choice(np.array([[127, 127], [-128, -128], [90, 39]]))
    return w


def matrix(k, n):
    """`weights` of n columns, as (k, n)."""
    return np.ascontiguousarray(weights(n, k).T)


ALL_PAIRS = np.array(list(itertools.product(range(-128, 128), repeat=2)), np.int8)


@pytest.mark.parametrize("w", [
    ALL_PAIRS.reshape(256, -1, 1), ALL_PAIRS.reshape(128, 256, 2, 2, order="F"),
    np.ascontiguousarray(ALL_PAIRS.reshape(64, -1).T).T,
])  # fmt: skip
def test_every_pair_is_split_into_what_fits_and_a_rest(w):
    (output, channel, tap), rest = saturating.split_weights(w)
    fitting = saturating.fitting(w)
    whole, fitting = (v.reshape(*w.shape[:2], -1).astype(int) for v in (w, fitting))
    back = fitting.copy()
    np.add.at(back, (output, channel, tap), rest)
    assert (back == whole).all() and (np.abs(fitting) <= np.abs(whole)).all()
    pairs = np.stack([fitting[:, 0::2], fitting[:, 1::2]])
    assert (255 * np.maximum(pairs, 0).sum(axis=0)).max() <= 32767
    assert (255 * np.minimum(pairs, 0).sum(axis=0)).min() >= -32768
    over = np.abs(whole[:, 0::2] + whole[:, 1::2]) > 128
    places = np.zeros(over.shape, int)
    np.add.at(places, (output, channel // 2, tap), 1)
    assert (places == over).all()
    packed = saturating.pack_rest(w, len(w) + 8)
    starts, entries = packed[: len(w) + 9], packed[len(w) + 9 :].reshape(-1, 2)
    assert starts[0] == 0 and (starts[len(w) :] == len(entries)).all()
    by_k = np.zeros((len(w), w[0].size), int)
    for i, (lo, hi) in enumerate(itertools.pairwise(starts[: len(w) + 1])):
        by_k[i, entries[lo:hi, 0]] = entries[lo:hi, 1]
    assert (by_k.reshape(len(w), -1, w.shape[1]).swapaxes(1, 2) == whole - fitting).all()


@pytest.mark.parametrize("target", MACHINES)
@pytest.mark.parametrize("x, w, attrs", CONVS)
@pytest.mark.parametrize("left, zero", [("uint8", None), ("uint8", 255), ("int8", -7)])
def test_convolutions(x, w, attrs, left, zero, target):
    arrays = [ends(left, *x), weights(*w), None if zero is None else np.array(zero, left)]
    consts = [1] if zero is None else [1, 2]
    choice = check("ConvInteger", arrays, attrs, kernel=KERNEL, target=target, consts=consts,
                   extra_halo=len(w) % 2, threads=1 + x[-1] % 5)  # fmt: skip
    assert choice.detail.startswith("pmaddubsw")


@pytest.mark.parametrize("target", MACHINES)
@pytest.mark.parametrize("rows, columns", [
    ((16,), 16), ((17,), 48), ((63,), 80), ((2, 65), 32), ((3, 1, 21), 64),
])  # fmt: skip
@pytest.mark.parametrize("depth", [16, 96])
@pytest.mark.parametrize("left, zero", [
    ("uint8", None), ("uint8", 255), ("int8", None), ("int8", -7), ("uint8", "each"),
])  # fmt: skip
def test_products(rows, columns, depth, left, zero, target):
    a, w = ends(left, *rows, depth), matrix(depth, columns)
    if zero == "each":
        zero = ends(left, rows[-1])
    arrays = [a, w, None if zero is None else np.array(zero, left)]
    choice = check("MatMulInteger", arrays, kernel=PRODUCT, target=target, consts=[1],
                   threads=1 + depth % 5)  # fmt: skip
    assert choice.detail.startswith("pmaddubsw")


@pytest.mark.parametrize("target", MACHINES)
@pytest.mark.parametrize("end", [0, 255])
def test_inputs_that_are_all_at_one_end(end, target):
    arrays = [np.full((1, 64, 8, 8), end, np.uint8), weights(32, 64, 1, 1), np.array(3, np.uint8)]
    check("ConvInteger", arrays, kernel=KERNEL, target=target, consts=[1, 2])
    arrays = [np.full((40, 64), end, np.uint8), matrix(64, 32), np.array(3, np.uint8)]
    check("MatMulInteger", arrays, kernel=PRODUCT, target=target, consts=[1])


@pytest.mark.parametrize("arrays, attrs, consts, why", [
    ([ends("uint8", 1, 16, 9, 9), np.full((8, 16, 1, 1), 127, np.int8)], {}, [1], "too many"),
    ([ends("uint8", 1, 16, 9, 9), weights(8, 16, 1, 1)], {}, [], "weights"),
    ([ends("uint8", 1, 32, 9, 9), weights(8, 16, 1, 1)], {"group": 2}, [1], "groups"),
    ([ends("uint8", 1, 20, 9, 9), weights(8, 20, 1, 1)], {}, [1], "whole blocks"),
    ([ends("uint8", 1, 16, 2, 2), weights(8, 16, 1, 1)], {}, [1], "pixels"),
    ([ends("uint8", 1, 16, 9, 9), weights(8, 16, 1, 1).astype(np.uint8)], {}, [1], "zero points"),
    ([ends("uint8", 1, 16, 9, 9), weights(8, 16, 1, 1), np.uint8(3)], {}, [1], "zero points"),
    ([ends("uint8", 1, 16, 9, 9), weights(8, 16, 1, 1), None, np.full(8, 2, np.int8)], {}, [1, 3],
     "zero points"),
])  # fmt: skip
def test_what_it_declines(arrays, attrs, consts, why):
    site = site_of(one_node("ConvInteger", arrays, attrs, consts), level("avx2"))
    with pytest.raises(Skip, match=why):
        KERNELS[KERNEL].offer(site)


@pytest.mark.parametrize("arrays, consts, why", [
    ([ends("uint8", 9, 16), np.full((16, 8), 127, np.int8)], [1], "too many"),
    ([ends("uint8", 9, 16), matrix(16, 8)], [], "constant"),
    ([ends("uint8", 9, 20), matrix(20, 8)], [1], "whole blocks"),
    ([ends("uint8", 9, 16), matrix(16, 12)], [1], "whole blocks"),
    ([ends("uint8", 7, 16), matrix(16, 8)], [1], "fewer rows"),
    ([ends("uint8", 9, 16), matrix(16, 8).astype(np.uint8)], [1], "int8"),
    ([ends("uint8", 9, 16), matrix(16, 8).view(np.uint8) & 63, None, np.full(8, 128, np.uint8)],
     [1, 3], "int8"),
    ([ends("uint8", 9, 16), matrix(16, 8), None, np.full(8, 2, np.int8)], [1, 3], "zero points"),
])  # fmt: skip
def test_what_products_decline(arrays, consts, why):
    site = site_of(one_node("MatMulInteger", arrays, {}, consts), level("avx2"))
    with pytest.raises(Skip, match=why):
        KERNELS[PRODUCT].offer(site)


@pytest.mark.parametrize("isa", ["avx512vnni", "avxvnni", "sse2", "neondot"])
def test_machines_with_better_products_or_without_these_do_not_have_it(isa):
    arrays = [ends("uint8", 1, 32, 9, 9), weights(32, 32, 1, 1)]
    site = site_of(one_node("ConvInteger", arrays, {}, [1]), level(isa))
    with pytest.raises(Skip, match="products"):
        KERNELS[KERNEL].offer(site)
    site = site_of(one_node("MatMulInteger", [ends("uint8", 32, 32), matrix(32, 32)], {}, [1]),
                   level(isa))  # fmt: skip
    with pytest.raises(Skip, match="products"):
        KERNELS[PRODUCT].offer(site)


@pytest.mark.parametrize("target", MACHINES)
def test_a_layer_whose_weights_do_not_fit_does_not_follow_one_that_is_alike(target):
    graph, shape = Graph("g"), (64, 512, 1, 1)
    x = graph.input("x", Type("uint8", (1, 512, 14, 14)))
    graph.outputs = [
        ops.ConvInteger(x, graph.const(w, "w"))
        for w in (weights(*shape), np.full(shape, 127, np.int8))
    ]
    net = ts.compile(graph.clone(), target=target, cache=False)
    assert [s.kernel for s in net.program().plan.steps if s.kernel.startswith("conv")] == [
        KERNEL, "conv_integer"
    ]  # fmt: skip
    feed = RNG.choice(np.array([0, 255], np.uint8), x.shape)
    for got, want in zip(net(feed).values(), run_graph(graph, [feed]), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_matrix_whose_weights_do_not_fit_does_not_follow_one_that_is_alike():
    graph = Graph("g")
    x = graph.input("x", Type("uint8", (197, 768)))
    graph.outputs = [
        ops.MatMulInteger(x, graph.const(w, "w"))
        for w in (matrix(768, 256), np.full((768, 256), 127, np.int8), matrix(768, 256))
    ]
    net = ts.compile(graph.clone(), target="avx2", cache=False)
    steps = [s.kernel for s in net.program().plan.steps if s.kernel.startswith("matmul")]
    assert steps == [PRODUCT, "matmul_integer", PRODUCT]
    feed = RNG.choice(np.array([0, 255], np.uint8), x.shape)
    for got, want in zip(net(feed).values(), run_graph(graph, [feed]), strict=True):
        np.testing.assert_array_equal(got, want)
