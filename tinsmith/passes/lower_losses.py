"""Losses of classification as log-softmax, gathers and sums."""

from __future__ import annotations

import numpy as np

from tinsmith.graph import Node, Value
from tinsmith.ops import OPS
from tinsmith.passes.facts import shape_of
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, opt, p

rules = RuleSet(
    "lower-losses", "Losses of classification become log-softmax, gathers and sums.", tolerance=1e-5
)
register("machine")(rules)

CLASSES = np.array([1], np.int64)
"""The axis of the classes."""


@rules.rule(
    p.NegativeLogLikelihoodLoss("x", "target", opt("weight")).named("loss"),
    x=(2, 3, 4),
    target=np.array([[0, 2, 1, 1], [2, 2, 0, 1]]),
    weight=(3,),
    loss={"ignore_index": 1},
)
def likelihood_loss(x: Value, target: Value, weight: Value | None, loss: Node) -> Value:
    """nll(x, t) -> sum of -w[t] * x[t] / sum of w[t], over the t that count."""
    if x.dtype != np.float32 or (weight is not None and weight.dtype != x.dtype):
        raise Skip(f"x is {x.dtype}")
    if x.shape is None or len(shape_of(target)) + 1 != len(shape_of(x)):
        raise Skip("a rank is not known")
    return _reduced(x, target, weight, loss)


@rules.rule(
    p.SoftmaxCrossEntropyLoss("x", "labels", opt("weight")).named("loss"),
    x=(2, 3, 4),
    labels=np.array([[0, 2, 1, 1], [2, 2, 0, 1]]),
    weight=(3,),
    loss={"with_log_prob": True},
)
def cross_entropy(
    x: Value, labels: Value, weight: Value | None, loss: Node
) -> Value | tuple[Value, ...]:
    """cross_entropy(x, t) -> nll(log_softmax(x), t)."""
    scores = OPS["LogSoftmax"](x, axis=1)
    attrs = {name: getattr(loss, name) for name in ("reduction", "ignore_index")}
    y = OPS["NegativeLogLikelihoodLoss"](scores, labels, weight, **attrs)
    return (y, scores) if loss.with_log_prob else y


def _reduced(x: Value, target: Value, weight: Value | None, loss: Node) -> Value:
    zero, ignore = np.zeros((), x.dtype), loss.ignore_index
    skipped = None
    if ignore is not None:
        skipped = OPS["Equal"](target, np.asarray(ignore, target.dtype))
        target = OPS["Where"](skipped, np.zeros((), target.dtype), target)
    places = OPS["Unsqueeze"](target, CLASSES)
    y = OPS["Neg"](OPS["Squeeze"](OPS["GatherElements"](x, places, axis=1), CLASSES))
    factor = None if weight is None else OPS["Gather"](weight, target, axis=0)
    if factor is not None:
        y = OPS["Mul"](y, factor)
    if skipped is not None:
        counted = np.ones((), x.dtype) if factor is None else factor
        y, factor = OPS["Where"](skipped, zero, y), OPS["Where"](skipped, zero, counted)
    if loss.reduction == "none":
        return y
    if loss.reduction == "mean" and factor is None:
        return OPS["Reduce"](y, kind="mean", keepdims=False)
    total = OPS["Reduce"](y, kind="sum", keepdims=False)
    if loss.reduction == "sum":
        return total
    return OPS["Div"](total, OPS["Reduce"](factor, kind="sum", keepdims=False))
