"""Operators that ONNX's node cases do not show: generated code gives what numpy gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.frontends.conformance import cases
from tests.frontends.samples import samples
from tinsmith.frontends.onnx.call import IMPORTERS

SAMPLES = samples()


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(name: str) -> None:
    for proto, feeds in SAMPLES[name]:
        engines = [ts.compile(proto, backend=engine) for engine in ("cpu", "numpy")]
        for got, want in zip(*(e.run(list(feeds.values())) for e in engines), strict=True):
            assert_same(got, want)


def assert_same(got: Any, want: Any) -> None:
    """Equal, but for rounding: bytes but for one unit, where a scaled value's last bit decides."""
    if isinstance(want, list) or want.dtype == object:
        assert np.array_equal(got, want)
    else:
        assert got.dtype == want.dtype
        unit = 1 if want.dtype.name in ("uint8", "int8") else 1e-5
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=1e-4, atol=unit)


def test_every_importer_has_a_case_or_a_sample() -> None:
    nodes = [node for case in cases() for node in case.model.graph.node]
    shown = {f"{node.domain}.{node.op_type}".removeprefix(".") for node in nodes}
    assert set(IMPORTERS) - shown == SAMPLES.keys() - shown
