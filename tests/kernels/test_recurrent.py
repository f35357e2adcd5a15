"""RNN, GRU and LSTM kernels against the references."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, levels

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
KERNELS = {"RNN": "rnn_steps", "GRU": "gru_steps", "LSTM": "lstm_steps"}
SIZES = [(1, 1, 1, 1), (5, 1, 7, 16), (4, 3, 5, 13), (3, 6, 17, 33), (6, 1, 20, 64)]


def run(
    op: str,
    size: tuple,
    direction: str,
    target: str,
    states: bool = False,
    threads: int = 1,
    **attrs: object,
) -> None:
    t, n, i, h = size
    rng = np.random.default_rng(0)
    d, g = 2 if direction == "bidirectional" else 1, GATES[op]

    def r(*dims: int) -> np.ndarray:
        return (rng.standard_normal(dims) * 0.5).astype(np.float32)

    arrays: list = [r(t, n, i), r(d, g * h, i), r(d, g * h, h), r(d, 2 * g * h)]
    if states:
        arrays += [None, r(d, n, h)] + ([r(d, n, h)] if op == "LSTM" else [])
    check(
        op, arrays, {"hidden_size": h, "direction": direction, **attrs},
        kernel=KERNELS[op], target=target, consts=(1, 2, 3), rtol=2e-5, threads=threads,
    )  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("size", SIZES)
def test_sizes(op: str, size: tuple, target: str) -> None:
    run(op, size, "forward", target)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
@pytest.mark.parametrize("states", [False, True])
def test_directions_and_states(op: str, direction: str, states: bool) -> None:
    run(op, (4, 2, 6, 20), direction, "host", states)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("size", SIZES[1:4])
def test_gru_linear_before_reset(size: tuple, target: str) -> None:
    run("GRU", size, "bidirectional", target, linear_before_reset=1)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_units_divided_among_threads(op: str, direction: str) -> None:
    after = {"linear_before_reset": 1} if op == "GRU" else {}
    run(op, (5, 2, 6, 70), direction, "host", states=True, threads=4, **after)
