"""One ncnn layer while it is imported, and the table of importer functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from tinsmith.formats import pairs_of
from tinsmith.formats.ncnn.param import Layer
from tinsmith.frontends.importing import Importers, Unsupported
from tinsmith.frontends.nodes import Result as Result
from tinsmith.frontends.nodes import Scope, SourceNode
from tinsmith.frontends.scales import need_scale
from tinsmith.graph import Array, Value

Size = int | Value
"""A number, or an int64 Value [1], for a size that is computed in the run."""

layer = Importers("ncnn layer", "tinsmith.frontends.ncnn")
"""The table of importer functions, and its decorator: `@layer("Mish")` registers a function."""

_GRID = (
    "num_class=classes num_box=boxes biases=anchors confidence_threshold=least "
    "nms_threshold=overlap"
)
NAMES = {
    "CELU": "alpha", "ELU": "alpha", "HardSigmoid": "alpha beta", "HardSwish": "alpha beta",
    "SELU": "alpha lambda=gamma", "Shrink": "bias lambd", "Clip": "min max",
    "LRN": "local_size=size alpha beta bias", "PixelShuffle": "upscale_factor=blocksize",
    "Reorg": "stride=blocksize",
    "DetectionOutput": "num_class=classes nms_threshold=overlap nms_top_k=candidates "
    "keep_top_k=most confidence_threshold=least",
    "YoloDetectionOutput": _GRID, "Yolov3DetectionOutput": f"{_GRID} mask anchors_scale=scales",
    "Proposal": "feat_stride=stride base_size=base pre_nms_topN=candidates after_nms_topN=most "
    "nms_thresh=overlap min_size=least",
    "PSROIPooling": "spatial_scale output_dim=channels", "ROIPooling": "spatial_scale",
    "ROIAlign": "pooled_height=output_height pooled_width=output_width spatial_scale "
    "sampling_ratio",
}  # fmt: skip
"""ncnn's layer -> its parameters that are attributes of our operator, as for `pairs_of`: a table
that importer and writer share."""

LETTERS = {1: "w", 2: "hw", 3: "chw", 4: "cdhw"}
"""Rank in ncnn -> the letters of the axes, outermost first: width, height, depth, channels."""


class Node(SourceNode):
    """A layer while it is imported. `attr` has the names and defaults of its schema."""

    def __init__(self, scope: Scope, layer: Layer) -> None:
        super().__init__(scope, layer.type, layer.name, layer.inputs, layer.outputs, layer.given)
        self.layer, self.line = layer, layer.line
        self.values = layer.schema.values(layer.given)
        self.ignore("shapes", "featmask")

    def attr(self, name: Any, default: Any = None) -> Any:
        self._read.add(name)
        return self.values[name]

    def named(self) -> dict[str, Any]:
        """The parameters that are attributes of our operator (`NAMES`), by our names."""
        return {ours: self.attr(theirs) for theirs, ours in pairs_of(NAMES.get(self.type, ""))}

    def weight(self, name: str, *shape: int) -> Array:
        """A weight in `shape` (one number may be -1; flat without a shape), as float32, or as int8
        if it is stored so. Raises Unsupported if the layer has none of that name or size."""
        if name not in self.layer.weights:
            raise Unsupported(f"its parameters tell of no weight {name!r}")
        array = self.layer.weights[name]
        known = prod(n for n in shape if n != -1)
        if shape and (min(shape) < -1 or (array.size % known if known else array.size)):
            raise Unsupported(f"its weight {name!r} of {array.size} numbers makes no {shape}")
        return array.reshape(shape or -1)

    def scales(self, name: str, *shape: int, divides: bool = True) -> Array:
        """A weight that is a scale, checked (`need_scale`). ncnn's integers are real * scale, so
        nearly all divide in the end."""
        found = self.weight(name, *shape)
        need_scale(found, repr(name), divides=divides)
        return found

    def has(self, name: str) -> bool:
        """Whether the layer has the weight `name`, maybe empty."""
        return name in self.layer.weights

    @property
    def present(self) -> list[Value]:
        """The inputs that are not absent."""
        return [v for v in self.inputs if v is not None]

    # ---- axes

    def rank(self, index: int = 0) -> int:
        """The rank of input number `index` in ncnn, where the batch has no axis."""
        return rank(self[index])

    def axis(self, number: int, of: int) -> int:
        """The axis of the graph for axis `number` in ncnn (negative: from the end) of a value of
        rank `of` there. Raises Unsupported if there is none."""
        if not -of <= number < of:
            raise Unsupported(f"it has no axis {number}: its input has {of} axes")
        return number % of + 1

    def size(self, x: Value, letter: str) -> Size:
        """The size of x along the axis with this letter (w, h, d, c); 1 if it has no such axis."""
        at = LETTERS[rank(x)].find(letter)
        return 1 if at < 0 else self.dim(x, at + 1)

    def dim(self, x: Value, axis: int) -> Size:
        """The size of x along an axis of the graph: a number, or, where only the run knows it, an
        int64 Value [1]."""
        found = x.shape[axis] if x.shape else ""
        return found if isinstance(found, int) else self.emit("Shape", x, start=axis, end=axis + 1)

    def reshaped(self, x: Value, *sizes: Size) -> Value:
        """x with the axes after the batch reshaped to `sizes`, one of which may be -1. Raises
        Unsupported for a size 0, or another number of elements where known."""
        if x.shape is not None and tuple(sizes) == x.shape[1:]:
            return x
        if sizes == (-1,) and rank(x) == 1:
            return x
        if 0 in sizes:
            raise Unsupported(f"it would have the size {sizes}")
        dims = shape(x)[1:]
        if all(isinstance(n, int) for n in (*dims, *sizes)):
            have, taken = prod(dims), prod(n for n in sizes if isinstance(n, int))
            if have % taken if -1 in sizes else have != taken:
                raise Unsupported(f"{dims} has {have} elements, and takes no size {sizes}")
        return self.emit("Reshape", x, self.joined((0, *sizes)))

    def reshaped_scalar(self, x: Value) -> Value:
        """x [N] as [N, 1], which is ncnn's vector of one element."""
        return self.emit("Unsqueeze", x, self.ints(1))

    def for_samples(self, x: Value, of: Iterable[Value | None]) -> Value:
        """x, repeated along the batch if its batch is 1 (as it is of what is computed from
        constants alone): to the batch of one of the values `of` that has another."""
        most = next((v for v in of if v is not None and shape(v)[0] != 1), x)
        if shape(x)[0] != 1 or most is x:
            return x
        return self.emit("Expand", x, self.joined((self.dim(most, 0), *(1,) * rank(x))))

    def alike(self, *values: Value) -> list[Value]:
        """The values, those with a batch of 1 repeated to the others': see `for_samples`."""
        return [self.for_samples(v, values) for v in values]

    def joined(self, sizes: Sequence[Size]) -> Value:
        """Sizes, numbers or Values, as one int64 vector: a constant if all are numbers."""
        if all(isinstance(s, int) for s in sizes):
            return self.ints(*(s for s in sizes if isinstance(s, int)))
        parts = [self.ints(s) if isinstance(s, int) else s for s in sizes]
        return self.emit("Concat", *parts, axis=0)

    def padded(self, x: Value, pad: tuple[int, ...], value: float) -> Value:
        """x with its spatial axes padded with `value`; `pad` is all begins, then all ends."""
        n = len(pad) // 2
        widths = self.ints(0, 0, *pad[:n], 0, 0, *pad[n:])
        return self.emit("Pad", x, widths, self.number(value, x))

    # ---- arithmetic

    def shifted(self, x: Value, term: float) -> Value:
        """x + term."""
        return x if term == 0 else self.emit("Add", x, self.number(term, x))

    def channels(self, array: Array, x: Value) -> Value:
        """A vector as a constant [1, C, 1, ...], which broadcasts along the channels of x."""
        return self.const(array.reshape(1, -1, *(1,) * (rank(x) - 1)))


def shape(x: Value) -> tuple[Any, ...]:
    """The shape of x, with the batch. Raises Unsupported where the rank is unknown or below 2."""
    if x.shape is None or len(x.shape) < 2:
        raise Unsupported(f"the rank of its input {x.name!r} is not known")
    return x.shape


def rank(x: Value) -> int:
    """The rank of x in ncnn, without the axis of the batch."""
    return len(shape(x)) - 1


def channels_of(x: Value, what: str) -> int:
    """The number of channels of x. Raises Unsupported ("WHAT needs ...") where it is not known."""
    count = shape(x)[1]
    if not isinstance(count, int):
        raise Unsupported(
            f"{what} needs a known number of channels; its input is {shape(x)}. Write the sizes of "
            "the model's inputs into their Input layers: 0=w 1=h 2=c"
        )
    return count


def known(x: Value, what: str) -> list[int]:
    """The shape of x in ncnn (without the batch). Raises Unsupported ("WHAT needs ...") where a
    size is not known."""
    sizes = list(shape(x)[1:])
    if not all(isinstance(s, int) for s in sizes):
        raise Unsupported(
            f"{what} needs an input of a known size; it is {shape(x)}. Write the sizes of the "
            "model's inputs into their Input layers: 0=w 1=h 2=c"
        )
    return sizes


def pick(table: Sequence[Any], number: int, what: str = "operation") -> Any:
    """table[number], for a parameter that tells a `what` by number. Raises Unsupported for a number
    outside of the table."""
    if not 0 <= number < len(table):
        raise Unsupported(f"its {what} {number} is not known; they are 0 to {len(table) - 1}")
    return table[number]


ACTIVATIONS = {
    1: ("Relu", ()), 2: ("LeakyRelu", ("alpha",)), 3: ("Clip", ("min", "max")), 4: ("Sigmoid", ()),
    5: ("Mish", ()), 6: ("HardSwish", ("alpha", "beta")),
}  # fmt: skip
"""Activations that convolutions and products apply: ncnn's activation_type -> (our operator, the
attributes that its activation_params are)."""


def active(node: Node, y: Value) -> Value:
    """y with the activation that the parameters of the layer ask for; y itself if they ask for
    none. Raises Unsupported for an unknown one."""
    kind, params = node.attr("activation_type"), node.attr("activation_params")
    if kind == 0:
        return y
    op, names = ACTIVATIONS.get(kind, ("", ()))
    if not op or len(params) < len(names):
        raise Unsupported(f"its activation {kind} with {len(params)} parameters is not known")
    return node.emit(op, y, **dict(zip(names, params, strict=False)))
