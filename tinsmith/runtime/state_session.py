"""A session that keeps states: outputs of a run that are inputs of the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.errors import InputError, InputNameError, InputTypeError, StateError, UnknownName
from tinsmith.graph import Array
from tinsmith.runtime.inputs import Inputs
from tinsmith.runtime.memory import OfThisProcess
from tinsmith.runtime.rooms import Runner
from tinsmith.runtime.states import Held, first, sizes_told, states_of

if TYPE_CHECKING:
    from tinsmith.runtime.net import Net


class StateSession(OfThisProcess):
    """Runs a net and keeps its states from run to run. Use from one thread at a time; sessions of
    one net may run at once.

    `session(x)` takes the inputs that are no states, as the net does, and returns the outputs that
    are no states. States may be given by name in any run. Before the first run a state is zeros,
    and has size 0 along axes on which it grows. A run that fails leaves states unchanged, or if it
    was overwriting them, all runs raise StateError until `reset`.
    """

    def __init__(self, net: Net, wanted: Any) -> None:
        self.net, model = net, net.name
        outputs = {v.name: v.type for v in net.source().outputs}
        self._pairs = states_of(model, net.inputs, outputs, wanted)
        inputs = {s.input for s in self._pairs}
        results = {s.output for s in self._pairs}
        self.input_names = [n for n in net.input_names if n not in inputs]
        """Names of the inputs that each run takes; `output_names`: of the outputs it returns."""
        self.output_names = [n for n in net.output_names if n not in results]
        self._states: dict[str, Held] = {}
        types = {n: net.inputs[n] for n in self.input_names}
        self._takes = Inputs(model, types)
        self._runner: Runner | None = None
        self._runs = False
        at = {n: k for k, n in enumerate(net.output_names)}
        self._shown = [at[n] for n in self.output_names]

    # ---- running

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run once, on inputs in the order of `input_names` or by name. One output is returned as
        an array, several as a dict by name. Raises as a call of the net, and StateError."""
        results = self._run(self._named(args, kwargs))
        return results[0] if len(results) == 1 else dict(zip(self.output_names, results))  # noqa: B905

    def run(self, arrays: Sequence[Any] | Mapping[str, Any], *others: Any) -> list[Array]:
        """Run once on a list or a dict of inputs; return the outputs as a list, in the order of
        `output_names`."""
        if isinstance(arrays, Mapping) and not others:
            return self._run(self._named((), arrays))
        if others or not isinstance(arrays, list | tuple):
            raise InputTypeError(
                f"run takes a list of arrays, or a dict of them by name, and no names of outputs, "
                f"not {', '.join(type(a).__name__ for a in (arrays, *others))}; the session itself "
                "takes arrays: session(x)"
            )
        return self._run(self._named(arrays, {}))

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return given inputs and states by name, unknown names included. Raises InputNameError,
        also for missing inputs."""
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
        """Return the outputs that are no states. Raises StateError during another run of this
        session, whose memory it would move."""
        if self._runs:
            raise StateError(
                f"a run of {self.net.name} begins before an earlier one of the same session has "
                "ended, in a signal handler or on another thread: give each a session of its own"
            )
        try:
            self._runs = True
            return self._run_alone(given)
        finally:
            self._runs = False

    def _run_alone(self, given: dict[str, Any]) -> list[Array]:
        states, names = self._states, self.input_names
        runner = self._runner
        if runner is None or len(given) > len(names) or len(states) < len(self._pairs):
            states, arrays, runner = self._begun(given)
        else:
            arrays = [given[name] for name in names]
            if not self._takes.ready(arrays):
                arrays = self._takes.arrays(arrays, {})
        if runner.torn:
            raise StateError(
                f"a run of {self.net.name} failed while it overwrote its states: reset() begins "
                "anew, reset(states) from states that are given"
            )
        results, states = runner.run(dict(zip(names, arrays)), states)  # noqa: B905
        self._states = states
        runner.torn = False
        return [results[at] for at in self._shown]

    def _begun(self, given: dict[str, Any]) -> tuple[dict[str, Held], list[Array], Runner]:
        """For a call that gives states, or in which some have no value yet: return (all states, the
        other inputs in order, the runner), all checked."""
        net, types = self.net, self.net.inputs
        own = {name: held.view for name, held in self._states.items()}
        told = sizes_told(types, own)
        told |= sizes_told(types, {n: a for n, a in given.items() if n in types})
        new = {
            s.input: first(net.name, s, types[s.input], told)
            for s in self._pairs
            if s.input not in own and s.input not in given
        }
        checked = net._takes.arrays((), {**own, **new, **given})
        arrays = dict(zip(net.input_names, checked))  # noqa: B905
        if self._runner is None:
            self._runner = Runner(net, self._pairs, checked)
        runner, states = self._runner, dict(self._states)
        for name in (s.input for s in self._pairs if s.input in given or s.input in new):
            copied = runner.keeps and name in given and name not in runner.rooms
            states[name] = Held(np.array(arrays[name]) if copied else arrays[name])
        return states, [arrays[name] for name in self.input_names], runner

    @property
    def net_of_runs(self) -> Net:
        """The net that computes the runs. If a state can be updated in place, it is a variant of
        `net` that does so and takes growing states as whole rooms (`rooms.py`), else `net` itself.
        Raises StateError before the first run."""
        if self._runner is None:
            raise StateError(f"nothing has run in this session of {self.net.name} yet")
        return self._runner.net

    # ---- states

    @property
    def states(self) -> dict[str, Array]:
        """Copies of the states that the next run takes, by the names of their inputs. A state that
        neither `reset` nor a run since has set is left out: it begins as zeros. After a run that
        failed while it was overwriting states, these may be partly overwritten."""
        return {name: held.view.copy() for name, held in self._states.items()}

    def reset(self, states: Mapping[str, Any] | None = None) -> None:
        """Set states, by the names of their inputs, to copies; others are as before the first run.
        Raises UnknownName for a name that is no state, StateError for an array that does not fit.
        """
        if states is not None and not isinstance(states, Mapping):
            raise StateError(f"states are given as a dict of arrays by name, not as {states!r}")
        kept: dict[str, Held] = {}
        names = [s.input for s in self._pairs]
        for name, array in (states or {}).items():
            if name not in names:
                raise UnknownName("state", name, names)
            try:
                (given,) = Inputs(self.net.name, {name: self.net.inputs[name]}).arrays([array], {})
            except InputError as why:
                raise StateError(f"the state {name!r}: {why}") from why
            kept[name] = Held(np.array(given))
        self._states = kept
        if self._runner is not None:
            self._runner.torn = False

    def copy(self) -> StateSession:
        """Return a new session of the same net with copies of the states."""
        made = StateSession(self.net, {s.output: s.input for s in self._pairs})
        made.reset(self.states)
        return made

    def __repr__(self) -> str:
        states = ", ".join(f"{s.output} -> {s.input}" for s in self._pairs)
        return f"<Session of {self.net.name}, keeping {states}>"
