"""Fourier transforms as products: every kind and size against numpy, in generated code."""

import numpy as np
import pytest

import tinsmith
from tests.passes.build import Builder, check, ops_of, refused
from tinsmith import ops
from tinsmith.passes.lower_fourier import Fourier, plan

SIZES = (1, 2, 7, 31, 96, 400, 1000, 1009, 4096)


def pair(y):
    return np.stack([y.real, y.imag], -1)


def run(graph, *arrays):
    """The outputs of a graph whose steps all are generated code."""
    net = tinsmith.compile(graph, threads=1, cache=False)
    assert {s.kind for s in net.program().plan.steps} <= {"native", "view"}
    y = net(*arrays)
    return y if isinstance(y, np.ndarray) else list(y.values())


def near(got, want):
    assert got.shape == want.shape
    assert np.max(np.abs(got - want), initial=0) <= 1e-6 * max(1, np.max(np.abs(want)))


def complexes(x):
    return x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0]


def dft(b, x, n=None, axis=None, **attrs):
    return ops.DFT(x, None if n is None else b.c(n, "int64"), b.c(axis, "int64"), **attrs)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("n", SIZES)
def test_sizes(n, parts):
    b = Builder()
    x = b.x(3, n, parts)
    net = b.out(dft(b, x, axis=1), dft(b, x, axis=1, inverse=True))
    a = b.array(3, n, parts)
    forward, back = run(net, a)
    near(forward, pair(np.fft.fft(complexes(a), axis=1)))
    near(back, pair(np.fft.ifft(complexes(a), axis=1)))


@pytest.mark.parametrize("n", SIZES)
def test_onesided(n):
    b = Builder()
    half = n // 2 + 1
    x, y = b.x(2, n, 1), b.x(2, half, 2, name="y")
    net = b.out(dft(b, x, axis=1, onesided=True), dft(b, y, n, axis=1, onesided=True, inverse=True))
    a, c = b.array(2, n, 1), b.array(2, half, 2)
    forward, back = run(net, a, c)
    near(forward, pair(np.fft.rfft(complexes(a), axis=1)))
    near(back, np.fft.irfft(complexes(c), n=n, axis=1)[..., None])


@pytest.mark.parametrize("n", [None, 5, 90, 1024])
@pytest.mark.parametrize("axis", [0, 1, -2])
@pytest.mark.parametrize("parts", [1, 2])
def test_axes_and_lengths(n, axis, parts):
    b = Builder()
    shape, at = [2, 3, 5], axis if axis >= 0 else axis + 1
    shape[at] = 64
    x = b.x(*shape, parts)
    a = b.array(*shape, parts)
    near(
        run(b.out(dft(b, x, n, axis)), a),
        pair(np.fft.fft(complexes(a), n=n, axis=at)),
    )


@pytest.mark.parametrize("n", [6, 40, 1100])
@pytest.mark.parametrize("bins", [4, 21, 600])
def test_inverse_of_too_few_or_too_many_bins(n, bins):
    b = Builder()
    x, a = b.x(2, bins, 2), b.array(2, bins, 2)
    y = dft(b, x, n, 1, onesided=True, inverse=True)
    near(run(b.out(y), a), np.fft.irfft(complexes(a), n=n, axis=1)[..., None])


@pytest.mark.parametrize(
    "length, step, size", [(50, 8, 16), (61, 5, 7), (9, 3, 9), (5000, 160, 400), (6000, 256, 1024)]
)
@pytest.mark.parametrize("windowed", [None, "constant", "computed"])
@pytest.mark.parametrize("parts, onesided", [(1, True), (1, False), (2, False)])
def test_stft(length, step, size, windowed, parts, onesided):
    b = Builder()
    x, a = b.x(2, length, parts), b.array(2, length, parts)
    w = b.array(size)
    given = None
    if windowed:
        given = b.graph.const(w) if windowed == "constant" else b.x(size, name="w")
    y = ops.STFT(x, b.c(step, "int64"), given, b.c(size, "int64"), onesided=onesided)
    got = run(b.out(y), a, *([w] if windowed == "computed" else []))
    frames = [complexes(a)[:, s : s + size] for s in range(0, length - size + 1, step)]
    signal = np.stack(frames, 1) * (1 if windowed is None else w)
    near(got, pair((np.fft.rfft if onesided else np.fft.fft)(signal)))


@pytest.mark.parametrize("part", [0, 1, -1])
@pytest.mark.parametrize("n", [12, 768])
def test_one_part_of_a_transform_in_two_axes(n, part):
    b = Builder()
    x = b.x(2, 20, n, 1)
    both = ops.Concat(x, b.c(np.zeros((2, 20, n, 1))), axis=-1)
    y = dft(b, dft(b, both, axis=2), axis=1)
    y = ops.Gather(y, b.c(part, "int64"), axis=3)
    a = b.array(2, 20, n, 1)
    near(run(b.out(y), a), pair(np.fft.fft2(a[..., 0]))[..., part])
    check(b.graph, "machine")
    assert "Concat" not in ops_of(b.graph)


def test_a_signal_that_only_looks_real():
    b = Builder()
    x, a = b.x(2, 6, 1), b.array(2, 6, 1)
    ones = np.zeros((2, 6, 1), np.float32)
    ones[1, 5] = 1
    y = dft(b, ops.Concat(x, b.graph.const(ones), axis=2), axis=1)
    near(run(b.out(y), a), pair(np.fft.fft(a[..., 0] + 1j * ones[..., 0])))


@pytest.mark.parametrize("n", [30, 1024])
def test_float64(n):
    b = Builder("float64")
    a = b.array(3, n, 2)
    want = pair(np.fft.fft(complexes(a), axis=1))
    got = run(b.out(dft(b, b.x(3, n, 2), axis=1)), a)
    assert np.max(np.abs(got - want)) <= 1e-14 * np.max(np.abs(want))


def test_long_transforms_are_split():
    assert plan(64, 1, Fourier(16, 16))[1] == 1
    for n in (1024, 16384, 65536):
        cost, a = plan(1, 2, Fourier(n, n))
        assert a > 1 and cost < 64 * 2 * n * np.log2(n)


def test_a_large_prime_declines():
    b = Builder()
    y = dft(b, b.x(1, 10007, 1), axis=1)
    report = check(b.out(y), "machine")
    assert report is not None and ops_of(b.graph) == ["DFT"]
    assert "prime" in str(refused(report.refusals, "dft")[0])


def test_an_axis_known_only_at_run_time():
    b = Builder()
    x, a = b.x(2, 6, 1), b.array(2, 6, 1)
    axis = b.graph.input("axis", tinsmith.Type(np.dtype(np.int64), ()))
    net = tinsmith.compile(b.out(ops.DFT(x, None, axis)), threads=1, cache=False)
    near(net(a, np.array(1)), pair(np.fft.fft(a[..., 0])))
    assert [s.kind for s in net.program().plan.steps] == ["reference"]
