"""Sizes that are known only in a call, as numbers that carry formulas: one program serves many.

A `Size` is an integer with a formula over symbols (`H`, `(H + 1) // 2 * 64`) and the value of the
formula in one example call. Python code for ints works on Sizes as well. Its comparisons are
answered for the example, and each answer is recorded in the `Scope` as a condition. The result of
the code is right for every call whose sizes meet all conditions:

    scope = Scope()
    h = symbol(scope, "H", 224)
    rows = (h + 1) // 2          # a Size: (H + 1) // 2, 112 in the example
    if rows % 2 == 0: ...        # taken, and recorded: (H + 1) // 2 % 2 == 0
    for r in range(rows): ...    # Python needs the number: recorded: (H + 1) // 2 == 112

A condition that follows from the formulas alone is not recorded: `h < h + 1`. Nor are comparisons
inside `estimating()` and of `typical(size)`, the example's value: both are for estimates (costs),
which change no result. `by_formula()` compares formulas instead of numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from math import ceil, floor, isinf, isnan
from typing import Any, ParamSpec, TypeVar

from tinsmith.conditions import Scope, by_formula, estimating
from tinsmith.formulas import (
    OPERATIONS,
    RELATIONS,
    Form,
    added,
    constant,
    divided,
    is_long,
    length_of,
    multiplied,
    negated,
    number_form,
    shown,
    valued,
    widths,
)

P = ParamSpec("P")
R = TypeVar("R")


def _by_number(name: str) -> Any:
    """Return a method of Size that calls int's method `name` on the example's numbers of both
    operands; a condition records that each must be this number."""
    return lambda self, other: getattr(self.__index__(), name)(int(other))


def _by_form(of_forms: Callable[[Form, Form], Form], of_floats: Callable[..., Any]) -> Any:
    """Return a method of Size: `of_forms` of the formulas of both operands as a Size, or, if the
    other one is a float, `of_floats` of both as floats."""

    def method(self: Size, other: Any) -> Any:
        if isinstance(other, float):
            return of_floats(float(self), other)
        form = form_of(other)
        return NotImplemented if form is None else self._of(of_forms(self.form, form))

    return method


def _comparison(relation: str) -> Any:
    return lambda self, other: self._compare(other, relation)


class NeedsNumber(AttributeError):
    """Code needs a method of int that no Size has, or a formula is too long: the computation must
    wait for the numbers of a call."""


class Size:
    """An integer that is known only in a call: `form`, its formula, and `value`, its number in the
    example call."""

    __slots__ = ("form", "scope", "value")

    def __init__(self, scope: Scope, form: Form, value: int) -> None:
        self.scope, self.form, self.value = scope, form, value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # protocols that an object may lack
            raise AttributeError(name)
        raise NeedsNumber(f"{name} of the size {self} is wanted")

    def _of(self, form: Form) -> Any:
        number = constant(form)
        if number is None and is_long(form):
            raise NeedsNumber(f"a size has a formula of {length_of(form)} terms")
        return Size(self.scope, form, valued(form)) if number is None else number

    __add__ = __radd__ = _by_form(added, operator.add)
    __sub__ = _by_form(lambda a, b: added(a, b, -1), operator.sub)
    __rsub__ = _by_form(lambda a, b: added(b, a, -1), lambda x, y: y - x)
    __mul__ = __rmul__ = _by_form(multiplied, operator.mul)

    def __floordiv__(self, other: Any) -> Any:
        form = form_of(other)
        return NotImplemented if form is None else self._divided(self.form, form)

    def __rfloordiv__(self, other: Any) -> Any:
        form = form_of(other)
        return NotImplemented if form is None else self._divided(form, self.form)

    def _divided(self, a: Form, b: Form) -> Any:
        if not self.scope.holds(b, "!="):
            raise ZeroDivisionError(f"{shown(a)} is divided by {shown(b)}, which is 0")
        return self._of(divided(self.scope, a, b))

    def __mod__(self, other: Any) -> Any:
        if form_of(other) is None:
            return NotImplemented
        return self - self // other * other

    def __rmod__(self, other: Any) -> Any:
        if form_of(other) is None:
            return NotImplemented
        return other - other // self * self

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __truediv__(self, other: Any) -> float:
        return float(self) / float(other)

    def __rtruediv__(self, other: Any) -> float:
        return float(other) / float(self)

    def __pow__(self, other: int) -> Any:
        result: Any = 1
        for _ in range(other):
            result = result * self
        return result

    def __neg__(self) -> Any:
        return self._of(negated(self.form))

    def __pos__(self) -> Size:
        return self

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def _compare(self, other: Any, relation: str) -> Any:
        form = form_of(other)
        if form is None:
            if isinstance(other, float):  # an integer is < x just if it is < ceil(x)
                if relation in ("==", "!=") and not other.is_integer():
                    return relation == "!="
                if isinf(other) or isnan(other):
                    return RELATIONS[relation](-1 if other > 0 else 1) and not isnan(other)
                return self.scope.holds(added(self.form, number_form(-ceil(other))), relation)
            return NotImplemented
        return self.scope.holds(added(self.form, form, -1), relation)

    __eq__, __ne__, __lt__, __ge__ = map(_comparison, ("==", "!=", "<", ">="))

    def __le__(self, other: Any) -> Any:
        return self._compare(_above(other), "<")

    def __gt__(self, other: Any) -> Any:
        return self._compare(_above(other), ">=")

    def __bool__(self) -> bool:
        return self.scope.holds(self.form, "!=")

    def __index__(self) -> int:
        self.scope.fix(self.form)
        return self.value

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def __round__(self) -> Size:
        return self

    def __hash__(self) -> int:
        return hash(self.form)

    __or__ = __ror__ = _by_number("__or__")
    __and__ = __rand__ = _by_number("__and__")
    __lshift__, __rlshift__ = _by_number("__lshift__"), _by_number("__rlshift__")
    __rshift__, __rrshift__ = _by_number("__rshift__"), _by_number("__rrshift__")

    def __str__(self) -> str:
        return shown(self.form)

    def __format__(self, spec: str) -> str:
        return str(self) if not spec else format(self.value, spec)

    def __repr__(self) -> str:
        return f"<{self} = {self.value}>"


def _above(other: Any) -> Any:
    """Return the least integer above `other`, so that size <= other is size < _above(other).
    Infinity, NaN and non-numbers are returned as they are."""
    if isinstance(other, float):
        return other if isinf(other) or isnan(other) else floor(other) + 1
    return other + 1 if form_of(other) is not None else other


Number = int
"""The declared type of an int or a Size: `int`, since code for ints takes both."""
NUMBER: tuple[type[int], ...] = (int, Size)  # type: ignore[assignment]
"""The classes of a Number, for `isinstance`."""


def symbol(scope: Scope, name: str, value: int, least: int = 0) -> Size:
    """Return a new free size named `name`: `value` in the example, at least `least` in every
    call."""
    return Size(scope, scope.symbol(name, value, least), value)


def form_of(value: Any) -> Form | None:
    """Return the formula of an int, a Size or a numpy integer; None for anything else."""
    if isinstance(value, Size):
        return value.form
    if isinstance(value, int):
        return number_form(value)
    try:
        return number_form(value.__index__())  # numpy's integers
    except (AttributeError, TypeError):
        return None


def typical(value: Any) -> Any:
    """Return a Size's number in the example call, any other value as it is. No condition is
    recorded, so only estimates may use the number."""
    return value.value if isinstance(value, Size) else value


def same(a: Any, b: Any) -> bool:
    """Whether two sizes, or tuples of sizes, have equal formulas; no condition is recorded."""
    if type(a) is int and type(b) is int:
        return a == b
    with by_formula():
        return bool(a == b)


def estimate(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator for functions that give estimates: they run inside `estimating()`, and a Size as
    result becomes the example's number."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with estimating():
            return typical(function(*args, **kwargs))

    return run


def largest(a: Any, b: Any) -> Any:
    """max(a, b) of sizes, as a formula: no condition is recorded of which is larger."""
    return _extreme("max", a, b)


def smallest(a: Any, b: Any) -> Any:
    """As `largest`, for min(a, b): a formula, and no condition."""
    return _extreme("min", a, b)


def _extreme(name: str, a: Any, b: Any) -> Any:
    pick = OPERATIONS[name]
    if not isinstance(a, Size) and not isinstance(b, Size):
        return pick(a, b)
    one = a if isinstance(a, Size) else b
    scope, x, y = one.scope, form_of(a), form_of(b)
    assert x is not None and y is not None
    low = scope.low(added(x, y, -1))
    if low is not None and low >= 0:
        return a if name == "max" else b
    low = scope.low(added(y, x, -1))
    if low is not None and low >= 0:
        return b if name == "max" else a
    return one._of((((scope.atom(name, x, y),), 1),))


def pieces(length: Size, most: int) -> tuple[tuple[Number, int], ...]:
    """Cut a length that only a call tells into pieces of at most `most`. Return pairs (count, size
    of a piece), the largest first, for each of which generated code has a loop. Sizes of pieces are
    ints, chosen for the example (`widths`); counts are of type Size, and may be 0."""
    sizes = widths(most, length.value)
    make, args = length.scope.atom, (length.form, number_form(sum(1 << s for s in sizes)))
    return tuple(
        (length._of((((make("pieces", *args, number_form(size)),), 1),)), size) for size in sizes
    )


def values_in(
    shapes: Sequence[Sequence[Any] | None], symbols: Sequence[Form]
) -> Callable[[Sequence[Any]], tuple[Any, ...] | None]:
    """Return a function from shapes of a call to the values of the symbols, in order, or to None if
    they do not fit `shapes`, whose dims are numbers and symbols (nothing fits a shape of None). It
    is generated as text, since each call with new sizes begins with it. For (B, 3, H) and (B, 8):

        s0, s1 = i0[0], i0[2]
        if i0 != (s0, 3, s1,): return None
        if i1 != (s0, 8,): return None
    """
    known = [dims for dims in shapes if dims is not None]
    if len(known) < len(shapes):
        return lambda _: None
    names = [f"i{k}" for k in range(len(known))]
    words = {form: f"s{k}" for k, form in enumerate(symbols)}
    found: dict[str, str] = {}
    tests: list[str] = []
    for name, dims in zip(names, known, strict=True):
        wanted = [words[d.form] if isinstance(d, Size) else str(d) for d in dims]
        for axis, d in enumerate(dims):
            if isinstance(d, Size):
                found.setdefault(words[d.form], f"{name}[{axis}]")
        tests.append(f" if {name} != ({''.join(f'{w}, ' for w in wanted)}): return None")
    source = [
        "def run(given):",
        f" if len(given) != {len(names)}: return None",
        f" [{', '.join(names)}] = given",
        " try:",
        "  pass",
        *[f"  {word} = {place}" for word, place in found.items()],
        " except (IndexError, TypeError): return None",
        *tests,
        f" return ({''.join(f'{word}, ' for word in words.values())})",
    ]
    space = {"len": len, "IndexError": IndexError, "TypeError": TypeError, "__builtins__": {}}
    exec("\n".join(source), space)
    return space["run"]  # type: ignore[return-value]


# ---- arrays


def has_sizes(array: Any) -> bool:
    """Whether a small array of objects holds a Size; False for arrays of other dtypes."""
    return array.dtype == object and any(isinstance(v, Size) for v in array.reshape(-1).tolist())


def as_numbers(array: Any, dtype: Any) -> Any:
    """Convert an array of objects to `dtype`: Sizes become the example's numbers, which is recorded
    as a condition. Arrays of other dtypes are returned as they are, as are all if `dtype` is
    object."""
    if array.dtype != object or array.dtype == dtype:
        return array
    return array.astype(dtype)


def as_number(value: Any) -> Any:
    """Return an attribute, a tuple or a dict of attributes with the example's numbers in the place
    of Sizes, which is recorded as a condition."""
    if isinstance(value, Size):
        return int(value)
    if isinstance(value, tuple):
        return tuple(map(as_number, value))
    return {k: as_number(v) for k, v in value.items()} if isinstance(value, Mapping) else value
