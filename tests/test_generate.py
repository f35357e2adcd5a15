"""The example that generates tokens: with a cache and without it, greedily and by draws."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import tinsmith as ts

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "generate"))
import generate as example

CONFIG = example.Config(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
PROMPT = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
COUNT = 9


@pytest.fixture(scope="module")
def net():
    return ts.compile(ts.load(example.decoder(CONFIG)), cache=False, threads=1)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("draws", [False, True])
def test_the_same_tokens_with_a_cache_and_without(net, batch, draws):
    def tokens(net, cached):
        pick = example.sampling(seed=4, temperature=0.8, top=12) if draws else example.greedy
        return example.generate(net, PROMPT[:batch], COUNT, pick, cached)

    wanted = tokens(ts.compile(ts.load(example.decoder(CONFIG)), backend="numpy"), False)
    assert wanted.shape == (batch, PROMPT.shape[1] + COUNT)
    np.testing.assert_array_equal(tokens(net, True), wanted)
    np.testing.assert_array_equal(tokens(net, False), wanted)


def test_each_step_runs_in_generated_code(net):
    session = net.session(states=True)
    session(PROMPT)
    for _ in range(4):
        session(PROMPT[:, :1])
    assert {s.kind for s in session.net_of_runs.program().plan.steps} <= {"native", "view", "once"}
    assert session.states["past_key_values.1.value"].shape == (2, 2, 9, 8)
