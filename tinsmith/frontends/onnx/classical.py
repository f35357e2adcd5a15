"""Importers of classical machine learning (ai.onnx.ml), mostly as common operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.frontends.onnx.arithmetic import cast
from tinsmith.frontends.onnx.call import Call, Result, Unsupported, importer
from tinsmith.frontends.onnx.trees import Trees, from_lists, from_tensors
from tinsmith.graph import Array, Value
from tinsmith.ops.classical import AGGREGATES

_FLOATS = ("float32", "float64")


def ml(*names: str) -> Any:
    """Decorator: register an importer function for operators of these names in ai.onnx.ml."""
    return importer(*(f"ai.onnx.ml.{n}" for n in names))


def _floating(call: Call, x: Value) -> Value:
    return x if x.dtype.name in _FLOATS else call.emit("Cast", x, to="float32")


def _vector(call: Call, name: str, like: Value) -> Array:
    return np.asarray(call.attr(name, []), like.dtype)


# ---- numbers


@ml("Scaler")
def scaler(call: Call) -> Result:
    x = _floating(call, call[0])
    offset, scale = _vector(call, "offset", x), _vector(call, "scale", x)
    if not offset.size or not scale.size:
        raise Unsupported("it needs an offset and a scale")
    return call.emit("Mul", call.emit("Sub", x, offset), scale)


@ml("Normalizer")
def normalizer(call: Call) -> Result:
    """Import Normalizer: each row is divided by its maximum, its L1 or its L2 norm, as `norm`
    says; a row where that is 0 stays as it is."""
    x, norm = _floating(call, call[0]), call.attr("norm", "MAX")
    if norm not in ("MAX", "L1", "L2"):
        raise Unsupported(f"norm is {norm!r}, not MAX, L1 or L2")
    kind = {"MAX": "max", "L1": "l1", "L2": "l2"}[norm]
    size = call.emit("Reduce", x, call.ints(-1), kind=kind, keepdims=True)
    empty = call.emit("Equal", size, call.number(0, x))
    return call.emit("Div", x, call.emit("Where", empty, call.number(1, x), size))


@ml("Binarizer")
def binarizer(call: Call) -> Result:
    above = call.emit("Greater", call[0], call.number(call.attr("threshold", 0.0), call[0]))
    return call.emit("Cast", above, to=call[0].dtype.name)


@ml("Imputer")
def imputer(call: Call) -> Result:
    x = call[0]
    kind = "float" if x.dtype.kind == "f" else "int64"
    new = _vector(call, f"imputed_value_{kind}s", x)
    call.ignore("imputed_value_floats", "imputed_value_int64s")
    call.ignore("replaced_value_float", "replaced_value_int64")
    if not new.size:
        raise Unsupported(f"it has no imputed_value_{kind}s for {x.type}")
    old = call.attr(f"replaced_value_{kind}", 0)
    missing = np.isnan(old)
    hole = call.emit("IsNaN", x) if missing else call.emit("Equal", x, call.number(old, x))
    return call.emit("Where", hole, new, x)


@ml("ArrayFeatureExtractor")
def array_feature_extractor(call: Call) -> Result:
    """Import ArrayFeatureExtractor: the columns of x whose indexes the second input holds. A vector
    x is one row."""
    x, places = call[0], call.emit("Reshape", call[1], call.ints(-1))
    if x.rank == 1:
        x = call.emit("Unsqueeze", x, call.ints(0))
    return call.emit("Gather", x, places, axis=-1)


@ml("FeatureVectorizer")
def feature_vectorizer(call: Call) -> Result:
    """Import FeatureVectorizer: the columns of all inputs side by side, as float32. Each input is
    cut, or padded with zeros, to its width in `inputdimensions`."""
    count = len(call.inputs)
    widths = call.attr("inputdimensions", [None] * count)
    if len(widths) != count:
        raise Unsupported(f"it has {len(widths)} inputdimensions for {count} inputs")
    rows = [_features(call, call[i], width) for i, width in enumerate(widths)]
    return call.emit("Concat", *rows, axis=1)


def _features(call: Call, x: Value, width: int | None) -> Value:
    """One input of FeatureVectorizer as a matrix [n, width] of float32, cut or padded with zeros
    (`width` None: as it is). Axes after the first are flattened; a vector is one row."""
    if not x.rank:
        raise Unsupported(f"its input {x.name!r} needs a known rank of 1 or more")
    y = cast(call, x, "float32")
    if x.rank != 2:
        y = call.emit("Flatten", y, axis=0 if x.rank == 1 else 1)
    if width is None or y.dims[1] == width:
        return y
    filled = call.emit("Pad", y, call.ints(0, 0, 0, width), call.number(0, y))
    return call.emit("Slice", filled, call.ints(0), call.ints(width), call.ints(1))


# ---- categories


@ml("LabelEncoder")
def label_encoder(call: Call) -> Result:
    if call.opset < 2:
        return _category_mapper(call, call.required("classes_strings"), None)
    keys, _ = _given(call, "keys")
    values, kind = _given(call, "values")
    fallback = {"_strings": "_Unused", "_int64s": -1, "_floats": -0.0}
    default = fallback.get(kind, fallback["_strings"] if values.dtype == object else -1)
    name = {"_strings": "default_string", "_int64s": "default_int64", "_floats": "default_float"}
    call.ignore(*name.values(), "default_tensor")
    default = call.attr(name.get(kind, "default_tensor"), default)
    if keys.dtype != call[0].dtype:
        raise Unsupported(f"its keys are {keys.dtype}, its input is {call[0].type}")
    rest = np.asarray(default, values.dtype).reshape(())
    return call.emit("Lookup", call[0], keys, values, rest)


def _given(call: Call, stem: str) -> tuple[Array, str]:
    """The keys or the values of a LabelEncoder (`stem`), as a vector, and the end of the name of
    the attribute that has them: "_tensor", "_strings", "_int64s" or "_floats". Raises Unsupported
    where there is none."""
    tensor = call.attr(f"{stem}_tensor")
    if tensor is not None:
        return tensor.reshape(-1), "_tensor"
    for end, dtype in (("_strings", object), ("_int64s", np.int64), ("_floats", np.float32)):
        if found := call.attr(stem + end):
            return np.array(found, dtype), end
    raise Unsupported(f"it has no {stem}")


@ml("CategoryMapper")
def category_mapper(call: Call) -> Result:
    return _category_mapper(call, call.required("cats_strings"), call.required("cats_int64s"))


def _category_mapper(call: Call, strings: list[str], ints: list[int] | None) -> Result:
    """A Lookup from `strings` to `ints` (None: 0, 1, ...), or back if the input holds integers."""
    words = np.array(strings, object)
    numbers = np.arange(len(words)) if ints is None else np.array(ints, np.int64)
    other_number = np.array(call.attr("default_int64", -1), np.int64)
    other_word = np.array(call.attr("default_string", "_Unused"), object)
    if call[0].dtype == object:
        return call.emit("Lookup", call[0], words, numbers, other_number)
    return call.emit("Lookup", call[0], numbers, words, other_word)


@ml("OneHotEncoder")
def one_hot_encoder(call: Call) -> Result:
    x = call[0]
    words, numbers = call.attr("cats_strings"), call.attr("cats_int64s")
    if not call.attr("zeros", 1):
        raise Unsupported("zeros=0 (an error for unknown categories) is not supported")
    cats = np.array(words or [], object) if x.dtype == object else np.array(numbers or [], np.int64)
    if not cats.size:
        raise Unsupported(f"it has no categories for {x.type}")
    if x.dtype not in (np.dtype(object), np.dtype(np.int64)):
        x = call.emit("Cast", x, to="int64")
    column = call.emit("Unsqueeze", x, call.ints(-1))
    return call.emit("Cast", call.emit("Equal", column, cats), to="float32")


# ---- scores


def post_transform(call: Call, scores: Value) -> Value:
    """Scores after the function in the attribute `post_transform`: none, Sigmoid or Softmax. Raises
    Unsupported for others."""
    kind = call.attr("post_transform", "NONE")
    if kind == "NONE":
        return scores
    if kind == "LOGISTIC":
        return call.emit("Sigmoid", scores)
    if kind == "SOFTMAX":
        return call.emit("Softmax", scores, axis=-1)
    raise Unsupported(f"post_transform {kind} is not supported")


def labels_of(call: Call, ints: str) -> Array:
    """The labels of the classes: the attribute classlabels_strings, else the one named `ints`.
    Raises Unsupported where both are absent."""
    words, numbers = call.attr("classlabels_strings"), call.attr(ints)
    if not words and not numbers:
        raise Unsupported("it has no class labels")
    return np.array(words, object) if words else np.array(numbers, np.int64)


def largest(call: Call, scores: Value, labels: Array) -> Value:
    """[n]: the label of the largest score of each row of `scores` [n, classes]."""
    best = call.emit("ArgReduce", scores, kind="max", axis=1, keepdims=False)
    return call.emit("Gather", call.const(labels), best, axis=0)


def _above(call: Call, score: Value, limit: float, labels: Array) -> Value:
    """[n]: the second of two labels where `score` [n, 1] is above `limit`, else the first."""
    flags = call.emit(
        "Squeeze", call.emit("Greater", score, call.number(limit, score)), call.ints(1)
    )
    return call.emit("Gather", call.const(labels), call.emit("Cast", flags, to="int64"), axis=0)


def _two(call: Call, score: Value, rest: bool) -> Value:
    """Scores [n, 2] of two classes from the score s [n, 1] of the second: (-s, s), or, with `rest`,
    (1 - s, s). As in ONNX Runtime, the post_transform LOGISTIC gives (Sigmoid(-s), Sigmoid(s))
    either way, and SOFTMAX is ignored. Raises Unsupported for PROBIT."""
    kind = call.attr("post_transform", "NONE")
    if kind == "PROBIT":
        raise Unsupported("post_transform PROBIT is not supported")
    logistic = kind == "LOGISTIC"
    if rest and not logistic:
        other = call.emit("Sub", call.number(1, score), score)
    else:
        other = call.emit("Neg", score)
    both = call.emit("Concat", other, score, axis=1)
    return call.emit("Sigmoid", both) if logistic else both


@ml("LinearRegressor")
def linear_regressor(call: Call) -> Result:
    return post_transform(call, _linear(call, call.attr("targets", 1)))


def _linear(call: Call, rows: int, columns: int | None = None) -> Value:
    """x @ coefficients^T + intercepts (if there are any), by the attributes of these names;
    `coefficients` is [rows, columns], flat; `columns` None: as many as there are. Numbers beyond
    are ignored, with a note. Raises Unsupported for a number of coefficients that `rows` does not
    divide."""
    x = _floating(call, call[0])
    weights = np.asarray(call.required("coefficients"), x.dtype)
    if columns is not None and weights.size > rows * columns:
        call.note(f"{weights.size} coefficients are given, the first {rows * columns} are used")
        weights = weights[: rows * columns]
    if rows < 1 or weights.size % rows:
        raise Unsupported(f"{weights.size} coefficients do not make {rows} rows")
    y = call.emit("MatMul", x, np.ascontiguousarray(weights.reshape(rows, -1).T))
    bias = _vector(call, "intercepts", x)
    return call.emit("Add", y, bias) if bias.size else y


@ml("LinearClassifier")
def linear_classifier(call: Call) -> Result:
    call.ignore("multi_class")
    labels = labels_of(call, "classlabels_ints")
    width = call[0].shape[-1] if call[0].shape else None
    width = width if isinstance(width, int) and width else None
    rows = len(call.attr("intercepts", []))
    rows = rows or (len(call.required("coefficients")) // width if width else 1)
    scores = _linear(call, rows, width)
    if rows > 1:
        return largest(call, scores, labels), post_transform(call, scores)
    if len(labels) != 2:
        raise Unsupported(f"one row of coefficients for {len(labels)} labels")
    return _above(call, scores, 0.0, labels), _two(call, scores, rest=True)


# ---- trees


def _scores(call: Call, trees: Trees, targets: int, aggregate: str) -> Value:
    x = _floating(call, call[0])
    arrays = [a if a is None else call.const(a) for a in trees]
    y = call.emit("TreeEnsemble", x, *arrays, targets=targets, aggregate=aggregate)
    base = call.attr("base_values_as_tensor", call.attr("base_values"))
    if base is None or not len(base):
        return y
    return call.emit("Add", y, np.asarray(base, y.dtype))


@ml("TreeEnsembleRegressor")
def tree_regressor(call: Call) -> Result:
    aggregate = call.attr("aggregate_function", "SUM")
    trees = from_lists(call, "target")
    return post_transform(call, _scores(call, trees, call.attr("n_targets", 1), aggregate))


@ml("TreeEnsembleClassifier")
def tree_classifier(call: Call) -> Result:
    """Import TreeEnsembleClassifier: (label of the largest score, scores). With two labels and
    leaves for one class only, as in ONNX Runtime, there is one score s, and the label is the second
    where s is above 0.5 (above 0 if a weight is negative), else the first. Scores are then those of
    `_two` if the leaves are for class 0, (0, s) after the post_transform if they are for class
    1."""
    labels = labels_of(call, "classlabels_int64s")
    trees = from_lists(call, "class")
    ids = set(trees.target.tolist())
    if len(labels) != 2 or ids not in ({0}, {1}):
        scores = _scores(call, trees, len(labels), "SUM")
        return largest(call, scores, labels), post_transform(call, scores)
    scores = _scores(call, trees, 1 + max(ids), "SUM")
    positive = bool((trees.weight >= 0).all())
    limit, one = 0.5 if positive else 0.0, call.ints(1)
    if 0 in ids:
        return _above(call, scores, limit, labels), _two(call, scores, rest=positive)
    own = call.emit("Slice", scores, one, call.ints(2), one)
    return _above(call, own, limit, labels), post_transform(call, scores)


@ml("TreeEnsemble")
def tree_ensemble(call: Call) -> Result:
    order = ("AVERAGE", "SUM", "MIN", "MAX")
    number = call.attr("aggregate_function", 1)
    if not 0 <= number < len(order):
        raise Unsupported(f"aggregate_function {number} is unknown")
    assert set(order) == set(AGGREGATES)
    kinds = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
    post = call.attr("post_transform", 0)
    if not 0 <= post < len(kinds):
        raise Unsupported(f"post_transform {post} is unknown")
    call.attrs["post_transform"] = kinds[post]
    trees = from_tensors(call)
    return post_transform(call, _scores(call, trees, call.attr("n_targets", 1), order[number]))


@ml("ZipMap")
def zip_map(call: Call) -> Result:
    """Import ZipMap: a matrix of scores as a list of dicts {label: score}, one for each row."""
    labels = labels_of(call, "classlabels_int64s")
    return call.emit("ZipMap", call[0], keys=tuple(labels.tolist()))
