"""Models of classical machine learning (ai.onnx.ml) with random weights, and their inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.frontends.models import floats, ml

RNG = np.random.default_rng(0)
X = RNG.standard_normal((7, 4)).astype(np.float32)
HOLES = np.where(RNG.random((7, 4)) < 0.3, np.nan, X).astype(np.float32)
INTS = RNG.integers(-3, 4, (5, 3))
WORDS = np.array([["a", "b"], ["c", ""], ["b", "zz"]], object)
THREE = {"classlabels_ints": [10, 20, 30]}


def forest(kind: str, trees: int = 5, depth: int = 3, classes: int = 3, **more: Any) -> Any:
    """Attributes of random complete trees with all modes, over four features."""
    rng = np.random.default_rng(trees + depth + classes)
    rows: dict[str, list[Any]] = {k: [] for k in ("tree", "node", "mode", "f", "v", "yes", "no",
                                                  "missing", "t", "n", "id", "w")}  # fmt: skip
    inner = 2**depth - 1
    modes = ["LEQ", "LT", "GTE", "GT", "EQ", "NEQ"]
    for t in range(trees):
        for i in range(2 * inner + 1):
            leaf = i >= inner
            rows["tree"].append(t)
            rows["node"].append(i)
            rows["mode"].append("LEAF" if leaf else f"BRANCH_{modes[rng.integers(6)]}")
            rows["f"].append(0 if leaf else int(rng.integers(4)))
            rows["v"].append(0.0 if leaf else float(np.float32(rng.standard_normal())))
            rows["yes"].append(0 if leaf else 2 * i + 1)
            rows["no"].append(0 if leaf else 2 * i + 2)
            rows["missing"].append(int(rng.integers(2)))
            if leaf:
                for c in range(classes):
                    rows["t"].append(t)
                    rows["n"].append(i)
                    rows["id"].append(c)
                    rows["w"].append(float(rng.standard_normal()))
    names = {"tree": "nodes_treeids", "node": "nodes_nodeids", "mode": "nodes_modes",
             "f": "nodes_featureids", "v": "nodes_values", "yes": "nodes_truenodeids",
             "no": "nodes_falsenodeids", "missing": "nodes_missing_value_tracks_true",
             "t": f"{kind}_treeids", "n": f"{kind}_nodeids", "id": f"{kind}_ids",
             "w": f"{kind}_weights"}  # fmt: skip
    return {**{names[k]: v for k, v in rows.items()}, **more}


CASES = {
    "scaler": ml("Scaler", X, offset=[0.5, 1, -1, 0], scale=[2.0, 1, 0.1, 3]),
    "scaler of integers": ml("Scaler", INTS, offset=[0.5], scale=[2.0]),
    "binarizer": ml("Binarizer", X, threshold=0.25),
    "imputer": ml("Imputer", HOLES, imputed_value_floats=[1.0, 2, 3, 4],
                  replaced_value_float=float("nan")),
    "imputer of one value": ml("Imputer", HOLES, imputed_value_floats=[1.0],
                               replaced_value_float=float("nan")),
    "imputer of integers": ml("Imputer", INTS, imputed_value_int64s=[7], replaced_value_int64=2),
    "features": ml("ArrayFeatureExtractor", X, np.array([3, 0, 3])),
    "features of a vector": ml("ArrayFeatureExtractor", X[0], np.array([[1, 2]])),
    "one hot": ml("OneHotEncoder", INTS, cats_int64s=[-3, -1, 0, 2], zeros=1),
    "one hot of words": ml("OneHotEncoder", WORDS, cats_strings=["b", "a"], zeros=1),
    "labels": ml("LabelEncoder", WORDS, keys_strings=["a", "b"], values_int64s=[4, 5],
                 default_int64=-7),
    "labels back": ml("LabelEncoder", INTS, keys_int64s=[0, 1], values_strings=["zero", "one"],
                      default_string="many"),
    "labels of floats": ml("LabelEncoder", np.round(X), keys_floats=[0.0, 1.0],
                           values_floats=[0.5, 1.5], default_float=9.0),
    "linear regressor": ml("LinearRegressor", X, coefficients=list(range(8)), targets=2,
                           intercepts=[0.5, -1.0]),
    "linear classifier": ml("LinearClassifier", X, outs=2, **THREE, intercepts=[0.1, 0.2, 0.3],
                            coefficients=floats(12).tolist(), post_transform="SOFTMAX"),
    "linear classifier of words": ml("LinearClassifier", X, outs=2, intercepts=[0.1, 0.2],
                                     classlabels_strings=["no", "yes"],
                                     coefficients=floats(8).tolist(), post_transform="LOGISTIC"),
    "trees": ml("TreeEnsembleRegressor", X, **forest("target", n_targets=3)),
    "mean of trees": ml("TreeEnsembleRegressor", X, aggregate_function="AVERAGE",
                        base_values=[1.0, 2.0, 3.0], **forest("target", n_targets=3)),
    "largest of trees": ml("TreeEnsembleRegressor", X, aggregate_function="MAX",
                           **forest("target", n_targets=3)),
    "one deep tree": ml("TreeEnsembleRegressor", X, aggregate_function="MIN",
                        **forest("target", 1, 7, 1, n_targets=1)),
    "classes of trees": ml("TreeEnsembleClassifier", X, outs=2, post_transform="SOFTMAX",
                           **forest("class", classlabels_int64s=[3, 1, 2])),
    "words of trees": ml("TreeEnsembleClassifier", X, outs=2,
                         **forest("class", classlabels_strings=["x", "y", "z"])),
}  # fmt: skip


KERNELS = {
    "RBF": [0.4, 0, 0],
    "POLY": [0.5, 0.25, 3],
    "SIGMOID": [0.3, -0.1, 0],
    "LINEAR": [0.0, 0.0, 0.0],
}


def machine(counts: list[int], kernel: str = "RBF", **more: Any) -> dict[str, Any]:
    """Attributes of a random classifier over four features."""
    rng = np.random.default_rng(sum(counts) + len(kernel))
    total, classes = sum(counts), len(counts)
    return {
        "classlabels_ints": [10 * (i + 1) for i in range(classes)],
        "coefficients": rng.standard_normal(total * (classes - 1)).tolist(),
        "support_vectors": rng.standard_normal(total * 4).tolist(),
        "vectors_per_class": counts,
        "rho": rng.standard_normal(classes * (classes - 1) // 2).tolist(),
        "kernel_type": kernel,
        "kernel_params": KERNELS[kernel],
        **more,
    }


def regressor(count: int, kernel: str, **more: Any) -> dict[str, Any]:
    rng = np.random.default_rng(count)
    return {
        "coefficients": rng.standard_normal(count or 4).tolist(),
        "support_vectors": rng.standard_normal(count * 4).tolist() if count else [0.0],
        "n_supports": count,
        "rho": [0.3],
        "kernel_type": kernel,
        "kernel_params": KERNELS[kernel],
        **more,
    }
