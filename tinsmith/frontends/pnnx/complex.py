"""Tensors of complex numbers, which a graph does not have: while a PNNX model is imported each is a
pair of real Values (`node.Complex`). Arithmetic with them, and operators that move them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinsmith.frontends.importing import Importer, Unsupported
from tinsmith.frontends.pnnx.expression import BINARY, UNARY, floats, size_of
from tinsmith.frontends.pnnx.node import Complex, PnnxNode, operator
from tinsmith.graph import Value

MOVES = frozenset(
    f"{kind}.{name}"
    for kind, names in {
        "torch": "reshape view flatten unflatten squeeze unsqueeze permute transpose t movedim "
        "broadcast_to tile repeat_interleave cat stack hstack vstack chunk split tensor_split "
        "unbind flip roll narrow select index_select gather diag tril triu sum mean cumsum clone "
        "slice_scatter",
        "Tensor": "reshape view reshape_as view_as flatten unflatten squeeze unsqueeze permute "
        "transpose t T mT expand expand_as repeat slice select index contiguous slice_copy copy",
        "F": "pad",
    }.items()
    for name in names.split()
)
"""Operators that are applied to real and imaginary parts apart: moves of elements, and sums."""

Made = Callable[..., Any]


def complex_of(node: PnnxNode, x: Any) -> Complex:
    """x, a real or complex tensor or number, as a Complex."""
    if isinstance(x, Complex):
        return x
    if isinstance(x, complex):
        return Complex(node.tensor(x.real), node.tensor(x.imag))
    real = floats(node, x)
    return Complex(real, node.emit("Mul", real, node.number(0, real)))


def joined(node: PnnxNode, x: Complex) -> Value:
    """x as one real tensor [..., 2] of real and imaginary parts."""
    if x.whole is not None:
        return x.whole
    parts = [node.emit("Unsqueeze", v, node.ints(-1)) for v in (x.real, x.imag)]
    return node.emit("Concat", *parts, axis=-1)


def parted(node: PnnxNode, x: Value) -> Complex:
    """The inverse of `joined`: the Complex of a real tensor [..., 2]."""
    axis = node.rank(x) - 1
    parts = [node.emit("Gather", x, node.const(i, np.int64), axis=axis) for i in (0, 1)]
    return Complex(parts[0], parts[1], x)


def scaled(node: PnnxNode, x: Any, factor: float) -> Any:
    """x, real or complex, times a real number."""
    if not isinstance(x, Complex):
        return node.scaled(x, factor)
    return x if factor == 1 else Complex(*(node.scaled(v, factor) for v in (x.real, x.imag)))


# ---- arithmetic


def _is_real(x: Any) -> bool:
    return not isinstance(x, Complex | complex)


def _sum(name: str) -> Made:
    """Make the function (node, x, y) for x + y or x - y (`name` "add", "sub"), one at least
    complex."""

    def run(node: PnnxNode, x: Any, y: Any) -> Complex:
        made = BINARY[name]
        if _is_real(x) or _is_real(y):
            z = x if _is_real(y) else y
            real = [v if _is_real(v) else complex_of(node, v).real for v in (x, y)]
            imag = complex_of(node, z).imag
            total = made(node, *real)
            imag = imag if _is_real(y) or name == "add" else node.emit("Neg", imag)
            if imag.shape != total.shape:
                imag = node.emit("Expand", imag, size_of(node, total))
            return Complex(total, imag)
        a, b = complex_of(node, x), complex_of(node, y)
        return Complex(made(node, a.real, b.real), made(node, a.imag, b.imag))

    return run


def product(node: PnnxNode, x: Any, y: Any, times: Made = BINARY["mul"]) -> Complex:
    """x * y, where at least one is complex. `times(node, x, y)` multiplies real ones: elementwise,
    or as matrices."""
    if _is_real(x) or _is_real(y):
        z, real = (y, x) if _is_real(x) else (x, y)
        parts = complex_of(node, z)
        both = [(real, v) if _is_real(x) else (v, real) for v in (parts.real, parts.imag)]
        return Complex(*(times(node, *pair) for pair in both))
    a, b = complex_of(node, x), complex_of(node, y)
    return Complex(
        BINARY["sub"](node, times(node, a.real, b.real), times(node, a.imag, b.imag)),
        BINARY["add"](node, times(node, a.real, b.imag), times(node, a.imag, b.real)),
    )


def quotient(node: PnnxNode, x: Any, y: Any) -> Complex:
    if _is_real(y):
        return product(node, x, UNARY["reciprocal"](node, y))
    b = complex_of(node, y)
    over = product(node, x, conjugate(node, b))
    size = squares(node, b)
    return Complex(node.emit("Div", over.real, size), node.emit("Div", over.imag, size))


def squares(node: PnnxNode, x: Complex) -> Value:
    """|x|^2, elementwise."""
    both = [node.emit("Mul", v, v) for v in (x.real, x.imag)]
    return node.emit("Add", *both)


def magnitude(node: PnnxNode, x: Complex) -> Value:
    return node.emit("Sqrt", squares(node, x))


def conjugate(node: PnnxNode, x: Complex) -> Complex:
    return Complex(x.real, node.emit("Neg", x.imag))


def angle(node: PnnxNode, x: Complex) -> Value:
    return node.emit("Atan2", x.imag, x.real)


def exponential(node: PnnxNode, x: Complex) -> Complex:
    size = node.emit("Exp", x.real)
    return Complex(*(node.emit("Mul", size, node.emit(op, x.imag)) for op in ("Cos", "Sin")))


def whole_power(node: PnnxNode, x: Any, y: Any) -> Complex:
    if y != 2:
        raise Unsupported(f"it raises complex numbers to the power {y!r}; only 2 is known")
    return product(node, x, x)


ARITHMETIC: dict[str, Made] = {
    "add": _sum("add"), "sub": _sum("sub"), "mul": product, "div": quotient, "pow": whole_power,
    "abs": magnitude, "angle": angle, "exp": exponential, "conj": conjugate,
    "neg": lambda node, x: scaled(node, x, -1.0),
    "square": lambda node, x: product(node, x, x),
    "reciprocal": lambda node, x: quotient(node, 1.0, x),
}  # fmt: skip
"""Functions that are known for complex operands, by the names in expressions and operators."""


def computed(node: PnnxNode, name: str, *xs: Any) -> Any:
    """ARITHMETIC[name] of xs, of which some are complex. Raises Unsupported for other names."""
    if name not in ARITHMETIC:
        raise Unsupported(f"{name!r} of complex numbers is not known")
    return ARITHMETIC[name](node, *xs)


# ---- operators

TAKE = {
    "pnnx.Expression", "prim::TupleConstruct", "prim::ListConstruct", "prim::TupleUnpack",
    "prim::ListUnpack",
}  # fmt: skip
"""Operators whose importer functions take Complex inputs themselves."""

PRODUCTS = {"torch.matmul", "torch.bmm", "torch.mm", "Tensor.matmul"}


def takes(*types: str) -> Callable[[Any], Any]:
    """Decorator: as `operator`, for importer functions that take Complex inputs themselves."""
    TAKE.update(types)
    return operator(*types)


def importer_of(type: str, function: Importer | None) -> Importer:
    """The importer function for an operator `type` with complex inputs; `function` is the one for
    real inputs (None: there is none). Raises Unsupported if the operator takes no complex
    inputs."""
    name = type.rpartition(".")[2].rpartition(":")[2]
    if function is not None and type in TAKE:
        return function
    if function is not None and type in MOVES:
        return lambda node: apart(node, function)
    if function is not None and type == "Tensor.size":
        return lambda node: function(_with(node, [_part(v, 0) for v in node.inputs]))
    if type in PRODUCTS:
        times = lambda node, *xs: node.emit("MatMul", *xs)  # noqa: E731
        return lambda node: product(node, *node.inputs, times=times)
    if type in (f"torch.{name}", f"aten::{name}") and name in ARITHMETIC:
        more = ("other", "exponent")
        return lambda node: computed(
            node, name, *node.inputs, *(node.attr(n) for n in more if n in node.attrs)
        )
    raise Unsupported(
        "it takes complex numbers, with which only arithmetic, Fourier transforms and "
        "what moves elements is known"
    )


def _part(x: Any, index: int) -> Any:
    return (x.real, x.imag)[index] if isinstance(x, Complex) else x


def _with(node: PnnxNode, inputs: list[Any]) -> PnnxNode:
    node.inputs = inputs
    return node


def apart(node: PnnxNode, function: Importer) -> Any:
    """Import an operator by two calls of `function`, its importer for real inputs: for the real,
    then for the imaginary parts of inputs and results. Real inputs go into both, or, if the
    operator joins tensors, become complex. Raises Unsupported for padding other than 0."""
    inputs: list[Any] = node.inputs
    if node.type in JOINS:
        inputs = [complex_of(node, v) for v in inputs]
    if node.type == "F.pad" and node.attrs.get("value") not in (None, 0, 0.0):
        raise Unsupported("it fills complex numbers with another value than 0")
    found = [function(_with(node, [_part(v, i) for v in inputs])) for i in (0, 1)]
    node.inputs = inputs
    if isinstance(found[0], tuple | list):
        return type(found[0])(Complex(*pair) for pair in zip(*found, strict=True))
    return Complex(*found)


JOINS = {f"torch.{name}" for name in ("cat", "stack", "hstack", "vstack", "slice_scatter")}
JOINS |= {"Tensor.slice_copy", "Tensor.copy"}


@takes("torch.complex", "aten::complex")
def complex_(node: PnnxNode, real: Any, imag: Any) -> Complex:
    return Complex(*(floats(node, v) for v in (real, imag)))


@takes("torch.polar", "aten::polar")
def polar(node: PnnxNode, abs: Any, angle: Any) -> Complex:
    made = exponential(node, Complex(node.number(0, abs), floats(node, angle)))
    return product(node, made, abs)


@takes("torch.view_as_complex")
def view_as_complex(node: PnnxNode, input: Value) -> Complex:
    return parted(node, input)


@takes("torch.view_as_real")
def view_as_real(node: PnnxNode, input: Complex) -> Value:
    return joined(node, input)


@takes("torch.real", "torch.imag")
def part(node: PnnxNode, input: Any) -> Value:
    z = complex_of(node, input)
    return z.real if node.type == "torch.real" else z.imag


@takes("torch.conj", "aten::conj", "aten::_conj", "aten::resolve_conj", "torch.resolve_conj")
def conj(node: PnnxNode, input: Any) -> Any:
    resolved = not isinstance(input, Complex) or "resolve" in node.type
    return input if resolved else conjugate(node, input)


@operator("torch.angle", "aten::angle")
def angle_of_real(node: PnnxNode, input: Value) -> Value:
    negative = node.emit("Less", input, node.number(0, input))
    return node.emit("Where", negative, node.number(np.pi, input), node.number(0, input))
