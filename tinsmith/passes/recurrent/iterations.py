"""What a Loop or Scan does in every iteration, in one form: its states, inputs and results."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from tinsmith.graph import Graph, Node, Value
from tinsmith.ops._arithmetic import adds, multiplies, signs_of, subtracts
from tinsmith.ops.control import per
from tinsmith.passes.manager import run_passes
from tinsmith.passes.recurrent.places import place_of, taken, under_views
from tinsmith.records import dataclass
from tinsmith.rewrite import Skip

APART = "-stack-recurrent,-stack-loops"


@dataclass(frozen=True)
class State:
    """A state of a loop: the body's input and output for it, its initial value and its result."""

    before: Value  # in the body
    after: Value
    initial: Value
    result: Value


@dataclass(frozen=True)
class Item:
    """A `value` of the body that each iteration gives, stacked along `axis` of the loop's `result`:
    that of the first iteration comes first, or last if `backward`."""

    value: Value
    result: Value
    axis: int = 0
    backward: bool = False


@dataclass(frozen=True)
class Read:
    """A value outside a loop that is read along `axis`, one index in each iteration: `first` in the
    first iteration, then those after it, or before it if `backward`. `first` None: all
    indices, from one end to the other."""

    base: Value
    axis: int
    backward: bool
    first: int | None = None


@dataclass(frozen=True)
class Iterations:
    """What the iterations of a Loop or Scan, `node`, do.

    body     a copy of the loop's body after the portable passes; captured constants are constants
    states   the states; items: the values that are stacked
    outer    input of the body -> the value outside that enters there
    scanned  of a Scan: input of the body -> how it is read
    count    the number of iterations of a Loop; None for a Scan
    """

    node: Node
    body: Graph
    states: tuple[State, ...]
    items: tuple[Item, ...]
    outer: dict[Value, Value]
    scanned: dict[Value, Read] = field(default_factory=dict)
    count: Value | None = None

    def read(self, value: Value) -> Read:
        """How `value`, a value of the body, is read from a value outside: one index of one axis in
        each iteration. Raises Skip unless the indices are consecutive, up or down."""
        if value in self.scanned:
            return self.scanned[value]
        node = value.producer
        if node is None or self.node.op.name != "Loop":
            raise Skip(f"the input {value.name!r} is the same in every iteration")
        base = node.inputs[0]
        places = node.inputs[1] if len(node.inputs) > 1 else None
        if node.op.name != "Gather" or base not in self.outer or places is None:
            raise Skip(f"the input {value.name!r} is not read at the place of the iteration")
        found = self._linear(places)
        if found is None or found[0] not in (1, -1) or places.type.size != 1 or not base.shape:
            raise Skip(f"the place of the input {value.name!r} does not follow the iterations")
        return Read(self.outer[base], node.axis % len(base.shape), found[0] < 0, found[1])

    def _linear(self, value: Value) -> tuple[int, int] | None:
        """(a, b) if the value of a Loop's body is a * iteration + b; None if that is not known."""
        value = _under_casts(value)
        if value.const is not None and value.const.size == 1:
            return 0, int(value.const.reshape(-1)[0])
        if value is self.body.inputs[0]:
            return 1, 0
        for state in self.states:
            if value is state.before:
                return self._counter(state)
        node = value.producer
        signs = None if node is None else signs_of(node)
        if node is None or not (signs or multiplies(node)):
            return None
        parts = [self._linear(v) for v in node.inputs if v is not None]
        known = [part for part in parts if part is not None]
        if len(known) < len(node.inputs):
            return None
        if signs is not None:
            terms = list(zip(signs, known, strict=True))
            return sum(s * a for s, (a, _) in terms), sum(s * b for s, (_, b) in terms)
        (a, b), (c, d) = known
        return (a * d + b * c, b * d) if a * c == 0 else None

    def _counter(self, state: State) -> tuple[int, int] | None:
        """(a, b) if a state is a * iteration + b: it begins with the constant b, and each iteration
        adds the constant a. Else None."""
        start, node = _under_casts(state.initial).const, _under_casts(state.after).producer
        if start is None or start.size != 1 or not (adds(node) or subtracts(node)):
            return None
        assert node is not None
        down = subtracts(node)
        for before, step in (node.inputs, node.inputs[::-1])[: 1 if down else 2]:
            if before is None or step is None or _under_casts(before) is not state.before:
                continue
            if step.const is None or step.const.size != 1:
                continue
            grows = int(step.const.reshape(-1)[0])
            return -grows if down else grows, int(start.reshape(-1)[0])
        return None


def _under_casts(value: Value) -> Value:
    while True:
        value = under_views(value)
        node = value.producer
        if node is None or "conversion" not in node.op.traits or value.dtype.kind not in "iu":
            return value
        inner = node.inputs[0]
        if inner is None or inner.dtype.kind not in "iu":
            return value
        value = inner


def iterations_of(node: Node) -> Iterations:
    """What the iterations of a Loop or Scan do. Raises Skip for a Loop that a condition may end or
    leave out, or that has no count."""
    lead = 2 if node.op.name == "Loop" else 0
    body: Graph = node.body.clone()
    given = (*node.inputs[lead:],)
    captured = len(given) - node.captured
    formal = list(body.inputs[lead:])
    outer: dict[Value, Value] = {}
    for k, (inner, value) in enumerate(zip(formal, given, strict=True)):
        assert value is not None
        if k >= captured and value.const is not None:
            body.replace(inner, body.const(value.const, value.name))
            body.inputs = [v for v in body.inputs if v is not inner]
        else:
            outer[inner] = value
    run_passes(body, "portable", spec=APART)
    cut = captured - (0 if lead else node.num_scan_inputs)
    first = 1 if lead else 0
    after = body.outputs[first : first + cut]
    states = tuple(
        State(*row)  # type: ignore[arg-type]
        for row in zip(formal[:cut], after, given[:cut], node.outputs[:cut], strict=True)
    )
    rest = list(zip(body.outputs[first + cut :], node.outputs[cut:], strict=True))
    if lead:
        _need_all_iterations(node, body)
        items = tuple(Item(v, result) for v, result in rest)
        return Iterations(node, body, states, items, outer, count=node.inputs[0])
    axes = per(node.scan_output_axes, len(rest))
    ways = per(node.scan_output_directions, len(rest))
    items = tuple(Item(v, r, a, bool(w)) for (v, r), a, w in zip(rest, axes, ways, strict=True))
    inputs = list(zip(formal[cut:captured], given[cut:captured], strict=True))
    axes = per(node.scan_input_axes, len(inputs))
    ways = per(node.scan_input_directions, len(inputs))
    reads = zip(inputs, axes, ways, strict=True)
    scanned = {v: Read(base, axis, bool(way)) for (v, base), axis, way in reads}  # type: ignore[arg-type]
    return Iterations(node, body, states, items, outer, scanned)


def _need_all_iterations(node: Node, body: Graph) -> None:
    go, start = body.outputs[0], node.inputs[1]
    if go is not body.inputs[1] and not _is_true(go):
        raise Skip("a condition may end it")
    if start is not None and not _is_true(start):
        raise Skip("a condition may leave it out")
    if node.inputs[0] is None:
        raise Skip("it never ends")


def _is_true(value: Value) -> bool:
    return value.const is not None and bool(np.all(value.const))


def is_size_of(count: Value, base: Value, axis: int) -> bool:
    """Whether `count` is computed as the size of `base` on `axis`."""
    count = _under_casts(count)
    node = count.producer
    if node is None or base.shape is None:
        return False
    found = taken(node, count)
    if found is not None and node.inputs[0] is not None:
        shape, at = _under_casts(node.inputs[0]).producer, place_of(found[1])
        if shape is None or shape.op.name != "Shape" or at is None:
            return False
        return shape.inputs[0] is base and shape.start >= 0 and shape.start + at == axis
    if node.op.name == "Shape" and node.inputs[0] is base:
        start = node.start % len(base.shape)
        return start == axis and count.type.is_static and count.type.size == 1
    return False
