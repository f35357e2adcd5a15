"""Classical machine learning: ensembles of decision trees, tables from keys to values, and maps.

Everything else of ai.onnx.ml is composed of common operators when it is imported.
"""

from __future__ import annotations

import numpy as np

from tinsmith.errors import DataError
from tinsmith.graph import MapType, SequenceType, Type, agree
from tinsmith.ops._op import need, need_one_of, op
from tinsmith.ops._rules import need_dtype, need_rank, need_same
from tinsmith.sizes import NUMBER

MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER", "LEAF")
"""How a node of a tree compares its feature with its split; arrays hold the index in this tuple.
MEMBER: whether the feature is in a set; LEAF: no comparison."""
_COMPARE = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)
_MEMBER, _LEAF = MODES.index("MEMBER"), MODES.index("LEAF")
AGGREGATES = ("SUM", "AVERAGE", "MIN", "MAX")


@op()
def TreeEnsemble(
    x, feature, split, mode, yes, no, missing, roots, first, target, weight, held=None, member=None,
    *, targets, aggregate="SUM",
):  # fmt: skip
    """y[n, t] = aggregate of weight[k] over the leaves that x[n] reaches, for k with target[k] = t

    Every tree is walked from its node in `roots`. Node i goes on to yes[i] where `x[n, feature[i]]
    <mode[i]> split[i]`, or where that feature is NaN and missing[i] is set; else to no[i]. mode[i]
    is an index of MODES. MEMBER compares with the set member[held[i] : held[i + 1]] instead, LEAF
    ends the walk: leaf i has the targets and weights of k in first[i] .. first[i + 1] - 1. AVERAGE
    divides the sum by the number of trees. A target without a leaf is 0.
    """
    at = np.repeat(np.asarray(roots)[None], len(x), axis=0)
    rows = np.arange(len(x))[:, None]
    for _ in range(len(mode) + 1):
        asked = mode[at]
        if (asked == _LEAF).all():
            break
        v, s = x[rows, feature[at]], split[at]
        take = np.zeros(at.shape, bool)
        for k in np.unique(asked):
            if k < _MEMBER:
                take |= (asked == k) & _COMPARE[k](v, s)
        for node in np.unique(at[asked == _MEMBER]):
            assert held is not None and member is not None
            here = at == node
            take |= here & np.isin(v, member[held[node] : held[node + 1]])
        at = np.where(take | (missing[at] & np.isnan(v)), yes[at], no[at])
    else:
        raise DataError("a tree has a cycle: it leads to no leaf")
    return _aggregated(at, first, target, weight, targets, aggregate)


def _aggregated(at, first, target, weight, targets, aggregate):
    """The result [N, targets] of a TreeEnsemble: the weights of the leaves `at` [N, trees],
    aggregated for each target."""
    count = (first[at + 1] - first[at]).reshape(-1)
    row = np.repeat(np.arange(at.size) // max(at.shape[1], 1), count)
    k = np.repeat(first[at].reshape(-1) - np.cumsum(count) + count, count) + np.arange(count.sum())
    place = row, target[k]
    if aggregate in ("MIN", "MAX"):
        best, start = (np.minimum, np.inf) if aggregate == "MIN" else (np.maximum, -np.inf)
        y = np.full((len(at), targets), start, weight.dtype)
        best.at(y, place, weight[k])
        seen = np.zeros(y.shape, bool)
        seen[place] = True
        return np.where(seen, y, 0).astype(weight.dtype)
    y = np.zeros((len(at), targets), weight.dtype)
    np.add.at(y, place, weight[k])
    return y / weight.dtype.type(at.shape[1]) if aggregate == "AVERAGE" else y


@TreeEnsemble.type
def _(x, feature, split, mode, yes, no, missing, roots, first, target, weight, held, member,
      *, targets, aggregate):  # fmt: skip
    need_dtype(x, {"float32", "float64"}, "x")
    need_rank(x, 2, "x")
    for name, v in (("feature", feature), ("yes", yes), ("no", no), ("roots", roots),
                    ("first", first), ("target", target)):  # fmt: skip
        need_dtype(v, {"int64"}, name)
    need_dtype(mode, {"uint8"}, "mode")
    need_dtype(missing, {"bool"}, "missing")
    need_same(split, weight)
    need((held is None) == (member is None), "held and member go together")
    need_one_of(AGGREGATES, aggregate=aggregate)
    _check_nodes(x, feature, mode, (yes, no, roots), target, targets)
    return Type(weight.dtype, None if x.shape is None else (x.shape[0], targets))


def _check_nodes(x, feature, mode, links, target, targets):
    """Raise TypeRuleError where the constants `feature`, `target`, or `links` (numbers of nodes) of
    a TreeEnsemble name features, targets or nodes that do not exist."""
    nodes = None if mode.const is None else mode.const.size
    width = x.shape[1] if x.shape is not None else None
    rows = [("feature", feature, width), ("target", target, targets)]
    rows += [("node", v, nodes) for v in links]
    for what, v, limit in rows:
        if v.const is not None and v.const.size and isinstance(limit, NUMBER):
            low, high = v.const.min(), v.const.max()
            need(low >= 0 and high < limit, f"a tree names the {what} {high}, there are {limit}")


@op()
def Lookup(x, keys, values, default):
    """y[i] = values[k] where x[i] = keys[k] (the first such k), else default; NaN equals NaN"""
    nan = object()

    def key(v):
        return nan if v != v else v

    table = {}
    for k, v in zip(keys.tolist(), values.tolist(), strict=True):
        table.setdefault(key(k), v)
    rest = default.reshape(()).item()
    found = [table.get(key(v), rest) for v in x.reshape(-1).tolist()]
    y = np.empty(x.size, values.dtype)
    y[:] = found
    return y.reshape(x.shape)


@Lookup.type
def _(x, keys, values, default):
    need_same(x, keys)
    need_same(values, default)
    need_rank(keys, 1, "the keys")
    need_rank(values, 1, "the values")
    if keys.type.is_static and values.type.is_static:
        need(keys.dims == values.dims, f"{keys.dims[0]} keys, but {values.dims[0]} values")
    return x.type.like(dtype=values.dtype)


@op()
def PairwiseCoupling(pairs, *, classes):
    """p[n, c] = the probability of class c, from those of pairs of classes

    pairs[n, k] is the probability of class i rather than j for pair k = (i, j) of (0, 1), (0, 2),
    ..., (1, 2), ... The second method of Wu, Lin and Weng (2004), which iterates; it stops where
    libsvm does.
    """
    rows = len(pairs)
    r = np.zeros((rows, classes, classes), pairs.dtype)
    first, second = np.triu_indices(classes, 1)
    r[:, first, second], r[:, second, first] = pairs, 1 - pairs
    q = -np.swapaxes(r, 1, 2) * r
    diagonal = np.arange(classes)
    q[:, diagonal, diagonal] = (r * r).sum(axis=1)
    p = np.full((rows, classes), 1 / classes, pairs.dtype)
    active = np.arange(rows)
    for _ in range(max(100, classes)):
        qp = np.einsum("nij,nj->ni", q[active], p[active])
        pqp = (p[active] * qp).sum(axis=1)
        wrong = np.abs(qp - pqp[:, None]).max(axis=1, initial=0) >= 0.005 / classes
        active, qp, pqp = active[wrong], qp[wrong], pqp[wrong]
        if not active.size:
            break
        for t in range(classes):
            own = q[active, t, t]
            step = (pqp - qp[:, t]) / own
            p[active, t] += step
            grown = 1 + step
            pqp = (pqp + step * (step * own + 2 * qp[:, t])) / grown**2
            p[active] /= grown[:, None]
            qp = (qp + step[:, None] * q[active, t]) / grown[:, None]
    return p


@PairwiseCoupling.type
def _(pairs, *, classes):
    need_dtype(pairs, {"float32", "float64"}, "the probabilities")
    need_rank(pairs, 2, "the probabilities")
    need(classes >= 2, f"there must be two classes or more, not {classes}")
    if pairs.shape is None:
        return pairs.type
    wants = classes * (classes - 1) // 2
    have = pairs.shape[1]
    need(agree(have, wants), f"{have} pairs, {classes} classes have {wants}")
    return pairs.type.like(shape=(pairs.shape[0], classes))


@op("holder")
def ZipMap(x, *, keys):
    """y[n] = {keys[c]: x[n, c] for every c}, a list of dicts"""
    return [dict(zip(keys, row, strict=True)) for row in x.tolist()]


@ZipMap.type
def _(x, *, keys):
    need_dtype(x, {"float32", "float64"}, "x")
    need_rank(x, 2, "x")
    width = None if x.shape is None else x.shape[1]
    need(agree(width, len(keys)), f"x has {width} columns, there are {len(keys)} keys")
    return SequenceType(MapType(Type(x.dtype, ())))
