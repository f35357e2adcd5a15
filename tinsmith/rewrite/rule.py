"""Rules: a pattern, one line of algebra, and a few lines that build the replacement.

    conv = RuleSet("fold-into-conv")

    @conv.rule(p.BatchNorm(p.Conv("x", const("w")).named("conv"), ...), x=(1, 3, 6, 6), ...)
    def fold_batchnorm(conv, w, ...):
        '''BatchNorm(Conv(x, w)) -> Conv(x, k*w, ...), with k = scale / sqrt(var + eps).'''
        return with_(conv, w=...)

The function's parameters are names of the pattern: Values, arrays for `const`, Nodes for `.named`;
`root` is the node at the top. It returns the Value that replaces the root's output, or a tuple of
Values for all of the root's outputs, or raises `Skip("why")`.

The engine checks that interior nodes are used nowhere else and are no graph outputs, that the types
agree, and that names and origins survive. The keywords of `rule` are a sample (shapes, arrays, or
dicts of attributes for named nodes) from which the rule's own test is made; "x" has the shape
(2, 3, 4) where the sample gives none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tinsmith.conditions import meet as meet_conditions
from tinsmith.conditions import trial
from tinsmith.errors import DuplicateName
from tinsmith.graph import Graph, Node, Type, Value
from tinsmith.ops.precision import is_half
from tinsmith.records import dataclass
from tinsmith.rewrite.pattern import Env, Pattern, interior
from tinsmith.sizes import NUMBER, NeedsNumber


class Skip(Exception):
    """Raised by a rule that matched and decides not to fire. Its arguments say why: `Skip("why")`,
    or a template and values, put together only when they are read: `Skip("{} is empty", name)`."""

    @property
    def reason(self) -> tuple[Any, ...]:
        """(template for `str.format`, *values); for a text alone ("{}", text)."""
        return self.args if len(self.args) > 1 else ("{}", *self.args)

    def __str__(self) -> str:
        template, *filled = self.reason
        return template.format(*filled)


@dataclass(frozen=True)
class Refusal:
    """Why a rule did not fire at a node where its pattern matched, or nearly.

    rule, node  their names; the node is the one at the top of the pattern
    nodes       the names of all nodes that the pattern had matched by then
    """

    rule: str
    node: str
    reason: str
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.rule} at {self.node!r}: {self.reason}"


class Rule:
    """A pattern and the function that builds the replacement of a match.

    build      gets the bindings that its parameters name (`wants`), and returns the new values
    sample     shapes, arrays and attributes by name, for the rule's own test
    tolerance  the relative error that its algebra may cause, besides the rounding of operations
    any_shape  whether it may act where ranks are unknown
    halves     whether it may change results in float16 and bfloat16
    formula    the docstring of `build`
    roots      the pattern's alternatives; depth: how many nodes deep the deepest is; inside: as of
               `Pattern`
    """

    def __init__(
        self, pattern: Pattern, build: Callable[..., Any], sample: dict[str, Any], *,
        tolerance: float = 0.0, any_shape: bool = False, halves: bool = True,
    ) -> None:  # fmt: skip
        self.pattern, self.build, self.sample = pattern, build, {"x": (2, 3, 4), **sample}
        self.tolerance, self.any_shape, self.halves = tolerance, any_shape, halves
        self.name = build.__name__
        self.formula = inspect.getdoc(build) or ""
        self.wants = tuple(inspect.signature(build).parameters)
        self.roots: tuple[Any, ...] = pattern.alternatives()
        self.depth, self.inside = pattern.depth, pattern.inside

    def promising(self, node: Node) -> bool:
        """A cheap test before `matches`: False only where the pattern cannot match at the node."""
        return any([root.promising(node) for root in self.roots])

    def matches(self, node: Node, trace: Trace) -> bool:
        """Whether the pattern matches with the node at its top; `trace` keeps why it does not."""
        return any(
            root.takes(node.op)
            and root.promising(node)
            and any(True for _ in root.match(node.outputs[root.out], {}, trace))
            for root in self.roots
        )

    def apply(self, graph: Graph, node: Node, trace: Trace) -> tuple[Value, ...] | None:
        """Try the rule with the node at the pattern's top, for each way to match. Returns a value
        for each output of the node (the output itself if it stays), which the caller is to put in
        its place; None if the rule does not fire: `trace` has the reason, and nodes that the rule
        has added stay in the graph."""
        for root in self.roots:
            if not root.takes(node.op) or not root.promising(node):
                continue
            for env in root.match(node.outputs[root.out], {}, trace):
                if (new := self._build(graph, node, root, env, trace)) is not None:
                    return new
        return None

    def _build(
        self, graph: Graph, node: Node, root: Any, env: Env, trace: Trace
    ) -> tuple[Value, ...] | None:
        """`apply` for one match, of the alternative `root` of the pattern, with the bindings `env`.
        Only if the rule fires, the conditions on free sizes on which it relies are recorded."""
        if reason := _escapes(graph, node, env):
            trace.refuse(env, "{} is used outside the match", reason)
            return None
        if not self.halves and any(is_half(v.dtype) for v in node.outputs):
            trace.refuse(env, "{}", f"weights in {node.outputs[0].dtype} would be rounded again")
            return None
        env["root"], env["graph"] = node, graph
        start = graph.newest
        try:
            with trial() as conditions:
                new = self._made(graph, node, root, env, start)
        except Skip as skip:
            trace.refuse(env, *skip.reason)  # an exception would keep its frames
            return None
        except NeedsNumber as needs:
            trace.refuse(env, "{}", f"it needs numbers where sizes are free: {needs}")
            return None
        meet_conditions(conditions)  # of a rule that does not fire, none
        return new

    def _made(
        self, graph: Graph, node: Node, root: Any, env: Env, start: float
    ) -> tuple[Value, ...]:
        """Call the rule's function for the match `env`. Returns a value for each output of the
        node. `root` is the alternative of the pattern that matched, `start` the sequence number of
        the newest node before. Raises Skip if the function declines, or if a value may not replace
        its output."""
        got = self.build(**{k: env.get(k) for k in self.wants})
        if got is None:
            raise Skip("the rule declined")
        new = got if isinstance(got, tuple) else (got,)
        if not isinstance(got, tuple) and len(node.outputs) > 1:
            live = [v for v in node.outputs if v.uses or v in graph.outputs]
            if live != [node.outputs[root.out]]:
                raise Skip(f"{node.name!r} has other outputs that are used")
            new = tuple(got if i == root.out else v for i, v in enumerate(node.outputs))
        new = tuple([graph.const(v) if isinstance(v, np.ndarray) else v for v in new])
        for old, value in zip(node.outputs, new, strict=True):
            if reason := self._differs(old, value, start):
                raise Skip(reason)
        return new

    def _differs(self, old: Value, new: object, start: float) -> str:
        """Why `new` may not replace `old`; "" if it may. Element types must agree, and dims that
        are numbers in both. A value that existed before the rule ran (an input, a constant, or made
        by a node with a sequence number of at most `start`) must have exactly the dims of `old`, as
        two symbols need not be equal. With `any_shape` shapes are not compared."""
        if old is new:
            return ""
        if not isinstance(new, Value):
            raise TypeError(f"rule {self.name} returned {type(new).__name__}, not a Value")
        if old.dtype != new.dtype:
            return f"the result would be {new.type}, not {old.type}"
        existed = new.producer is None or new.producer.seq <= start
        if self.any_shape:
            return ""
        if old.shape is None or (new.shape is None and existed):
            return "the rank is not known"
        if new.shape is None:
            return ""
        if len(old.shape) != len(new.shape):
            return f"the result would be {new.type}, not {old.type}"
        for a, b in zip(old.shape, new.shape, strict=True):
            if a != b and (existed or (isinstance(a, NUMBER) and isinstance(b, NUMBER))):
                return f"the result would be {new.type}, not {old.type}"
        return ""

    def __repr__(self) -> str:
        return f"<rule {self.name}: {self.formula}>"


def _escapes(graph: Graph, node: Node, env: Env) -> str:
    """The name of a value that the match `env` would remove, but that a node outside the match or a
    graph output reads; "" if there is none. Outputs of `node`, the top, do not count."""
    inside = set(interior(env))
    for n in inside:
        if n is node:
            continue
        for v in n.outputs:
            if v in graph.outputs or not inside.issuperset(v.uses):
                return v.name
    return ""


class Trace:
    """Keeps why one rule did not fire at one node: of all failures, the one at which most nodes of
    the pattern had matched. It is the `Why` that patterns call. Failures with fewer than two
    matched nodes are forgotten."""

    def __init__(self) -> None:
        self.depth = 0
        self.found: tuple[Env, str, tuple[Any, ...]] | None = None

    def __call__(self, env: Env, template: str, *args: Any) -> tuple[()]:
        depth = len(interior(env))
        if depth > self.depth and depth >= 2:
            self.depth, self.found = depth, (env, template, args)
        return ()

    def refuse(self, env: Env, template: str, *args: Any) -> None:
        """Record why the rule did not fire though its whole pattern matched; this outweighs partial
        matches."""
        self.depth, self.found = 1 << 30, (env, template, args)

    def refusal(self, rule: str, node: Node) -> Refusal | None:
        """The recorded failure as a `Refusal`; None if there is none."""
        if self.found is None:
            return None
        env, template, args = self.found
        names = tuple(dict.fromkeys(n.name for n in env.values() if isinstance(n, Node)))
        return Refusal(rule, node.name, template.format(*args), names or (node.name,))


class RuleSet:
    """Rules that run together to a fixed point; at a node, earlier rules are tried first.

    summary    what they do, in one line
    halves     whether rules with a tolerance apply to results in float16 and bfloat16. False for
               rules that compute new weights: these are more exact once float32 is computed instead
    tolerance  that of rules which state none
    backwards  whether nodes are tried from the last to the first, so that of matches that lie one
               within the other the largest fires
    """

    def __init__(
        self, name: str, summary: str = "", rules: list[Rule] | None = None, *,
        halves: bool = True, tolerance: float = 0.0, backwards: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.summary, self.halves, self.tolerance = name, summary, halves, tolerance
        self.backwards = backwards
        self.rules: list[Rule] = list(rules or [])
        self._by_op: dict[str, list[Rule]] = {}

    def rules_for(self, node: Node) -> list[Rule]:
        """The rules whose patterns may have the node at their top."""
        found = self._by_op.get(node.op.name)
        if found is None:
            found = self._by_op[node.op.name] = self.rules_of(node.op)
        return found

    def rules_of(self, op: Any) -> list[Rule]:
        """The rules whose patterns have the operator at their top, by its name or a trait."""
        return [r for r in self.rules if any(root.takes(op) for root in r.roots)]

    def rule(
        self, pattern: Pattern, *, tolerance: float | None = None, any_shape: bool = False,
        **sample: Any,
    ) -> Callable[[Callable[..., Any]], Rule]:  # fmt: skip
        """Decorator of a function that builds a replacement: a `Rule` of the pattern and the
        function is added to the set, and takes the function's place. The options are those of
        `Rule` (`tolerance` None: the set's). Raises DuplicateName if the set has a rule of the
        function's name.
        """
        loose = self.tolerance if tolerance is None else tolerance
        halves = self.halves or not loose

        def decorate(build: Callable[..., Any]) -> Rule:
            made = Rule(pattern, build, sample, tolerance=loose, any_shape=any_shape, halves=halves)
            if any(r.name == made.name for r in self.rules):
                raise DuplicateName(f"rule {made.name!r} is twice in the rule set {self.name!r}")
            self.rules.append(made)
            self._by_op.clear()
            return made

        return decorate

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)


def rule(
    pattern: Pattern, *, tolerance: float = 0.0, any_shape: bool = False, **sample: Any
) -> Callable[[Callable[..., Any]], Rule]:
    """Decorator: a rule on its own, to be put into a RuleSet or given to `rewrite`. The options are
    those of `Rule`."""
    return lambda build: Rule(pattern, build, sample, tolerance=tolerance, any_shape=any_shape)


def with_(node: Node, **changes: Any) -> Value:
    """The first output of a copy of `node` with some inputs or attributes changed (`copy_with`)."""
    return copy_with(node, **changes).output


def copy_with(node: Node, **changes: Any) -> Node:
    """Add and return a copy of `node` with some inputs or attributes changed, by their names in the
    operator's signature. It has the name and the origin of `node`, which stays as it is. An
    input given as an array becomes a constant with the name of the input that it replaces. Raises
    TypeError for a name that the operator does not have."""
    op: Any = node.op
    known = {*op.inputs, *op.attrs}
    if unknown := changes.keys() - known:
        raise TypeError(f"{op.name} has no input or attribute {sorted(unknown)}")
    inputs: list[Any] = list(node.inputs) + [None] * (len(op.inputs) - len(node.inputs))
    for i, name in enumerate(op.inputs):
        if name in changes:
            old, new = inputs[i], changes.pop(name)
            if isinstance(new, np.ndarray | np.generic):
                label = old.name if old is not None else f"{node.name}.{name}"
                new = node.graph.const(np.asarray(new), label)
            inputs[i] = new
    attrs = {**node.attrs, **changes}
    return node.graph.add(node.op, *inputs, name=node.name, origin=node.origin, **attrs)


def like(value: Value, array: Any) -> np.ndarray[Any, Any]:
    """`array` converted to the dtype of `value`, as for a constant that takes its place."""
    return np.asarray(array).astype(value.dtype)


def meet(old: Type, new: Type) -> Type:
    """The more exact of two types of one value, dim by dim: a number wins over a symbol, a named
    symbol over a nameless one ("?..."), else `old` wins; a known rank wins over an unknown one."""
    if old.shape is None or new.shape is None:
        return new if old.shape is None else old
    if old.is_static:
        return old
    dims = []
    for a, b in zip(old.shape, new.shape, strict=True):
        better = not isinstance(b, str) or (isinstance(a, str) and a[0] == "?" and b[0] != "?")
        dims.append(b if isinstance(a, str) and better else a)
    return old.like(shape=tuple(dims))
