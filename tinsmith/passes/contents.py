"""What is known of small tensors of numbers before the call: numbers, sizes and symbols.

Whole numbers are followed through the arithmetic of their element type, and floats as far as exact
arithmetic says what they are: a size that is cast to float32, doubled, rounded down and cast back
is twice the size. Results are compared with the range of their element type; for a Size this
becomes a condition of the program. A number that is not known for certain is None.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite, prod
from operator import add, mul, sub
from typing import Any

import numpy as np

from tinsmith.graph import Node, Type, Value
from tinsmith.graph.types import name_of
from tinsmith.ops._move import moves_of
from tinsmith.records import dataclass
from tinsmith.sizes import NUMBER, Number, Size, has_sizes, largest, same, smallest

Content = np.ndarray[Any, Any]
"""What is known of a small tensor: ints, Quotients, symbols and None, as an object array."""

MOST = 64
"""The most elements of such a tensor. Estimated."""
EXACT = {"float32": 1 << 24, "float64": 1 << 53}
"""Up to where the element types whose numbers are followed hold every whole number."""


@dataclass(frozen=True)
class Quotient:
    """A float that is no whole number, or not known to be one: `number / by` exactly, if `by` is a
    power of two (`is_exact`), else the float nearest to that. Neither part is above EXACT: so the
    float rounds down and up to the same whole numbers as the quotient."""

    number: Number
    by: int

    @property
    def is_exact(self) -> bool:
        return self.by & (self.by - 1) == 0


def is_known(type: Type) -> bool:
    """Whether all sizes are numbers before the call: no symbols or free sizes."""
    return type.is_static and not type.is_free


def sized(content: Content, dtype: np.dtype[Any]) -> Content:
    """The array for a constant of the numbers in `content`, which are all known: of element type
    `dtype`, or of objects if one is a free size."""
    return content if has_sizes(content) else content.astype(dtype)


def content_of(v: Value | None, known: dict[Value, Content]) -> Content | None:
    """What is known of the numbers of a value before the call: an object array, in which each
    element is a number, a symbol, a `Quotient`, or None (not known). None if nothing is known, if
    there are more than MOST elements, or if a constant has several axes or elements other than
    integers, bools and floats of EXACT. `known` has the contents of values that nodes compute."""
    if v is None:
        return None
    if v.const is not None:
        if v.const.size > MOST or v.const.ndim > 1 or not _is_followed(v):
            return None
        content = v.const.astype(object)
        return _each(_float)(None, content) if v.dtype.kind == "f" else content
    return known.get(v)


def _is_followed(v: Value) -> bool:
    """Whether numbers of the value's element type are followed: integers, bools, EXACT's floats."""
    return v.dtype.kind in "iub" or name_of(v.dtype) in EXACT


def content_after(node: Node, known: dict[Value, Content]) -> Content | None:
    """The content of a node's result (see `content_of`), computed from the contents of its inputs.
    None for a node of several outputs, for an operator without a rule, if too little is known, and
    if the element type cannot hold one of the numbers."""
    if len(node.outputs) != 1 or not _is_followed(node.outputs[0]):
        return None
    is_float = node.outputs[0].dtype.kind == "f"
    rule = (_FLOATS if is_float else _CONTENT).get(node.op.name)
    if rule is None:
        return _moved(node, known)
    if "sizes" in node.op.traits:
        return rule(node)
    inputs = [content_of(v, known) for v in node.inputs]
    if not inputs or any(
        c is None for c, v in zip(inputs, node.inputs, strict=True) if v is not None
    ):
        return None
    try:
        content = rule(node, *inputs)
    except (TypeError, ValueError, IndexError):
        return None
    if content is None:
        return None
    content = np.asarray(content, object)
    out = node.outputs[0]
    if content.size > MOST or (out.rank is not None and content.ndim != out.rank):
        return None
    holds = _holds_float if is_float else _holds
    return content if all(holds(out.dtype, d) for d in content.reshape(-1)) else None


def _holds(dtype: np.dtype[Any], number: Any) -> bool:
    """Whether an integer element type can hold the content `number`, which otherwise wraps around
    in the run. None counts as held, a symbol (a size not known yet) in 4 bytes or more."""
    if isinstance(number, str):  # a size that is not known yet
        return dtype.itemsize >= 4
    if number is None or (dtype == np.int64 and isinstance(number, Size)):
        return True
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return least <= number <= most


def _shape(node: Node) -> Content | None:
    x = node.inputs[0]
    if x is None or x.shape is None:
        return None
    return np.array([*x.shape, None], object)[:-1][node.start : node.end]


def _size(node: Node) -> Content | None:
    x = node.inputs[0]
    return np.array(x.type.size, object) if x is not None and x.type.is_static else None


def _moved(node: Node, known: dict[Value, Content]) -> Content | None:
    """The numbers of the result of a node that only moves elements of its inputs; None for other
    nodes, and if the numbers of an input that it reads are not known."""
    type = node.output.type
    if not node.op.traits & {"view", "move"} or not is_known(type) or type.size > MOST:
        return None
    contents = [content_of(v, known) for v in node.inputs]
    if all([c is None for c in contents]):
        return None
    (move,) = moves_of(node)
    if move is None or move.fill is not None:
        return None
    for part in move.parts:
        x, content = node.inputs[part.source], contents[part.source]
        if x is None or content is None or content.shape != x.shape:
            return None
    return move.apply(contents)


def _cast(node: Node, x: Content) -> Content | None:
    source, out = node.operand(0), node.outputs[0]
    if "b" in out.dtype.kind + source.dtype.kind:
        return None
    if source.dtype.kind == "f" and out.dtype.kind != "f":
        return _each(_truncated)(node, x)
    return x


def _each(rule: Callable[..., Any]) -> Any:
    """A rule of _CONTENT that applies `rule` to the elements at each index of broadcast inputs."""

    def apply(node: Node, *contents: Content) -> Content:
        whole = np.broadcast_arrays(*contents)
        found = np.empty(whole[0].shape, object)
        for i in np.ndindex(found.shape):
            found[i] = rule(*[a[i] for a in whole])
        return found

    return apply


def _both(numbers: Callable[[Any, Any], Any], others: Callable[[Any, Any], Any]) -> Any:
    """A rule of _CONTENT for two inputs: `numbers(x, y)` at each index where both are numbers, else
    `others(x, y)`, where x or y is a symbol or None."""

    def of(x: Any, y: Any) -> Any:
        known = isinstance(x, NUMBER) and isinstance(y, NUMBER)
        return numbers(x, y) if known else others(x, y)

    return _each(of)


def _truncated_quotient(x: Any, y: Any) -> Any:
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) if y else None


def _alike(x: Any, y: Any) -> Any:
    return x if x == y else None


def _compared(x: Any, y: Any) -> Any:
    """Whether x equals y, as 0 or 1, where one is a symbol; None if that is not known."""
    negative = any(isinstance(v, NUMBER) and v < 0 for v in (x, y))
    if negative and x is not None and y is not None:
        return 0  # a size is never negative
    return 1 if x == y and x is not None else None


def _product(node: Node, x: Content, *axes: Content) -> Content | None:
    """The rule of Reduce: the product of a vector of known numbers, such as the dims of a tensor.
    None for other kinds."""
    if node.kind != "prod" or x.ndim != 1 or not x.size or node.noop_with_empty_axes:
        return None
    if not all([isinstance(d, NUMBER) for d in x]):
        return None
    return np.array([prod(x.tolist()), None], object)[:1].reshape((1,) * bool(node.keepdims))


def _where(condition: Any, x: Any, y: Any) -> Any:
    return (x if condition else y) if isinstance(condition, NUMBER) else _alike(x, y)


# ---- floats


def _float(x: float) -> Any:
    """The content of a float of a constant: a whole number or a Quotient; None if not finite."""
    return _quotient(*x.as_integer_ratio()) if isfinite(x) else None


def _quotient(number: Any, by: int) -> Any:
    """number / by as a content: a whole number if it is one, for free sizes by its formula; else a
    Quotient whose `by` is positive."""
    if by < 0:
        number, by = -number, -by
    whole = number // by
    return whole if same(whole * by, number) else Quotient(number, by)


def _holds_float(dtype: np.dtype[Any], x: Any) -> bool:
    """Whether a float of this dtype can stand for the content x: a whole number of a magnitude up
    to EXACT, or a Quotient of two such. None counts as held, a symbol in float64 only."""
    if x is None:
        return True
    if isinstance(x, str):  # a size that is not known yet
        return dtype == np.float64
    number, by = (x.number, x.by) if isinstance(x, Quotient) else (x, 1)
    most = EXACT[dtype.name]
    return by <= most and -most <= number <= most


def _parts(x: Any) -> tuple[Any, int] | None:
    """A content of a float as (number, by), which it equals exactly; None if it is rounded or not
    known."""
    if isinstance(x, Quotient):
        return (x.number, x.by) if x.is_exact else None
    return (x, 1) if isinstance(x, NUMBER) else None


def _exactly(rule: Callable[[Any, int, Any, int], Any]) -> Any:
    """A rule of _FLOATS that applies `rule(number, by, number, by)` to two contents at each index,
    each as of `_parts`; None where one of them is not known exactly."""

    def of(x: Any, y: Any) -> Any:
        a, b = _parts(x), _parts(y)
        return rule(*a, *b) if a is not None and b is not None else None

    return _each(of)


def _sum(a: Any, d: int, b: Any, e: int) -> Any:
    by = max(d, e)  # powers of two
    return _quotient(a * (by // d) + b * (by // e), by)


def _over(a: Any, d: int, b: Any, e: int) -> Any:
    return _quotient(a * e, d * b) if isinstance(b, int) and b else None


def _round_down(x: Any) -> Any:
    return x.number // x.by if isinstance(x, Quotient) else x


def _round_up(x: Any) -> Any:
    return -(-x.number // x.by) if isinstance(x, Quotient) else x


def _truncated(x: Any) -> Any:
    return _round_down(x) if not isinstance(x, Quotient) or x.number >= 0 else _round_up(x)


_CONTENT: dict[str, Any] = {
    "Shape": _shape,
    "Size": _size,
    "Cast": _cast,
    "Declared": lambda node, x: x,
    "Add": _both(add, lambda x, y: y if x == 0 else x if y == 0 else None),
    "Sub": _both(sub, lambda x, y: x if y == 0 else 0 if x == y and x is not None else None),
    "Mul": _both(mul, lambda x, y: y if x == 1 else x if y == 1 else 0 if 0 in (x, y) else None),
    "Div": _both(_truncated_quotient, lambda x, y: x if y == 1 else None),
    "Min": _both(smallest, _alike),
    "Max": _both(largest, _alike),
    "Equal": _both(lambda x, y: int(x == y), _compared),
    "Reduce": _product,
    "Where": _each(_where),
}
"""How the numbers of a result follow from those of the inputs, by operator."""
_FLOATS: dict[str, Any] = {
    "Cast": _cast,
    "Declared": lambda node, x: x,
    "Add": _exactly(_sum),
    "Sub": _exactly(lambda a, d, b, e: _sum(a, d, -b, e)),
    "Mul": _exactly(lambda a, d, b, e: _quotient(a * b, d * e)),
    "Div": _exactly(_over),
    "Floor": _each(_round_down),
    "Ceil": _each(_round_up),
}
"""The same where the results are floats."""


def computes_sizes(node: Node) -> bool:
    """Whether the numbers of a node's result may be followed from those of its inputs: the operator
    has a rule or only moves elements. False for Shape and Size, which read no numbers."""
    name = node.op.name
    return (name in _CONTENT | _FLOATS and "sizes" not in node.op.traits) or bool(
        node.op.traits & {"view", "move"}
    )
