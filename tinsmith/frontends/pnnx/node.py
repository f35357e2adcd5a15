"""One PNNX operator while it is imported, and the table of importer functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tinsmith import budget
from tinsmith.formats.pnnx import Operator
from tinsmith.frontends.importing import Importers, Unsupported
from tinsmith.frontends.nodes import SourceNode
from tinsmith.frontends.weights import random_weights
from tinsmith.graph import Value, dtype_of
from tinsmith.records import dataclass

if TYPE_CHECKING:
    from tinsmith.frontends.pnnx.model import Scope

IMPORTERS = Importers(
    "PNNX operator",
    "tinsmith.frontends.pnnx",
    "What helps: register importers by tinsmith.frontends.pnnx.node.operator, in Python, or for "
    "the commands in an installed package: docs/pnnx.md, Operators of your own",
)

REDUNDANT = (
    "in_channels", "out_channels", "kernel_size", "num_features", "num_parameters", "affine",
    "elementwise_affine", "track_running_stats", "in_features", "out_features", "num_embeddings",
    "embedding_dim", "num_channels", "padding_idx", "sparse", "scale_grad_by_freq", "max_norm",
    "norm_type", "copy", "non_blocking", "memory_format", "device", "layout", "pin_memory",
    "requires_grad", "inplace", "training", "momentum", "dropout", "dropout_p", "implicit",
    "sparse_grad",
)  # fmt: skip
"""Parameters that repeat what weights say, or mean nothing in inference: ignored unless an importer
function asks for them."""

WORDS = {
    "double": "float64", "half": "float16", "int": "int32", "long": "int64", "short": "int16",
    "float": "float32",
}  # fmt: skip
FIRST = ("input", "self", "tensor")
"""Names that files may use for the first operand, whatever PyTorch calls it."""


@dataclass(frozen=True)
class Complex:
    """A tensor of complex numbers, which a graph does not have, while a model is imported: its real
    and imaginary parts, of one shape. `whole` is the same as one tensor [..., 2]
    (`torch.view_as_real`), if there is one; inputs and outputs of a model have this form."""

    real: Value
    imag: Value
    whole: Value | None = None


@dataclass(frozen=True)
class Grid:
    """The parameters of a quantised tensor: real = (integer - zero) * scale, with integers of type
    `dtype`. scale and zero are numbers if `axis` is None, else vectors along that axis."""

    scale: Any
    zero: Any
    dtype: str
    axis: int | None = None


Function = TypeVar("Function", bound=Callable[..., Any])
Numbers = bool | int | float | list | tuple
"""Types of operands that expressions compute, besides tensors."""


def operator(*types: str) -> Callable[[Function], Function]:
    """Decorator: register an importer function for operators of these `types`, such as "nn.Conv2d".
    It is called with the node, then by the names of its own parameters: positional ones get
    operands (Values, numbers or lists) and weights (arrays), keyword-only ones the operator's
    parameters, or operands of that name. Its defaults, which are PyTorch's, stand for parameters
    that the file does not have. It returns the result, or a tuple of one for each output."""

    def register(function: Function) -> Function:
        IMPORTERS.settle(function)
        given = [*inspect.signature(function).parameters.values()][1:]
        signature = inspect.Signature(given)

        def run(node: PnnxNode) -> Any:
            args, named = node.bound(signature)
            return function(node, *args, **named)

        for type in types:
            IMPORTERS.register(type, run)
        return function

    return register


class PnnxNode(SourceNode):
    """One PNNX operator while it is imported. `attrs` are its parameters by name, and its weights
    by "@name"."""

    scope: Scope

    def __init__(self, scope: Scope, op: Operator) -> None:
        self.op = op
        params = {f"@{k}": t for k, t in op.weights.items()} | op.params
        super().__init__(scope, op.type, op.name, op.inputs, op.outputs, params)
        self.line = op.line
        self.counted = False
        """Whether the sizes of its results depend on data, so that those in the file, which are of
        one run, do not hold."""
        self.quantised = False
        """Whether it takes quantised tensors."""
        self.grid: Grid | None = None
        """The scale and zero point of its results; None where they are not quantised."""
        self.ignore(*REDUNDANT)

    # ---- what the operator says

    def bound(self, signature: inspect.Signature) -> tuple[list[Any], dict[str, Any]]:
        """The arguments (positional, keyword) of an importer function with this signature: operands
        that the file names, then parameters and weights by name, then other operands in order.
        Raises Unsupported if one is missing or left over."""
        by_name: dict[str, Any] = {}
        rest = list(zip(self.input_names, self.inputs, strict=True))
        for name, operand in self.op.keywords.items():
            if name not in signature.parameters and name in FIRST:
                first = next(iter(signature.parameters.values()))
                if first.kind is first.VAR_POSITIONAL:
                    continue
                name = first.name
            at = next((i for i, (o, _) in enumerate(rest) if o == operand), None)
            if at is None:  # one operand as several parameters, listed once
                by_name[name] = self.inputs[self.input_names.index(operand)]
            else:
                by_name[name] = rest.pop(at)[1]
        free = [value for _, value in rest]
        args, named = [], {}
        for p in signature.parameters.values():
            if p.kind is p.VAR_POSITIONAL:
                args += free
                free = []
                continue
            keyword = p.kind is p.KEYWORD_ONLY
            if p.name in by_name:
                value = by_name.pop(p.name)
            elif keyword and p.name in self.attrs:
                value = self.attr(p.name)
            elif not keyword and f"@{p.name}" in self.attrs:
                self.ignore(p.name)  # bias=True: that there is one
                value = self.weight(p.name)
            elif free and self.attr(p.name) is None:
                value = free.pop(0)
            else:
                value = self._given(p)
            if keyword:
                named[p.name] = value
            else:
                args.append(value)
        if free or by_name:
            raise Unsupported(f"it has {len(free) + len(by_name)} inputs more than are known")
        return args, named

    def _given(self, p: inspect.Parameter) -> Any:
        """The argument for the parameter `p` of an importer function for which no operand is left:
        the operator's parameter of that name, or the default. Raises Unsupported without both."""
        value = self.attr(p.name)
        if isinstance(value, bool) and p.kind is not p.KEYWORD_ONLY:  # bias=True: there is one
            if value and self.type.startswith("nn."):
                raise Unsupported(f"its weight {p.name!r} is missing")
            value = None
        if value is None and p.default is p.empty:
            raise Unsupported(f"its input or parameter {p.name!r} is missing")
        return p.default if value is None else value

    def weight(self, name: str) -> np.ndarray[Any, Any]:
        """The weight `name` of the operator, from the file, or random if the import has a seed.
        Raises Unsupported if it is missing, or its type is unknown."""
        self._read.add(f"@{name}")
        if name not in self.op.weights:
            raise Unsupported(f"its weight {name!r} is missing")
        tensor, seed = self.op.weights[name], self.scope.seed
        if None in tensor.shape or not tensor.dtype:
            raise Unsupported(f"the type of its weight {name!r} is not known")
        if seed is None:
            return self.scope.model.array(self.op, name)
        ones = name.endswith(("weight", "var", "scale", "scales"))
        shape = [d or 0 for d in tensor.shape]
        if dtype_of(tensor.dtype).kind == "c":
            parts = random_weights(seed, f"{self.op.name}.{name}", [*shape, 2], "float32")
            return (parts[..., 0] + 1j * parts[..., 1]).astype(tensor.dtype)
        return random_weights(seed, f"{self.op.name}.{name}", shape, tensor.dtype, scale=ones)

    def declared(self, index: int = 0) -> tuple[int | None, ...] | None:
        """The file's shape of output number `index`, None for unknown dims; None if it has none."""
        tensor = self.op.tensors.get(self.outputs[index])
        return tensor.shape if tensor else None

    # ---- what is made of it

    def emit(self, op: str, *inputs: Any, **attrs: Any) -> Any:
        """`SourceNode.emit` for inputs that may be numbers or lists too, which become constants."""
        return super().emit(op, *map(self._operand, inputs), **attrs)

    def _operand(self, value: Any) -> Any:
        return self.tensor(value) if isinstance(value, Numbers | Complex) else value

    def number_of(self, array: Any) -> Value | Complex:
        """A weight, an array, as a constant; complex numbers as a Complex of two float32 ones."""
        if array.dtype.kind != "c":
            return self.tensor(array)
        parts = (np.ascontiguousarray(v, np.float32) for v in (array.real, array.imag))
        return Complex(*map(self.tensor, parts))

    def tensor(self, value: Any) -> Value:
        """An operand as a Value: an array becomes a constant, a number a scalar constant (float32,
        int64 or bool, as in PyTorch), a list of numbers, some of which may be Values, a vector.
        Raises Unsupported for others."""
        if isinstance(value, Complex):
            raise Unsupported("it takes complex numbers, for which it is not known")
        if isinstance(value, np.ndarray):
            return self.const(value)
        if isinstance(value, Value):
            return value
        if isinstance(value, list | tuple) and any(isinstance(v, Value) for v in value):
            return self.emit(
                "Concat", *[self.emit("Reshape", v, self.ints(1)) for v in value], axis=0
            )
        try:
            array = np.array(value)
        except ValueError:
            array = np.array(None)
        if array.dtype.kind not in "bif":
            raise Unsupported(f"{str(value)[:80]} is no tensor")
        kind = {"f": np.float32, "i": np.int64}.get(array.dtype.kind, array.dtype)
        return self.const(array.astype(kind))

    def full(self, shape: Any, value: float, dtype: Any) -> np.ndarray[Any, Any]:
        """An array of `shape` (a number or a tuple) filled with `value`. Raises BudgetExceeded."""
        sizes = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
        self.spend(prod(sizes) * np.dtype(dtype).itemsize)
        return np.full(sizes, value, dtype)

    def spend(self, nbytes: int) -> None:
        """Raise BudgetExceeded if a constant of `nbytes` is more than the budget allows."""
        budget.check("constants", nbytes, f"{self.label!r} of {self.scope.shared.name}")

    def cast(self, x: Any, dtype: str) -> Value:
        """x, a Value, number or list, as a tensor of this element type."""
        x = self.tensor(x)
        return x if x.dtype.name == dtype else self.emit("Cast", x, to=dtype)

    def dtype(self, name: Any, default: str) -> str:
        """The element type that `name`, such as `torch.float`, means; `default` for None. Raises
        Unsupported for unknown ones."""
        if name is None:
            return default
        word = str(name).removeprefix("torch.")
        try:
            return dtype_of(WORDS.get(word, word)).name
        except (TypeError, AttributeError):
            raise Unsupported(f"the element type {name} is not known") from None

    def rank(self, x: Value) -> int:
        """The rank of x. Raises Unsupported if unknown."""
        if x.rank is None:
            raise Unsupported("the rank of its input is not known")
        return x.rank

    def axis(self, x: Value, dim: int) -> int:
        """`dim` (negative: from the end) as an axis of x from 0 on. Raises Unsupported if there is
        none."""
        rank = self.rank(x)
        if not isinstance(dim, int) or not -rank <= dim < max(rank, 1):
            raise Unsupported(f"its input has no axis {dim}")
        return dim % max(rank, 1)

    def size(self, x: Value, axis: int) -> int:
        """The size of x along an axis. Raises Unsupported if unknown."""
        dim = x.shape[axis] if x.shape is not None else None
        if not isinstance(dim, int):
            raise Unsupported(f"it needs a known size along axis {axis}")
        return dim

    def slice(
        self, x: Value, starts: Any, ends: Any, axes: Sequence[int], steps: Any = None
    ) -> Value:
        return self.emit("Slice", x, starts, ends, self.ints(*axes), steps)
