"""States: outputs of a run that are inputs of the next one, such as caches of keys and values.

States are given by name, or found by the names that exporters use. The types of a state's output
and input must agree; along axes that are free in the input, the state may grow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tinsmith.errors import OptionError, StateError, UnknownName
from tinsmith.graph import Array, Holder, Type, compatible, shapes_agree
from tinsmith.records import NamedTuple
from tinsmith.runtime.memory import aligned

SPELLINGS: list[tuple[str, list[str]]] = [
    (r"present(?:_key_values)?\.(.+)", [r"past_key_values.\1", r"past.\1"]),
    (r"present_key_values_(.+)", [r"past_key_values_\1"]),
    (r"present(.*)", [r"past\1"]),
    (r"(.*)present(.*)", [r"\1past\2"]),
    (r"(.+)_out", [r"\1_in", r"\1"]),
    (r"(.*)_out_(.+)", [r"\1_in_\2"]),
    (r"out_(.+)", [r"in_\1"]),
    (r"output_(.+)", [r"input_\1"]),
    (r"(?:new|next)_(.+)", [r"\1", r"old_\1", r"prev_\1"]),
    (r"(.+)_(?:new|next)", [r"\1", r"\1_old", r"\1_prev"]),
    (r"(.+?)_?[nN]", [r"\1", r"\g<1>0", r"\g<1>_0"]),
]
"""Names of states by exporters: pattern of an output's name, and names that its input may have. The
first row that finds an input of a fitting type counts. In turn: optimum, transformers and
onnxruntime-genai; whole caches; onnxruntime's own tools; streaming models; recurrent ones."""


class State(NamedTuple):
    """An output, by name, that is an input of the next run. `grows`: the axes along which its size
    may change from run to run; `dtype` and `rank` (None: not known) are the input's."""

    output: str
    input: str
    grows: tuple[int, ...]
    dtype: np.dtype[Any]
    rank: int | None
    fixed: tuple[tuple[int, int], ...]
    """(axis, size) of each axis of the input that has a fixed size."""

    def fits(self, result: Any) -> bool:
        """Whether the next run can take a result as it is."""
        if type(result) is not np.ndarray or result.dtype is not self.dtype:
            return False
        shape = result.shape
        return len(shape) == self.rank and all([shape[axis] == n for axis, n in self.fixed])


class Held(NamedTuple):
    """The value of a state in a session: `array`, if `rows` is None; else `array` is its room, of
    which the first `rows` along `axis` are the value."""

    array: Array
    axis: int = 0
    rows: int | None = None

    @property
    def view(self) -> Array:
        """The value, not copied."""
        if self.rows is None:
            return self.array
        return self.array[(slice(None),) * self.axis + (slice(self.rows),)]


LEAST_ROOM = 64
"""Rows of a room at least. Estimated."""


def capacity_for(rows: int, most: int | None) -> int:
    """Return the capacity, in rows, of a room that must hold `rows`: twice as many, at least
    LEAST_ROOM, at most `most` (None: no limit), but never less than `rows`. So all copies to larger
    rooms together move at most twice the rows of the last."""
    wide = max(2 * rows, LEAST_ROOM)
    return wide if most is None else max(rows, min(wide, most))


class Room(NamedTuple):
    """Describes the room of a state that grows along one `axis`: a larger array, of which the state
    is the first rows. `symbol` and `capacity` name the free dimensions of state and room on that
    axis; `length` is the name of the input whose shape tells the state's rows."""

    state: State
    axis: int
    symbol: str
    capacity: str

    @property
    def length(self) -> str:
        return f"{self.symbol}.length"

    def put(self, held: Held, capacity: int) -> Held:
        """Return the state `held`, copied to a room of `capacity` rows. Raises OutOfMemory."""
        view = held.view
        dims = list(view.shape)
        dims[self.axis] = capacity
        room = aligned(prod(dims) * view.itemsize).view(view.dtype).reshape(dims)
        made = Held(room, self.axis, view.shape[self.axis])
        made.view[...] = view
        return made


Types = Mapping[str, Type]


def rooms_of(inputs: Types, states: Iterable[State]) -> list[Room]:
    """Return a `Room` for each state of numbers or bools that grows along exactly one axis, unless
    the names that it needs are taken."""
    found: list[Room] = []
    taken = {*inputs, *(d for type in inputs.values() for d in type.shape or ())}
    for state in states:
        type = inputs[state.input]
        if len(state.grows) == 1 and type.shape is not None and type.dtype.kind in "fiub":
            (axis,) = state.grows
            symbol = str(type.shape[axis])
            room = Room(state, axis, symbol, f"{symbol}_room")
            found += [] if taken & {room.length, room.capacity} else [room]
    return found


def states_of(model: str, inputs: Types, outputs: Types, wanted: Any) -> list[State]:
    """Return the states of a model, in the order of its inputs. `wanted`: {output: input, ...}, or
    True or "auto" to find them by their names. Raises OptionError for anything else, UnknownName,
    and StateError where an output does not fit its input, an input is given twice, or none is
    found."""
    if wanted is True or wanted == "auto":
        found = list(_recognised(inputs, outputs))
        if not found:
            raise StateError(
                f"no states are recognised by their names: {model} takes {', '.join(inputs)}, and "
                f"gives {', '.join(outputs)}; states={{output: input}} names them"
            )
    elif (
        isinstance(wanted, Mapping)
        and wanted
        and all(isinstance(name, str) for pair in wanted.items() for name in pair)
    ):
        found = [_state(model, inputs, outputs, *pair) for pair in wanted.items()]
    else:
        raise OptionError(
            "states must be a dict of the inputs by the outputs that they are taken from, such as "
            f"{{'present.0.key': 'past.0.key'}}, or True, not {wanted!r}"
        )
    taken = [state.input for state in found]
    if twice := [name for name in taken if taken.count(name) > 1]:
        raise StateError(f"states give the input {twice[0]!r} of {model} twice")
    order = {name: k for k, name in enumerate(inputs)}
    return sorted(found, key=lambda state: order[state.input])


def _state(model: str, inputs: Types, outputs: Types, output: str, input: str) -> State:
    if output not in outputs:
        if output in inputs and input in outputs:
            raise StateError(f"states are inputs by outputs: {{{input!r}: {output!r}}}")
        raise UnknownName("output", output, outputs)
    if input not in inputs:
        raise UnknownName("input", input, inputs)
    if why := _misfit(inputs[input], outputs[output]):
        raise StateError(
            f"the output {output!r} of {model} cannot be the next input {input!r}: {why}"
        )
    return _made(output, input, inputs[input], outputs[output])


def _made(output: str, input: str, wanted: Type, given: Type) -> State:
    """Make a state from the types of its input (`wanted`) and output (`given`)."""
    dims = wanted.shape or ()
    others: Sequence[Any] = [None] * len(dims) if given.shape is None else given.shape
    pairs = enumerate(zip(dims, others, strict=True))
    grows = tuple(k for k, (a, b) in pairs if isinstance(a, str) and a != b)
    fixed = tuple((k, d) for k, d in enumerate(dims) if isinstance(d, int))
    rank = None if wanted.shape is None else len(dims)
    return State(output, input, grows, wanted.dtype, rank, fixed)


def _recognised(inputs: Types, outputs: Types) -> Iterator[State]:
    taken: set[str] = set()
    for output, given in outputs.items():
        for name in _spelled(output):
            if name in inputs and name not in taken and not _misfit(inputs[name], given):
                taken.add(name)
                yield _made(output, name, inputs[name], given)
                break


def _spelled(output: str) -> Iterator[str]:
    for pattern, names in SPELLINGS:
        if match := re.fullmatch(pattern, output):
            yield from (match.expand(name) for name in names)


def _misfit(wanted: Type, given: Type) -> str:
    """Return why a result of type `given` cannot be an input of type `wanted`; "" if it can."""
    if isinstance(wanted, Holder) or isinstance(given, Holder):
        return "states are tensors"
    return "" if compatible(wanted, given) else f"it is {given}, the input {wanted}"


def sizes_told(types: Types, given: Mapping[str, Array]) -> dict[str, int]:
    """Return name of a free dimension -> its size in the given arrays."""
    return {
        d: n
        for name, array in given.items()
        if (shape := types[name].shape)
        for d, n in zip(shape, np.shape(array), strict=False)
        if isinstance(d, str)
    }


def first(model: str, state: State, type: Type, told: Mapping[str, int]) -> Array:
    """Return a state before the first run: zeros of its input's `type`. Free sizes are those of
    `told`, by name, or 0 on axes on which it grows. Raises StateError where a size, or the rank, is
    not known."""
    if type.shape is None:
        raise StateError(
            f"the shape of the state {state.input!r} of {model} is not known: give it in the first "
            "run, or to reset"
        )
    dims: list[int] = []
    for axis, d in enumerate(type.shape):
        size = d if isinstance(d, int) else told.get(d, 0 if axis in state.grows else None)
        if size is None:
            raise StateError(
                f"the size {d!r} of the state {state.input!r}: {type} of {model} is not known "
                "before it is given: give the state in the first run, or to reset"
            )
        dims.append(size)
    return np.zeros(dims, type.dtype)


def check_result(model: str, state: State, type: Type, result: Any) -> None:
    """Raise StateError for a result that does not fit the state's input, of `type`."""
    if not isinstance(result, np.ndarray) or result.dtype != type.dtype:
        found = getattr(result, "dtype", result.__class__.__name__)
        raise StateError(
            f"the output {state.output!r} of {model} is {found}; as the next input "
            f"{state.input!r} it must be {type}"
        )
    if not shapes_agree(type.shape, result.shape):
        raise StateError(
            f"the output {state.output!r} of {model} has shape {list(result.shape)}; as the next "
            f"input {state.input!r} it must be {type}"
        )
