"""Normalisations, softmaxes and losses against their formulas in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ops.checking import check, close, normal, refused, types_of
from tinsmith.graph import Type

SHAPES = [(2, 4, 3, 5), (1, 4, 1, 1), (3, 4, 7), (0, 4, 2), (2, 4, 2, 3, 2)]


def column(v: Any, rank: int) -> Any:
    return v.astype(np.float64).reshape(-1, *[1] * (rank - 2))


def standard(x: Any, axes: tuple[int, ...], eps: float) -> Any:
    x = x.astype(np.float64)
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


@pytest.mark.parametrize("shape", [*SHAPES, (2, 4)])
def test_batch_norm(shape):
    x, scale, shift, mean = normal(*shape), *(normal(4, seed=s) for s in (1, 2, 3))
    var = np.abs(normal(4, seed=4)) + 0.1
    (y,) = check("BatchNorm", x, scale, shift, mean, var, eps=1e-3)
    s, b, m, v = (column(a, x.ndim) for a in (scale, shift, mean, var))
    close(y, (x - m) / np.sqrt(v + 1e-3) * s + b)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("name", "groups"), [("InstanceNorm", 4), *(("GroupNorm", g) for g in (1, 2, 4))]
)
def test_grouped_norms(name, groups, shape):
    x, scale, shift = normal(*shape) + 3, normal(4, seed=1), normal(4, seed=2)
    attrs = {} if name == "InstanceNorm" else {"groups": groups}
    (y,) = check(name, x, scale, shift, **attrs)
    grouped = x.reshape(shape[0], groups, 4 // groups, *shape[2:])
    want = standard(grouped, tuple(range(2, grouped.ndim)), 1e-5).reshape(shape)
    close(y, want * column(scale, x.ndim) + column(shift, x.ndim), atol=1e-4)


@pytest.mark.parametrize("axis", [-1, 1, 0, -3])
@pytest.mark.parametrize("parts", ["", "s", "sb"])
def test_layer_norm(axis, parts):
    x = normal(2, 3, 5)
    inner = x.shape[axis:]
    scale = normal(*inner, seed=1) if "s" in parts else None
    shift = normal(*inner, seed=2) if "b" in parts else None
    y, mean, inverse = check("LayerNorm", x, scale, shift, axis=axis, with_stats=True)
    axes = tuple(range(axis % 3, 3))
    want = standard(x, axes, 1e-5) * (1 if scale is None else scale)
    close(y, want + (0 if shift is None else shift), atol=1e-4)
    close(mean, x.mean(axes, keepdims=True))
    close(inverse, 1 / np.sqrt(x.astype(np.float64).var(axes, keepdims=True) + 1e-5), rtol=1e-4)
    close(check("LayerNorm", x, scale, shift, axis=axis)[0], y)


@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_norm(axis):
    x, scale = normal(2, 3, 5), normal(*(2, 3, 5)[axis:], seed=1)
    (y,) = check("RMSNorm", x, scale, axis=axis)
    axes = tuple(range(axis % 3, 3))
    close(y, x / np.sqrt((x.astype(np.float64) ** 2).mean(axes, keepdims=True) + 1e-5) * scale)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_lp_norm(p, axis):
    x = normal(2, 3, 4)
    x[0] = 0
    (y,) = check("LpNorm", x, axis=axis, p=p)
    length = np.linalg.norm(x.astype(np.float64), ord=p, axis=axis, keepdims=True)
    close(y, np.where(length == 0, 0, x / np.where(length == 0, 1, length)))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9])
def test_lrn(size):
    x = normal(2, 5, 3, 2)
    (y,) = check("LRN", x, size=size, alpha=0.3, beta=0.6, bias=1.5)
    want = np.zeros(x.shape)
    for c in range(5):
        near = x[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1].astype(np.float64)
        want[:, c] = x[:, c] / (1.5 + 0.3 / size * (near**2).sum(1)) ** 0.6
    close(y, want)


@pytest.mark.parametrize("axes", [(0, 2, 3), (1,), (0, 1, 2, 3)])
def test_mean_variance_norm(axes):
    x = normal(2, 3, 4, 5)
    close(check("MeanVarianceNorm", x, axes=axes)[0], standard(x, axes, 1e-18), atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_statistics_are_wide(dtype):
    x = np.full((1, 2, 64, 64), 300, dtype)
    x[..., 0] = 100
    eps = float(ml_dtypes.finfo(dtype).eps)
    y = check("InstanceNorm", x, np.ones(2, dtype), np.zeros(2, dtype))[0]
    close(y, standard(x, (2, 3), 1e-5), rtol=4 * eps, atol=4 * eps)


# ---- softmax


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 1, 1), (0, 3, 4)])
def test_softmaxes(shape, axis):
    x = normal(*shape) * 30
    wide = x.astype(np.float64)
    total = np.exp(wide).sum(axis, keepdims=True) + np.finfo(float).tiny
    close(check("Softmax", x, axis=axis)[0], np.exp(wide) / total)
    close(check("LogSoftmax", x, axis=axis)[0], wide - np.log(total))
    (hard,) = check("Hardmax", x, axis=axis)
    close(hard, (wide == wide.max(axis, keepdims=True, initial=-np.inf)).astype(int))


def test_softmax_of_large_and_equal_numbers():
    x = np.array([[1e30, 1e30, -1e30]], np.float32)
    close(check("Softmax", x)[0], [[0.5, 0.5, 0]])
    close(check("Hardmax", x)[0], [[1, 0, 0]])


# ---- losses


@pytest.mark.parametrize("ignore", [None, 1, -7])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("rest", [(), (4,), (2, 3)])
def test_losses(rest, reduction, weighted, ignore):
    x = normal(3, 5, *rest)
    labels = np.random.default_rng(1).integers(0, 5, (3, *rest))
    if ignore is not None and ignore < 0:
        labels.ravel()[0] = ignore
    weight = np.abs(normal(5, seed=2)) if weighted else None
    wide = x.astype(np.float64)
    log_prob = wide - np.log(np.exp(wide).sum(1, keepdims=True))

    def want(scores: Any) -> Any:
        losses, total = np.zeros(labels.shape), 0.0
        for at in np.ndindex(*labels.shape):
            label = labels[at]
            w = 0.0 if label == ignore else 1.0 if weight is None else float(weight[label])
            losses[at] = -w * scores[(at[0], label, *at[1:])] if w else 0
            total += w
        return (
            losses if reduction == "none" else losses.sum() / (total if reduction == "mean" else 1)
        )

    attrs = {"reduction": reduction, "ignore_index": ignore}
    close(check("NegativeLogLikelihoodLoss", x, labels, weight, **attrs)[0], want(wide))
    loss, log = check("SoftmaxCrossEntropyLoss", x, labels, weight, with_log_prob=True, **attrs)
    close(loss, want(log_prob))
    close(log, log_prob)
    close(check("SoftmaxCrossEntropyLoss", x, labels, weight, **attrs)[0], loss)


F32 = np.dtype(np.float32)


def of(*shape: Any) -> Type:
    return Type(F32, shape)


@pytest.mark.parametrize(
    ("op", "types", "attrs", "fragments"),
    [
        ("BatchNorm", [of(1, 4, 3), *[of(3)] * 4], {}, ["scale has 3", "x has 4 channels"]),
        ("GroupNorm", [of(1, 4, 3), of(4), of(4)], {"groups": 3}, ["3 groups", "4 channels"]),
        ("LayerNorm", [of(2, 4), of(3)], {}, ["do not broadcast"]),
        ("LayerNorm", [of(2, 4), of(4)], {"axis": 2}, ["axis 2", "rank 2"]),
        ("LpNorm", [of(2, 4)], {"p": 3}, ["p must be 1 or 2"]),
        ("LRN", [of(2, 4)], {"size": 0}, ["size"]),
        ("Softmax", [Type(np.dtype(int), (2,))], {}, ["floating-point", "int64"]),
        ("Softmax", [of(2, 3)], {"axis": -3}, ["axis -3"]),
        (
            "NegativeLogLikelihoodLoss",
            [of(2, 3, 4), Type(np.dtype(int), (2, 3))],
            {},
            ["do not fit"],
        ),
        ("NegativeLogLikelihoodLoss", [of(2, 3), of(2)], {}, ["integers", "float32"]),
        (
            "SoftmaxCrossEntropyLoss",
            [of(2, 3), Type(np.dtype(int), (2,)), of(4)],
            {},
            ["weight needs [3]"],
        ),
    ],
)
def test_refused(op, types, attrs, fragments):
    with refused(*fragments):
        types_of(op, types, attrs)
