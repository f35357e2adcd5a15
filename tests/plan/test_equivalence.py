"""Nodes that are alike are costed once, unless their numbers matter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.window_cases import normal
from tinsmith.codegen.target import level
from tinsmith.graph import Graph, Node, Type
from tinsmith.kernels._kernel import Packed, Site
from tinsmith.kernels.layout import PLAIN
from tinsmith.kernels.memo import SMALL
from tinsmith.kernels.select import Candidate, candidates
from tinsmith.kernels.trace import make_site
from tinsmith.ops import OPS
from tinsmith.plan.equivalence import Answers, Arrays, packing


def product_of(w: np.ndarray) -> Node:
    """A matrix product with constant weights."""
    graph = Graph("product")
    x = graph.input("x", Type(np.float32, (48, len(w))))
    node = graph.add(OPS["MatMul"], x, graph.const(w, "w"))
    graph.outputs.append(node.output)
    return node


def lstm_of(x: np.ndarray) -> Node:
    """An LSTM layer with constant weights, biases and peepholes."""
    graph = Graph("lstm")
    rows = graph.input("x", Type(np.float32, (5, 2, 128)))
    w, r, b, p = (graph.const(a, n) for a, n in zip(
        (x[:64].reshape(1, 64, 128), x[64:72].reshape(1, 64, 16), x[72].reshape(1, 128),
         x[73, :48].reshape(1, 48)), "wrbp", strict=True))  # fmt: skip
    node = graph.add(OPS["LSTM"], rows, w, r, b, None, None, None, p, hidden_size=16)
    graph.outputs.append(node.output)
    return node


def convolution(operator: str, x: tuple[int, ...], w: tuple[int, ...], **attrs: object):
    """A maker of convolutions with constant weights and bias, from a square of numbers."""

    def make(numbers: np.ndarray) -> Node:
        graph = Graph("convolution")
        count = w[1] * attrs.get("group", 1) if operator == "ConvTranspose" else w[0]
        flat = np.resize(numbers, np.prod(w) + count).astype(np.float32)
        weights, bias = flat[: np.prod(w)].reshape(w), flat[np.prod(w) :].copy()
        constants = [graph.const(weights.copy(), "w")]
        if count > SMALL:  # the numbers of smaller ones are part of what a node computes
            constants.append(graph.const(bias, "b"))
        node = graph.add(OPS[operator], graph.input("x", Type(np.float32, x)), *constants, **attrs)
        graph.outputs.append(node.output)
        return node

    return make


CONVOLUTIONS = {
    "first": convolution("Conv", (1, 3, 32, 32), (32, 3, 7, 7), stride=(2, 2)),
    "3x3": convolution("Conv", (1, 64, 28, 28), (64, 64, 3, 3), pad=(1, 1, 1, 1)),
    "deep": convolution("Conv", (1, 16, 5, 14, 14), (32, 16, 3, 3, 3)),
    "pointwise": convolution("Conv", (1, 64, 32, 32), (128, 64, 1, 1)),
    "depthwise": convolution("Conv", (1, 32, 28, 28), (32, 1, 3, 3), group=32),
    "grouped": convolution("Conv", (1, 64, 14, 14), (64, 16, 3, 3), group=4),
    "interleaved": convolution("Conv", (1, 48, 14, 14), (48, 4, 3, 3), group=12),
    "few": convolution("Conv", (1, 64, 14, 14), (2, 64, 3, 3)),
    "plain": convolution("Conv", (1, 3, 14, 14), (2, 3, 3, 3)),
    "transposed": convolution("ConvTranspose", (1, 32, 7, 7), (32, 24, 2, 2), stride=(2, 2)),
}


def costed(node: Node) -> tuple[Site, list[Candidate]]:
    site = make_site(node, level("avx2"))
    return site, candidates(site)


def remembered(first: Node, second: Node) -> tuple[Site, list[Candidate], Arrays] | None:
    """What is known of the second node once the first one is costed."""
    alike = Answers()
    layouts = [PLAIN] * len(first.inputs)
    key = alike.key(first, layouts)
    assert key == alike.key(second, layouts)
    alike.keep(key, *costed(first))
    return alike.again(key, second)


@pytest.mark.parametrize(
    "node_of", [product_of, lstm_of, *CONVOLUTIONS.values()], ids=["product", "lstm", *CONVOLUTIONS]
)
def test_the_second_node_packs_its_own_weights(node_of):
    first, second = normal(128, 128), normal(128, 128, seed=1)
    known = remembered(node_of(first), node_of(second))
    assert known is not None
    anew = costed(node_of(second))[1]
    for a, b in zip(known[1], anew, strict=True):
        assert (a.kernel, a.reason) == (b.kernel, b.reason)
        if a.choice is not None:
            pairs = zip(a.choice.packed, b.choice.packed, strict=True)
            assert all(np.array_equal(packing(p, known[2]).make(), q.make()) for p, q in pairs)


def test_a_convolution_by_tiny_weights_is_costed_on_its_own():
    make = CONVOLUTIONS["3x3"]
    assert remembered(make(normal(128, 128)), make(normal(128, 128) * np.float32(1e-32))) is None


@pytest.mark.parametrize("odd", [np.inf, np.nan, 3e38])
def test_weights_that_a_kernel_cannot_take_are_costed_on_their_own(odd):
    wrong = normal(128, 128)
    wrong[3, 5] = odd
    taken = {c.kernel for c in costed(product_of(normal(128, 128)))[1] if c.choice is not None}
    left = {c.kernel for c in costed(product_of(wrong))[1] if c.choice is not None}
    assert left < taken
    assert remembered(product_of(normal(128, 128)), product_of(wrong)) is None


def test_one_array_that_two_operands_share_may_become_two():
    def scale(w: np.ndarray, bias: np.ndarray) -> Node:
        graph = Graph("scale")
        x = graph.input("x", Type(np.float32, (1, 128, 4, 4)))
        operands = graph.const(w.reshape(128, 1, 1, 1), "w"), graph.const(bias, "b")
        node = graph.add(OPS["Conv"], x, *operands, group=128)
        graph.outputs.append(node.output)
        return node

    shared = normal(128)
    first, second = scale(shared, shared), scale(normal(128, seed=1), normal(128, seed=2))
    site, found = costed(first)
    one = next(c for c in found if c.choice is not None)
    packed = (Packed("w", np.array, (first.inputs[1].const,)),)
    alike = Answers()
    key = alike.key(first, [PLAIN] * 3)
    alike.keep(key, site, [replace(one, choice=replace(one.choice, packed=packed))])
    assert alike.again(key, second) is None
