"""Loss functions for classification."""

from __future__ import annotations

import numpy as np

from tinsmith.graph import Type, Value, shapes_agree
from tinsmith.ops._op import OPS, need, need_one_of, op
from tinsmith.ops._rules import as_dtype, in_float32_of, need_axes, need_float

REDUCTIONS = ("none", "sum", "mean")
CLASSES = np.array([1], np.int64)
"""The axis of the classes."""


@op("composed")
def NegativeLogLikelihoodLoss(x, target, weight=None, *, reduction="mean", ignore_index=None):
    """loss = -weight[target] * x[target], x [N,C,...] holding log-probabilities, target [N,...]

    reduction none | sum | mean, which divides by the sum of weight[target]. Targets equal to
    ignore_index count nothing.
    """
    dtype, x = x.dtype, in_float32_of(x)
    zero, skipped = np.zeros((), x.dtype), None
    if ignore_index is not None:
        skipped = OPS["Equal"](target, np.asarray(ignore_index, target.dtype))
        target = OPS["Where"](skipped, np.zeros((), target.dtype), target)
    places = OPS["Unsqueeze"](target, CLASSES)
    y = OPS["Neg"](OPS["Squeeze"](OPS["GatherElements"](x, places, axis=1), CLASSES))
    factor = None
    if weight is not None:
        factor = OPS["Gather"](in_float32_of(weight), target, axis=0)
        y = OPS["Mul"](y, factor)
    if skipped is not None:
        counted = np.ones((), x.dtype) if factor is None else factor
        y, factor = OPS["Where"](skipped, zero, y), OPS["Where"](skipped, zero, counted)
    if reduction == "mean" and factor is None:
        y = OPS["Reduce"](y, kind="mean", keepdims=False)
    elif reduction != "none":
        y = OPS["Reduce"](y, kind="sum", keepdims=False)
        if reduction == "mean":
            y = OPS["Div"](y, OPS["Reduce"](factor, kind="sum", keepdims=False))
    return as_dtype(y, dtype)


@op("composed")
def SoftmaxCrossEntropyLoss(
    x, labels, weight=None, *, reduction="mean", ignore_index=None, with_log_prob=False
):  # fmt: skip
    """loss = -weight[label] * log_softmax(x)[label], x [N,C,...] and labels [N,...]

    reduction and ignore_index are those of NegativeLogLikelihoodLoss; with_log_prob adds
    log_softmax(x) to the outputs.
    """
    log_prob = OPS["LogSoftmax"](in_float32_of(x), axis=1)
    attrs = {"reduction": reduction, "ignore_index": ignore_index}
    y = OPS["NegativeLogLikelihoodLoss"](log_prob, labels, weight, **attrs)
    y, log_prob = (as_dtype(v, x.dtype) for v in (y, log_prob))
    return (y, log_prob) if with_log_prob else y


def _loss_type(x: Value, labels: Value, weight: Value | None, reduction: str) -> Type:
    """The output type of a loss: a scalar, or [N,...] without reduction. Raises TypeRuleError where
    x [N,C,...], labels [N,...] and weight [C] do not fit each other."""
    need_float(x, "x")
    need(labels.dtype.kind in "iu", f"labels must be integers, they are {labels.dtype}")
    need_one_of(REDUCTIONS, reduction=reduction)
    if x.shape is not None:
        need_axes(x, 2, "x")
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
