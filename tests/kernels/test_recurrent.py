"""RNN, GRU and LSTM kernels against the references."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, levels, one_node, site_of
from tinsmith.codegen.jit import assembly
from tinsmith.codegen.target import level
from tinsmith.graph import dtype_of
from tinsmith.kernels._kernel import KERNELS as ROWS
from tinsmith.kernels._kernel import Skip
from tinsmith.kernels.build import build_phase
from tinsmith.kernels.layout import PLAIN, spec_of

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
    lens: list[int] | None = None,
    peepholes: bool = False,
    consts: tuple[int, ...] = (1, 2, 3, 7),
    **attrs: object,
) -> None:
    t, n, i, h = size
    rng = np.random.default_rng(0)
    d, g = 2 if direction == "bidirectional" else 1, GATES[op]

    def r(*dims: int) -> np.ndarray:
        return (rng.standard_normal(dims) * 0.5).astype(np.float32)

    first = attrs.get("layout")
    arrays: list = [r(n, t, i) if first else r(t, n, i)]
    arrays += [r(d, g * h, i), r(d, g * h, h), r(d, 2 * g * h)]
    state = (n, d, h) if first else (d, n, h)
    if states:
        arrays += [None, r(*state)] + ([r(*state)] if op == "LSTM" else [])
    arrays += [None] * ((8 if op == "LSTM" else 6) - len(arrays))
    if lens is not None:
        arrays[4] = np.array(lens, np.int32)
    if peepholes:
        arrays[7] = r(d, 3 * h)
    check(
        op, arrays, {"hidden_size": h, "direction": direction, **attrs},
        kernel=KERNELS[op], target=target, consts=consts, rtol=2e-5, threads=threads,
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


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_sequences_of_different_lengths(op: str, direction: str, target: str) -> None:
    for after in (0, 1) if op == "GRU" else (None,):
        attrs = {} if after is None else {"linear_before_reset": after}
        run(op, (5, 6, 3, 17), direction, target, states=True, lens=[5, 0, 3, 1, 5, 4], **attrs)


def test_lengths_with_units_divided_among_threads() -> None:
    run("LSTM", (5, 2, 6, 70), "bidirectional", "host", states=True, threads=4, lens=[2, 5])


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_peepholes(direction: str, target: str) -> None:
    run("LSTM", (4, 3, 5, 21), direction, target, states=True, peepholes=True)
    run("LSTM", (4, 3, 5, 21), direction, target, peepholes=True, lens=[1, 4, 2])


@pytest.mark.parametrize(
    ("op", "names", "alpha", "beta"),
    [
        ("RNN", ["Relu"], None, None),
        ("RNN", ["Affine"], [0.5], [0.1]),
        ("RNN", ["LeakyRelu"], [0.2], None),
        ("RNN", ["ScaledTanh"], [1.7], [0.6]),
        ("GRU", ["HardSigmoid", "Softsign"], [0.3], [0.4]),
        ("GRU", ["Sigmoid", "Elu"], [0.8], None),
        ("LSTM", ["HardSigmoid", "Tanh", "ThresholdedRelu"], [0.2, 0.1], [0.5]),
    ],
)
def test_other_activations(op: str, names: list, alpha: list, beta: list) -> None:
    run(op, (4, 3, 5, 21), "forward", "host", activations=tuple(names),
        activation_alpha=alpha, activation_beta=beta)  # fmt: skip


@pytest.mark.parametrize("op", GATES)
def test_clipped_gates(op: str) -> None:
    run(op, (4, 3, 5, 21), "bidirectional", "host", clip=0.3)


def test_coupled_gates() -> None:
    run("LSTM", (4, 3, 5, 21), "forward", "host", input_forget=1)


def test_activations_that_differ_between_directions_are_left_to_the_reference() -> None:
    with pytest.raises(Skip, match="different activations"):
        run("RNN", (2, 1, 3, 4), "bidirectional", "host", activations=("Relu", "Tanh"))
    with pytest.raises(Skip, match="softplus"):
        run("RNN", (2, 1, 3, 4), "forward", "host", activations=("Softplus",))


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("size", [*SIZES, (2, 3, 64, 70), (7, 2, 33, 50)])
def test_computed_weights(op: str, size: tuple, target: str) -> None:
    run(op, size, "bidirectional", target, states=True, consts=())


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("consts", [(1, 2), (2, 3), (1, 3, 7)])
def test_weights_of_which_some_are_computed(op: str, consts: tuple) -> None:
    peepholes = op == "LSTM"
    run(op, (4, 3, 5, 21), "reverse", "host", lens=[1, 4, 2], peepholes=peepholes, consts=consts)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("size", [*SIZES, (5, 2, 6, 70)])
def test_batch_first(op: str, size: tuple, target: str) -> None:
    run(op, size, "bidirectional", target, states=True, layout=1)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_batch_first_with_lengths_among_threads(op: str, direction: str) -> None:
    after = {"linear_before_reset": 1} if op == "GRU" else {}
    run(op, (5, 3, 6, 70), direction, "host", states=True, threads=4, lens=[2, 5, 0],
        consts=(), layout=1, **after)  # fmt: skip


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("hidden", [16, 21])
def test_computed_weights_without_bias(op: str, hidden: int) -> None:
    rng, rows = np.random.default_rng(0), GATES[op] * hidden
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((4, 2, 5), (1, rows, 5))]
    arrays.append(rng.standard_normal((1, rows, hidden)).astype(np.float32))
    check(op, arrays, {"hidden_size": hidden}, kernel=KERNELS[op], target="host", rtol=2e-5)


@pytest.mark.parametrize("threads", [1, 4])
def test_computed_weights_with_everything(threads: int) -> None:
    for after in (0, 1):
        run("GRU", (5, 2, 6, 70), "bidirectional", "host", states=True, threads=threads,
            consts=(), linear_before_reset=after)  # fmt: skip
    run("LSTM", (5, 2, 6, 70), "bidirectional", "host", threads=threads, consts=(), peepholes=True)


def small(op: str, size: tuple, kind: str, direction: str = "forward", **attrs: object) -> tuple:
    """Operands of a layer whose weights are small, and its attributes."""
    t, n, i, h = size
    rng, d, g = np.random.default_rng(1), 2 if direction == "bidirectional" else 1, GATES[op]
    low = {"int8": 127, "int16": 255}.get(kind, 3)

    def weights(k: int) -> np.ndarray:
        w = rng.uniform(-low, low, (d, g * h, k))
        return (np.rint(w) if low > 3 else w).astype(dtype_of(kind))

    def scale() -> np.ndarray:
        return rng.uniform(0.2, 1, (d, g * h)).astype(np.float32) / low

    def real(*dims: int) -> np.ndarray:
        return rng.standard_normal(dims).astype(np.float32)

    states = [real(d, n, h) for _ in range(2 if op == "LSTM" else 1)]
    arrays = [real(t, n, i), weights(i), weights(h), real(d, 2 * g * h), None, *states]
    arrays += [real(d, 3 * h)] if op == "LSTM" else []
    return [*arrays, scale(), scale()], {"hidden_size": h, "direction": direction, **attrs}


BYTES = (1, 2, 3, 7, 8, 9)
SMALL = ["int8", "float16", "bfloat16"]


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("op", GATES)
def test_small_weights(op: str, kind: str, target: str) -> None:
    for size in SIZES:
        arrays, attrs = small(op, size, kind, "bidirectional")
        consts = (1, 2, 3, *range(len(arrays) - (3 if op == "LSTM" else 2), len(arrays)))
        check(op, arrays, attrs, kernel=KERNELS[op], target=target, consts=consts, rtol=3e-5)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("kind", ["int8", "int16"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_rounded_layers(direction: str, kind: str, target: str) -> None:
    """In whole numbers, what the reference does with rounded floats. Where one of them lies halfway
    between two bytes, they may differ: none does here."""
    for size in SIZES:
        arrays, attrs = small("LSTM", size, kind, direction, rounded=True)
        for threads in (1, 3):
            check("LSTM", arrays, attrs, kernel="lstm_steps", target=target,
                  consts=BYTES, rtol=3e-5, threads=threads)  # fmt: skip


def test_rounded_layers_of_zeros_and_of_sequences_that_end() -> None:
    arrays, attrs = small("LSTM", (4, 3, 5, 21), "int8", rounded=True)
    arrays[4] = np.array([1, 4, 2], np.int32)
    check("LSTM", arrays, attrs, kernel="lstm_steps", consts=BYTES, rtol=3e-5)
    for k in (0, 5, 6):
        arrays[k] = np.zeros_like(arrays[k])
    check("LSTM", arrays, attrs, kernel="lstm_steps", consts=BYTES, rtol=3e-5)


def test_rounded_layers_need_bytes() -> None:
    arrays, attrs = small("LSTM", (4, 3, 5, 21), "float16", rounded=True)
    with pytest.raises(Skip, match="multiplied by bytes"):
        check("LSTM", arrays, attrs, kernel="lstm_steps", consts=BYTES)
    with pytest.raises(Skip, match="not a constant"):
        check("LSTM", arrays, attrs, kernel="lstm_steps", consts=(1, 2, 3))


@pytest.mark.parametrize(("target", "found"), [
    ("sse2", "pmaddwd"), ("avx2", "vpmaddwd"), ("avx512", "vpmaddwd"), ("avxvnni", "vpdpbusd"),
    ("avx512vnni", "vpdpbusd"), ("neon", "mla"),
])  # fmt: skip
def test_code_of_rounded_steps(target: str, found: str) -> None:
    arrays, attrs = small("LSTM", (4, 1, 64, 64), "int8", rounded=True)
    site = site_of(one_node("LSTM", arrays, attrs, BYTES), level(target))
    choice = ROWS["lstm_steps"].offer(site)[0]
    reads = [
        None if a is None or layout is None else spec_of(a.dtype, a.shape, layout)
        for a, layout in zip(arrays, choice.reads, strict=True)
    ]
    writes = [spec_of(v.dtype, v.dims, PLAIN) for v in site.outputs]
    packed = [p.make().dtype for p in choice.packed]
    for phase in range(len(choice.phases)):
        text = build_phase(site, choice, phase, reads, writes, packed).text
        assert found in assembly(text, site.target)
