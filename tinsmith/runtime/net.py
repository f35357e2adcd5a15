"""`Net`, a compiled model for every shape that the model admits, which `compile` returns."""

from __future__ import annotations

from _thread import RLock
from _thread import _local as Local
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from tinsmith.errors import InputShapeError, OptionError, TinsmithError, UnknownName
from tinsmith.graph import Array, Holder, Type, dtype_of
from tinsmith.runtime.forks import working
from tinsmith.runtime.inputs import Inputs, Signature, run_arguments
from tinsmith.runtime.memory import OfThisProcess
from tinsmith.runtime.outputs import arranged, check_apart, check_names, copy_into
from tinsmith.runtime.program import Program
from tinsmith.runtime.programs import Programs, evict, imports_whole
from tinsmith.runtime.session import Session

if TYPE_CHECKING:
    from tinsmith.graph import Graph
    from tinsmith.plan.plan import Memory
    from tinsmith.runtime.explanation import Explanation
    from tinsmith.runtime.often import Often
    from tinsmith.runtime.profile import Profile
    from tinsmith.runtime.programs import Provider
    from tinsmith.runtime.state_session import StateSession
    from tinsmith.runtime.states import Room, State

OTHERS = 4
"""Other sets of outputs (`outputs=` of a call) for which a Net keeps a Net. Estimated."""


class Net(OfThisProcess):
    """A compiled model. Any number of threads may call it: each calling thread has a session (its
    own memory) for each shape; programs and weights are shared.

    `net(x)`, `net(x, y)` or `net(name=x)`. Arrays are plain numpy arrays in the model's own layout
    and order; a sequence is a list of arrays, an empty optional None, as input and as output. One
    output is returned as an array, several as a dict by name.

    `net(x, out=y)` writes the result into the caller's array y, `out={"name": y}` one of several
    outputs; `net(x, outputs=["name"])` computes other values of the model. If the model has inputs
    of these names, use `net.run`, which takes both.
    """

    def __init__(
        self,
        name: str,
        inputs: Mapping[str, Type],
        outputs: Sequence[str],
        model: Provider,
        ranges: Mapping[str, tuple[int, int]] = {},
    ) -> None:
        """`model` provides the programs; `ranges`: name of a free dimension -> (least, largest)."""
        self.name = name
        self.inputs = dict(inputs)
        self.input_names, self.output_names = list(inputs), list(outputs)
        self._model, self.notes = model, model.notes
        self.kept: dict[tuple[State, ...], tuple[Net, list[Room]]] = {}
        """States -> the net that keeps them in place, and their rooms; filled by `Runner`."""
        self._takes = Inputs(name, inputs, ranges)
        self._programs = Programs(model, self._takes)
        self._nets: OrderedDict[tuple[str, ...], Net] = OrderedDict()
        self._lock = RLock()
        self._local = Local()
        # Read by every call.
        self._runner = model.runner
        self._names, self._dtypes = self._takes.names, self._takes.taken
        self._count, self._free = len(self._names), self._takes.fixed is None

    # ---- running

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run once; the class says what goes in and comes out. Raises InputError; OutputError and
        UnknownName for `out` and `outputs`."""
        if not kwargs:
            given: Sequence[Any] = args
        elif args or len(kwargs) != self._count:
            return self._general(args, kwargs)
        else:
            given = [kwargs.get(name) for name in self._names]
        session = self._ready(given)
        if session is None:
            return self._general(args, kwargs)
        results = session.run_checked(given)
        return results[0] if len(results) == 1 else dict(zip(self.output_names, results))  # noqa: B905

    def run(self, /, *given: Any, out: Any = None, **others: Any) -> list[Array]:
        """Run once and return the outputs as a list. `run(arrays)`: one array per input, as a list
        or a dict by name. `run(names, arrays)`: return the values of these names (or nodes' first
        outputs); None: the model's outputs. `out` is as in a call, or a list with an array (or
        None) for each result. Raises as a call."""
        names, arrays = run_arguments(self.name, given, others)
        if names is None and out is None:
            ready: Sequence[Any] = ()
            if not isinstance(arrays, Mapping):
                ready = arrays
            elif len(arrays) == self._count:
                ready = [arrays.get(n) for n in self._names]
            session = self._ready(ready)
            if session is not None and len(ready) == len(arrays):
                return session.run_checked(ready)
        return self._computed(self.checked(arrays), names, out)

    def checked(self, arrays: Any) -> list[Array]:
        """Check inputs, a list or a dict by name; return them in order, as programs take them.
        Raises InputError."""
        by_name = isinstance(arrays, Mapping)
        return self._takes.arrays(*(((), arrays) if by_name else (arrays, {})))

    def _ready(self, arrays: Sequence[Any]) -> Session | None:
        """The fast path of a call: return the calling thread's session for contiguous arrays of the
        right dtypes. None if they need further checks or conversion, the thread has no session
        yet (if shapes are free: for any), or `Often` must handle this call. Raises InputShapeError.
        """
        try:
            sessions = self._local.sessions
        except AttributeError:
            return None
        if len(arrays) != self._count:
            return None
        shapes = []
        for array, dtype in zip(arrays, self._dtypes):  # noqa: B905 - it takes its time
            if (
                type(array) is not np.ndarray
                or array.dtype is not dtype
                or not array.flags.c_contiguous
            ):
                return None
            shapes.append(array.shape)
        signature = tuple(shapes)
        session = sessions.get(signature)
        if not self._free:
            return session
        if session is None:
            session = self._made_session(signature)
        else:
            sessions.move_to_end(signature)
        if session.left == 1:  # `_run` looks
            return None
        session.left -= 1
        return session

    @imports_whole
    def _general(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The slow path of a call: any arguments, all checked."""
        own = {k: kwargs.pop(k) for k in ("out", "outputs") if k in kwargs and k not in self.inputs}
        arrays, wanted = self._takes.arrays(args, kwargs), own.get("outputs")
        results = self._computed(arrays, wanted, own.get("out"))
        names = self.output_names if wanted is None else wanted
        return results[0] if len(results) == 1 else dict(zip(names, results, strict=True))

    @imports_whole
    def _computed(self, arrays: Sequence[Array], wanted: Any, out: Any) -> list[Array]:
        """Run on checked inputs; return the outputs, or the values named in `wanted`, in order. A
        result for which `out` has an array is written into it."""
        names = self.output_names if wanted is None else check_names(self.name, wanted)
        net = self._net_for(names)
        own = net.output_names
        places = (
            range(len(own))
            if wanted is None
            else [own.index(n) if n in own else i for i, n in enumerate(names)]
        )
        if out is None:
            results = net._run(arrays)
        else:
            given = arranged(self.name, names, out)
            check_apart(names, given)
            into: list[Array | None] = [None] * len(own)
            for place, array in zip(places, given, strict=True):
                into[place] = array
            results = net._run(arrays, into)
        return [results[place] for place in places]

    def _run(
        self, arrays: Sequence[Array], into: Sequence[Array | None] | None = None
    ) -> list[Array]:
        """Run on checked inputs; return all outputs, in order. Where `into` has an array, the
        result is written into it."""
        if self._runner is None:
            signature = self._takes.signature(arrays)
            session = self._session(signature)
            session.left -= 1
            if session.left or self._often is None:
                return session.run_checked(arrays, into=into)
            results, own = self._often.run(session, signature, arrays, into)
            if own is not None:
                self._programs.put(signature, own)
                self._local.sessions.pop(signature, None)
            return results
        results = self._runner(arrays)
        if into is None:
            return results
        return [
            found if array is None else copy_into(name, array, found)
            for name, array, found in zip(self.output_names, into, results, strict=True)
        ]

    def _net_for(self, names: Sequence[str]) -> Net:
        """Return a net that computes the values `names`: this one, if all are its outputs."""
        if all(n in self.output_names for n in names):
            return self
        key = tuple(names)
        with working(), self._lock:
            net = self._nets.get(key)
            if net is None:
                net = self._nets[key] = self._model.others(key)
                while len(self._nets) > OTHERS:
                    self._nets.popitem(last=False)
            self._nets.move_to_end(key)
            return net

    @overload
    def session(self, signature: Signature | None = None) -> Session: ...
    @overload
    def session(self, *, states: Mapping[str, str] | Literal[True, "auto"]) -> StateSession: ...

    def session(self, signature: Signature | None = None, *, states: Any = None) -> Any:
        """Return the calling thread's session for an input signature (None: as for `program`). With
        `states` instead: a new session that passes outputs to inputs of its next run. States are
        {output: input, ...}, or True to find them by the names that exporters use. Raises
        InputShapeError, StateError, UnknownName, OptionError."""
        if states is None:
            return self._session(signature)
        from tinsmith.runtime.state_session import StateSession

        if signature is not None:
            raise OptionError("a session with states takes all shapes: leave out the signature")
        return StateSession(self, states)

    def _session(self, signature: Signature | None) -> Session:
        signature = self._own_shapes() if signature is None else signature
        try:
            sessions = self._local.sessions
            session = sessions[signature]
            if self._free:
                sessions.move_to_end(signature)
            return session
        except (AttributeError, KeyError, TypeError):  # lists have no hash
            return self._made_session(self._takes.as_signature(signature))

    @imports_whole
    def _made_session(self, signature: Signature) -> Session:
        """Make the calling thread's session for a signature. Raises InputShapeError."""
        program = self._programs.get(signature)
        sessions = self._local.__dict__.setdefault("sessions", OrderedDict())
        session = sessions[signature] = program.thread_session()
        if program.is_sized and self._often is not None:
            self._often.begin(session, signature)
        evict(sessions, lambda s: s.program, lambda s: 0 if s.is_shared else s.nbytes)
        return session

    def program(self, signature: Signature | None = None) -> Program:
        """Return the program for an input signature (None: the model's own shapes; if free, those
        last compiled for), compiled if it is not among those used last. Raises InputShapeError;
        TinsmithError unless `has_programs`."""
        if self._runner is not None:
            raise TinsmithError(
                f"{self.name} is computed as it was imported, and has no program; leave out"
                " `backend`"
            )
        signature = self._own_shapes() if signature is None else self._takes.as_signature(signature)
        return self._programs.get(signature)

    @cached_property
    def _often(self) -> Often | None:
        return self._model.often()

    def settle(self) -> None:
        """Wait until no programs are being compiled in the background; they are used within the
        next calls of their signatures (`shapes` of `compile`)."""
        if self._often is not None:
            self._often.settle()

    def program_for(self, /, *args: Any, **kwargs: Any) -> Program:
        """Return the program for the shapes of inputs, given and checked as in a call. Compiles
        and raises as `program` does."""
        return self.program(self._takes.signature(self._takes.arrays(args, kwargs)))

    def _own_shapes(self) -> Signature:
        """Return the model's own input shapes; if they are free, those it was last compiled for,
        else InputShapeError is raised."""
        if self._takes.fixed is not None:
            return self._takes.fixed
        if (last := self._programs.last) is not None:
            return last
        shapes = self._takes.example()
        raise InputShapeError(
            f"{self.name} has inputs of free shape ({self._takes}), and nothing is compiled for it "
            "before its first call: call it once, or give a shape for each input, such as "
            f"net.session({shapes}) or net.program({shapes})"
        )

    # ---- reporting

    @property
    def has_programs(self) -> bool:
        """Whether programs compute the model, not a backend that computes whole graphs."""
        return self._runner is None

    @property
    def outputs(self) -> dict[str, Type]:
        """Name -> type of the outputs. If shapes are free, for the signature whose program was last
        looked up: a call with shapes that its thread has called with before does not count. Raises
        InputShapeError if there is none yet. Unless `has_programs`: as the model declares them."""
        if self._runner is not None:
            return {v.name: v.type for v in self.source().outputs}
        plan = self.program().plan
        found = {
            n: Type(dtype_of(o.dtype), o.dims if o.ref is not None else None)
            for n, o in zip(self.output_names, plan.outputs, strict=True)
        }
        if any(t.dtype == object for t in found.values()):
            own = {v.name: v.type for v in self.source().outputs}  # text, or what holds tensors
            found = {n: own[n] if isinstance(own[n], Holder) else t for n, t in found.items()}
        return found

    @property
    def memory(self) -> Memory:
        """The planned bytes of `program()`."""
        return self.program().plan.memory

    @property
    def report(self) -> Any:
        """A list of what each stage of passes changed. After a warm start the passes run for it."""
        return self._model.report()

    def source(self) -> Graph:
        """Return the graph as it was imported. Do not edit it."""
        return self._model.source()

    def sections(self) -> dict[str, Any] | None:
        """Return the programs that the net has as sections of a .tin file; None if they cannot be
        written. Raises InputShapeError if there are none yet."""
        if self._runner is not None:
            return None
        self.program()
        return self._model.sections(self._programs.kept())

    def graph(self, stage: str = "imported") -> str:
        """Return the model as text at a stage: imported, canonical, placed or plan. The last two
        are those of `program()`. Raises UnknownName."""
        if stage not in ("imported", "canonical", "placed", "plan"):
            raise UnknownName("stage", stage, ["imported", "canonical", "placed", "plan"])
        if stage == "plan":
            return str(self.program().plan)
        shaped = stage == "placed" and self._runner is None
        return self._model.stage(stage, self.program() if shaped else None)

    def explain(self, node: str | None = None) -> str:
        """Return a text about one node (by its name in the model) or all, those that run in numpy
        first: what was fused and why not, which kernels were candidates, which was chosen; of
        `program()`, if there is one. Raises UnknownName, InputShapeError."""
        texts = dict.fromkeys(map(str, self.explanations(node)))
        if node is None and self._runner is None and self._takes.fixed is None:
            program = self.program()
            shapes = ", ".join(f"{p.name} {list(p.dims)}" for p in program.plan.inputs)
            takes = program.takes or f"a program for these sizes alone: {shapes}"
            texts = {f"shapes: {takes}": None, **texts}
        return "\n\n".join([*self.notes, *texts] if node is None else texts)

    def explanations(self, node: str | None = None) -> list[Explanation]:
        """The explanations that `explain` prints, as data. Raises the same."""
        found = self._model.explain(None if self._runner is not None else self.program())
        if node is None:
            return sorted(found, key=lambda one: one.kernel != "reference")
        from tinsmith.runtime.explanation import by_name

        named = by_name(found)
        if not isinstance(node, str) or node not in named:
            raise UnknownName("node", str(node), named)
        return [named[node]]

    def profile(self, /, *args: Any, repeat: int = 10, **kwargs: Any) -> Profile:
        """Run at least `repeat` times, and for a few milliseconds, on inputs given as in a call;
        return the median time of each step as a Profile, which prints as a table. Raises as a call,
        and OptionError for a wrong `repeat`."""
        from tinsmith.runtime.profile import profile_session

        if isinstance(repeat, bool) or not isinstance(repeat, int) or repeat < 1:
            raise OptionError(f"repeat must be a number from 1, not {repeat!r}")
        arrays = self._takes.arrays(args, kwargs)
        return profile_session(self.session(self._takes.signature(arrays)), arrays, repeat)

    def _repr_html_(self) -> str:
        from tinsmith.html import table

        rows = [("input", name, type_) for name, type_ in self.inputs.items()]
        known = self.outputs if self._programs.last is not None else {}
        rows += [("output", name, known.get(name, "")) for name in self.output_names]
        return table(f"Net {self.name}", ["", "name", "type"], rows, left=["name", "type"])

    def __repr__(self) -> str:
        return f"<Net {self.name}({self._takes}) -> {', '.join(self.output_names)}>"
