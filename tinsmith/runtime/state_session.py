"""A session that keeps states: what a run gives for them, the next one takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tinsmith.errors import InputError, InputNameError, InputTypeError, StateError, UnknownName
from tinsmith.runtime.free import SizedProgram
from tinsmith.runtime.inputs import Inputs, Signature
from tinsmith.runtime.memory import OfThisProcess
from tinsmith.runtime.session import Session
from tinsmith.runtime.states import Array, check_result, first, sizes_told, states_of

if TYPE_CHECKING:
    from tinsmith.runtime.net import Net


class StateSession(OfThisProcess):
    """A net and its states, from run to run. Use from one thread at a time; any number of sessions
    of one net may run at once.

    `session(x)` takes the inputs that are no states, as the net does, and gives the outputs that
    are none. States may be given by name in any run. Before the first run they are empty where they
    grow, else zeros. A run that fails leaves them as they were.
    """

    def __init__(self, net: Net, wanted: Any) -> None:
        self.net, model = net, net.name
        outputs = {v.name: v.type for v in net.source().outputs}
        self._pairs = states_of(model, net.inputs, outputs, wanted)
        inputs = {s.input for s in self._pairs}
        results = {s.output for s in self._pairs}
        self.input_names = [n for n in net.input_names if n not in inputs]
        """The inputs that each run takes; `output_names`: what it gives."""
        self.output_names = [n for n in net.output_names if n not in results]
        self._states: dict[str, Array] = {}
        types = {n: net.inputs[n] for n in self.input_names}
        self._takes, self._takes_all = Inputs(model, types), net._takes
        self._growing: Session | None = None
        self._last: Signature | None = None
        at = {n: k for k, n in enumerate(net.output_names)}
        self._from = [(at[s.output], s) for s in self._pairs]
        self._shown = [at[n] for n in self.output_names]

    # ---- running

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run once, on inputs in the order of `input_names` or by name. One output comes back as an
        array, several as a dict by name. Raises what a call of the net raises, and StateError."""
        results = self._run(self._named(args, kwargs))
        return results[0] if len(results) == 1 else dict(zip(self.output_names, results))  # noqa: B905

    def run(self, arrays: Sequence[Any] | Mapping[str, Any]) -> list[Array]:
        """The outputs as a list, in the order of `output_names`; inputs are a list or a dict."""
        if isinstance(arrays, Mapping):
            return self._run(self._named((), arrays))
        if not isinstance(arrays, list | tuple):
            raise InputTypeError(
                f"run takes a list of arrays, or a dict of them by name, not "
                f"{type(arrays).__name__}; the session itself takes arrays: session(x)"
            )
        return self._run(self._named(arrays, {}))

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """What is given, by the names of the inputs; the states that are, become the session's."""
        names = self.input_names
        if len(args) > len(names):
            raise InputNameError(
                f"a session of {self.net.name} takes {self._takes or 'no inputs'} in this order, "
                f"and states by name; {len(args)} arrays are given"
            )
        given = dict(zip(names, args, strict=False))
        for name in kwargs:
            if name in given:
                raise InputNameError(f"the input {name!r} of {self.net.name} is given twice")
        given |= kwargs
        if len(given) < len(names) or any(n not in given for n in names):
            self._takes.arrays((), {n: a for n, a in given.items() if n in names})  # says which
        return given

    def _run(self, given: dict[str, Any]) -> list[Array]:
        net, states = self.net, self._states
        if len(states) < len(self._pairs):
            told = sizes_told(net.inputs, {n: a for n, a in given.items() if n in net.inputs})
            told = sizes_told(net.inputs, states) | told
            known = [*states, *given]
            types = net.inputs
            states = states | {
                s.input: first(net.name, s, types[s.input], told)
                for s in self._pairs
                if s.input not in known
            }
        results = self._results({**states, **given})
        kept = {}
        for at, state in self._from:
            result = results[at]
            if not state.fits(result):
                check_result(net.name, state, net.inputs[state.input], result)
            kept[state.input] = result
        self._states = kept
        return [results[at] for at in self._shown]

    def _results(self, given: Mapping[str, Any]) -> list[Array]:
        """All outputs of the net. Where one program takes all sizes, one session runs it for sizes
        that grow from run to run; shapes that come again are the net's affair."""
        net = self.net
        arrays: list[Any] = [given.get(name) for name in net.input_names]
        if len(given) > len(arrays) or not net.has_programs or not self._takes_all.ready(arrays):
            arrays = self._takes_all.arrays((), given)
        shapes = self._takes_all.signature(arrays) if net.has_programs else None
        if shapes is None or shapes == self._last or None in shapes:
            return net.run(arrays)
        self._last = shapes
        session = self._growing
        if session is not None:
            free = cast(SizedProgram, session.program).free
            values = free.values(shapes)
            if values is not None:
                if self._takes_all.ranges:
                    self._takes_all.check_signature(shapes)
                session.resize(free.sized(values))
                return session.run_checked(arrays)
        program = net.session(shapes).program
        if program.is_sized:
            self._growing = Session(program)
        return net.run(arrays)

    # ---- states

    @property
    def states(self) -> dict[str, Array]:
        """Copies of the states by the names of their inputs: what the next run takes. Empty before
        there are any."""
        return {name: array.copy() for name, array in self._states.items()}

    def reset(self, states: Mapping[str, Any] | None = None) -> None:
        """Begin anew, with these states, by the names of their inputs; the others are as before the
        first run. Raises UnknownName for a name that is no state, StateError for what does not fit
        one."""
        if states is not None and not isinstance(states, Mapping):
            raise StateError(f"states are given as a dict of arrays by name, not as {states!r}")
        kept: dict[str, Array] = {}
        names = [s.input for s in self._pairs]
        for name, array in (states or {}).items():
            if name not in names:
                raise UnknownName("state", name, names)
            try:
                (given,) = Inputs(self.net.name, {name: self.net.inputs[name]}).arrays([array], {})
            except InputError as why:
                raise StateError(f"the state {name!r}: {why}") from why
            kept[name] = np.array(given)
        self._states = kept

    def copy(self) -> StateSession:
        """A session of the same net with the same states; each then goes its own way."""
        made = StateSession(self.net, {s.output: s.input for s in self._pairs})
        made.reset(self._states)
        return made

    def __repr__(self) -> str:
        states = ", ".join(f"{s.output} -> {s.input}" for s in self._pairs)
        return f"<Session of {self.net.name}, keeping {states}>"
