"""PNNX operators that no file of `tests/data/pnnx` has, or whose numbers the run tells."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tests.frontends.pnnx_text import param, run
from tinsmith.errors import BudgetExceeded, ImportFailed, ModelWarning

X = np.arange(2 * 3 * 4 * 4, dtype=np.float32).reshape(2, 3, 4, 4)
IN, OUT = "pnnx.Input in 0 1 x #x=(2,3,4,4)f32", "pnnx.Output out 1 0 y"


def test_what_a_pool_has_taken_goes_back_to_its_places() -> None:
    pool = "nn.MaxPool2d pool 1 2 x p at kernel_size=(2,2) return_indices=True"
    back = "nn.MaxUnpool2d back 2 1 p at y kernel_size=(2,2) stride=(2,2) padding=(0,0)"
    y = run(param(IN, pool, back, OUT), X)
    want = np.zeros_like(X)
    want[..., 1::2, 1::2] = X[..., 1::2, 1::2]
    np.testing.assert_array_equal(y, want)


def test_counts_of_another_run_are_no_promise() -> None:
    """The file says how many elements there were when it was traced."""
    few = "torch.masked_select few 2 1 x m s #s=(5)f32"
    twice = "pnnx.Expression twice 1 1 s y expr=mul(@0,2) #y=(5)f32"
    mask = "pnnx.Expression mask 1 1 x t expr=sub(@0,90)"
    more = "torch.gt more 1 1 t m other=0"
    y = run(param(IN, mask, more, few, twice, OUT), X)
    np.testing.assert_array_equal(y, [182, 184, 186, 188, 190])
    np.testing.assert_array_equal(run(param(IN, mask, more, few, twice, OUT), X + 2).size, 7)


def test_random_numbers_have_the_shape_that_is_asked_for() -> None:
    for line in ("torch.randn_like r 1 1 x y", "torch.normal r 1 1 x y mean=3.0 std=0.5"):
        assert run(param(IN, line, OUT), X).shape == X.shape
    assert run(param("torch.randn r 0 1 y size=(3,50)", OUT)).shape == (3, 50)


def test_a_complex_output_has_its_parts_in_its_last_axis() -> None:
    model = param(IN, "torch.fft.fft f 1 1 x y dim=-1 n=None norm=None", OUT)
    with pytest.warns(ModelWarning, match="'y' is of complex numbers: an axis of two"):
        net = ts.compile(model, backend="numpy")
    np.testing.assert_allclose(net(X)[..., 1], np.fft.fft(X).imag, atol=1e-4)


def test_complex_inputs_are_pairs_of_real_numbers() -> None:
    line = "torch.abs a 1 1 x y"
    z = np.array([3 + 4j, -5j], np.complex64)
    model = param("pnnx.Input in 0 1 x #x=(2)c64", line, OUT)
    np.testing.assert_allclose(run(model, z.view(np.float32).reshape(2, 2)), [5, 5])
    with pytest.raises(
        ImportFailed, match=r"F\.relu x1: it takes complex numbers, with which only"
    ):
        ts.load(param("pnnx.Input in 0 1 x #x=(2)c64", "F.relu a 1 1 x y", OUT))


@pytest.mark.parametrize(
    "line",
    [
        "F.upsample_nearest u 1 1 x y size=(99999999999,3)",
        "torch.stft s 1 1 x y n_fft=99999999999 return_complex=False",
        "torch.as_strided a 1 1 x y size=(99999999999,2) stride=(0,1)",
    ],
)
def test_sizes_beyond_all_memory_are_refused(line: str) -> None:
    with pytest.raises((BudgetExceeded, ImportFailed)):
        ts.load(param("pnnx.Input in 0 1 x #x=(1,3,4,4)f32", line, OUT))


@pytest.mark.parametrize(
    "attrs",
    [
        "size=(2,3) stride=(-1,2)",
        "size=(2,-3) stride=(1,2)",
        "size=(2,3) stride=(1,2) storage_offset=-1",
    ],
)
def test_a_view_of_negative_strides_sizes_or_offsets_is_refused(attrs: str) -> None:
    with pytest.raises(ImportFailed, match="a size, a stride or its offset is negative"):
        ts.load(param(IN, f"torch.as_strided a 1 1 x y {attrs}", OUT))


@pytest.mark.parametrize(
    ("hop", "error", "what"),
    [(99999999999, BudgetExceeded, "the sums of windows"), (-4, ImportFailed, "-4 elements apart")],
)
def test_windows_that_are_far_apart_or_turned_round_are_refused(
    hop: int, error: type[Exception], what: str
) -> None:
    line = f"torch.istft i 1 1 x y n_fft=16 hop_length={hop} win_length=16 return_complex=False"
    with pytest.raises(error, match=what):
        ts.load(param("pnnx.Input in 0 1 x #x=(2,9,7,2)f32", line, OUT))


def test_a_window_that_is_longer_than_its_transforms_is_refused() -> None:
    window = "pnnx.Attribute w 0 1 w @data=(20)f32"
    line = "torch.stft s 2 1 x w y n_fft=16 win_length=16 return_complex=False"
    model = param("pnnx.Input in 0 1 x #x=(2,99)f32", window, line, OUT)
    with pytest.raises(ImportFailed, match="window of 20 does not fit transforms of 16"):
        ts.load(model, random_weights=0)


@pytest.mark.parametrize(("kernel", "padding"), [(3, 1_000_000), (2001, 1000)])
def test_windows_in_a_wide_padding_take_no_code_each(kernel: int, padding: int) -> None:
    """Those that hold nothing are alike; where there are too many others, no code is made."""
    model = param(
        "pnnx.Input i 0 1 x #x=(1,2,1100)f32",
        f"nn.MaxPool1d p 1 1 x y kernel_size=({kernel}) padding=({padding}) stride=(2)",
        "pnnx.Output o 1 0 y",
    )
    net = ts.compile(model, cache=False)
    x = np.random.default_rng(0).random((1, 2, 1100), np.float32)
    y, told = net(x), net.explain("p")
    want = ts.compile(model, backend="numpy", cache=False)(x)
    np.testing.assert_array_equal(y, want)
    assert (" 5 runs of columns" if kernel == 3 else "each with code of its own") in told


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_what_is_rolled_beyond_a_free_size_goes_round(backend: str) -> None:
    for shift in (5, -3, 2, 100):
        whole = param(IN, f"torch.roll r 1 1 x y shifts=({shift}) dims=(0)", OUT)
        flat = param(IN, f"torch.roll r 1 1 x y shifts={shift} dims=None", OUT)
        for model, axis in ((whole, 0), (flat, None)):
            net = ts.compile(model, backend=backend, batch="free")
            for x in (X, X[:1], X[:0]):
                np.testing.assert_array_equal(net(x), np.roll(x, shift, axis))


def test_a_free_batch_stays_where_sizes_are_kept() -> None:
    unfold = param(IN, "F.unfold u 1 1 x y kernel_size=(2,2) stride=(2,2) $input=x", OUT)
    select = [f"Tensor.select s{i} 1 1 at a{i} dim=-1 index={i}" for i in (0, 1)]
    index = param(
        "pnnx.Input in 0 1 x #x=(4,5)f32", "pnnx.Input in2 0 1 at #at=(3,2)i64", *select,
        "pnnx.Expression e 2 1 a0 a1 list expr=[@0,@1]", "Tensor.index i 2 1 x list y", OUT,
    )  # fmt: skip
    places = np.array([[0, 4], [3, 1], [2, 2], [1, 0]])
    for batch in (None, "free"):
        y = run(unfold, X, batch=batch)
        assert y.shape == (2, 12, 4) and y[1, 3, 2] == X[1, 0, 3, 1]
        taken = places[:3] if batch is None else places
        x = np.arange(20, dtype=np.float32).reshape(4, 5)
        np.testing.assert_array_equal(run(index, x, taken, batch=batch), x[tuple(taken.T)])
