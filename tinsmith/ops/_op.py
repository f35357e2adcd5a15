"""What an operator is: one Python function.

Positional parameters are inputs (default None = optional, `*xs` = variadic), keyword-only
parameters are attributes with defaults, the docstring is the formula, and the body is the numpy
reference: it folds constants, computes nodes that no kernel takes, and tests compare with it.

    @op("elementwise", "activation")
    def HardSwish(x, *, alpha=1 / 6, beta=0.5):
        '''y = x * clip(alpha * x + beta, 0, 1)'''
        return x * np.clip(alpha * x + beta, 0, 1)

    @op()
    def Transpose(x, *, perm=None):
        '''y[i_perm] = x[i]'''
        return np.transpose(x, perm)

    @Transpose.type
    def _(x, *, perm):
        need(...)
        return x.type.like(shape=...)

Traits:
    elementwise   each output element depends on the elements of the inputs at the same (numpy
                  broadcast) place only; the reference uses numpy functions that can be traced
    activation    elementwise, and its first input has the output's shape and dtype
    homogeneous   f(s x) = s f(x) for s > 0, channel by channel: Relu, pooling
    commutative   the first two inputs may be exchanged
    associative   (a . b) . c = a . (b . c) up to rounding
    view          moves no data on plain layouts: Reshape, Squeeze, Identity, ...
    move          every output element is a copy of an input element or a constant: Slice, Pad
    reduction     combines elements along axes
    anchor        heavy enough that elementwise consumers are computed in its epilogue
    window        its input is [N,C,*spatial], and attributes such as stride have a number for each
                  spatial axis; one number there is for all axes
    narrows       its float32 kernels can store bytes, if the nodes after it end in quantisation
    overwrites    its output is its first input with some elements replaced (ScatterND), so it can
                  be computed in place if no other node reads that input
    impure        not a function of its inputs (random numbers): never folded, merged or dropped
    check         its output is its first input, unless a check fails and the run ends with an
                  error: it is kept even if no node reads it
    control       holds subgraphs as attributes (If, Loop, Scan, Fused)
    branch        a `control` operator that runs one of its subgraphs, as its first input says: If
    region        a `control` operator that is its one subgraph, computed as a unit (Fused, Block,
                  Part); passes do not enter it
    composed      the reference calls only other operators: over Values it adds their nodes instead
    steps         quantises or dequantises: elementwise but for scales along an axis
    table         a look-up: its second input lists the results for all values of the first
    sizes         reads the shape of its input, none of its elements: Shape, Size
    conversion    its output is its input in another element type: Cast
    quantise      real numbers to integers, by scales (its second input) and zero points
    dequantise    integers to real numbers, by scales (its second input) and zero points
    holder        takes or gives sequences (lists of arrays) and optionals (None, or what they
                  hold); operators with neither this trait nor `control` take tensors only
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from tinsmith.errors import TypeRuleError, suggest
from tinsmith.graph import Holder, Node, Type, Value
from tinsmith.ops import _apart
from tinsmith.ops._dims import broadcast
from tinsmith.ops._kinds import checks_of, kind_of
from tinsmith.ops._move import Move, Part, view
from tinsmith.ops._weights import Weights
from tinsmith.registry import Registry
from tinsmith.sizes import NUMBER

TRAITS = frozenset((
    "elementwise", "activation", "commutative", "homogeneous", "associative", "view", "move",
    "reduction", "anchor", "impure", "check", "control", "branch", "region", "holder", "sizes",
    "composed", "steps", "table", "conversion", "quantise", "dequantise", "overwrites",
    "narrows", "window", "rescales",
))  # fmt: skip

OPS: Registry[Op] = Registry("operator", "tinsmith.ops", "tinsmith ops")


def need(condition: Any, message: str, *values: Any) -> None:
    """In a type rule: raise TypeRuleError with `message` unless the condition holds. With `values`
    the message is a template for `str.format`, which is filled only for the error: the texts of
    types are slow to make."""
    if not condition:
        raise TypeRuleError(message.format(*values) if values else message)


def need_one_of(known: Iterable[str], **attrs: str) -> None:
    """In a type rule: raise TypeRuleError unless the value of each of `attrs` is one of `known`."""
    for name, value in attrs.items():
        need(value in known, f"{name} {value!r} is none of {', '.join(known)}")


Gradient = Callable[[Callable[..., Any], Any, Any], "tuple[Any, ...]"]
"""A rule of backpropagation, (emit, node, g) -> derivatives by the inputs: see `Op.gradient`."""


class Op:
    """An operator: name, signature, numpy reference, traits, rules. Fixed once it is defined."""

    def __init__(self, reference: Callable[..., Any], traits: tuple[str, ...]) -> None:
        if unknown := set(traits) - TRAITS:
            raise TypeRuleError(
                f"operator {reference.__name__} has unknown traits {sorted(unknown)}"
            )
        self.name = reference.__name__
        self.reference = reference
        self.formula = inspect.getdoc(reference) or ""
        self.traits = frozenset(traits)
        parameters = list(inspect.signature(reference).parameters.values())
        positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        self.inputs = tuple(p.name for p in positional)
        self.required = sum(p.default is p.empty for p in positional)
        self.variadic = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        self.attrs: dict[str, Any] = {
            p.name: _frozen(p.default) for p in parameters if p.kind is p.KEYWORD_ONLY
        }
        self._needed = [n for n, d in self.attrs.items() if d is inspect.Parameter.empty]
        self._takes_holders = bool(self.traits & {"control", "holder"})
        self._checks = checks_of(self.attrs.items())
        windows = self.attrs.items() if "window" in self.traits else ()
        self._spread = [n for n, d in windows if kind_of(n, d) == "sizes"]
        self._rule: Callable[..., Any] | None = None
        self._cost: Callable[..., float] | None = None
        self._most: Callable[..., int] | None = None
        self.derivatives: Gradient | None = None
        self._moves: Callable[..., Any] | None = None
        self._apart: Callable[[Node], _apart.Apart] | None = None
        # set below the definition of an operator, if it has weights (`_weights.py`), or is a sum or
        # a product of its inputs (`_arithmetic.py`)
        self.weights: Weights | None = None
        self.signs: tuple[int, ...] | None = None
        self.powers: tuple[int, ...] | None = None
        # likewise, if most of its `cost` is products: the rule that tells the two element types
        # (numpy's names) that a node multiplies, for the table `codegen/products.py`
        self.factors: Callable[[Node], tuple[str, str]] | None = None

    def type(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: sets the type rule, which computes the types of the outputs. It is called with
        the input Values (None where absent; `.const` is the array of a constant) and all attributes
        by keyword. It returns a Type, or a tuple of them, and raises TypeRuleError (by `need`) for
        inputs or attributes that do not fit."""
        self._rule = rule
        return rule

    def cost(self, rule: Callable[..., float]) -> Callable[..., float]:
        """Decorator: sets the rule that counts arithmetic operations. It is called with the input
        Values (None where absent), whose types are static, and the attributes by keyword."""
        self._cost = rule
        return rule

    def count(self, rule: Callable[..., int]) -> Callable[..., int]:
        """Decorator: sets an upper bound, for an operator with one output dim that depends on the
        data, such as NonZero. Called as a `cost` rule, it returns the most that this dim can be.
        With it a kernel may compute the operator, in memory for the bound."""
        self._most = rule
        return rule

    def gradient(self, rule: Gradient) -> Gradient:
        """Decorator: sets the rule of backpropagation, called as rule(emit, node, g). g is the
        Value of dL/dy for the output y and a scalar L; the rule returns a tuple: the Value of dL/dx
        for each input x, None for inputs without a derivative.

        `emit("Mul", a, b)` adds a node to the graph and returns its output. For an input that was
        broadcast, dL/dx is returned in the shape of y: `ops/gradient.py` sums it.
        """
        self.derivatives = rule
        return rule

    def moves(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: sets the rule that tells where the elements of an output come from, as a Part
        or a Move of `_move.py`; None where that is not known. Operators with the trait `view` need
        none.

        It is called for each output with its Value, the inputs, and the attributes by keyword. The
        data inputs (the first, or all variadic ones) come as Values of known rank, the others, such
        as the axes of a Slice, as their arrays (None where absent): it is called only if all these
        are constants.
        """
        self._moves = rule
        return rule

    def apart(self, rule: Callable[[Node], _apart.Apart]) -> Callable[[Node], _apart.Apart]:
        """Decorator: sets the rule from a node to the output axes along which it can be computed in
        pieces (`_apart.py`). Elementwise operators, and those that move data, need none."""
        self._apart = rule
        return rule

    # ---- what the graph calls

    def bind(self, inputs: tuple[Value | None, ...], attrs: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes of a new node: `attrs`, completed by the defaults, with lists as tuples.
        With the trait `window`, a single number for an attribute such as stride or kernel is
        repeated for each spatial axis (pad: twice). Raises TypeRuleError for unknown, missing or
        wrong attributes, and for too many or missing inputs."""
        if attrs and (unknown := attrs.keys() - self.attrs.keys()):
            hint = suggest(min(unknown), self.attrs)
            raise TypeRuleError(
                f"{self.name} has no attribute {', '.join(map(repr, sorted(unknown)))}.{hint}"
            )
        if missing := [n for n in self._needed if n not in attrs]:
            raise TypeRuleError(f"{self.name} needs the attribute {', '.join(missing)}")
        if not self.variadic and len(inputs) > len(self.inputs):
            raise TypeRuleError(
                f"{self.name} takes {len(self.inputs)} inputs, {len(inputs)} are given"
            )
        for i in range(self.required):
            if i >= len(inputs) or inputs[i] is None:
                raise TypeRuleError(f"{self.name} needs the input {self.inputs[i]!r}")
        bound = dict(self.attrs)
        if not attrs:
            return bound
        bound.update([(k, _frozen(value)) for k, value in attrs.items()])
        for name, kind, fits in self._checks:
            value = bound[name]
            if value is not self.attrs[name] and not fits(value):
                shown = repr(value)[:80]
                raise TypeRuleError(f"{self.name}'s attribute {name!r} must be {kind}, not {shown}")
        for name in self._spread:
            if isinstance(bound[name], NUMBER):
                axes = _axes(inputs, bound.get("kernel")) * (2 if name == "pad" else 1)
                bound[name] = (bound[name],) * axes
        return bound

    def infer(self, inputs: tuple[Value | None, ...], attrs: Mapping[str, Any]) -> tuple[Type, ...]:
        """The output types for these inputs and bound attributes, by the type rule. Without a rule,
        elementwise operators give the broadcast shape in the first input's element type. Raises
        TypeRuleError."""
        if not self._takes_holders:
            for v in inputs:
                if v is not None and isinstance(v.type, Holder):
                    raise TypeRuleError(f"{v!r} is no tensor")
        if self._rule is None:
            if "elementwise" not in self.traits:
                raise TypeRuleError(f"operator {self.name} has no type rule")
            present = [v for v in inputs if v is not None]
            return (Type(present[0].dtype, broadcast(*(v.shape for v in present))),)
        got = self._rule(*self.arguments(inputs), **attrs)
        return got if isinstance(got, tuple) else (got,)

    def evaluate(
        self, arrays: tuple[np.ndarray[Any, Any] | None, ...], attrs: Mapping[str, Any]
    ) -> tuple[np.ndarray[Any, Any], ...]:
        """Compute the outputs from arrays by the reference: always a tuple. Among inputs and
        outputs, a sequence is a list of arrays, and an empty optional is None."""
        with np.errstate(all="ignore"):
            got = self.reference(*arrays, **attrs)
        results = got if isinstance(got, tuple) else (got,)
        if self.traits & {"control", "holder"}:
            return tuple(map(as_value, results))
        return tuple(np.asanyarray(a) for a in results)

    def flops(
        self, inputs: tuple[Value | None, ...], outputs: tuple[Value, ...], attrs: Mapping[str, Any]
    ) -> float:
        """The arithmetic operations of a node, by the `cost` rule. Without a rule: 0 for views and
        moves, else one for each output element (outputs of unknown size count 0)."""
        if self._cost is not None:
            return float(self._cost(*self.arguments(inputs), **attrs))
        if self.traits & {"view", "move"}:
            return 0.0
        return float(sum(v.type.size for v in outputs if v.type.is_static))

    def moved(self, node: Node) -> tuple[Move | None, ...]:
        """How each output of a node of this operator is copied from the inputs, by the `moves`
        rule; None for an output that is computed, or whose move is not known."""
        unknown = (None,) * len(node.outputs)
        if not self.traits & {"view", "move"}:
            return unknown
        args: list[Any] = list(self.arguments(node.inputs))
        data = [v for v in args if v is not None] if self.variadic else args[:1]
        if any(v is None or v.shape is None for v in (*data, *node.outputs)):
            return unknown
        if self._moves is None:
            return tuple(view(y, data[0]) for y in node.outputs)
        for i in range(len(data), len(args)):
            if args[i] is not None and args[i].const is None:
                return unknown
            args[i] = None if args[i] is None else args[i].const
        got = [self._moves(y, *args, **node.attrs) for y in node.outputs]
        return tuple(
            Move(y.shape, (m,)) if isinstance(m, Part) else m  # type: ignore[arg-type]
            for y, m in zip(node.outputs, got, strict=True)
        )

    def axes_apart(self, node: Node) -> _apart.Apart:
        """The output axes along which a node of this operator can be computed in pieces, as far as
        they are known (`_apart.axes_apart`)."""
        if self._apart is not None:
            return self._apart(node)
        if "elementwise" in self.traits:
            return _apart.elementwise(node)
        return _apart.moved(node) if self.traits & {"view", "move"} else {}

    def arguments(self, inputs: tuple[Value | None, ...]) -> tuple[Value | None, ...]:
        """The inputs of a node as rules take them: with None for each optional input at the end
        that is not given."""
        return inputs if self.variadic else inputs + (None,) * (len(self.inputs) - len(inputs))

    def most(self, inputs: tuple[Value | None, ...], attrs: Mapping[str, Any]) -> int | None:
        """The upper bound of the output dim that depends on the data, by the `count` rule; None
        where the operator has no such rule."""
        if self._most is None:
            return None
        return self._most(*self.arguments(inputs), **attrs)

    # ---- what authors call

    def __call__(self, *inputs: Any, **attrs: Any) -> Any:
        """Apply the operator. If an input is a Value, add a node to its graph (other inputs become
        constants) and return the output Value: `name`, `origin`, `outputs` and `before` are passed
        to `Graph.add`, all other keywords are attributes. If none is, compute the reference and
        return its array. Several outputs are returned as a tuple."""
        graph = None
        for v in inputs:
            if isinstance(v, Value):
                graph = v.graph
                break
        if graph is None:
            arrays = tuple(map(as_value if "holder" in self.traits else _array, inputs))
            got = self.evaluate(arrays, self.bind(inputs, attrs))
            return got[0] if len(got) == 1 else got
        node = graph.add(self, *inputs, **attrs)
        return node.outputs[0] if len(node.outputs) == 1 else node.outputs

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return (OPS.__getitem__, (self.name,))


def op(*traits: str) -> Callable[[Callable[..., Any]], Op]:
    """Decorator that makes a numpy function an `Op` with `traits`, registered by its own name."""
    return lambda reference: OPS.register(reference.__name__, Op(reference, traits))


def as_value(data: Any) -> Any:
    """`data` as references take it: a list (a sequence) as a list of arrays or dicts, None (an
    empty optional) as it is, all else as an array."""
    if isinstance(data, list):
        return [a if isinstance(a, dict) else np.asanyarray(a) for a in data]
    return _array(data)


def _array(data: Any) -> Any:
    return None if data is None else np.asanyarray(data)


def _axes(inputs: tuple[Any, ...], kernel: Any) -> int:
    """The number of spatial axes of an operator with windows: the length of its attribute `kernel`
    if that is a tuple, else the rank, less 2, of the first of its first two inputs whose rank is
    known. Raises TypeRuleError where none is."""
    if isinstance(kernel, tuple):
        return len(kernel)
    for v in inputs[:2]:
        rank = v.rank if isinstance(v, Value) else np.ndim(v)
        if rank:
            return max(rank - 2, 0)
    raise TypeRuleError("its windows need a number for each axis: the rank of the input is unknown")


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(v) for v in value)
    if isinstance(value, np.generic):
        return value.item()
    return value
