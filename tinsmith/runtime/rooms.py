"""Runs a net with states, which runs update in place if possible.

A state that grows lies in a room (`states.Room`), into which a run writes the new rows. A full room
is replaced by one of twice the rows. Some other states stay in an array that each run overwrites;
the rest are results of the last run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tinsmith.graph import Array
from tinsmith.runtime.free import FreeProgram, SizedProgram
from tinsmith.runtime.inputs import Signature
from tinsmith.runtime.session import Session
from tinsmith.runtime.states import Held, Room, State, capacity_for, check_result, rooms_of

if TYPE_CHECKING:
    from tinsmith.runtime.net import Net

TRIED = 16
"""Times that larger rooms are tried before the needed sizes are inferred. Estimated."""

States = Mapping[str, Held]
"""Name of a state's input -> the state."""


class Runner:
    """Runs a net with states, which the caller keeps: `run` takes them and returns the new ones,
    updated in place if possible. Use from one thread at a time."""

    torn = False
    """Whether a run has begun to overwrite states outside rooms; the caller resets it."""

    def __init__(self, net: Net, states: Sequence[State], arrays: Sequence[Array]) -> None:
        """`arrays`: all inputs of the first run. Their shapes tell along which axes states grow."""
        self._own = net
        at = {name: k for k, name in enumerate(net.output_names)}
        self._from = [(at[s.output], s) for s in states]
        key = tuple(states)
        found = net.kept.get(key)
        if found is None and net.has_programs:
            found = self._kept(arrays)
            if found is not None:
                net.kept[key] = found
        self.keeps = found is not None
        """Whether runs may overwrite states."""
        self.net, rooms = found or (net, ())
        self._takes = self.net._takes
        self.rooms = {room.state.input: room for room in rooms}
        self._tells = {room.length: room for room in rooms}
        self._sessions: dict[FreeProgram, Session] = {}
        self._last: Signature | None = None
        self._session: Session | None = None

    def _kept(self, arrays: Sequence[Array]) -> tuple[Net, list[Room]] | None:
        """Return the net compiled so that runs update states in place, and the rooms of states that
        grow; None where no state can be kept so. `arrays` are inputs of one run: a state grows
        along the axes on which its output's size differs from its input's. Raises
        InputShapeError."""
        net = self._own
        shapes = net._takes.signature(arrays)
        net._takes.check_signature(shapes)
        inputs, outputs = dict(zip(net.input_names, shapes, strict=True)), net._model.sizes(shapes)
        grown: list[State] = []
        for at, state in self._from:
            pairs = enumerate(zip(inputs[state.input] or (), outputs[at] or (), strict=False))
            axes = tuple(axis for axis, (old, new) in pairs if old != new)
            grown.append(state._replace(grows=axes))
        made = net._model.keeping(grown)
        if made is None:
            return None
        return made, [r for r in rooms_of(net.inputs, grown) if r.length in made.inputs]

    def run(
        self, given: Mapping[str, Array], states: States
    ) -> tuple[list[Array], dict[str, Held]]:
        """Run once; return (all outputs, the new states). `given`: the inputs that are no states,
        by name, checked but for their sizes. Raises as a call of the net, and StateError."""
        if self.rooms:
            states = self._with_room(given, states)
        arrays = self._arrays(given, states)
        session = self._ready(_shapes(arrays), build=True)
        if session is None:
            results = self.net.run(arrays)
            return results, self._taken(results, states, None)
        kept = session.program.brief.kept
        self.torn = len(kept) > len(self.rooms)
        results = session.run_checked(arrays)
        return results, self._taken(results, states, session)

    def _arrays(self, given: Mapping[str, Array], states: States) -> list[Array]:
        """Return the inputs of `net`, in order: given ones, states with their rooms, and for each
        `length` input an array without elements whose shape tells the rows of a state."""
        found: list[Array] = []
        for name in self.net.input_names:
            if name in given:
                found.append(given[name])
            elif name in states:
                found.append(states[name].array)
            else:
                room = self._tells[name]
                rows = states[room.state.input].view.shape[room.axis]
                found.append(np.empty((rows, 0), np.uint8))
        return found

    def _ready(self, shapes: Signature, build: bool = False) -> Session | None:
        """Return the runner's session for these shapes. None where the net's own sessions serve:
        inputs that are no arrays, nets without programs, and, if no state is kept in place, shapes
        that repeat or have a program of their own. None also where no program for the shapes is in
        memory, unless `build`: then it is read or compiled."""
        again = shapes == self._last
        if None in shapes or not self.net.has_programs or (again and not self.keeps):
            return None
        if again:
            return self._session
        self._last, last = None, self._session
        found = None
        if last is not None and last.program.is_sized:
            found = self._resized(last, shapes)
        if found is None:
            program = self.net._programs.known(shapes)
            if program is None and build:
                program = self.net.program(shapes)
            if program is None:
                return None
            if program.is_sized:
                free = cast(SizedProgram, program).free
                found = self._sessions.setdefault(free, Session(program))
                found.resize(program)
            elif self.keeps:
                found = self.net.session(shapes)
        self._session, self._last = found, shapes
        return found

    def _resized(self, session: Session, shapes: Signature) -> Session | None:
        """Change a session to other sizes of its program for free sizes; None if the program does
        not take them."""
        free = cast(SizedProgram, session.program).free
        if self._takes.ranges:
            self._takes.check_signature(shapes)
        program = free.sized(shapes)
        if program is None:
            return None
        session.resize(program)
        return session

    def _taken(
        self, results: list[Array], states: States, session: Session | None
    ) -> dict[str, Held]:
        """Return the states after a run of `session` (None: of one of the net's own). A state that
        the run updated in its room stays there, with the rows that the session's sizes tell; any
        other is its result. Raises StateError for one that does not fit the next run."""
        taken: dict[str, Held] = {}
        for at, state in self._from:
            result, name = results[at], state.input
            room, old = self.rooms.get(name), states[name]
            if room is not None and result is old.array and session is not None:
                rows = session.program.frame.outputs[at][room.axis]
                taken[name] = Held(result, room.axis, rows)
                continue
            if not state.fits(result):
                check_result(self._own.name, state, self._own.inputs[name], result)
            taken[name] = Held(result)
        return taken

    # ---- rooms

    def _with_room(self, given: Mapping[str, Array], states: States) -> States:
        """Return the states in rooms that have space for the rows that this run adds. The present
        rooms are tried, then larger ones, until a program takes these sizes; if none does, the
        sizes are inferred (`_needed`)."""
        shapes = list(_shapes(self._arrays(given, states)))
        rows = self._capacities(states)
        for _ in range(TRIED):
            if self._ready(self._fitted(shapes, rows)) is not None:
                return self._moved(states, rows)
            wider = {symbol: self._capacity(symbol, n) for symbol, n in rows.items()}
            if wider == rows:
                break
            rows = wider
        needed, rows = self._needed(given, states), self._capacities(states)
        rows |= {s: self._capacity(s, n) for s, n in needed.items() if n > rows[s]}
        return self._moved(states, rows)

    def _capacity(self, symbol: str, rows: int) -> int:
        _, most = self._takes.ranges.get(symbol, (0, None))
        return capacity_for(rows, most)

    def _capacities(self, states: States) -> dict[str, int]:
        """Return symbol of a room -> its capacity in rows; for a state that lies in no room yet,
        the capacity of a new room for one row more than the state has."""
        found: dict[str, int] = {}
        for name, room in self.rooms.items():
            held = states[name]
            has = held.array.shape[room.axis]
            if held.rows is None:
                has = self._capacity(room.symbol, has + 1)
            found[room.symbol] = max(found.get(room.symbol, 0), has)
        return found

    def _fitted(self, shapes: Sequence[Any], rows: Mapping[str, int]) -> Signature:
        """Return `shapes` with the capacities `rows`, by symbol, on the axes of rooms."""
        fitted = list(shapes)
        for k, name in enumerate(self.net.input_names):
            if (room := self.rooms.get(name)) is not None:
                dims = fitted[k]
                fitted[k] = (*dims[: room.axis], rows[room.symbol], *dims[room.axis + 1 :])
        return tuple(fitted)

    def _needed(self, given: Mapping[str, Array], states: States) -> dict[str, int]:
        """Return symbol of a room -> rows of its states after this run. Raises InputShapeError."""
        own, arrays = self._own, {**given, **{n: held.view for n, held in states.items()}}
        shapes = _shapes([arrays[name] for name in own.input_names])
        own._takes.check_signature(shapes)
        outputs, needed = own._model.sizes(shapes), dict[str, int]()
        for at, state in self._from:
            room = self.rooms.get(state.input)
            if room is not None:
                needed[room.symbol] = max(needed.get(room.symbol, 0), outputs[at][room.axis])
        return needed

    def _moved(self, states: States, rows: Mapping[str, int]) -> States:
        """Return the states in rooms of the capacities `rows`, copied where these differ."""
        moved = dict(states)
        for name, room in self.rooms.items():
            held, capacity = states[name], rows[room.symbol]
            if held.rows is None or held.array.shape[room.axis] != capacity:
                moved[name] = room.put(held, capacity)
        return moved


def _shapes(arrays: Sequence[Any]) -> Signature:
    """Return the shape of each array; None for an object that is no array."""
    return tuple([getattr(array, "shape", None) for array in arrays])
