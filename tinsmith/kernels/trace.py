"""From numpy references to expressions: what an elementwise node, or a fused region, computes.

The reference of an operator runs over `Traced` objects, which record the numpy functions that are
applied to them, with numpy's own type promotion. A reference that does more (indexing, decisions
that depend on data, dtypes without native code) cannot be traced, and the site is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from tinsmith.codegen.expr import Expr
from tinsmith.codegen.functions import FUNCTIONS, unsupported
from tinsmith.codegen.target import Target
from tinsmith.graph import Graph, Node, Value
from tinsmith.graph.types import name_of
from tinsmith.kernels._kernel import Site, Skip
from tinsmith.kernels.simplify import narrowed, simplify
from tinsmith.ops._arithmetic import subtracts
from tinsmith.ops._move import moves_of
from tinsmith.ops.control import anchors_of, fused_body
from tinsmith.sizes import Size

Region = tuple[Node | None, tuple[Value | None, ...], tuple[Value, ...], Expr | None]

Number = (bool, int, float)

MOVES = 32  # the most nodes that `is_whole` follows upwards; estimated


class Maker:
    """Builds simplified expressions in which equal subexpressions are one object."""

    def __init__(self) -> None:
        self._made: dict[Any, Expr] = {}

    def leaf(self, index: int, dtype: np.dtype[Any]) -> Expr:
        return self._intern(Expr("leaf", (), dtype, index))

    def const(self, value: Any, dtype: np.dtype[Any]) -> Expr:
        return self._intern(Expr("const", (), dtype, np.asarray(value).astype(dtype).item()))

    def size(self, value: Size) -> Expr:
        return self._intern(Expr("size", (), np.dtype(np.int64), value))

    def cast(self, e: Expr, dtype: np.dtype[Any]) -> Expr:
        if e.dtype == dtype:
            return e
        if e.name == "const":
            with np.errstate(all="ignore"):
                return self.const(np.asarray(e.param, e.dtype), dtype)
        return self._intern(narrowed(e, dtype) or Expr("astype", (e,), dtype))

    def call(self, name: str, args: Sequence[Expr], dtype: np.dtype[Any]) -> Expr:
        """The function `name` of `args`, with a result of `dtype`, simplified where that changes no
        result. `args` are already cast to the dtype in which the function computes."""
        return simplify(self, name, tuple(args), dtype) or self._intern(
            Expr(name, tuple(args), dtype)
        )

    def _intern(self, e: Expr) -> Expr:
        nan = isinstance(e.param, float) and e.param != e.param
        param = ("nan",) if nan else (repr(e.param),)
        key = (e.name, tuple(map(id, e.args)), name_of(e.dtype), param)
        return self._made.setdefault(key, e)


class Traced(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for an array of unknown shape while a reference runs; `expr` is how it is computed."""

    __array_priority__ = 1000

    def __init__(self, maker: Maker, expr: Expr) -> None:
        self._maker, self.expr = maker, expr

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.expr.dtype

    def astype(self, dtype: Any, copy: bool = True) -> Traced:
        return Traced(self._maker, self._maker.cast(self.expr, np.dtype(dtype)))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Traced:
        if method != "__call__" or ufunc.nout != 1 or options.keys() - {"dtype"}:
            raise Skip(f"the reference uses {ufunc.__name__} in a way that cannot be traced")
        if ufunc.__name__ not in FUNCTIONS:
            raise Skip(f"{ufunc.__name__} has no native code")
        kinds = tuple(type(x) if type(x) in Number else _dtype(x) for x in inputs)
        wanted = {}
        if "dtype" in options:
            wanted["signature"] = (*(None,) * len(kinds), np.dtype(options["dtype"]))
        try:
            *loop, result = ufunc.resolve_dtypes((*kinds, None), **wanted)
        except TypeError as error:
            raise Skip(f"{ufunc.__name__} does not take {kinds}: {error}") from None
        args = [self._operand(x, dtype) for x, dtype in zip(inputs, loop, strict=True)]
        return Traced(self._maker, self._maker.call(ufunc.__name__, args, result))

    def __array_function__(
        self, func: Any, types: Any, args: Sequence[Any], options: Mapping[str, Any]
    ) -> Any:
        handler = _ARRAY_FUNCTIONS.get(func.__name__)
        if handler is None:
            raise Skip(f"the reference uses {func.__name__}, which cannot be traced")
        return handler(self, *args, **options)

    def _operand(self, x: Any, dtype: np.dtype[Any]) -> Expr:
        if isinstance(x, Traced):
            return self._maker.cast(x.expr, dtype)
        array = np.asarray(x)
        if array.size != 1:
            raise Skip("the reference uses an array of its own")
        return self._maker.const(array.reshape(()), dtype)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise Skip("the reference needs the numbers themselves")

    def __bool__(self) -> NoReturn:
        raise Skip("the reference decides by the data")

    __len__ = __iter__ = __float__ = __int__ = __index__ = __getitem__ = __array__  # type: ignore[assignment]

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Skip(f"the reference uses .{name} of its operand")


def _dtype(x: Any) -> np.dtype[Any]:
    return x.dtype if isinstance(x, Traced) else np.asarray(x).dtype


def _promoted(function: Callable[..., Any], *args: Any) -> np.dtype[Any]:
    """The dtype of a function's result for these arguments: arrays or `Traced`, and Python numbers,
    which adapt to the dtypes of those."""
    samples = [x if type(x) in Number else np.zeros(1, _dtype(x)) for x in args]
    return function(*samples).dtype


def _where(t: Traced, condition: Any, yes: Any, no: Any) -> Traced:
    dtype = _promoted(lambda a, b: np.where([True], a, b), yes, no)
    test = t._operand(condition, np.dtype(bool))
    return Traced(
        t._maker,
        t._maker.call("where", (test, t._operand(yes, dtype), t._operand(no, dtype)), dtype),
    )


def _clip(t: Traced, x: Any, a_min: Any = None, a_max: Any = None, **options: Any) -> Any:
    low, high = options.pop("min", a_min), options.pop("max", a_max)
    if options:
        raise Skip(f"the reference gives clip the options {sorted(options)}")
    if low is not None:
        x = np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def _named(name: str) -> Callable[..., Traced]:
    return lambda t, x: Traced(t._maker, t._maker.call(name, (x.expr,), x.dtype))


def _filled(value: Any) -> Callable[..., Traced]:
    def handler(t: Traced, like: Any, fill: Any = value, dtype: Any = None, **_: Any) -> Traced:
        return Traced(t._maker, t._operand(fill, np.dtype(dtype or like.dtype)))

    return handler


_ARRAY_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "where": _where,
    "clip": _clip,
    "erf": _named("erf"),
    "gelu": _named("gelu"),
    "one_plus_exp_of_minus": _named("one_plus_exp_of_minus"),
    "full_like": _filled(0),
    "zeros_like": _filled(0),
    "ones_like": _filled(1),
    "round": lambda t, x, decimals=0: np.rint(x) if decimals == 0 else t.round,
    "around": lambda t, x, decimals=0: np.rint(x) if decimals == 0 else t.round,
}


# ---- nodes and regions


def trace(node: Node, operands: Sequence[Traced | None]) -> Traced:
    """The result of one elementwise node over traced operands (None: absent). Raises Skip where its
    reference cannot be traced."""
    reference = getattr(node.op, "reference", None)
    if reference is None or "elementwise" not in node.op.traits:
        raise Skip(f"{node.op.name} is not elementwise")
    if len(node.outputs) != 1:
        raise Skip(f"{node.op.name} has {len(node.outputs)} outputs")
    try:
        with np.errstate(all="ignore"):
            got = reference(*operands, **node.attrs)
    except Skip as why:
        raise Skip(f"{node.op.name}: {why}") from None
    except (TypeError, AttributeError, ValueError) as error:
        raise Skip(f"the reference of {node.op.name} cannot be traced: {error}") from None
    if not isinstance(got, Traced):
        raise Skip(f"the reference of {node.op.name} gives a {type(got).__name__}")
    if got.dtype != node.output.dtype:
        got = got.astype(node.output.dtype)
    return got


class _Tracer:
    """Traces the elementwise nodes of a region: `node` for each in order, then `value` gives a
    result. `extras` are the operands from outside, leaves in the order of first use; with an anchor
    its result is leaf 0. `outer` maps inputs of the region's body to values of the graph."""

    def __init__(self, anchor: Node | None, outer: Mapping[Value, Value]) -> None:
        self.maker = Maker()
        self.extras: list[Value] = []
        self.outer = outer
        self.known: dict[Value, Traced] = {}
        self.first = 0
        if anchor is not None:
            self.first = 1
            out = anchor.outputs[0]
            self.known[out] = Traced(self.maker, self.maker.leaf(0, out.dtype))

    def value(self, v: Value | None) -> Traced | None:
        if v is None:
            return None
        v = self.outer.get(v, v)
        if v not in self.known:
            self.known[v] = Traced(self.maker, self._source(v))
        return self.known[v]

    def _source(self, v: Value) -> Expr:
        if v.const is not None and v.const.size == 1 and v.dtype.kind != "O":
            number = np.asarray(v.const).reshape(-1)[0]
            if isinstance(number, Size) and v.dtype == np.int64:
                return self.maker.size(number)
            return self.maker.const(np.asarray(v.const).reshape(()), v.dtype)
        self.extras.append(v)
        return self.maker.leaf(self.first + len(self.extras) - 1, v.dtype)

    def node(self, n: Node) -> None:
        self.known[n.output] = trace(n, [self.value(v) for v in n.inputs])


def trace_region(node: Node) -> Region:
    """(anchor, its inputs, extras, epilogue) of a node, as in `Site`.

    An anchor alone has no epilogue. An elementwise node, or a region of such nodes, has anchor None
    and is all epilogue. Constants of one element become constants of the expression, not extras.
    Raises Skip if a part cannot be traced or has no native code.
    """
    body = fused_body(node)
    if body is None:
        if "elementwise" not in node.op.traits:
            return node, node.inputs, (), None
        tracer = _Tracer(None, {})
        tracer.node(node)
        return _finished(None, (), tracer, node.output)
    return _trace_body(node, body)


def _trace_body(node: Node, body: Graph) -> Region:
    """`trace_region` of a fused node with this body: at most one anchor, and elementwise nodes that
    follow its first output and have its shape. Raises Skip for any other body."""
    outer = {b: v for b, v in zip(body.inputs, node.inputs, strict=True) if v is not None}
    anchors = anchors_of(node)
    if len(anchors) > 1:
        raise Skip(f"the region has {len(anchors)} nodes that are not elementwise")
    anchor = anchors[0] if anchors else None
    tracer = _Tracer(anchor, outer)
    for n in body.nodes:
        if n is not anchor:
            tracer.node(n)
    first, *others = body.outputs
    if anchor is None:
        if others:
            raise Skip("an elementwise region has one output")
        return _finished(None, (), tracer, first)
    if tuple(others) != anchor.outputs[1 : 1 + len(others)]:
        raise Skip("only the first output of an anchor may have an epilogue")
    if any(v is not None and v.producer is not None for v in anchor.inputs):
        raise Skip("the anchor of the region reads a result of the region")
    if first.shape != anchor.outputs[0].shape:
        raise Skip("the epilogue stretches the anchor's result")
    inputs = tuple(None if v is None else outer.get(v, v) for v in anchor.inputs)
    return _finished(anchor, inputs, tracer, first)


def _finished(
    anchor: Node | None, inputs: tuple[Value | None, ...], tracer: _Tracer, result: Value
) -> Region:
    traced = tracer.value(result)
    assert traced is not None
    expr = traced.expr
    if anchor is not None and expr.name == "leaf" and expr.param == 0:
        return anchor, inputs, (), None
    expr, extras = _compacted(tracer, expr)
    if reason := unsupported(expr):
        raise Skip(reason)
    return anchor, inputs, extras, expr


def _compacted(tracer: _Tracer, expr: Expr) -> tuple[Expr, tuple[Value, ...]]:
    """The expression and the extras that it still reads: those whose leaves simplification has
    removed are left out, and other leaves numbered anew."""
    leaves = {e.param for e in expr.nodes() if e.name == "leaf"}
    kept = sorted(i for i in leaves if i >= tracer.first)
    if len(kept) == len(tracer.extras):
        return expr, tuple(tracer.extras)
    place = {old: tracer.first + new for new, old in enumerate(kept)} | {
        i: i for i in range(tracer.first)
    }

    def renumbered(e: Expr, args: list[Expr]) -> Expr:
        param = place[e.param] if e.name == "leaf" else e.param
        return Expr(e.name, tuple(args), e.dtype, param)

    return expr.fold(renumbered), tuple(tracer.extras[i - tracer.first] for i in kept)


def is_whole(value: Value | None) -> bool:
    """Whether a float32 value is taken to hold whole numbers: integers converted to float32, after
    which fewer than `MOVES` nodes moved them, or subtracted something (taken to be zero points).
    `make_site` then asks for "exact" products. Plain sums of products of small integers are exact;
    Winograd's method (fractions) and Strassen's (products of sums) may round."""
    passed: list[Node] = []
    for _ in range(MOVES):
        if value is None or value.producer is None or value.dtype != np.float32:
            return False
        node = value.producer
        value = node.inputs[0] if node.inputs else None
        if "conversion" in node.op.traits and value is not None and value.dtype.kind in "iu":
            return all(map(_keeps_whole, passed))
        if not subtracts(node) and not node.op.traits & {"view", "move"}:
            return False
        passed.append(node)
    return False


def _keeps_whole(node: Node) -> bool:
    """Whether the results of a move or a subtraction x - y are whole numbers where x, its first
    input, is: a subtraction's always (y is not looked at), a move's if they come from x alone, and
    what fills gaps is whole."""
    moves = [m for m in moves_of(node) if m is not None]
    if any(m.fill is not None and m.fill % 1 for m in moves):
        return False
    return subtracts(node) or {p.source for m in moves for p in m.parts} == {0}


def make_site(node: Node, target: Target, precision: str = "default") -> Site:
    """What kernels see of a node or fused region. Its precision is at least "strict" for a
    `precise` anchor, and "exact" if its first input is whole. Raises Skip if shapes are not static
    or tracing fails."""
    for v in (*node.inputs, *node.outputs):
        if v is not None and not v.type.is_static:
            raise Skip(f"the shape of {v.name} ({v.type}) is not static")
    anchor, inputs, extras, epilogue = trace_region(node)
    if anchor is not None and inputs and is_whole(inputs[0]):
        precision = "exact"
    elif anchor is not None and anchor.attrs.get("precise") and precision != "exact":
        precision = "strict"
    return Site(
        node=node, anchor=anchor, inputs=inputs, extras=extras, outputs=node.outputs,
        epilogue=epilogue, target=target, precision=precision,
    )  # fmt: skip
