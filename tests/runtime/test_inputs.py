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
