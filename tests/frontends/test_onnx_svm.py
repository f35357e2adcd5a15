"""Support vector machines and ZipMap, against scikit-learn, ONNX's evaluator and libsvm's loops."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tinsmith as ts
from tests.frontends.classical import KERNELS, machine, regressor
from tests.frontends.models import check_evaluator, floats, ml
from tinsmith.errors import ImportFailed
from tinsmith.frontends import load
from tinsmith.graph.text import format_graph, graph_weights, parse_graph
from tinsmith.ops import OPS

RNG = np.random.default_rng(3)
X = floats(7, 4)
DATA = Path(__file__).parents[1] / "data" / "svm"
EXPECTED = np.load(DATA / "expected.npz")
PAIR = {"prob_a": [-1.5], "prob_b": [0.2]}
CASES = {
    **{f"regressor {k}": ml("SVMRegressor", X, **regressor(5, k)) for k in KERNELS},
    "one class": ml("SVMRegressor", X, **regressor(5, "RBF", one_class=1)),
    "linear regressor": ml("SVMRegressor", X, **regressor(0, "LINEAR")),
    **{f"pair {k}": ml("SVMClassifier", X, outs=2, **machine([2, 3], k)) for k in KERNELS},
    "likely pair": ml("SVMClassifier", X, outs=2, **machine([2, 3], **PAIR)),
    **{f"three {k}": ml("SVMClassifier", X, outs=2, **machine([2, 3, 1], k)) for k in KERNELS},
    "four": ml("SVMClassifier", X, outs=2, **machine([2, 3, 1, 4])),
    "logistic pair": ml("SVMClassifier", X, outs=2,
                        **machine([4, 1], post_transform="LOGISTIC")),
    "softmax of four": ml("SVMClassifier", X, outs=2,
                          **machine([2, 3, 1, 4], post_transform="SOFTMAX")),
    "linear": ml("SVMClassifier", X, outs=2, classlabels_ints=[4, 7], rho=[0.1],
                 coefficients=[1.0, -1, 2, 0.5, -1, 0.5, 1, 2]),
    "linear of positive weights": ml("SVMClassifier", X, outs=2, classlabels_ints=[4, 7],
                                     rho=[0.1], coefficients=[1.0, 1, 2, 0.5, 0, 0.5, 1, 2]),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
@pytest.mark.parametrize("name", CASES)
def test_as_the_reference_evaluator(name: str, backend: str) -> None:
    check_evaluator(CASES[name], backend, 1e-5, 1e-5)


@pytest.mark.parametrize("name", ["classes", "words", "numbers", "outliers"])
def test_as_scikit_learn(name: str) -> None:
    first, *rest = ts.compile(DATA / f"{name}.onnx").run([EXPECTED["x"]])
    want = EXPECTED[name]
    if name == "numbers":
        np.testing.assert_allclose(first[:, 0], want, rtol=1e-4, atol=1e-4)
    elif name == "outliers":
        clear = abs(rest[0][:, 0]) > 1e-5  # vectors of the machine itself lie on its border
        assert clear.sum() > 30 and (first[:, 0] == want)[clear].all()
    else:
        assert first.tolist() == want.tolist()
        keys = sorted(set(want.tolist()))
        assert all(sorted(row) == keys for row in rest[0])
        likely = [[row[k] for k in keys] for row in rest[0]]
        np.testing.assert_allclose(likely, EXPECTED[f"{name} likely"], atol=5e-5)


def coupled(r: np.ndarray, classes: int) -> np.ndarray:
    """libsvm's multiclass_probability, line by line."""
    q, p = np.zeros((classes, classes)), np.full(classes, 1 / classes)
    for t in range(classes):
        for j in range(classes):
            q[t, t] += r[j, t] ** 2 if j != t else 0
            q[t, j] = -r[j, t] * r[t, j] if j != t else q[t, j]
    for _ in range(max(100, classes)):
        qp = q @ p
        pqp = p @ qp
        if np.abs(qp - pqp).max() < 0.005 / classes:
            break
        for t in range(classes):
            diff = (-qp[t] + pqp) / q[t, t]
            p[t] += diff
            pqp = (pqp + diff * (diff * q[t, t] + 2 * qp[t])) / (1 + diff) / (1 + diff)
            for j in range(classes):
                qp[j] = (qp[j] + diff * q[t, j]) / (1 + diff)
                p[j] /= 1 + diff
    return p


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_probabilities_of_pairs_are_coupled(classes: int) -> None:
    pairs = list(combinations(range(classes), 2))
    given = RNG.uniform(1e-3, 1 - 1e-3, (20, len(pairs)))
    got = OPS["PairwiseCoupling"](given, classes=classes)
    for row, p in zip(given, got, strict=True):
        r = np.zeros((classes, classes))
        for (i, j), value in zip(pairs, row, strict=True):
            r[i, j], r[j, i] = value, 1 - value
        np.testing.assert_allclose(p, coupled(r, classes), rtol=1e-9)


def test_far_from_zero_the_radial_kernel_keeps_its_digits() -> None:
    x = (X + 4096).astype(np.float32)
    attrs = regressor(5, "RBF")
    vectors = np.float32(np.array(attrs["support_vectors"]) + 4096)
    proto, feeds = ml("SVMRegressor", x, **{**attrs, "support_vectors": vectors.tolist()})
    (y,) = ts.compile(load(proto)).run(list(feeds.values()))
    (want,) = ReferenceEvaluator(proto).run(None, feeds)
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
@pytest.mark.parametrize(
    "labels",
    [{"classlabels_int64s": [3, 1, 2, 9]}, {"classlabels_strings": ["a", "b", "c", "d"]}],
    ids=["int64", "string"],
)
def test_maps(labels: dict[str, Any], backend: str) -> None:
    proto, _ = ml("ZipMap", X, **labels)
    key = TensorProto.INT64 if "classlabels_int64s" in labels else TensorProto.STRING
    kind = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, ()))
    proto.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(kind))
    graph = load(proto)
    assert str(graph.outputs[0].type) == "sequence(map(float32[]))"
    assert str(parse_graph(format_graph(graph), graph_weights(graph))) == str(graph)
    net = ts.compile(graph, backend=backend)
    (keys,) = labels.values()
    want = [dict(zip(keys, row, strict=True)) for row in X.tolist()]
    (got,) = net.run([X])
    assert got == want
    (again,) = net.run([-X])
    assert got == want and again != want


def test_maps_are_stored(tmp_path: Path) -> None:
    graph = load(ml("ZipMap", X, classlabels_int64s=[3, 1, 2, 9])[0])
    ts.save(ts.compile(graph), tmp_path / "zip.tin", code=True)
    (got,) = ts.compile(tmp_path / "zip.tin", trust=True).run([X])
    assert list(got[0]) == [3, 1, 2, 9]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (ml("ZipMap", X, classlabels_int64s=[0, 1]), "x has 4 columns, there are 2 keys"),
        (ml("ZipMap", X), "has no class labels"),
        (ml("SVMRegressor", X, **regressor(5, "RBF", coefficients=[1.0])), "1 coeff"),
        (ml("SVMRegressor", X, **regressor(5, "RBF", kernel_type="SINE")), "is 'SINE'"),
        (ml("SVMClassifier", X, outs=2, **machine([2, 3], rho=[1.0, 2.0])), "2 rho for 1 pair"),
        (ml("SVMClassifier", X, outs=2, **machine([2, 3], coefficients=[1.0])), "1 coefficient"),
        (ml("SVMClassifier", X, outs=2, **machine([2, 3], prob_a=[1.0])), "0 prob_b"),
        (ml("SVMClassifier", X, outs=2, **machine([2, 3], support_vectors=[1.0])), "1 numbers"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_is_refused(case: Any, message: str) -> None:
    with pytest.raises(ImportFailed, match=message):
        load(case[0])
