"""Classical machine learning (ai.onnx.ml), against the reference evaluator of ONNX or numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import tinsmith as ts
from tests.frontends.classical import CASES, HOLES, INTS, THREE, WORDS, X, forest
from tests.frontends.models import check_evaluator, floats, ml, model
from tinsmith.errors import DataError, ImportFailed, ModelWarning
from tinsmith.frontends import load
from tinsmith.ops import OPS


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
@pytest.mark.parametrize("name", CASES)
def test_as_the_reference_evaluator(name: str, backend: str) -> None:
    check_evaluator(CASES[name], backend)


def run(proto: Any, feeds: Any) -> Any:
    return ts.compile(load(proto)).run(list(feeds.values()))


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_rows_are_normalised_and_rows_of_zeros_stay(norm: str) -> None:
    x = np.vstack([X, np.zeros(4)]).astype(np.float32)
    size = {"MAX": x.max(1), "L1": abs(x).sum(1), "L2": np.sqrt((x * x).sum(1))}[norm]
    want = x / np.where(size, size, 1)[:, None]
    np.testing.assert_allclose(run(*ml("Normalizer", x, norm=norm))[0], want, rtol=1e-5, atol=1e-7)


def test_one_hot_without_categories_of_its_type_is_refused() -> None:
    for x, attrs in ((WORDS, {"cats_int64s": [1]}), (INTS, {"cats_strings": ["a"]}), (WORDS, {})):
        with pytest.raises(ImportFailed, match="no categories"):
            load(ml("OneHotEncoder", x, zeros=1, **attrs)[0])


BINARY = {"classlabels_int64s": [5, 9], "classes": 1}


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC"])
def test_two_classes_of_which_one_is_scored(post: str) -> None:
    attrs = forest("class", base_values=[0.25], **BINARY)
    labels, scores = run(*ml("TreeEnsembleClassifier", X, outs=2, post_transform=post, **attrs))
    names = {
        k.replace("class_", "target_"): v for k, v in attrs.items() if k != "classlabels_int64s"
    }
    (total,) = run(*ml("TreeEnsembleRegressor", X, n_targets=1, **names))
    both = np.hstack([-total, total])
    want = 1 / (1 + np.exp(-both)) if post == "LOGISTIC" else both
    np.testing.assert_allclose(scores, want, rtol=1e-5)
    assert labels.tolist() == np.where(total[:, 0] > 0, 9, 5).tolist()


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_two_classes_of_which_the_second_is_scored(post: str) -> None:
    """As ONNX Runtime: the first has the score 0."""
    attrs = forest("class", **BINARY)
    (total,) = run(*ml("TreeEnsembleRegressor", X, n_targets=1, **forest("target", classes=1)))
    attrs["class_ids"] = [1 for _ in attrs["class_ids"]]
    labels, scores = run(*ml("TreeEnsembleClassifier", X, outs=2, post_transform=post, **attrs))
    both = np.hstack([0 * total, total])
    want = {"NONE": both, "LOGISTIC": 1 / (1 + np.exp(-both)),
            "SOFTMAX": np.exp(both) / np.exp(both).sum(1, keepdims=True)}[post]  # fmt: skip
    np.testing.assert_allclose(scores, want, rtol=1e-5)
    assert labels.tolist() == np.where(total[:, 0] > 0, 9, 5).tolist()


def test_two_classes_with_positive_weights() -> None:
    attrs = forest("class", **BINARY)
    attrs["class_weights"] = [abs(w) / 8 for w in attrs["class_weights"]]
    labels, scores = run(*ml("TreeEnsembleClassifier", X, outs=2, **attrs))
    np.testing.assert_allclose(scores.sum(1), 1, rtol=1e-6)
    assert labels.tolist() == np.where(scores[:, 1] > 0.5, 9, 5).tolist()


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_a_linear_classifier_of_one_row(post: str) -> None:
    """As ONNX Runtime: a score s alone gives 1 - s and s, unless LOGISTIC."""
    labels, scores = run(
        *ml("LinearClassifier", X, outs=2, classlabels_ints=[0, 1], intercepts=[0.1],
            coefficients=[1.0, -1, 2, 0], post_transform=post)
    )  # fmt: skip
    total = X @ np.array([1, -1, 2, 0], np.float32) + np.float32(0.1)
    want = 1 / (1 + np.exp(-total)) if post == "LOGISTIC" else total
    np.testing.assert_allclose(scores, np.stack([1 - want, want], 1), rtol=1e-4, atol=1e-6)
    assert labels.tolist() == (total > 0).astype(int).tolist()


def test_labels_of_nan_and_of_tensors() -> None:
    x = np.array([np.nan, 1, 2], np.float32)
    proto, feeds = ml("LabelEncoder", x, keys_floats=[float("nan"), 1.0], values_int64s=[7, 8])
    assert run(proto, feeds)[0].tolist() == [7, 8, -1]
    node = helper.make_node(
        "LabelEncoder", ["x0"], ["y0"], domain="ai.onnx.ml",
        keys_tensor=numpy_helper.from_array(np.array([1, 2], np.int64)),
        values_tensor=numpy_helper.from_array(np.array([0.5, 0.25])),
        default_tensor=numpy_helper.from_array(np.array([-1.0])),
    )  # fmt: skip
    feeds = {"x0": np.array([[2, 3]])}
    (y,) = run(model([node], feeds, ["y0"], opset=17, domains={"ai.onnx.ml": 4}), feeds)
    assert y.dtype == np.float64 and y.tolist() == [[0.25, -1.0]]


def test_categories() -> None:
    both = {"cats_strings": ["a", "b"], "cats_int64s": [3, 4]}
    assert run(*ml("CategoryMapper", WORDS, **both))[0].tolist() == [[3, 4], [-1, -1], [4, -1]]
    (y,) = run(*ml("CategoryMapper", np.array([4, 5]), default_string="?", **both))
    assert y.tolist() == ["b", "?"]


@pytest.mark.parametrize(
    ("shapes", "widths"),
    [
        ([(7, 4), (7, 3)], [4, 3]),
        ([(4,), (3,)], [4, 3]),  # vectors are one row each
        ([(4,), (1, 3)], [4, 3]),
        ([(1, 2, 3), (1, 2, 1)], [6, 2]),  # of more axes all but the first are features
        ([(2, 2, 3), (2, 1, 2, 1)], [6, 2]),
        ([(2, 3), (2, 2)], [5, 1]),  # filled with zeros, and cut
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_vectors_of_features(shapes: Any, widths: Any, dtype: Any) -> None:
    """As ONNX Runtime: rows of float32, each with the given number of features of each input."""
    xs = [np.arange(1, np.prod(s) + 1, dtype=dtype).reshape(s) for s in shapes]
    (y,) = run(*ml("FeatureVectorizer", *xs, inputdimensions=widths))
    rows = [x.reshape(1 if x.ndim == 1 else len(x), -1) for x in xs]
    rows = [np.pad(r, [(0, 0), (0, w)])[:, :w] for r, w in zip(rows, widths, strict=True)]
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, np.hstack(rows))


def test_more_coefficients_than_features() -> None:
    """As ONNX Runtime: those of the rows that the intercepts count, and a warning."""
    proto, feeds = ml("LinearClassifier", X[:, :2], outs=2, **THREE, intercepts=[0.5, 0, -0.5],
                      coefficients=floats(12).tolist())  # fmt: skip
    with pytest.warns(ModelWarning, match="12 coefficients are given, the first 6 are used"):
        _, scores = run(proto, feeds)
    want = X[:, :2] @ floats(12)[:6].reshape(3, 2).T + [0.5, 0, -0.5]
    np.testing.assert_allclose(scores, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (ml("Scaler", X), "needs an offset and a scale"),
        (ml("Normalizer", X, norm="L3"), "norm is 'L3'"),
        (ml("FeatureVectorizer", X, X, inputdimensions=[4]), "1 inputdimensions for 2 inputs"),
        (ml("LabelEncoder", X, keys_int64s=[1], values_int64s=[2]), "its keys are int64"),
        (ml("LabelEncoder", INTS, values_int64s=[2]), "has no keys"),
        (ml("TreeEnsembleRegressor", X, n_targets=2, **forest("target")), "names the target 2"),
        (ml("TreeEnsembleRegressor", X[:, :2], n_targets=3, **forest("target")), "the feature 3"),
        (ml("TreeEnsembleRegressor", X, n_targets=3, post_transform="PROBIT", **forest("target")),
         "post_transform PROBIT is not supported"),
        (ml("LinearClassifier", X, outs=2, classlabels_ints=[0, 1], intercepts=[0.1],
            coefficients=[1.0, -1, 2, 0], post_transform="PROBIT"), "PROBIT is not supported"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)  # fmt: skip
def test_what_is_refused(case: Any, message: str) -> None:
    with pytest.raises(ImportFailed, match=message):
        load(case[0])


def test_nan_goes_where_the_node_says() -> None:
    """A comparison with NaN is false, but for NEQ, unless the node lets it be true."""
    attrs = forest("target", 1, 4, 1, n_targets=1)
    (y,) = run(*ml("TreeEnsembleRegressor", HOLES, **attrs))
    weight = dict(zip(attrs["target_nodeids"], attrs["target_weights"], strict=True))
    compare = {"LEQ": "__le__", "LT": "__lt__", "GTE": "__ge__", "GT": "__gt__",
               "EQ": "__eq__", "NEQ": "__ne__"}  # fmt: skip
    for row, got in zip(HOLES, y[:, 0], strict=True):
        i = 0
        while attrs["nodes_modes"][i] != "LEAF":
            v, s = row[attrs["nodes_featureids"][i]], attrs["nodes_values"][i]
            yes = getattr(float(v), compare[attrs["nodes_modes"][i].removeprefix("BRANCH_")])(s)
            yes = yes or (np.isnan(v) and attrs["nodes_missing_value_tracks_true"][i])
            i = attrs["nodes_truenodeids" if yes else "nodes_falsenodeids"][i]
        assert got == np.float32(weight[i])


def test_a_tree_in_a_circle_ends() -> None:
    i = np.zeros(1, np.int64)
    with pytest.raises(DataError, match="a tree has a cycle"):
        OPS["TreeEnsemble"](
            X, i, np.zeros(1, np.float32), i.astype(np.uint8), i, i, i.astype(bool), i,
            np.zeros(2, np.int64), i[:0], np.zeros(0, np.float32), targets=1,
        )  # fmt: skip
    attrs = forest("target", 1, 2, 1, n_targets=1)
    attrs["nodes_truenodeids"][0] = 2
    with pytest.raises(ImportFailed, match="have no parent"):
        load(ml("TreeEnsembleRegressor", X, **attrs)[0])
