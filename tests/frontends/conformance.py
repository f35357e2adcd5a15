"""ONNX's own node test cases, through the importer and the numpy references.

    python -m tests.frontends.conformance [pattern]

prints what fails, and passed/total for each operator.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from fnmatch import fnmatch
from functools import cache
from typing import Any

import numpy as np

from tinsmith.errors import ImportFailed, TinsmithError
from tinsmith.formats.onnx import OnnxModel
from tinsmith.frontends import load
from tinsmith.graph import OptionalType, SequenceType
from tinsmith.graph.verify import verify
from tinsmith.ops.interpret import run_graph

EXCLUDED = {
    "test_adagrad*": "training operators are not supported",
    "test_adam*": "training operators are not supported",
    "test_momentum*": "training operators are not supported",
    "test_nesterov_momentum": "training operators are not supported",
    "test_training_dropout*": "training mode is not supported",
    "test_bernoulli*": "the expected values are those of one random generator",
}
"""Cases that are not expected to pass, with the reason."""


def reason(name: str) -> str | None:
    """Why a case is excluded; None if it must pass."""
    return next((why for pattern, why in EXCLUDED.items() if fnmatch(name, pattern)), None)


@cache
def cases() -> list[Any]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return collect_testcases(None)


def operator(case: Any) -> str:
    """The operator that a case is about; that of its unexpanded twin for an expanded one."""
    if len(case.model.graph.node) == 1:
        return case.model.graph.node[0].op_type
    twin = case.name.split("_expanded")[0]
    found = next((c for c in cases() if c.name == twin and len(c.model.graph.node) == 1), None)
    return found.model.graph.node[0].op_type if found else case.name


def failure(case: Any) -> str | None:
    """Why a case fails; None if it passes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = load(case.model)
    except ImportFailed as error:
        return str(error)
    try:
        verify(graph)
        if [v.name for v in graph.outputs] != [v.name for v in case.model.graph.output]:
            return f"the outputs are named {[v.name for v in graph.outputs]}"
        for inputs, expected in case.data_sets:
            got = run_graph(graph, [_array(a) for a in inputs])
            pairs = zip(graph.outputs, got, expected, strict=True)
            for why in (differs(a, _array(b), case.rtol, v.type) for v, a, b in pairs):
                if why:
                    return why
    except TinsmithError as error:
        return f"{type(error).__name__}: {error}"
    return None


def _array(data: Any) -> Any:
    """An array, a list of arrays (a sequence), or None."""
    if data is None:
        return None
    if isinstance(data, list):
        return [_array(a) for a in data]
    return OnnxModel(None).tensor(data) if hasattr(data, "data_type") else np.asanyarray(data)


def differs(got: Any, want: Any, rtol: float, type: Any) -> str | None:
    """How a result differs from what is expected, or from the type that was inferred for it.

    The tolerance is the case's, and four units in the last place of the largest element.
    """
    if isinstance(type, OptionalType) and got is not None:
        return differs(got, want, rtol, type.item)
    if want is None or isinstance(want, list):
        return _held_differs(got, want, rtol, type)
    strings = want.dtype.kind in "OUS"
    if got.dtype != want.dtype and not (strings and got.dtype == object):
        return f"the dtype is {got.dtype}, not {want.dtype}"
    if got.shape != want.shape:
        return f"the shape is {got.shape}, not {want.shape}"
    if type.dtype != got.dtype or not _fits(type.shape, got.shape):
        return f"the inferred type is {type}, the result is {got.dtype}{list(got.shape)}"
    if strings or got.dtype.kind in "biu":
        return None if np.array_equal(got, want) else f"{got} is not {want}"
    wide, exact = (_widened(a) for a in (got, want))
    finite = np.abs(exact[np.isfinite(exact)])
    atol = 4 * _ulp(got.dtype) * float(finite.max(initial=0)) + 1e-30
    if np.allclose(wide, exact, rtol=rtol, atol=atol, equal_nan=True):
        return None
    return f"the largest difference is {np.nanmax(np.abs(wide - exact))}: {wide} is not {exact}"


def _held_differs(got: Any, want: Any, rtol: float, type: Any) -> str | None:
    if want is None or got is None:
        fits = want is got and isinstance(type, OptionalType)
        return None if fits else f"{got} ({type}) is not {want}"
    if not isinstance(type, SequenceType) or not isinstance(got, list) or len(got) != len(want):
        return f"{got} ({type}) is not {want}"
    pairs = zip(got, want, strict=True)
    return next((w for a, b in pairs if (w := differs(a, b, rtol, type.item))), None)


def _fits(shape: Any, actual: tuple[int, ...]) -> bool:
    if shape is None:
        return True
    return len(shape) == len(actual) and all(
        isinstance(a, str) or a == b for a, b in zip(shape, actual, strict=True)
    )


def _widened(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return a if a.dtype.kind == "c" else a.astype(np.float64)


def _ulp(dtype: np.dtype[Any]) -> float:
    import ml_dtypes

    return 0.0 if dtype.name.startswith(("int", "uint")) else float(ml_dtypes.finfo(dtype).eps)


def main(pattern: str = "*") -> None:
    total: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    for case in cases():
        if not fnmatch(case.name, pattern):
            continue
        why = failure(case)
        total[operator(case)] += 1
        passed[operator(case)] += why is None
        if why is not None:
            print(
                f"{case.name} [{reason(case.name) or 'MUST PASS'}]: {' '.join(why.split())[:300]}"
            )
    for name in sorted(total):
        print(f"{name:32} {passed[name]:4}/{total[name]}")
    print(f"{'all':32} {passed.total():4}/{total.total()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
