"""Losses of classification."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Type, Value, shapes_agree
from tinsmith.ops._op import need, need_one_of, op
from tinsmith.ops.precision import is_float, widen

Array = np.ndarray[Any, Any]

REDUCTIONS = ("none", "sum", "mean")


def _loss(
    log_prob: Array, labels: Array, weight: Array | None, ignore: int | None, reduction: str
) -> Array:
    """The loss of log-probabilities [N,C,...] by labels [N,...], each times the weight of its
    label. Labels equal to `ignore` count nothing. `reduction` none: [N,...]; sum; mean: over the
    sum of weights."""
    skipped = np.zeros(labels.shape, bool) if ignore is None else labels == ignore
    index = np.expand_dims(np.where(skipped, 0, labels), 1)
    picked = -np.take_along_axis(log_prob, index, axis=1).squeeze(1)
    factor = np.ones(labels.shape, log_prob.dtype)
    if weight is not None:
        factor = widen(weight)[index.squeeze(1)]
    factor = np.where(skipped, 0, factor).astype(log_prob.dtype)
    losses = np.where(skipped, 0, picked * factor)
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    if weight is None and ignore is None:
        return losses.mean()
    return losses.sum() / factor.sum()


@op("reduction")
def NegativeLogLikelihoodLoss(x, target, weight=None, *, reduction="mean", ignore_index=None):
    """loss = -weight[target] * x[target], x [N,C,...] holding log-probabilities, target [N,...]

    reduction none | sum | mean; the mean is weighted, and leaves targets of ignore_index out.
    """
    return np.asarray(_loss(widen(x), target, weight, ignore_index, reduction)).astype(x.dtype)


@op("reduction")
def SoftmaxCrossEntropyLoss(
    x, labels, weight=None, *, reduction="mean", ignore_index=None, with_log_prob=False
):  # fmt: skip
    """loss = -weight[label] * log_softmax(x)[label], x [N,C,...] and labels [N,...]

    reduction none | sum | mean; the mean is weighted, and leaves labels of ignore_index out.
    with_log_prob adds log_softmax(x) to the outputs.
    """
    wide = widen(x)
    shifted = wide - wide.max(axis=1, keepdims=True)
    log_prob = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    loss = np.asarray(_loss(log_prob, labels, weight, ignore_index, reduction)).astype(x.dtype)
    return (loss, log_prob.astype(x.dtype, copy=False)) if with_log_prob else loss


def _loss_type(x: Value, labels: Value, weight: Value | None, reduction: str) -> Type:
    """The type of a loss over x [N,C,...]. Raises TypeRuleError where the inputs do not fit each
    other."""
    need(is_float(x.dtype), f"x must be of a floating-point type, it is {x.dtype}")
    need(labels.dtype.kind in "iu", f"labels must be integers, they are {labels.dtype}")
    need_one_of(REDUCTIONS, reduction=reduction)
    if x.shape is not None:
        need(len(x.shape) >= 2, f"x needs a rank of 2 or more, it has {len(x.shape)}")
        if labels.shape is not None:
            wants = (x.shape[0], *x.shape[2:])
            ok = shapes_agree(wants, labels.shape)
            need(ok, f"labels of {labels.type} do not fit scores of {x.type}")
        if weight is not None and weight.shape is not None:
            ok = shapes_agree(weight.shape, x.shape[1:2])
            need(ok, f"weight needs [{x.shape[1]}], it is {weight.type}")
    if reduction != "none":
        return Type(x.dtype, ())
    shape = labels.shape if x.shape is None else (x.shape[0], *x.shape[2:])
    return Type(x.dtype, shape)


@NegativeLogLikelihoodLoss.type
def _(x, target, weight=None, *, reduction, ignore_index):
    return _loss_type(x, target, weight, reduction)


@SoftmaxCrossEntropyLoss.type
def _(x, labels, weight=None, *, reduction, ignore_index, with_log_prob):
    loss = _loss_type(x, labels, weight, reduction)
    return (loss, x.type) if with_log_prob else loss
