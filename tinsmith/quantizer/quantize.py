"""`quantize`: from a float model and data to a quantised model, with a report of its errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from tinsmith import budget
from tinsmith.backends.cpu import HOST
from tinsmith.compiler.compile import ModelLike, load
from tinsmith.compiler.options import check_name, refuse_others
from tinsmith.errors import CalibrationError, QuantizeError, counted
from tinsmith.graph import Array, Graph, Node
from tinsmith.passes.manager import run_passes
from tinsmith.progress import check_progress, reported, tell
from tinsmith.quantizer import places
from tinsmith.quantizer.calibrate import Values, batch_for, observe
from tinsmith.quantizer.correct import add_bias, shift_of
from tinsmith.quantizer.data import Samples
from tinsmith.quantizer.equalise import equalise
from tinsmith.quantizer.forms import FORMS, Form, by_title
from tinsmith.quantizer.ranges import METHODS
from tinsmith.quantizer.report import (
    Judgement,
    Layer,
    Quantized,
    classes_of,
    judge,
    layers_of,
    timed,
)
from tinsmith.quantizer.rounding import Correlations, compensated, takes
from tinsmith.quantizer.scales import Scale, of_range, of_weights
from tinsmith.quantizer.settings import Settings, settings_of
from tinsmith.quantizer.statistics import Statistics
from tinsmith.records import dataclass
from tinsmith.runtime.forks import working

FEW = 8
"""Fewer samples are noted as too few."""


@refuse_others
def quantize(
    model: ModelLike, data: Any, *, method: str = "minmax", per_channel: bool = True,
    symmetric: bool = False, weight_bits: int = 8, activation_bits: int = 8, equalise: bool = True,
    correct: bool = True, rounding: str | None = None, products: bool = False,
    keep: Collection[str] = (), labels: Any = None, max_drop: float | None = None,
    form: str = "qdq", threads: int = 1,
    progress: Callable[[int, int, str], object] | bool | None = None,
) -> Quantized:  # fmt: skip
    """Quantise a float model: its operators with weights compute with 8-bit integers.

    data       for calibration: arrays by name (samples along the first axis), one array, an .npz
               file, a folder of .npy or .npz files, or a list of these or of functions that return
               arrays
    method     how ranges of activations are chosen: "minmax", "average", "percentile", "kl",
               "tensorrt", "aciq", "mse", "entropy"
    per_channel  a scale for each output channel of weights; otherwise one for each tensor
    symmetric  activations are int8 without a zero point; otherwise uint8 with one
    weight_bits  8, or 4; or 7, for engines that sum pairs of products in 16 bits, which 8 bits
               overflow, such as ONNX Runtime and OpenVINO on machines without VNNI
    activation_bits  8, the only number that kernels read
    equalise   ranges of channels between two layers are made equal first; results do not change
    correct    biases compensate the shift of means that rounded weights cause
    rounding   "nearest", or "compensated" (the error of each weight is compensated by those rounded
               later, as in GPTQ); None: the latter for four bits
    products   products of two computed matrices, as in attention, are quantised too
    keep       names of nodes that stay in float32: the graph's, or those in the model's file
    labels     the right class of each sample, for `max_drop`; else an array "labels" of the data
    max_drop   percentage points of accuracy that may be lost: the operators with the largest errors
               stay in float32 until that is met. Without labels: of samples whose class changes;
               without classes, noise in percent of the signal
    form       of the quantised graph: "qdq" (pairs of QuantizeLinear and DequantizeLinear), or
               "ncnn": Convolution, ConvolutionDepthWise and InnerProduct as ncnn computes them in
               int8, symmetric, with 6 bits for 3x3 weights of stride 1, as by ncnn's tool
    threads, progress  as for `compile`

    The result has the quantised graph, which `compile` and `write` take, and a report.
    Raises CalibrationError for data that do not fit, are constant or not finite; MissingFile for a
    path without any; QuantizeError for bits that no kernel reads, and if there is nothing to
    quantise; OptionError, UnknownName, and the errors of `load`."""
    settings = settings_of(
        method=method, per_channel=per_channel, symmetric=symmetric, weight_bits=weight_bits,
        activation_bits=activation_bits, equalise=equalise, correct=correct, rounding=rounding,
        products=products, keep=keep, max_drop=max_drop, form=form, threads=threads,
    )  # fmt: skip
    check_progress(progress)
    graph = load(model)
    title = f"quantising {graph.name or 'the model'}"
    with working(), budget.told("quantising this model"), reported(progress, title):
        return _Quantising(graph, data, labels, settings).run()


def canonical_of(graph: Graph) -> Graph:
    """Return a copy of a graph after the portable passes, the form that is quantised."""
    copy = graph.clone()
    run_passes(copy, "portable", HOST.column)
    return copy


class _Quantising:
    """The quantisation of one model.

    exact    the float graph, canonical and equalised
    float_   computes the outputs of `exact`
    keep     names of nodes of `exact` to keep in float32
    nodes    the nodes of `exact` to quantise
    values   value of `exact` to quantise -> its root (`Form.root`)
    scales   name of a root -> its scale
    weights  (name of a node, number of an input) -> (weights as integers, their scale)
    shifts   name of a node -> shift of its outputs' means, [outputs]
    """

    def __init__(self, graph: Graph, data: Any, labels: Any, settings: Settings) -> None:
        self.settings, self.form = settings, FORMS[settings.form]
        self.exact = canonical_of(graph)
        self.equalised = equalise(self.exact) if settings.equalise else 0
        self.notes: list[str] = []
        self.keep = self._kept()
        self.nodes = self._targets(self.exact, self.keep)
        if not self.nodes:
            raise QuantizeError(
                f"{graph.name or 'the model'} has nothing to quantise: no convolution and no "
                "product with constant weights of float32"
                + " but those to keep"
                * bool(settings.keep)
            )
        self.values = self.form.values(self.exact, self.nodes)
        wanted = [v.name for v in self.values]
        wanted += [v.name for n in self.nodes for v in places.data_of(n)]
        ranged = {places.source_of(v).name for v in self.values.values()}
        self.samples = Samples(self.exact, data, batch_for(self.exact, wanted), ranged)
        self.notes += self.samples.left_out
        self.float_ = self._outputs(self.exact)
        self.labels = self._labels(labels)
        self.scales: dict[str, Scale] = {}
        self.weights: dict[tuple[str, int], tuple[Array, Scale]] = {}
        self.shifts: dict[str, Array] = {}

    def _kept(self) -> set[str]:
        """Return the names of the nodes that `keep` means: their own, or those in the model's file.
        Note those that would not be quantised. Raises UnknownName."""
        named: dict[str, set[str]] = {}
        for node in self.exact:
            for name in (node.name, node.origin.name):
                named.setdefault(name, set()).add(node.name)
        own = {n.name for n in self._targets(self.exact, ())}
        for name in self.settings.keep:
            check_name("node to keep", name, named.keys() - {""})
            if not named[name] & own:
                self.notes.append(f"{name!r} is in float32 whether it is kept or not")
        return {one for name in self.settings.keep for one in named[name]}

    def _targets(self, graph: Graph, keep: Collection[str]) -> list[Node]:
        return places.targets(graph, keep, self.form.takes, self.settings.products)

    def _labels(self, labels: Any) -> Array | None:
        """Return the right class of each sample, from which accuracy is counted: the caller's
        `labels`, else the array `labels` in the data; None if there is neither, or if the first
        output has no classes and the labels are those in the data (a note says so). Raises
        CalibrationError if it has no classes and the caller gave labels, and if the labels are not
        one for each sample, each the number of a class."""
        found = self.samples.labels if labels is None else np.asarray(labels).reshape(-1)
        if found is None:
            return None
        batch, output = next(iter(self.samples)), self.exact.outputs[0]
        classes = classes_of(self.float_.of(batch)[output.name])
        if not classes:
            why = f"the first output, {output.name!r} {output.type}, has no classes"
            if labels is not None:
                raise CalibrationError(f"labels cannot be compared: {why}; leave them out")
            self.notes.append(f"the labels in the data are not used: {why}")
            return None
        if found.dtype.kind not in "iuf" or not np.array_equal(found, np.rint(found)):
            raise CalibrationError(
                "labels are the numbers of classes, whole numbers; these are not, such as"
                f" {found.reshape(-1)[0]!r}"
            )
        total = self.samples.total
        if len(found) != total:
            told = "`labels` holds" if labels is not None else "the data's arrays 'labels' hold"
            raise CalibrationError(
                f"{told} {counted(len(found), 'label')}, but the data have {total} samples along"
                f" the first axis of {self.exact.inputs[0].name!r}"
            )
        wrong = found[(found < 0) | (found >= classes)]
        if wrong.size:
            raise CalibrationError(
                f"the label {wrong[0]} is none of the {classes} classes of {output.name!r}, 0 to "
                f"{classes - 1}"
            )
        return found

    def run(self) -> Quantized:
        """Quantise, and report. Layers are measured in the form "qdq", whatever `form` is."""
        stats = self._observe()
        self._choose(stats)
        self._round(stats)
        keep = self.keep
        pairs = self.build(keep, FORMS["qdq"])
        layers = layers_of(self.exact, pairs, self.samples, self.settings.threads)
        trial = self._tried(keep)
        kept: list[str] = []
        most = self.settings.max_drop
        if most is not None and np.isnan(trial.judgement.drop):
            raise QuantizeError(
                "max_drop has nothing to measure: no output is compared; leave it out"
            )
        if most is not None and trial.judgement.drop > most:
            kept, trial = self._keep(layers, most)
        layers += [
            Layer(n.name, n.op.name, math.nan)
            for n in self._targets(self.exact, ())
            if n.name in keep
        ]
        if self.samples.total < FEW:
            self.notes.append(
                "few samples: ranges are better of a few hundred, as the model sees them in use"
            )
        keep = keep | set(kept)
        told = timed(layers, self.float_, trial.values, self.samples, keep)
        return Quantized(
            trial.graph, self.settings, told, trial.judgement, tuple(kept), self.equalised,
            tuple(self.notes), self.exact, self._scales(keep), self.samples.total,
        )  # fmt: skip

    def _scales(self, keep: Collection[str]) -> dict[str, tuple[Scale, Scale]]:
        """Return name of a layer (`by_title`) -> (scale of weights, scale of data), for quantised
        operators with one array of weights and one of data, not those in `keep` or of zero data."""
        found = {}
        for title, node in by_title(self.nodes).items():
            data = [self.scales.get(self.form.root(v).name) for v in places.data_of(node)]
            own = [scale for (name, _), (_, scale) in self.weights.items() if name == node.name]
            if node.name not in keep and len(own) == len(data) == 1 and data[0] is not None:
                found[title] = own[0], data[0]
        return found

    # ---- measuring

    def _observe(self) -> dict[str, Statistics]:
        """Run the float model on all samples, and return name of a value -> its statistics: of the
        roots of values to quantise, for their ranges, and of the data that quantised operators
        read, for the means of channels."""
        axes = {root.name: 1 for root in self.values.values()}
        for node in self.nodes:
            for v in places.data_of(node):
                kind = places.weighted(node)
                axes[v.name] = -1 if kind is None else kind.channels
        method = METHODS[self.settings.method]
        return observe(self.exact, axes, self.samples, method.counts, self.settings.threads)

    def _choose(self, stats: dict[str, Statistics]) -> None:
        """Fill `scales`: choose one for every root, from its statistics by the method of the
        settings. A root that is zero for all data gets a note instead."""
        choose = METHODS[self.settings.method].choose
        roots = list(dict.fromkeys(root.name for root in self.values.values()))
        for i, name in enumerate(roots):
            tell(i, len(roots), "scales")
            found = stats[name]
            if found.largest == 0:
                self.notes.append(f"{name!r} is zero for all data: what reads it stays in float32")
                continue
            low, high = choose(found)
            self.scales[name] = of_range(low, high, self.settings.symmetric, repr(name))

    # ---- weights

    def _round(self, stats: dict[str, Statistics]) -> None:
        """Round the weights of all nodes to integers (`weights`), and compute how far this shifts
        the means of their results (`shifts`)."""
        correlations = self._correlations() if self.settings.compensates else {}
        for i, node in enumerate(self.nodes):
            tell(i, len(self.nodes), "weights")
            found = places.weighted(node)
            for place in found.inputs if found is not None else ():
                self._round_one(node, place, correlations.get(node.name), stats)

    def _round_one(
        self, node: Node, place: int, found: Correlations | None, stats: dict[str, Statistics]
    ) -> None:
        v, kind = node.inputs[place], places.weighted(node)
        assert v is not None and v.const is not None and kind is not None
        w, bits = v.const, min(self.settings.weight_bits, self.form.bits(node))
        if not np.isfinite(w).all():
            raise QuantizeError(f"the weights {v.name!r} of {node.name!r} are not finite")
        axis = places.axis_of(node, kind) if self.settings.per_channel else None
        scale = of_weights(w, axis, bits, best=bits < 7)
        q = scale.quantised(w) if found is None else compensated(found, scale)
        self.weights[node.name, place] = q, scale
        data = places.data_of(node)
        if self.settings.correct and data and data[0].name in stats:
            shift = shift_of(node, scale.real(q) - w, stats[data[0].name].means)
            if shift is not None:
                self.shifts[node.name] = shift

    def _correlations(self) -> dict[str, Correlations]:
        """Return name of a node -> correlations of its inputs, for all whose rounding can be
        compensated. Inputs are rounded to their scales first."""
        found = {}
        for node in self.nodes:
            w = node.inputs[1]
            if w is not None and w.const is not None and takes(node, w.const):
                found[node.name] = Correlations(node, w.const)
        sources = {name: places.data_of(c.node)[0] for name, c in found.items()}
        values = Values(self.exact, [v.name for v in sources.values()], self.settings.threads)
        for batch in self.samples.told("correlations"):
            arrays = values.of(batch)
            for name, one in found.items():
                v = sources[name]
                scale = self.scales.get(self.form.root(v).name)
                x = arrays[v.name]
                one.add(x if scale is None else scale.real(scale.quantised(x)))
        return found

    # ---- graphs

    def build(self, keep: Collection[str], written: Form | None = None) -> Graph:
        """Return a quantised copy of the float graph with corrected biases, in which nodes named in
        `keep` stay float; in the form `written` (None: of the settings)."""
        graph, form = self.exact.clone(), self.form
        nodes = [
            n
            for n in self._targets(graph, keep)
            if all(form.root(v).name in self.scales for v in places.data_of(n))
        ]
        values = form.values(graph, nodes)
        scales = {v: self.scales[r.name] for v, r in values.items() if r.name in self.scales}
        for node in nodes:
            if node.name in self.shifts:
                add_bias(graph, node, self.shifts[node.name])
        (written or form).insert(graph, nodes, scales, lambda node, k: self.weights[node.name, k])
        return graph

    # ---- mixed precision

    def _outputs(self, graph: Graph) -> Values:
        return Values(graph, [v.name for v in graph.outputs], self.settings.threads)

    def _tried(self, keep: Collection[str]) -> _Trial:
        """Build the quantised graph in which nodes named in `keep` stay float, and compare its
        outputs with the float model's."""
        graph = self.build(keep)
        values = self._outputs(graph)
        return _Trial(graph, values, judge(self.float_, values, self.samples, self.labels))

    def _keep(self, layers: Sequence[Layer], most: float) -> tuple[list[str], _Trial]:
        """Find, by halving, how many operators beyond `keep` must stay in float32, lowest decibels
        first, for the loss to be at most `most` points. Return their names, and the model made so;
        all operators if fewer do not suffice."""
        own = {n.name for n in self.nodes}
        order = [one.name for one in sorted(layers, key=lambda x: x.decibels) if one.name in own]
        low, high = 1, len(order)
        best: _Trial | None = None
        while low < high or best is None:
            middle = (low + high) // 2
            tell(low, len(order), "operators kept in float32")
            found = self._tried(self.keep | set(order[:middle]))
            if found.judgement.drop <= most or middle == len(order):
                high, best = middle, found
                if low == high:
                    break
            else:
                low = middle + 1
        if high == len(order):
            self.notes.append(f"all {counted(len(order), 'operator')} stay in float32")
        return order[:high], best


@dataclass(frozen=True)
class _Trial:
    """A quantised graph, what computes its outputs, and how they compare with the float model's."""

    graph: Graph
    values: Values
    judgement: Judgement
