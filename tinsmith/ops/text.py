"""Strings: arrays of dtype object whose elements are Python strings."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Dim, Type, Value, shapes_agree
from tinsmith.ops._automaton import Matcher
from tinsmith.ops._dims import broadcast, fresh
from tinsmith.ops._op import need, op
from tinsmith.ops._rules import need_dtype, need_room
from tinsmith.ops.regex import compiled

STRING = np.dtype(object)
TEXT = {"object"}


def _strings(items: Any, shape: Any) -> Any:
    out = np.empty(len(items), object)
    out[:] = items
    return out.reshape(shape)


@op()
def StringConcat(x, y):
    """z = the string x followed by the string y, element by element, broadcast"""
    a, b = np.broadcast_arrays(x, y)
    longest = sum(max(map(len, v.reshape(-1)), default=0) for v in (x, y))
    need_room((a.size, longest), np.uint8)
    return _strings([p + q for p, q in zip(a.reshape(-1), b.reshape(-1), strict=True)], a.shape)


@StringConcat.type
def _(x: Value, y: Value) -> Type:
    need_dtype(x, TEXT, "x")
    need_dtype(y, TEXT, "y")
    return Type(STRING, broadcast(x.shape, y.shape))


@op()
def RegexFullMatch(x, *, pattern):
    """y = whether the whole string x matches the regular expression, in the syntax of RE2"""
    matches = Matcher(compiled(pattern)).fullmatch
    return np.array([matches(s) for s in x.reshape(-1)], bool).reshape(x.shape)


@RegexFullMatch.type
def _(x: Value, *, pattern: str) -> Type:
    need_dtype(x, TEXT, "x")
    compiled(pattern)
    return Type(np.dtype(bool), x.shape)


@op()
def StringSplit(x, *, delimiter=None, maxsplit=None):
    """y, count = the parts of each string x between delimiters, and how many there are

    The parts are the new last axis, filled up with "". Without a delimiter, or with "", runs of
    white space separate. At most `maxsplit` cuts are made.
    """
    cuts = -1 if maxsplit is None else maxsplit
    parts = [s.split(delimiter or None, cuts) for s in x.reshape(-1)]
    longest = max(map(len, parts), default=0)
    need_room((len(parts), longest), object)
    rows = [part + [""] * (longest - len(part)) for part in parts]
    y = _strings([s for row in rows for s in row], (*x.shape, longest))
    return y, np.array([len(part) for part in parts], np.int64).reshape(x.shape)


@StringSplit.type
def _(x: Value, *, delimiter: str | None, maxsplit: int | None) -> tuple[Type, Type]:
    need_dtype(x, TEXT, "x")
    shape = None if x.shape is None else (*x.shape, fresh())
    return Type(STRING, shape), Type(np.dtype(np.int64), x.shape)


@op()
def StringNormalizer(
    x, *, case_change_action="NONE", is_case_sensitive=False, locale="en_US", stopwords=()
):
    """y = the strings of x that are no stop words, in "LOWER" or "UPPER" case or as they are

    x is [C] or [1, C]. Where nothing is left y holds one empty string. The locale is ignored:
    Unicode's rules change the case.
    """
    fold = (lambda s: s) if is_case_sensitive else str.casefold
    stop = {fold(s) for s in stopwords}
    change = {"LOWER": str.lower, "UPPER": str.upper}.get(case_change_action, str)
    kept = [change(s) for s in x.reshape(-1) if fold(s) not in stop] or [""]
    return _strings(kept, (*x.shape[:-1], len(kept)))


@StringNormalizer.type
def _(
    x: Value, *, case_change_action: str, is_case_sensitive: bool, locale: str,
    stopwords: tuple[str, ...],
) -> Type:  # fmt: skip
    need_dtype(x, TEXT, "x")
    actions = ("NONE", "LOWER", "UPPER")
    need(case_change_action in actions, f"case_change_action is {case_change_action!r}")
    if x.shape is None:
        return Type(STRING, None)
    fits = len(x.shape) == 1 or shapes_agree(x.shape, (1, None))
    need(fits, f"x is {x.type}; it must be [C] or [1,C]")
    last: Dim = fresh() if stopwords else x.shape[-1]
    return Type(STRING, (*x.shape[:-1], 1 if last == 0 else last))


@op()
def TfIdfVectorizer(
    x, *, mode, min_gram_length, max_gram_length, max_skip_count, ngram_counts, ngram_indexes,
    pool_int64s=None, pool_strings=None, weights=None,
):  # fmt: skip
    """y[..., ngram_indexes[i]] = how often n-gram i of the pool stands in the sequence x

    x is [C] or [N, C]. The items of an n-gram may lie apart, all by the same 1 to
    max_skip_count + 1 places. Mode "IDF" gives weights[i] (None: 1) where it stands at all, "TFIDF"
    weights[i] times the count. In the pool n-grams of n items start at ngram_counts[n - 1].
    """
    pool = pool_int64s if pool_strings is None else pool_strings
    grams = _grams(pool, ngram_counts)
    rows = x.reshape(1, -1) if x.ndim <= 1 else x
    counts = np.zeros((rows.shape[0], len(ngram_indexes)))
    for row, sequence in enumerate(rows.tolist()):
        for n in range(min_gram_length, max_gram_length + 1):
            for gap in range(1, 2 if n == 1 else max_skip_count + 2):
                for start in range(len(sequence) - (n - 1) * gap):
                    found = grams.get(tuple(sequence[start : start + (n - 1) * gap + 1 : gap]))
                    if found is not None:
                        counts[row, found] += 1
    if mode == "IDF":
        counts = (counts > 0).astype(np.float64)
    if mode != "TF" and weights is not None:
        counts = counts * np.asarray(weights, np.float64)
    need_room((rows.shape[0], max(ngram_indexes) + 1), np.float32)
    y = np.zeros((rows.shape[0], max(ngram_indexes) + 1), np.float32)
    y[:, list(ngram_indexes)] = counts
    return y if x.ndim > 1 else y[0]


def _grams(pool: Any, starts: Any) -> dict[tuple[Any, ...], int]:
    """The table from each n-gram (a tuple) of a TfIdfVectorizer to its number. `pool` has the items
    of all n-grams, one after the other; those of n items begin at starts[n - 1]."""
    grams: dict[tuple[Any, ...], int] = {}
    ends = (*starts[1:], len(pool))
    for n, (start, end) in enumerate(zip(starts, ends, strict=True), 1):
        for i in range(start, end, n):
            grams[tuple(pool[i : i + n])] = len(grams)
    return grams


@TfIdfVectorizer.type
def _(x: Value, **attrs: Any) -> Type:
    need_dtype(x, {"object", "int32", "int64"}, "x")
    need(attrs["mode"] in ("TF", "IDF", "TFIDF"), f"mode is {attrs['mode']!r}")
    numbers, words = attrs["pool_int64s"], attrs["pool_strings"]
    need((numbers is None) != (words is None), "one of pool_int64s and pool_strings must be given")
    need((words is not None) == (x.dtype.kind == "O"), f"the pool does not fit {x.type}")
    need(attrs["ngram_indexes"], "ngram_indexes is empty")
    low, high = attrs["min_gram_length"], attrs["max_gram_length"]
    need(1 <= low <= high, f"n-grams of {low} to {high} items do not exist")
    size = max(attrs["ngram_indexes"]) + 1
    if x.shape is None:
        return Type(np.dtype(np.float32), None)
    need(len(x.shape) <= 2, f"x is {x.type}; it must be [C] or [N,C]")
    return Type(np.dtype(np.float32), (*x.shape[:-1], size))
