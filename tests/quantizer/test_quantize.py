"""Quantised graphs: their form, what they compute, and what is told of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import tinsmith as ts
from tests.quantizer.nets import Building, residual
from tinsmith.errors import QuantizeError
from tinsmith.graph import Graph, Type
from tinsmith.graph.origin import Origin
from tinsmith.ops.interpret import run_graph
from tinsmith.quantizer.equalise import equalise
from tinsmith.quantizer.quantize import canonical_of
from tinsmith.quantizer.report import Layer, Quantized, classes_of, timed

Array = np.ndarray[Any, Any]


def quantised(graph: Graph, x: Any, **options: Any) -> Quantized:
    return ts.quantize(graph, x, progress=False, **options)


def ratio(want: Array, got: Array) -> float:
    return 10 * np.log10(float(np.square(want).sum() / np.square(want - got).sum()))


def test_the_form_is_dequantise_operator_elementwise_quantise() -> None:
    graph, x = residual()
    found = quantised(graph, x).graph
    for node in found.nodes:
        if node.op.name in ("Conv", "MatMul"):
            for v in node.inputs[:2]:
                assert v is not None and v.producer is not None
                assert v.producer.op.name == "DequantizeLinear", node
        if node.op.name == "DequantizeLinear":
            q = node.inputs[0]
            assert q is not None
            low = q.dtype.name
            assert low == ("uint8" if q.const is None else "int8") or low == "int32", node
    # The input, after first and its pool, second, third's sum, fourth, short, fifth's sum, the mean
    # and its reshape: of the two convolutions that are added, one is stored.
    assert [n.op.name for n in found.nodes].count("QuantizeLinear") == 10
    # What a convolution gives to the sum that it ends in is not rounded before.
    third = next(n for n in found.nodes if n.name == "third")
    assert [user.op.name for user in third.output.uses] == ["Add"]


def test_signed_activations_have_no_zero_points() -> None:
    graph, x = residual()
    found = quantised(graph, x, symmetric=True).graph
    for node in found.nodes:
        if node.op.name == "QuantizeLinear":
            assert node.output.dtype.name == "int8"
            assert not node.inputs[2].const.any()


@pytest.mark.parametrize("batch", ["N", 4, 1])
def test_generated_code_and_reference_agree_and_are_near_the_float_model(batch: Any) -> None:
    graph, x = residual(batch)
    found = quantised(graph, x)
    size = batch if isinstance(batch, int) else 6
    part = np.ascontiguousarray(x[:size])
    (exact,), (want,) = run_graph(graph, [part]), run_graph(found.graph, [part])
    got = ts.compile(found.graph)(part)
    assert ratio(exact, want) > 30
    assert ratio(want, got) > 30  # ties of rounding, which following layers see
    (told,) = found.judgement.outputs.values()
    assert abs(told - ratio(exact, want)) < 6
    assert not found.low and found.judgement.drop >= 0


def test_how_data_are_given_does_not_matter(tmp_path: Path) -> None:
    graph, x = residual()
    np.savez(tmp_path / "data.npz", x=x)
    folder = tmp_path / "folder"
    folder.mkdir()
    for i in range(3):
        np.save(folder / f"{i}.npy", x[8 * i : 8 * i + 8])
    texts = {
        str(quantised(graph, data).graph)
        for data in (
            x,
            {"x": x},
            tmp_path / "data.npz",
            str(folder),
            [x[:8], x[8:]],
            [{"x": x[:20]}, {"x": x[20:]}],
            [lambda: {"x": x}],
            [lambda: x],
        )
    }
    # Scales are the same; biases, by means that are summed in another order, up to rounding.
    assert len({text.count("Quantize") for text in texts}) == 1
    assert len(texts) <= 3


def test_labels_may_be_in_every_source_of_data(tmp_path: Path) -> None:
    graph, x = residual()
    labels = run_graph(graph, [x])[0].argmax(1)
    for i in range(2):
        np.savez(tmp_path / f"{i}.npz", x=x[i::2], labels=labels[i::2])
    parts = [{"x": x[:9], "labels": labels[:9]}, {"x": x[9:], "label": labels[9:]}]
    for data in (tmp_path, [lambda: parts[0], parts[1]], [parts[0], lambda: parts[1]]):
        assert quantised(graph, data).judgement.before == 100


def test_how_often_data_are_read_does_not_grow_with_their_number() -> None:
    graph, x = residual()
    reads = [Mock(return_value={"x": x}) for _ in range(2)]
    for number, read in enumerate(reads, 1):
        quantised(graph, [x] * number + [read])
    assert reads[0].call_count == reads[1].call_count


@pytest.mark.parametrize("name", ["Relu", "LeakyRelu"])
@pytest.mark.parametrize("group", [1, 8])
def test_equalising_changes_no_result_and_makes_ranges_equal(name: str, group: int) -> None:
    b = Building(2, 3, 6, 6)
    first = b.conv(b.x, 8, name="first")
    w = first.producer.inputs[1].const  # type: ignore[union-attr]
    w *= np.logspace(-2, 2, 8).astype(np.float32)[:, None, None, None]
    graph = b.ends(b.conv(b.emit(name, first), 8, name="second", group=group))
    x = b.data(2)
    want = run_graph(graph, [x])[0]
    copy = canonical_of(graph)
    assert equalise(copy) == 1
    got = run_graph(copy, [x])[0]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())
    w1, w2 = (copy.node(n).inputs[1].const for n in ("first", "second"))
    r1 = np.abs(w1).max(axis=(1, 2, 3))
    r2 = np.abs(w2).max(axis=(0, 2, 3) if group == 1 else (1, 2, 3))
    np.testing.assert_allclose(r1, r2, rtol=1e-3)


def test_what_is_read_twice_or_leaves_the_graph_is_not_equalised() -> None:
    b = Building(2, 3, 6, 6)
    first = b.emit("Relu", b.conv(b.x, 8))
    assert equalise(canonical_of(b.ends(first, b.conv(first, 8)))) == 0
    b = Building(2, 3, 6, 6)
    first = b.emit("Sigmoid", b.conv(b.x, 8))
    assert equalise(canonical_of(b.ends(b.conv(first, 8)))) == 0


def test_layers_before_which_a_bias_is_computed_are_not_equalised() -> None:
    assert equalise(canonical_of(_computed_bias()[0])) == 0


def test_biases_make_up_for_shifted_means() -> None:
    graph, x = residual()
    x = x + 1  # means that rounded weights shift
    exact = run_graph(graph, [x])[0].mean(axis=0)
    off = [
        np.abs(
            run_graph(
                quantised(graph, x, weight_bits=4, rounding="nearest", correct=correct).graph, [x]
            )[0].mean(axis=0)
            - exact
        ).max()
        for correct in (True, False)
    ]
    assert off[0] < 0.7 * off[1]


def _computed_bias() -> tuple[Graph, list[dict[str, Array]]]:
    """Two convolutions, the first with a bias that is computed, and data."""
    b = Building("N", 3, 6, 6)
    c = b.graph.input("c", Type(np.dtype(np.float32), (8,)))
    y = b.emit("Conv", b.x, b.weights(8, 3, 3, 3), b.emit("Abs", c), pad=(1,) * 4, name="first")
    graph = b.ends(b.conv(b.emit("Relu", y), 4, name="second"))
    return graph, [{"x": x, "c": np.linspace(1, 5, 8, dtype=np.float32)} for x in (b.data(),)]


def test_a_computed_bias_is_not_corrected() -> None:
    graph, data = _computed_bias()
    (told,) = quantised(graph, data, equalise=False).judgement.outputs.values()
    assert told > 30


def test_a_layer_with_a_computed_bias_stays_in_float_for_ncnn() -> None:
    found = quantised(*_computed_bias(), form="ncnn", correct=False)
    assert [layer.name for layer in found.layers] == ["second"]


def test_compensated_rounding_beats_the_nearest_at_four_bits() -> None:
    graph, x = residual()
    near, far = (
        {layer.name: layer.decibels for layer in found.layers}
        for found in (
            quantised(graph, x, weight_bits=4, rounding=how, correct=False)
            for how in ("compensated", "nearest")
        )
    )
    gains = [
        near[n] - far[n] for n in ("first", "second", "third", "short", "fourth", "fifth", "dense")
    ]
    assert np.mean(gains) > 1.5 and min(gains) > -0.5, gains


def test_the_budget_decides_what_stays_in_float() -> None:
    graph, x = _two_scales()
    labels = run_graph(graph, [x])[0].reshape(len(x), -1).argmax(1)
    worst = quantised(graph, x, per_channel=False, equalise=False, labels=labels)
    assert worst.judgement.drop > 0 and worst.judgement.before == 100 and not worst.kept
    better = quantised(graph, x, per_channel=False, equalise=False, labels=labels, max_drop=0)
    lowest = min(worst.layers, key=lambda layer: layer.decibels)
    assert better.judgement.drop == 0 and better.kept[0] == lowest.name == "second"
    assert better.graph.node("second").inputs[1].producer is None  # weights of float32


def test_without_classes_the_budget_is_of_noise() -> None:
    graph, x = _two_scales(classes=False)
    options = {"per_channel": False, "equalise": False}
    worst = quantised(graph, x, **options)
    (told,) = worst.judgement.outputs.values()
    assert worst.judgement.agreement is None and "same class" not in str(worst)
    drop = worst.judgement.drop
    assert drop > 5 and drop == pytest.approx(100 * 10 ** (-told / 20))
    better = quantised(graph, x, max_drop=5, **options)
    assert better.kept and better.judgement.drop <= 5


@pytest.mark.parametrize(
    ("shape", "classes"),
    [((4, 5), 5), ((4, 5, 1, 1), 5), ((4, 1, 5), 5), ((1, 64, 100), 0), ((4, 1), 0), ((4,), 0)],
)
def test_classes_are_rows_of_floats(shape: tuple[int, ...], classes: int) -> None:
    assert classes_of(np.zeros(shape, np.float32)) == classes
    assert classes_of(np.zeros(shape, np.int64)) == 0


def test_nodes_to_keep_stay_in_float() -> None:
    graph, x = residual()
    found = quantised(graph, x, keep=("first", "dense"))
    told = {layer.name: layer for layer in found.layers}
    assert all(told[name].kept and not told[name].is_low for name in ("first", "dense"))
    assert str(found).count("stays float") == 2 and not found.kept
    assert told["first"].float_ms is not None
    assert found.graph.node("first").inputs[0] is found.graph.inputs[0]


def test_nodes_to_keep_may_have_the_names_of_the_file() -> None:
    """As `dense` for a Gemm, which becomes a product and a sum: the sum has that name here."""
    graph, x = residual()
    product = graph.node("dense")
    product.origin = Origin("x.onnx", "layer", "Gemm")
    graph.nodes[-1].origin = product.origin
    graph.nodes[-1].name = "layer"
    graph.take_names()
    found = quantised(graph, x, keep=["layer", "relu"])
    assert [layer.name for layer in found.layers if layer.kept] == ["dense"]
    assert found.graph.node("dense").inputs[1].producer is None  # weights of float32
    assert "'relu' is in float32 whether it is kept or not" in found.notes


def test_few_samples_are_noted() -> None:
    graph, x = residual()
    for number in (1, 7, 8):
        found = ts.quantize(graph, x[:number], progress=False)
        assert any("few samples" in note for note in found.notes) == (number < 8)
        assert ("few samples" in str(found)) == (number < 8)


def test_what_is_read_is_told(tmp_path: Path) -> None:
    graph, x = residual()
    for i in range(2):
        np.save(tmp_path / f"{i}.npy", x[i::2])
    for name in ("a.txt", "b.csv"):
        (tmp_path / name).write_text("1")
    found = quantised(graph, tmp_path)
    assert found.samples == found.to_json()["samples"] == len(x)
    assert f"calibrated with {len(x)} samples" in str(found)
    assert f"not read of {tmp_path}: a.txt, b.csv" in str(found)


def test_layers_without_outputs_stay_in_float() -> None:
    b = Building("N", 3, 4, 4)
    none = b.emit("Conv", b.x, np.zeros((0, 3, 1, 1), np.float32))
    graph = b.ends(b.conv(b.x, 2, name="some"), none)
    found = ts.quantize(graph, b.data(), weight_bits=np.int64(8), progress=False)  # type: ignore[arg-type]
    weights = [found.graph.node(name).inputs[1].producer for name in ("some", "conv")]  # type: ignore[union-attr]
    assert weights[0] is not None and weights[1] is None


def test_low_layers_are_named_in_the_report() -> None:
    graph, x = _two_scales()
    found = quantised(graph, x, per_channel=False, equalise=False)
    assert [layer.name for layer in found.low] == ["second"]
    assert "below 10 dB: second" in str(found) and "LOW" in str(found)
    assert not quantised(graph, x).low


def _two_scales(classes: bool = True) -> tuple[Graph, Array]:
    """Channels with ranges that differ ten thousand times, and weights that make up for that."""
    b = Building("N", 4, 6, 6)
    factors = np.array([1e2, 1e-2, 1e-2, 1e-2], np.float32)
    first = b.conv(b.x, 4, name="first")
    _const(first)[...] *= factors[:, None, None, None]
    first.producer.inputs[2].const[...] *= factors  # type: ignore[union-attr]
    second = b.conv(b.emit("Relu", first), 4, name="second")
    _const(second)[...] /= factors[:, None, None]
    flat = b.emit("Reshape", second, np.array([-1, 144]))
    return b.ends(flat if classes else second), b.data()


def _const(v: Any) -> Array:
    return v.producer.inputs[1].const


def test_recurrent_weights_are_whole_numbers_and_products_if_asked_for() -> None:
    rng = np.random.default_rng(0)
    b = Building(5, "N", 6)
    w, r = (rng.standard_normal((1, 24, n)).astype(np.float32) / 4 for n in (6, 8))
    y, _ = b.graph.add(b_op("GRU"), b.x, w, r, hidden_size=8).outputs
    graph = b.ends(b.emit("Reshape", y, np.array([5, -1, 8])))
    x = rng.standard_normal((5, 3, 6)).astype(np.float32)
    found = quantised(graph, [x, x + 1])
    sizes = {v.const.size: v.dtype.name for v in found.graph.constants() if v.const is not None}
    assert sizes[w.size] == sizes[r.size] == "int8"
    assert ratio(run_graph(graph, [x])[0], run_graph(found.graph, [x])[0]) > 30

    b = Building("N", 4, 8)
    q, k = b.dense(b.x, 8), b.dense(b.x, 8)
    graph = b.ends(b.emit("MatMul", q, b.emit("Transpose", k, perm=(0, 2, 1))))
    for products in (False, True):
        text = str(quantised(graph, b.data(), products=products).graph)
        assert text.count("= QuantizeLinear") == (4 if products else 1)


def b_op(name: str) -> Any:
    from tinsmith.ops import OPS

    return OPS[name]


@pytest.mark.parametrize("ending", ["onnx", "tin"])
@pytest.mark.parametrize("bits", [4, 8])
def test_files_hold_small_weights_and_compute_the_same(
    tmp_path: Path, ending: str, bits: int
) -> None:
    graph, x = residual()
    found = quantised(graph, x, weight_bits=bits)
    found.write(path := tmp_path / f"small.{ending}")
    back = ts.load(path)
    np.testing.assert_array_equal(run_graph(back, [x])[0], run_graph(found.graph, [x])[0])
    assert {v.dtype.name for v in back.constants()} >= {f"int{bits}", "int32"}


def test_progress_is_told_and_can_end_it() -> None:
    graph, x = residual()
    heard: set[str] = set()
    ts.quantize(graph, x, method="mse", progress=lambda done, total, what: heard.add(what))
    assert heard >= {"ranges", "histograms", "scales", "weights", "layers", "outputs"}

    def stop(done: int, total: int, what: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ts.quantize(graph, x, progress=stop)


def test_outputs_whose_size_depends_on_data_are_not_compared() -> None:
    """As the boxes of a detector; all else is quantised and told."""
    b = Building("N", 3, 6, 6)
    y = b.conv(b.x, 8)
    found = b.emit("NonZero", b.emit("Greater", y, np.float32(0)))
    graph = b.ends(b.emit("Cast", found, to="float32"), y)
    x = np.random.default_rng(1).standard_normal((64, 3, 6, 6)).astype(np.float32)
    told = quantised(graph, x)
    first, second = told.judgement.outputs.values()
    assert np.isnan(first) and second > 30
    assert "is not compared" in str(told)


def test_a_budget_with_nothing_to_measure_is_refused() -> None:
    b = Building("N", 3, 6, 6)
    found = b.emit("NonZero", b.emit("Greater", b.conv(b.x, 8), np.float32(0)))
    with pytest.raises(QuantizeError, match="max_drop has nothing to measure"):
        quantised(b.ends(found), b.data(64), max_drop=1)


def test_outputs_of_whole_numbers_are_compared_and_others_told() -> None:
    b = Building("N", 3, 6, 6)
    y = b.emit("ArgReduce", b.conv(b.x, 8), kind="max", axis=1)
    halves = b.emit("SplitToSequence", b.emit("Relu", b.x), axis=1)
    graph = b.ends(y, b.emit("Cast", y, to="object"), halves)
    told = quantised(graph, b.data(), weight_bits=4)
    number, *others = told.judgement.outputs.values()
    assert np.isfinite(number) and np.isnan(others).all()
    assert str(told).count("is not compared") == 2


def test_times_are_those_of_the_node_that_a_step_comes_from() -> None:
    rows = [
        SimpleNamespace(name="conv.1", ms=2.0, origin="Conv 'first' of m.onnx"),
        SimpleNamespace(name="second", ms=3.0, origin="Conv 'second' of m.onnx"),
        SimpleNamespace(name="x.c16", ms=9.0, origin=""),
    ]
    profile = SimpleNamespace(rows=rows)
    net = SimpleNamespace(inputs=["x"], profile=lambda *_, repeat: profile)
    values: Any = SimpleNamespace(net=net)
    layers = [
        Layer("first", "Conv", 40.0),
        Layer("second", "Conv", 40.0),
        Layer("third", "Add", 9.0),
    ]
    found = timed(layers, values, values, [{"x": np.zeros(1)}], [])  # type: ignore[arg-type]
    assert [layer.quantised_ms for layer in found] == [2.0, 3.0, None]
