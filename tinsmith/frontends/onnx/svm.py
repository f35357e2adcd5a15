"""Importers of support vector machines (ai.onnx.ml), as common operators.

The order of pairs of classes, votes and probabilities follow ONNX's reference evaluator and ONNX
Runtime, thus libsvm. All is computed in float32, the type of the scores.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from tinsmith.frontends.onnx.arithmetic import cast
from tinsmith.frontends.onnx.call import Call, Result, Unsupported
from tinsmith.frontends.onnx.classical import labels_of, largest, ml, post_transform
from tinsmith.graph import Array, Value

PROBABILITY = 1e-7
"""Probabilities of pairs of classes are clipped to [PROBABILITY, 1 - PROBABILITY]."""


def _vector(call: Call, name: str) -> Array:
    return np.asarray(call.attr(name, []), np.float32)


def _vectors(call: Call, count: int) -> Array:
    """The support vectors, [count, features]. Raises Unsupported if their numbers do not make
    `count` vectors."""
    flat = np.asarray(call.required("support_vectors"), np.float64)
    if not flat.size or flat.size % count:
        raise Unsupported(f"{flat.size} numbers do not make {count} support vectors")
    return flat.reshape(count, -1)


def _sums(call: Call, vectors: Array, weights: Array) -> Value:
    """[N,M]: the sum over v of k(x[n], vectors[v]) * weights[v, m], where k is the kernel function
    in the attributes, and x the input."""
    x, kind = cast(call, call[0], "float32"), call.attr("kernel_type", "LINEAR")
    params = call.attr("kernel_params", [])
    if kind == "LINEAR":
        return call.emit("MatMul", x, np.ascontiguousarray(vectors.T @ weights, np.float32))
    return call.emit("MatMul", _kernel(call, x, vectors, kind, params), weights)


def _kernel(call: Call, x: Value, vectors: Array, kind: str, params: list[float]) -> Value:
    """[N,V]: k(x[n], vectors[v]) for the kernel function `kind`, "RBF", "POLY" or "SIGMOID", with
    the parameters (gamma, offset, degree). Raises Unsupported for others."""
    gamma, offset, degree = [*params, 0.0, 0.0, 0.0][:3]
    if kind == "RBF":
        return _radial(call, x, vectors, gamma)
    dot = call.emit("MatMul", x, np.ascontiguousarray(vectors.T, np.float32))
    if kind not in ("POLY", "SIGMOID"):
        raise Unsupported(f"kernel_type is {kind!r}, not LINEAR, POLY, RBF or SIGMOID")
    scaled = call.emit("Add", call.emit("Mul", dot, call.number(gamma, x)), call.number(offset, x))
    if kind == "SIGMOID":
        return call.emit("Tanh", scaled)
    return call.emit("Pow", scaled, call.number(int(degree), x))


def _radial(call: Call, x: Value, vectors: Array, gamma: float) -> Value:
    """[N,V]: the radial kernel exp(-gamma * |x[n] - vectors[v]|^2). For |x|^2 + |v|^2 - 2 x v the
    mean of the vectors is subtracted from x and v first, as large squares would lose digits."""
    middle = vectors.mean(axis=0).astype(np.float32)
    away = vectors - middle
    x = call.emit("Sub", x, call.const(middle))
    own = call.emit("Reduce", x, call.ints(1), kind="sumsquare", keepdims=True)
    dot = call.emit("MatMul", x, np.ascontiguousarray(-2 * away.T, np.float32))
    squares = call.const((away * away).sum(axis=1), np.float32)
    distance = call.emit("Add", call.emit("Add", dot, own), squares)
    distance = call.emit("Max", distance, call.number(0, x))
    return call.emit("Exp", call.emit("Mul", distance, call.number(-gamma, x)))


@ml("SVMRegressor")
def svm_regressor(call: Call) -> Result:
    weights, rho = _vector(call, "coefficients"), _vector(call, "rho")
    count = call.attr("n_supports", 0)
    call.ignore("n_targets")
    if not rho.size or (count and weights.size != count):
        raise Unsupported(f"{weights.size} coefficients and {rho.size} rho for {count} vectors")
    if count:
        y = _sums(call, _vectors(call, count), weights.reshape(-1, 1))
    else:
        call.ignore("kernel_type", "kernel_params", "support_vectors")
        y = call.emit("MatMul", cast(call, call[0], "float32"), weights.reshape(-1, 1))
    y = call.emit("Add", y, call.const(rho[:1]))
    if call.attr("one_class", 0):
        above = call.emit("Greater", y, call.number(0, y))
        y = call.emit("Where", above, call.number(1, y), call.number(-1, y))
    return post_transform(call, y)


@ml("SVMClassifier")
def svm_classifier(call: Call) -> Result:
    labels = labels_of(call, "classlabels_ints")
    rho = _vector(call, "rho")
    counts = call.attr("vectors_per_class", [])
    if not rho.size:
        raise Unsupported("it has no rho")
    if sum(counts):
        return _one_against_one(call, labels, rho, counts)
    call.ignore("kernel_type", "kernel_params", "support_vectors", "prob_a", "prob_b")
    weights = _vector(call, "coefficients")
    if weights.size % len(labels):
        raise Unsupported(f"{weights.size} coefficients for {len(labels)} labels")
    rows = np.ascontiguousarray(weights.reshape(len(labels), -1).T)
    scores = call.emit("MatMul", cast(call, call[0], "float32"), rows)
    scores = call.emit("Add", scores, call.const(rho[:1]))
    best = call.emit("ArgReduce", scores, kind="max", axis=1, keepdims=False)
    if rho.size == 1 and len(labels) == 2 and (weights >= 0).all():
        top = call.emit("Reduce", scores, call.ints(1), kind="max", keepdims=False)
        sure = call.emit("GreaterOrEqual", top, call.number(0.5, top))
        best = call.emit("Where", sure, call.const(np.array(1)), best)
    elif rho.size == 1 and len(labels) != 2:
        raise Unsupported(f"one rho tells nothing of {len(labels)} labels")
    return call.emit("Gather", call.const(labels), best, axis=0), post_transform(call, scores)


def _one_against_one(call: Call, labels: Array, rho: Array, counts: list[int]) -> Result:
    """(label, scores) of a classifier with a decision function for each pair of classes, which
    votes for one of the two. Scores are the functions' results s (for two classes (-s, s)), or,
    with prob_a and prob_b, probabilities of the classes. `counts`: the vectors of each class.
    Raises Unsupported for wrong numbers of coefficients or rho."""
    total, classes = sum(counts), len(labels)
    pairs = list(combinations(range(classes), 2))
    weights = _vector(call, "coefficients")
    if classes < 2 or len(counts) != classes or weights.size != total * (classes - 1):
        raise Unsupported(f"{weights.size} coefficients for {counts} vectors of {classes} classes")
    if rho.size != len(pairs):
        raise Unsupported(f"{rho.size} rho for {len(pairs)} pairs of classes")
    table = _pair_weights(weights.reshape(classes - 1, total), counts, pairs)
    scores = call.emit("Add", _sums(call, _vectors(call, total), table), call.const(rho))
    label = largest(call, _votes(call, scores, pairs, classes), labels)
    slopes, shifts = _vector(call, "prob_a"), _vector(call, "prob_b")
    if slopes.size:
        return label, post_transform(call, _probabilities(call, scores, slopes, shifts, classes))
    if len(pairs) == 1:
        scores = call.emit("Concat", call.emit("Neg", scores), scores, axis=1)
    return label, post_transform(call, scores)


def _pair_weights(weights: Array, counts: list[int], pairs: list[tuple[int, int]]) -> Array:
    """[V, pairs]: the factor of each support vector in the score of each pair of classes; 0 if it
    is of neither. `weights` [classes - 1, V] are the coefficients, `counts` the vectors of each
    class."""
    ends = np.cumsum(counts)
    own = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    table = np.zeros((weights.shape[1], len(pairs)), np.float32)
    for k, (i, j) in enumerate(pairs):
        table[own[i], k] = weights[j - 1, own[i]]
        table[own[j], k] = weights[i, own[j]]
    return table


def _votes(call: Call, scores: Value, pairs: list[tuple[int, int]], classes: int) -> Value:
    """[N, classes]: the number of pairs that vote for each class. A score above 0 votes for the
    first class of its pair, others for the second."""
    first, change = np.zeros(classes, np.float32), np.zeros((len(pairs), classes), np.float32)
    for k, (i, j) in enumerate(pairs):
        first[j] += 1
        change[k, i], change[k, j] = 1, -1
    won = call.emit("Cast", call.emit("Greater", scores, call.number(0, scores)), to="float32")
    return call.emit("Add", call.emit("MatMul", won, change), call.const(first))


def _probabilities(call: Call, scores: Value, slopes: Array, shifts: Array, classes: int) -> Any:
    """[N, classes]: the probabilities of the classes, by PairwiseCoupling of those of the pairs,
    1 / (1 + e^(slope * score + shift)). Raises Unsupported for a wrong number of slopes or shifts.
    """
    if slopes.size != shifts.size or slopes.size != classes * (classes - 1) // 2:
        raise Unsupported(f"{slopes.size} prob_a and {shifts.size} prob_b for {classes} classes")
    odds = call.emit("Add", call.emit("Mul", scores, call.const(slopes)), call.const(shifts))
    pair = call.emit("Sigmoid", call.emit("Neg", odds))
    pair = call.emit("Clip", pair, min=PROBABILITY, max=1 - PROBABILITY)
    return call.emit("PairwiseCoupling", pair, classes=classes)
