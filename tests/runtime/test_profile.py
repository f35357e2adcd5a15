"""Times of steps: runs in which the counting thread came late, and steps of one name."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tests.kernels.harness import levels
from tinsmith.codegen.products import PRODUCTS, product_of
from tinsmith.codegen.target import level
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS
from tinsmith.runtime.profile import Profile, Row, _rate, step_seconds


def test_runs_that_no_thread_has_seen_are_left_out():
    whole, late = {1: 20_000, 2: 80_000}, {1: 300, 2: 150}
    found = step_seconds([1e-4] * 5, [late, whole, late, late, whole], 1e9)
    assert found == pytest.approx({1: 2e-5, 2: 8e-5})


def test_steps_in_python_are_told_in_nanoseconds():
    found = step_seconds([3e-4, 5e-4], [{1: 100_000, 2: -200_000}, {1: 100_000, 2: -400_000}], 1e9)
    assert found == pytest.approx({1: 1e-4, 2: 3e-4})


def test_a_run_that_was_interrupted_within_a_step_does_not_stand_for_all():
    short, long = {1: 1_000}, {1: 900_000}
    found = step_seconds([1e-5] * 9 + [1e-3], [*[short] * 9, long], 1e9)
    assert found == pytest.approx({1: 1e-6})


@pytest.mark.parametrize("late", [0, 3, 10, 19])
def test_a_reading_that_comes_late_does_not_change_the_rate(late: int):
    marks = [(1_000 * i, i * 1e-3) for i in range(20)]
    marks[late] = (marks[late][0], marks[late][1] + 0.03)
    assert _rate(marks) == pytest.approx(1e6)
    assert _rate([(0, 1.0), (500, 1.5)]) == pytest.approx(1e3)


def test_what_python_does_around_a_run_is_not_the_steps():
    """A step of far less than a call: its time is what its arithmetic takes."""
    g = Graph("small")
    x = g.input("x", Type("float32", (16,)))
    g.outputs = [g.add(OPS["Exp"], x).outputs[0]]
    net = ts.compile(g)
    profile = net.profile(np.ones(16, np.float32), repeat=50)
    assert profile.steps_ms < 0.5 * profile.total_ms
    said, head, row = str(profile).splitlines()
    assert f"{profile.total_ms:.4f} ms a call, {profile.steps_ms:.4f} ms in steps" in said
    assert ", 1 thread: " in said and head.split()[2] == "us"
    assert float(row.split()[2]) == pytest.approx(1e3 * profile.rows[0].ms, abs=1e-4)


def test_steps_of_one_name_have_times_of_their_own():
    g = Graph("one convolution")
    x = g.input("x", Type("float32", (1, 64, 56, 56)))
    w = np.ones((64, 64, 3, 3), np.float32)
    g.outputs = [g.add(OPS["Conv"], x, g.const(w), name="conv").outputs[0]]
    net = ts.compile(g)
    rows = net.profile(np.ones((1, 64, 56, 56), np.float32), repeat=5).rows
    assert len(rows) > 1 and len({r.ms for r in rows}) > 1
    assert sum(r.share for r in rows) == pytest.approx(1)


def test_rows_are_in_milliseconds_where_one_is_long():
    row = Row("s", "Exp", "k", "native", 0.25, 1.0, 0.0, None, 0.0, 0.0, "")
    said, head, line = str(Profile("m", 2, 0.5, 100.0, (row,))).splitlines()
    want = "m, 2 threads: 0.5000 ms a call, 0.2500 ms in steps, peak 100 (float32) Gop/s"
    assert said == want
    assert head.split()[2] == "ms" and line.split()[2] == "0.2500"


@pytest.mark.parametrize("name", ["s", "model.layers.17.self_attn.projection/quite/long" * 2])
@pytest.mark.parametrize("kernel", ["k", "a_kernel_of_a_rather_long_name"])
def test_a_table_fits_its_width(name: str, kernel: str) -> None:
    row = Row(name + "7", "Exp", kernel, "native", 1234.5, 1.0, 9999.9, 1.7, 0.0, 999.9, "")
    peaks = {n: 12345.0 * row.rate for n, row in PRODUCTS.items()}
    profile = Profile("a model of a long name " * 4, 2, 1234.5, 100.0, (row,) * 2, peaks=peaks)
    for width in (60, 80, 120):
        assert max(map(len, profile.text(width).splitlines())) <= width
    assert max(map(len, str(profile).splitlines())) <= 80
    assert str(profile).splitlines()[-1].split()[0].endswith("7")
    assert name + "7" in profile.text() and kernel in profile.text()


@pytest.mark.parametrize("isa", levels())
@pytest.mark.parametrize("precision", ["default", "bfloat16"])
def test_steps_are_rated_by_what_they_multiply(isa: str, precision: str) -> None:
    """A product of bytes, one of floats with a sum fused to it, and a function of floats."""
    g, w = Graph("m"), np.ones((64, 64), np.int8)
    sums = g.add(OPS["MatMulInteger"], g.input("x", Type("uint8", (64, 64))), g.const(w)).outputs[0]
    floats = g.add(OPS["Cast"], sums, to="float32").outputs[0]
    y = g.add(OPS["MatMul"], floats, g.const(w.astype(np.float32))).outputs[0]
    g.outputs = [g.add(OPS["Softmax"], g.add(OPS["Add"], y, floats).outputs[0]).outputs[0]]
    net = ts.compile(g, target=isa, precision=precision)
    profile = net.profile(np.ones((64, 64), np.uint8), repeat=3)
    error = 2.0**-8 if precision == "bfloat16" else 0.0
    rounded = product_of(level(isa), "float32", "float32", error).name
    whole = product_of(level(isa), "uint8", "int8", prepared=True).name
    assert {"matmul_integer", "softmax"} <= {r.kernel for r in profile.rows}
    for row in profile.rows:
        integer, product = row.kernel.startswith("matmul_integer"), "mat" in row.kernel
        assert row.row == (whole if integer else rounded if product else "float32"), row
        if row.peak_share is not None and row.gflops is not None:
            assert row.peak_share == pytest.approx(row.gflops / profile.peaks[row.row])
    assert set(profile.peaks) == {"float32", whole, rounded}
    assert profile.peak_gflops == profile.peaks["float32"]
    assert all(f"({name})" in profile.text() for name in profile.peaks)
    assert "Gop/s" in profile._repr_html_() and f"({whole})" in profile._repr_html_()
