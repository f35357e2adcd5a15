"""Rewrites models whose states are kept in place, so that a growing state is not copied in each
run.

A state that grows (a cache of keys) lies in a room: a tensor with space for more, as large as the
session makes it along the axis on which the state grows; the state is its first rows. The room is
an input, and the shape of a further input, `length`, tells the number of rows. The model

    present = concat(past, new)        becomes        past = room[:length]
                                                      room' = scatter(room, present)
                                                      present = room'[: rows of present]

which computes the same. `passes/append.py` and `plan/kept.py` find that only the new rows must be
written, in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinsmith.graph import Graph, Type, Value
from tinsmith.ops import OPS
from tinsmith.runtime.states import Room, State, rooms_of

ZERO = np.array([0], np.int64)


def held_states(graph: Graph, states: Sequence[State]) -> tuple[State, ...]:
    """Return the states that can be kept in place: those that grow along one axis (`rooms_of`), and
    those that do not grow and come from a node with the trait "overwrites", such as a scatter. A
    node must compute the state, and exactly one output be it."""
    types = {v.name: v.type for v in graph.inputs}
    growing = {room.state for room in rooms_of(types, states)}
    names = [v.name for v in graph.outputs]
    outputs = {v.name: v.producer for v in graph.outputs}

    def is_held(state: State) -> bool:
        node = outputs[state.output]
        if node is None or names.count(state.output) > 1:
            return False
        return state in growing or (not state.grows and "overwrites" in node.op.traits)

    return tuple(filter(is_held, states))


def kept_in(graph: Graph, states: Sequence[State]) -> dict[int, int]:
    """Return number of an output -> number of the input in whose memory it is kept, for states."""
    inputs, outputs = ([v.name for v in vs] for vs in (graph.inputs, graph.outputs))
    return {outputs.index(s.output): inputs.index(s.input) for s in states}


def with_rooms(graph: Graph, states: Sequence[State]) -> Graph:
    """Return a copy of a graph in which states that grow are read from and written to rooms. A room
    is an input with the name of the state's input; the `length` inputs come after all others."""
    copy = graph.clone()
    values = {v.name: v for v in copy.inputs}
    rooms = rooms_of({n: v.type for n, v in values.items()}, states)
    told = {room.length: Type(np.dtype(np.uint8), (room.symbol, 0)) for room in rooms}
    lengths = {name: copy.input(name, type) for name, type in told.items()}
    for room in rooms:
        _put(copy, room, values[room.state.input], lengths[room.length])
    copy.inputs = [v for v in copy.inputs if v not in lengths.values()] + list(lengths.values())
    copy.take_names()
    return copy


def _put(graph: Graph, of: Room, past: Value, length: Value) -> None:
    """Rewrite the graph so that one state, the input `past`, lies in the room `of`. `length` is the
    input whose shape tells its number of rows (see the module)."""
    axis, dims, first = of.axis, list(past.type.shape or ()), graph.nodes[0]
    dims[axis] = of.capacity
    room = graph.input(f"{past.name}.room", past.type.like(shape=tuple(dims)))
    rows = OPS["Shape"](length, start=0, end=1, before=first)
    held = _first(room, rows, axis, past.type, first)
    graph.replace(past, held, keep_name=False)
    graph.inputs = [room if v is past else v for v in graph.inputs if v is not room]
    held.name, room.name = f"{past.name}.rows", past.name
    (place,) = (k for k, v in enumerate(graph.outputs) if v.name == of.state.output)
    present = graph.outputs[place]
    whole = OPS["TensorScatter"](room, present, axis=axis)
    count = OPS["Shape"](present, start=axis, end=axis + 1)
    shown = _first(whole, count, axis, present.type, None)
    outputs = list(graph.outputs)
    outputs[place] = shown
    graph.outputs = outputs
    name = present.name
    present.name, shown.name = f"{name}.rows", name


def _first(x: Value, rows: Value, axis: int, type: Type, before: Any) -> Value:
    """Add a Slice of the first rows of x along `axis`, before the node `before` (None: at the end).
    `rows` holds their number, one integer. Return the result, of type `type`."""
    ends = np.array([axis], np.int64)
    cut = OPS["Slice"](x, ZERO, rows, ends, before=before)
    cut.type = type
    return cut
