"""One ncnn layer while it is imported, and the table of importer functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from tinsmith.formats.ncnn.param import Layer
from tinsmith.frontends.importing import Importers, Unsupported
from tinsmith.frontends.nodes import Result as Result
from tinsmith.frontends.nodes import Scope, SourceNode
from tinsmith.graph import Value

Array = np.ndarray[Any, Any]
Size = int | Value
"""A number, or a value of one int64 that the run tells."""

layer = Importers("ncnn layer", "tinsmith.frontends.ncnn")
"""Decorator and table: @layer("Mish") is followed by the function that imports it."""

LETTERS = {1: "w", 2: "hw", 3: "chw", 4: "cdhw"}
"""What ncnn calls the axes of values of so many axes, outermost first."""


class Node(SourceNode):
    """A layer: `attr` gives a parameter by its name in the schema, or its default."""

    def __init__(self, scope: Scope, layer: Layer) -> None:
        super().__init__(scope, layer.type, layer.name, layer.inputs, layer.outputs, layer.given)
        self.layer, self.line = layer, layer.line
        self.values = layer.schema.values(layer.given)
        self.ignore("shapes", "featmask")

    def attr(self, name: Any, default: Any = None) -> Any:
        self._read.add(name)
        return self.values[name]

    def weight(self, name: str, *shape: int) -> Array:
        """A weight as float32, or as the int8 that it is stored as. Raises Unsupported where the
        layer's parameters tell of no such weight, or of one that makes no such shape."""
        if name not in self.layer.weights:
            raise Unsupported(f"its parameters tell of no weight {name!r}")
        array = self.layer.weights[name]
        known = prod(n for n in shape if n != -1)
        if shape and (min(shape) < -1 or (array.size % known if known else array.size)):
            raise Unsupported(f"its weight {name!r} of {array.size} numbers makes no {shape}")
        return array.reshape(shape or -1)

    def has(self, name: str) -> bool:
        return name in self.layer.weights

    @property
    def present(self) -> list[Value]:
        """Its inputs, without those that are absent."""
        return [v for v in self.inputs if v is not None]

    # ---- axes

    def rank(self, index: int = 0) -> int:
        """The number of axes that ncnn sees."""
        return rank(self[index])

    def axis(self, number: int, of: int) -> int:
        """The axis of ours for one of ncnn's, of values with `of` axes."""
        if not -of <= number < of:
            raise Unsupported(f"it has no axis {number}: its input has {of} axes")
        return number % of + 1

    def size(self, x: Value, letter: str) -> Size:
        """What ncnn calls x.w, x.h, x.d, x.c; 1 for an axis that is not there."""
        at = LETTERS[rank(x)].find(letter)
        return 1 if at < 0 else self.dim(x, at + 1)

    def dim(self, x: Value, axis: int) -> Size:
        found = x.shape[axis] if x.shape else ""
        return found if isinstance(found, int) else self.emit("Shape", x, start=axis, end=axis + 1)

    def reshaped(self, x: Value, *sizes: Size) -> Value:
        """x as a value of these axes after that of the batch; one may be -1."""
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
        """One number for each element of the batch, as ncnn's value of one element."""
        return self.emit("Unsqueeze", x, self.ints(1))

    def for_samples(self, x: Value, of: Iterable[Value | None]) -> Value:
        """x, for as many samples as any of the values `of` has: repeated, if it is one for all
        samples, as what comes of constants alone is."""
        most = next((v for v in of if v is not None and shape(v)[0] != 1), x)
        if shape(x)[0] != 1 or most is x:
            return x
        return self.emit("Expand", x, self.joined((self.dim(most, 0), *(1,) * rank(x))))

    def alike(self, *values: Value) -> list[Value]:
        """Values for as many samples each as any of them has."""
        return [self.for_samples(v, values) for v in values]

    def joined(self, sizes: Sequence[Size]) -> Value:
        """Sizes, known or computed, as one int64 vector: a constant where all are known."""
        if all(isinstance(s, int) for s in sizes):
            return self.ints(*(s for s in sizes if isinstance(s, int)))
        parts = [self.ints(s) if isinstance(s, int) else s for s in sizes]
        return self.emit("Concat", *parts, axis=0)

    # ---- arithmetic

    def scaled(self, x: Value, factor: float) -> Value:
        return x if factor == 1 else self.emit("Mul", x, self.number(factor, x))

    def shifted(self, x: Value, term: float) -> Value:
        return x if term == 0 else self.emit("Add", x, self.number(term, x))

    def channels(self, array: Array, x: Value) -> Value:
        """A vector as a constant along the outermost axis that ncnn sees, that of channels."""
        return self.const(array.reshape(1, -1, *(1,) * (rank(x) - 1)))


def shape(x: Value) -> tuple[Any, ...]:
    if x.shape is None or len(x.shape) < 2:
        raise Unsupported(f"the rank of its input {x.name!r} is not known")
    return x.shape


def rank(x: Value) -> int:
    return len(shape(x)) - 1


def channels_of(x: Value, what: str) -> int:
    """How many channels x has, which must be known; `what` needs them. Raises Unsupported."""
    count = shape(x)[1]
    if not isinstance(count, int):
        raise Unsupported(
            f"{what} needs a known number of channels; its input is {shape(x)}. Write the sizes of "
            "the model's inputs into their Input layers: 0=w 1=h 2=c"
        )
    return count


def known(x: Value, what: str) -> list[int]:
    """The sizes that ncnn sees, which must be known."""
    sizes = list(shape(x)[1:])
    if not all(isinstance(s, int) for s in sizes):
        raise Unsupported(
            f"{what} needs an input of a known size; it is {shape(x)}. Write the sizes of the "
            "model's inputs into their Input layers: 0=w 1=h 2=c"
        )
    return sizes


def pick(table: Sequence[Any], number: int, what: str = "operation") -> Any:
    """The entry of a table that a parameter numbers; `what` it is. Raises Unsupported."""
    if not 0 <= number < len(table):
        raise Unsupported(f"its {what} {number} is not known; they are 0 to {len(table) - 1}")
    return table[number]


ACTIVATIONS = {
    1: ("Relu", ()), 2: ("LeakyRelu", ("alpha",)), 3: ("Clip", ("min", "max")), 4: ("Sigmoid", ()),
    5: ("Mish", ()), 6: ("HardSwish", ("alpha", "beta")),
}  # fmt: skip
"""Activations that layers carry, by ncnn's numbers: our operators, and the names of parameters."""


def activated(node: Node, y: Value, kind: int, params: Sequence[float]) -> Value:
    """y behind the activation that a convolution or product carries: `kind` is ncnn's number of it,
    `params` are its parameters. Raises Unsupported for one that is not known."""
    if kind == 0:
        return y
    op, names = ACTIVATIONS.get(kind, ("", ()))
    if not op or len(params) < len(names):
        raise Unsupported(f"its activation {kind} with {len(params)} parameters is not known")
    return node.emit(op, y, **dict(zip(names, params, strict=False)))


def active(node: Node, y: Value) -> Value:
    """The activation that the layer's own parameters tell."""
    return activated(node, y, node.attr("activation_type"), node.attr("activation_params"))
