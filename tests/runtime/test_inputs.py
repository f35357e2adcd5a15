"""What a call says of inputs that it cannot take."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tests.models import residual
from tinsmith import ops
from tinsmith.errors import InputTypeError
from tinsmith.graph import Graph, Type


def test_a_dict_of_inputs_says_how_to_pass_it() -> None:
    one = ts.compile(residual(), cache=False)
    g = Graph("two")
    g.outputs = [ops.Add(*(g.input(n, Type("float32", (2,))) for n in "ab"))]
    two = ts.compile(g, cache=False)
    inputs = {n: np.ones(2, np.float32) for n in "ab"}
    for net in (one, two):
        with pytest.raises(InputTypeError, match=r"not dict; net\(\*\*inputs\)"):
            net(inputs)
    np.testing.assert_array_equal(two(**inputs), [2, 2])


def test_arrays_that_cannot_be_written() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    x.flags.writeable = False
    g = Graph("twice")
    g.outputs = [ops.Mul(g.input("x", Type("float32", ("N", 4))), np.float32(2))]
    net = ts.compile(g, cache=False)
    np.testing.assert_array_equal(net(x), x * 2)
    np.testing.assert_array_equal(net(x[:0]), x[:0])
