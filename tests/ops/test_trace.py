"""Elementwise references can be traced: they call numpy on their inputs and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.lib.mixins import NDArrayOperatorsMixin

import tests.ops.samples_shape  # noqa: F401
from tests.ops.samples import SAMPLES, Sample
from tinsmith.ops import OPS
from tinsmith.ops._special import erf, gelu, one_plus_exp_of_minus

FUNCTIONS = {np.where, np.clip, erf, gelu, one_plus_exp_of_minus}


class Recorder(NDArrayOperatorsMixin):
    """Looks like an array to numpy, but offers no data, no shape and no truth value."""

    def __init__(self, value: Any, log: list[str]) -> None:
        self._value, self._log = value, log

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._value.dtype

    def astype(self, dtype: Any) -> Recorder:
        """As generated code converts: floats out of range become the nearest integer."""
        self._log.append("astype")
        return Recorder(OPS["Cast"].reference(self._value, to=np.dtype(dtype).name), self._log)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        assert method == "__call__" and not kwargs, (ufunc, method, kwargs)
        self._log.append(ufunc.__name__)
        return Recorder(ufunc(*map(_value, inputs)), self._log)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        assert func in FUNCTIONS, f"{func} cannot be traced"
        assert not kwargs
        self._log.append(func.__name__)
        return Recorder(func(*map(_value, args)), self._log)

    def __bool__(self) -> bool:
        raise AssertionError("the reference branches on data")


def _value(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        raise AssertionError("the reference mixes in an array of its own")
    return x._value if isinstance(x, Recorder) else x


def _traced(sample: Sample) -> bool:
    whole_dtypes = all(a.dtype != object for a in sample.inputs if a is not None)
    return (
        "elementwise" in OPS[sample.op].traits
        and whole_dtypes
        and sample.attrs.get("to") not in ("string", "float8_e8m0fnu")
    )


@pytest.mark.parametrize("sample", [s for s in SAMPLES if _traced(s)], ids=str)
def test_reference_is_traceable(sample: Sample) -> None:
    op, log = OPS[sample.op], []
    attrs = op.bind(sample.inputs, sample.attrs)
    with np.errstate(all="ignore"):
        got = op.reference(*(a if a is None else Recorder(a, log) for a in sample.inputs), **attrs)
    wanted = op.evaluate(sample.inputs, attrs)[0]
    assert isinstance(got, Recorder)
    value = np.asarray(got._value)
    assert value.dtype == wanted.dtype and value.shape == wanted.shape
    assert value.tobytes() == wanted.tobytes()
    if sample.op not in ("Identity", "Cast", "Clip"):
        assert log


def test_every_elementwise_operator_is_traced() -> None:
    done = {s.op for s in SAMPLES if _traced(s)}
    missing = {o.name for o in OPS.rows() if "elementwise" in o.traits} - done
    assert not missing, f"add samples of {sorted(missing)}"
