"""Patterns: what a rule looks for, written as the formula itself.

    x, w = "x", const("w")
    p.Relu(p.Conv(x, w, opt(const("b"))).named("conv"))
    p.Mul("x", p.Sigmoid("x"))             # both x must be the same value
    p.Add("a", 1.0) | p.Sub("a", -1.0)     # a number is a one-element constant
    p.trait("activation")("x").named("f")  # any operator that carries the trait
    p.product("x", 0.5, 1 + p.Erf(...))    # a product in any order and association

A string is a variable. `const` must be known at compile time, and arrives as an array. `opt` may be
absent. `.named` binds the node. `[i]` is output i. Keywords fix attributes. `...` ends an argument
list whose rest is free. Commutative operators match both ways. A pattern object that is used twice
must match the same node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations
from math import copysign, isclose
from typing import Any

import numpy as np

from tinsmith.graph import Node, Value

Env = dict[Any, Any]
Why = Callable[..., tuple[()]]
"""A function to which patterns report why a match failed: why(bindings so far, message template,
its arguments)."""


Operator = Callable[[Any, Any], "Call"]


def _operator(name: str) -> tuple[Operator, Operator]:
    """Two methods for `Pattern` by which Python's operators write patterns: for "Add", `__add__`
    and `__radd__`, so that `x + y` is `p.Add(x, y)`, and `1 + y` is `p.Add(1, y)`."""
    return (lambda x, y: getattr(p, name)(x, y)), (lambda y, x: getattr(p, name)(x, y))


class Pattern:
    """A condition on a value, with names for parts of it: a small tree, whose `args` are the
    patterns directly inside. Python's operators make larger patterns of a and b, which are then the
    `args`: `a + b` is an Add of both, `a | b` matches what either does."""

    args: tuple[Pattern, ...] = ()

    def match(self, value: Value | None, env: Env, why: Why) -> Iterator[Env]:
        """Yield the bindings of every way to match `value` (None: an absent input): each is `env`,
        the bindings so far (name -> value, array or node), plus those of this pattern. If there is
        no way, the reason is reported to `why`."""
        raise NotImplementedError

    def calls(self) -> Iterator[Call]:
        """All `Call` patterns in this tree, at its top and inside."""
        for a in self.args:
            yield from a.calls()

    def alternatives(self) -> tuple[Pattern, ...]:
        return (self,)

    @property
    def depth(self) -> int:
        return 0

    @property
    def heads(self) -> frozenset[str]:
        """The names of all operators and traits in this tree."""
        return self.inside

    @property
    def inside(self) -> frozenset[str]:
        """The names of the operators and traits of nodes that a match may have below its top."""
        return frozenset[str]().union(*(a.heads for a in self.args))

    def __or__(self, other: Any) -> Pattern:
        return Or(*self.alternatives(), *lift(other).alternatives())

    __add__, __radd__ = _operator("Add")
    __sub__, __rsub__ = _operator("Sub")
    __mul__, __rmul__ = _operator("Mul")
    __truediv__, __rtruediv__ = _operator("Div")

    def __neg__(self) -> Call:
        return p.Neg(self)


class Var(Pattern):
    """A variable: matches any value, and binds it; used twice, both must be the same value or equal
    constants. With `const` it matches constants only, and binds the array. With `optional` an
    absent input matches, too, and binds None."""

    def __init__(self, name: str, const: bool = False, optional: bool = False) -> None:
        self.name, self.const, self.optional = name, const, optional

    def match(self, value: Value | None, env: Env, why: Why) -> Iterator[Env]:
        if value is None and not self.optional:
            why(env, "{} is absent", self.name)
            return
        bound: Any = value
        if value is not None and self.const:
            if value.const is None:
                why(env, "{} ({}) is not a constant", self.name, value.name)
                return
            bound = value.const
        if self.name not in env:
            yield {**env, self.name: bound}
        elif _same(env[self.name], bound):
            yield env
        else:
            why(env, "{} is bound to two different values", self.name)

    def __repr__(self) -> str:
        return f"{'const ' * self.const}{self.name}{'?' * self.optional}"


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, Value) and isinstance(b, Value):
        a, b = a.const, b.const
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return False
    return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)


class Literal(Pattern):
    """Matches a constant of one element that holds `number`, but for the rounding of the constant's
    dtype (`is_number`); a 0.0 matches no -0.0."""

    def __init__(self, number: float) -> None:
        self.number = number

    def match(self, value: Value | None, env: Env, why: Why) -> Iterator[Env]:
        array = None if value is None else value.const
        if array is not None and array.size == 1 and is_number(array, self.number):
            yield env
        else:
            why(env, "{} is not the constant {}", value and value.name, self.number)

    def __repr__(self) -> str:
        return repr(self.number)


def is_number(array: np.ndarray[Any, Any], number: float) -> bool:
    """Whether a one-element array holds `number`. Floats must equal it as their dtype rounds it, up
    to a relative error of 1e-6 unless it is a multiple of 0.5, and have its sign (-0.0 is not 0.0).
    Integers and bools must equal it exactly. False for all other dtypes."""
    kind = array.dtype.kind
    if kind in "iub":
        return bool(array.item() == number)
    if kind in "fV":  # the small floats of ml_dtypes have kind V
        try:
            rounded = float(np.asarray(number).astype(array.dtype))
            loose, have = 1e-6 if number % 0.5 else 0.0, float(array.item())
            alike = copysign(1, have) == copysign(1, number)
            return alike and isclose(have, rounded, rel_tol=loose)
        except (TypeError, ValueError):
            return False
    return False


class Call(Pattern):
    """Matches output 0 (or `[out]`) of a node of the operator `head`, or with `trait` of any
    operator that has the trait `head`. The node's inputs must match `args`, its attributes equal
    `attrs`."""

    def __init__(
        self, head: str, args: tuple[Any, ...], attrs: dict[str, Any], trait: bool = False
    ) -> None:
        self.head, self.is_trait, self.attrs = head, trait, attrs
        self.open = bool(args) and args[-1] is ...
        self.args = tuple(lift(a) for a in (args[:-1] if self.open else args))
        self.key, self.name, self.out, self.shareable = object(), "", 0, False
        self.wanted = [c for c in (_heads(a) for a in self.args) if c]

    def _copy(self, **changes: Any) -> Call:
        new = object.__new__(Call)
        new.__dict__ = self.__dict__ | changes
        return new

    def named(self, name: str) -> Call:
        """The same pattern, which also binds the matched node to a name."""
        return self._copy(name=name)

    def shared(self) -> Call:
        """The same pattern, but the matched node may also have readers outside the match, for which
        it then stays in the graph."""
        return self._copy(shareable=True)

    def __getitem__(self, out: int) -> Call:
        """The same pattern for output number `out` of the node."""
        return self._copy(out=out)

    def takes(self, op: Any) -> bool:
        return self.head in op.traits if self.is_trait else op.name == self.head

    def promising(self, node: Node) -> bool:
        """A cheap necessary condition for a match at `node`: for each argument that is a pattern of
        an operator or trait, such an operator makes one of the node's inputs."""
        for heads in self.wanted:
            for v in node.inputs:
                if v is not None and v.producer is not None:
                    below = v.producer.op
                    if below.name in heads or not heads.isdisjoint(below.traits):
                        break
            else:
                return False
        return True

    def match(self, value: Value | None, env: Env, why: Why) -> Iterator[Env]:
        node = None if value is None else value.producer
        if value is None or node is None or not self.takes(node.op) or value.index != self.out:
            why(env, "{} does not come from {}", value and value.name, self.head)
            return
        if self.key in env:
            if env[self.key] is node:
                yield env
            else:
                why(env, "{} is a second {}", node.name, self.head)
            return
        for k, want in self.attrs.items():
            if not _equal(node.attrs[k], want):
                why(env, "{} has {}={!r}, not {!r}", node.name, k, node.attrs[k], want)
                return
        env = {**env, self.key: node}
        if self.name:
            env[self.name] = node
        if not self.shareable:
            env[_INTERIOR] = (*env.get(_INTERIOR, ()), node)
        args = self.args
        yield from self._inputs(args, node, env, why)
        if len(args) >= 2 and "commutative" in node.op.traits:
            yield from self._inputs((args[1], args[0], *args[2:]), node, env, why)

    def _inputs(self, args: tuple[Pattern, ...], node: Node, env: Env, why: Why) -> Iterator[Env]:
        inputs: tuple[Value | None, ...] = node.inputs
        if len(inputs) > len(args) and not self.open:
            why(env, "{} has {} inputs", node.name, len(inputs))
            return
        inputs = inputs[: len(args)] + (None,) * (len(args) - len(inputs))
        yield from _match_all(args, inputs, env, why)

    def calls(self) -> Iterator[Call]:
        yield self
        yield from super().calls()

    @property
    def heads(self) -> frozenset[str]:
        return self.inside | {self.head}

    @property
    def depth(self) -> int:
        return 1 + max((a.depth for a in self.args), default=0)

    def __repr__(self) -> str:
        return f"{self.head}({', '.join(map(repr, self.args))})"


_INTERIOR = "\0interior"


def interior(env: Env) -> tuple[Node, ...]:
    """The nodes that patterns with the bindings `env` have matched so far, but for `shared` ones.
    Only the top one's results may be read outside the match."""
    return env.get(_INTERIOR, ())


def _heads(pattern: Pattern) -> frozenset[str]:
    """The names of the operators and traits at the top of the pattern's alternatives, for
    `promising`. Empty if one has none, so that any value may match."""
    heads: set[str] = set()
    for a in pattern.alternatives():
        if not isinstance(a, Call | Flat):
            return frozenset()
        heads.add(a.head)
    return frozenset(heads)


def _match_all(
    args: tuple[Pattern, ...], values: tuple[Value | None, ...], env: Env, why: Why
) -> Iterator[Env]:
    if not args:
        yield env
        return
    for e in args[0].match(values[0], env, why):
        yield from _match_all(args[1:], values[1:], e, why)


def _equal(have: Any, want: Any) -> bool:
    if isinstance(want, float) and isinstance(have, int | float):
        return isclose(have, want, rel_tol=1e-6)
    return bool(have == want)


class Flat(Pattern):
    """Matches the result of n - 1 nodes of an associative operator `head` with two inputs, such as
    Mul, whose n operands match `args` in any order and association."""

    out = 0

    def __init__(self, head: str, args: tuple[Any, ...]) -> None:
        self.head, self.args = head, tuple(lift(a) for a in args)

    def takes(self, op: Any) -> bool:
        return op.name == self.head

    def promising(self, node: Node) -> bool:
        return any(
            v is not None and v.producer is not None and v.producer.op.name == self.head
            for v in node.inputs
        )

    def _expand(
        self, value: Value | None, n: int
    ) -> Iterator[tuple[tuple[Value | None, ...], tuple[Node, ...]]]:
        """Yield every way to write a value as `n` operands of `head`: (operands, the n - 1 nodes
        that combine them)."""
        if n == 1:
            yield (value,), ()
            return
        node = None if value is None else value.producer
        if node is None or node.op.name != self.head or len(node.inputs) != 2:
            return
        for k in range(1, n):
            for left, below in self._expand(node.inputs[0], k):
                for right, beside in self._expand(node.inputs[1], n - k):
                    yield left + right, (node, *below, *beside)

    def match(self, value: Value | None, env: Env, why: Why) -> Iterator[Env]:
        expansions = list(self._expand(value, len(self.args)))
        if not expansions:
            why(env, "{} is no {} of {}", value and value.name, self.head, len(self.args))
        for leaves, nodes in expansions:
            e = {**env, _INTERIOR: (*env.get(_INTERIOR, ()), *nodes)}
            for order in permutations(leaves):
                yield from _match_all(self.args, order, e, why)

    @property
    def depth(self) -> int:
        return len(self.args) + max(a.depth for a in self.args)

    @property
    def inside(self) -> frozenset[str]:
        return super().inside | {self.head}

    def __repr__(self) -> str:
        return f"{self.head}*({', '.join(map(repr, self.args))})"


class Or(Pattern):
    """Matches what one of several patterns matches; tried in the order given."""

    def __init__(self, *alternatives: Pattern) -> None:
        self.args = alternatives

    def alternatives(self) -> tuple[Pattern, ...]:
        return self.args

    def match(self, value: Value | None, env: Env, why: Why) -> Iterator[Env]:
        for a in self.args:
            yield from a.match(value, env, why)

    @property
    def depth(self) -> int:
        return max(a.depth for a in self.args)

    @property
    def heads(self) -> frozenset[str]:
        return super().inside

    @property
    def inside(self) -> frozenset[str]:
        return frozenset[str]().union(*(a.inside for a in self.args))

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.args))


def lift(x: Any) -> Pattern:
    """x itself if it is a pattern; a Var for a name (str), a Literal for a bool, int or float.
    Raises TypeError for all else, such as numpy's integers."""
    if isinstance(x, Pattern):
        return x
    if isinstance(x, str):
        return Var(x)
    if isinstance(x, bool | int | float):
        return Literal(x)
    raise TypeError(f"{x!r} is not a pattern: use a name, a number, or p.Operator(...)")


def const(name: str) -> Var:
    """A variable for a constant; the rule receives its array."""
    return Var(name, const=True)


def opt(x: str | Var) -> Var:
    """A variable for an input that may be absent; the rule then receives None. `x` is a name or
    `const(name)`. Raises TypeError for other patterns."""
    var = lift(x)
    if not isinstance(var, Var):
        raise TypeError("only a variable can be optional; write two alternatives with |")
    return Var(var.name, var.const, optional=True)


class _Namespace:
    """The class of `p`: `p.Conv(...)` is a Call. Operator names are not checked, but compared when
    a graph is matched."""

    def __getattr__(self, name: str) -> Callable[..., Call]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **attrs: Call(name, args, attrs)

    def trait(self, trait: str) -> Callable[..., Call]:
        return lambda *args, **attrs: Call(trait, args, attrs, trait=True)

    def product(self, *args: Any) -> Flat:
        return Flat("Mul", args)

    def total(self, *args: Any) -> Flat:
        return Flat("Add", args)


p = _Namespace()
