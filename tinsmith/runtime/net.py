"""What `compile` returns: a model that runs, for every shape that it admits."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from tinsmith.errors import (
    InputError,
    InputNameError,
    InputShapeError,
    InputTypeError,
    OptionError,
    TinsmithError,
    UnknownName,
    size_text,
    suggest,
)
from tinsmith.graph import Graph, Holder, OptionalType, SequenceType, Type, compatible, dtype_of
from tinsmith.plan.plan import Memory
from tinsmith.runtime.forks import working
from tinsmith.runtime.program import OfThisProcess, Program, Session

if TYPE_CHECKING:
    from tinsmith.runtime.profile import Profile

Array = np.ndarray[Any, Any]
Signature = tuple[tuple[int, ...] | None, ...]
"""The shape of each input; None for one that is no tensor."""
PLANS, PLAN_BYTES = 16, 1 << 30
"""How many programs of different input shapes a Net keeps, and of how many bytes together."""

BY_NAME = "net(**inputs) takes a dict's arrays by their names"


class Net(OfThisProcess):
    """A compiled model. Calling it is safe from any number of threads: each calling thread has a
    session (its own memory) for each shape; programs and weights are shared.

    `net(x)`, `net(x, y)` or `net(name=x)`; arrays are plain numpy in the model's own layout and
    order. A sequence is a list of arrays, an empty optional None, as inputs and as outputs. One
    output is returned as an array, several as a dict by name.
    """

    def __init__(
        self,
        name: str,
        inputs: Mapping[str, Type],
        outputs: Sequence[str],
        build: Callable[[Signature], Program],
        stages: Callable[[str, Program | None], str],
        explain: Callable[[Program | None], Mapping[str, str]],
        runner: Callable[[Sequence[Array]], list[Array]] | None = None,
        notes: Sequence[str] = (),
        report: Callable[[], Any] = list,
        sections: Callable[[Mapping[Signature, Program]], dict[str, Any] | None] | None = None,
        source: Callable[[], Graph] | None = None,
    ) -> None:
        self.name = name
        self.inputs = dict(inputs)
        self.output_names = list(outputs)
        self.notes = notes if isinstance(notes, list) else list(notes)
        self._build, self._stages, self._explain = build, stages, explain
        self._runner, self._report, self._sections = runner, report, sections
        self._source = source
        self._programs: OrderedDict[Signature, Program] = OrderedDict()
        self._alive: WeakValueDictionary[Signature, Program] = WeakValueDictionary()
        self._lock = threading.Lock()
        self._local = threading.local()
        self._dtypes = [t.dtype for t in self.inputs.values()]
        self._shapes = [t.shape for t in self.inputs.values()]
        self._names = list(self.inputs)
        self._holders = any(isinstance(t, Holder) for t in self.inputs.values())
        self._fixed: Signature | None = None
        if all(t.is_static for t in self.inputs.values()):
            self._fixed = tuple(t.dims for t in self.inputs.values())

    # ---- running

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run once. Raises InputNameError, InputTypeError, InputShapeError."""
        results = self._run(self._arrays(args, kwargs))
        if len(results) == 1:
            return results[0]
        return dict(zip(self.output_names, results, strict=True))

    def run(self, arrays: Sequence[Array] | Mapping[str, Array]) -> list[Array]:
        """The outputs as a list, in order, for one array per input, in order or by name."""
        if isinstance(arrays, Mapping):
            return self._run(self._arrays((), arrays))
        if not isinstance(arrays, list | tuple):
            raise InputTypeError(
                f"run takes a list of arrays, or a dict of them by name, not "
                f"{type(arrays).__name__}; {self.name} itself takes arrays: net(x)"
            )
        return self._run(self._arrays(arrays, {}))

    def _run(self, arrays: Sequence[Array]) -> list[Array]:
        if self._runner is not None:
            return self._runner(arrays)
        return self.session(self._signature(arrays)).run_checked(arrays)

    def _signature(self, arrays: Sequence[Any]) -> Signature:
        if self._fixed is not None:
            return self._fixed
        if not self._holders:
            return tuple([a.shape for a in arrays])
        types = self.inputs.values()
        return tuple(
            None if isinstance(t, Holder) else a.shape for t, a in zip(types, arrays, strict=True)
        )

    def session(self, signature: Signature | None = None) -> Session:
        """The calling thread's session for an input signature (None: the model's own shapes)."""
        signature = self._own_shapes() if signature is None else signature
        try:
            sessions = self._local.sessions
            session = sessions[signature]
            if self._fixed is None:
                sessions.move_to_end(signature)
            return session
        except (AttributeError, KeyError, TypeError):  # lists have no hash
            signature = self._as_signature(signature)
        program = self.program(signature)
        sessions = self._local.__dict__.setdefault("sessions", OrderedDict())
        session = sessions[signature] = program.session()
        _evict(sessions, lambda s: s.program, lambda s: s.nbytes)
        return session

    def program(self, signature: Signature | None = None) -> Program:
        """The program for an input signature; built once, and kept while it is among the last that
        were asked for, or that a thread has called."""
        if self._runner is not None:
            raise TinsmithError(
                f"{self.name} is computed as it was imported, and has no program; leave out"
                " `backend`"
            )
        signature = self._own_shapes() if signature is None else self._as_signature(signature)
        with working(), self._lock:
            program = self._programs.get(signature)
            if program is None:
                self._check_signature(signature)
                program = self._alive.get(signature) or self._build(signature)
                self._alive[signature] = self._programs[signature] = program
                _evict(self._programs, lambda p: p, lambda _: 0)
            self._programs.move_to_end(signature)
            return program

    def program_for(self, /, *args: Any, **kwargs: Any) -> Program:
        """The program for the shapes of these inputs, given, and refused, as in a call."""
        return self.program(self._signature(self._arrays(args, kwargs)))

    def _own_shapes(self) -> Signature:
        """The model's own input shapes; of a model of free shapes, those last compiled for."""
        if self._fixed is not None:
            return self._fixed
        if self._programs:
            return next(reversed(self._programs))
        shown = ", ".join(f"{n}: {t}" for n, t in self.inputs.items())
        raise InputShapeError(
            f"{self.name} has inputs of free shape ({shown}), and nothing is compiled for it "
            "before its first call: call it once, or net.program(((2, 3), ...)) with a shape for "
            "each input"
        )

    def _as_signature(self, shapes: Any) -> Signature:
        """Shapes given as any sequences of whole numbers."""
        try:
            if isinstance(shapes, Mapping | str):
                raise TypeError
            return tuple(None if dims is None else tuple(map(index, dims)) for dims in shapes)
        except TypeError:
            raise InputShapeError(
                f"a program of {self.name} needs a shape, such as (1, 3, 224, 224), for each of "
                f"{', '.join(self._names)} in that order, not {shapes!r}"
            ) from None

    def _check_signature(self, signature: Signature) -> None:
        if len(signature) != len(self._names):
            raise InputShapeError(
                f"{self.name} has {len(self._names)} inputs, shapes are given for {len(signature)}"
            )
        for i, (dims, type_) in enumerate(zip(signature, self.inputs.values(), strict=True)):
            if dims is not None:
                self._check_shape(i, dims)
            elif not isinstance(type_, Holder):
                raise InputShapeError(f"the input {self._names[i]!r} of {self.name} needs a shape")

    # ---- inputs

    def _arrays(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Array]:
        names = self._names
        if kwargs or len(args) != len(names):
            args = self._ordered(args, kwargs)
        arrays = []
        for i, array in enumerate(args):
            if self._holders and isinstance(self.inputs[names[i]], Holder):
                arrays.append(self._held(names[i], array, self.inputs[names[i]]))
                continue
            if (
                type(array) is not np.ndarray
                or (array.dtype is not self._dtypes[i] and not self._native(array.dtype, i))
                or not array.flags.c_contiguous
            ):
                array = self._converted(names[i], array, self._dtypes[i])
            if array.shape != self._shapes[i]:
                self._check_shape(i, array.shape)
            arrays.append(array)
        if self._fixed is None:
            self._check_symbols(arrays)
        return arrays

    def _native(self, dtype: np.dtype[Any], i: int) -> bool:
        return dtype == self._dtypes[i] and dtype.isnative

    def _ordered(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        names = self._names
        wanted = ", ".join(f"{n}: {t}" for n, t in self.inputs.items()) or "no inputs"
        if len(args) > len(names):
            raise InputNameError(f"{self.name} takes {wanted}; {len(args)} arrays are given")
        if len(args) == 1 and isinstance(args[0], Mapping):
            raise InputTypeError(
                f"{self.name} takes {wanted}, not {type(args[0]).__name__}; {BY_NAME}"
            )
        given = dict(zip(names, args, strict=False))
        for key, value in kwargs.items():
            if key not in self.inputs:
                raise InputNameError(
                    f"{self.name} has no input named {key!r}.{suggest(key, names)} "
                    f"It takes {wanted}."
                )
            if key in given:
                raise InputNameError(f"the input {key!r} of {self.name} is given twice")
            given[key] = value
        if missing := [n for n in names if n not in given]:
            raise InputNameError(
                f"{self.name} needs {', '.join(map(repr, missing))}; it takes {wanted}"
            )
        return [given[n] for n in names]

    def _converted(self, name: str, array: Any, wanted: np.dtype[Any]) -> Array:
        if not isinstance(array, np.ndarray):
            type_ = self.inputs.get(name)
            number = isinstance(array, np.generic | int | float | bool)
            if number and type_ is not None and type_.shape == ():
                return self._scalar(name, array, wanted)
            by_name = isinstance(array, Mapping)
            hint = BY_NAME if by_name else "numpy.asarray(...) makes one"
            raise InputTypeError(
                f"the input {name!r} of {self.name} must be a numpy array of {type_ or wanted}, "
                f"not {type(array).__name__}; {hint}"
            )
        native = array.dtype.newbyteorder("=")
        if native != wanted and not (wanted.kind == "O" and array.dtype.kind in "UTSO"):
            raise InputTypeError(
                f"the input {name!r} of {self.name} must have dtype {wanted.name}, not "
                f"{array.dtype.name}; x.astype({wanted.name!r}) converts"
            )
        try:
            return np.ascontiguousarray(array, wanted).reshape(array.shape)
        except MemoryError as error:
            raise InputError(
                f"the input {name!r} of {self.name} is not contiguous, and "
                f"{size_text(array.nbytes)} for a copy cannot be had"
            ) from error

    def _held(self, name: str, given: Any, wanted: Type) -> Any:
        """A sequence or an optional as the graph's references take it."""
        if isinstance(wanted, OptionalType):
            return None if given is None else self._held(name, given, wanted.item)
        if isinstance(wanted, SequenceType):
            if not isinstance(given, list | tuple):
                raise InputTypeError(
                    f"the input {name!r} of {self.name} must be a list of arrays ({wanted}), "
                    f"not {type(given).__name__}"
                )
            return [self._held(f"{name}[{i}]", a, wanted.item) for i, a in enumerate(given)]
        array = self._converted(name, given, wanted.dtype)
        if not compatible(wanted, Type(array.dtype, array.shape)):
            raise InputShapeError(
                f"the input {name!r} of {self.name} must be {wanted}, not {list(array.shape)}"
            )
        return array

    def _scalar(self, name: str, number: Any, wanted: np.dtype[Any]) -> Array:
        """A Python number as an array, if the input's dtype can hold it."""
        try:
            array = np.asarray(number, wanted)
            exact = wanted.kind == "f" or array == number
        except (OverflowError, ValueError, TypeError):
            exact = False
        if not exact:
            raise InputTypeError(
                f"the input {name!r} of {self.name} is {wanted.name}, which cannot hold {number!r}"
            )
        return array

    def _check_shape(self, i: int, dims: tuple[int, ...]) -> None:
        shape = self._shapes[i]
        if shape is None:
            return
        if not _fits(shape, dims):
            name = self._names[i]
            hint = ""
            if len(dims) == 4 and _fits(shape, (dims[0], dims[3], dims[1], dims[2])):
                hint = "; array.transpose(0, 3, 1, 2) fits, if its channels are last"
            elif _fits(shape, (1, *dims)):
                hint = "; array[None] fits: a batch of one"
            raise InputShapeError(
                f"the input {name!r} of {self.name} must have shape "
                f"[{', '.join(map(str, shape))}], not {list(dims)}{hint}"
            )

    def _check_symbols(self, arrays: Sequence[Array]) -> None:
        sizes: dict[str, tuple[int, str]] = {}
        for name, shape, array in zip(self._names, self._shapes, arrays, strict=True):
            if shape is None:
                continue
            for d, n in zip(shape, array.shape, strict=False):
                if isinstance(d, str) and sizes.setdefault(d, (n, name))[0] != n:
                    first, where = sizes[d]
                    raise InputShapeError(
                        f"the dimension {d!r} of {self.name} is {first} in {where!r} and "
                        f"{n} in {name!r}"
                    )

    # ---- telling

    @property
    def has_programs(self) -> bool:
        """Whether it is computed by programs, rather than as it was imported."""
        return self._runner is None

    @property
    def outputs(self) -> dict[str, Type]:
        """Name -> type of the outputs; for free shapes, those last compiled for."""
        if self._runner is not None:
            return {v.name: v.type for v in self.source().outputs}
        plan = self.program().plan
        found = {
            n: Type(dtype_of(o.dtype), o.dims if o.ref is not None else None)
            for n, o in zip(self.output_names, plan.outputs, strict=True)
        }
        if self._source is not None and any(t.dtype == object for t in found.values()):
            own = {v.name: v.type for v in self._source().outputs}  # text, or what holds tensors
            found = {n: own[n] if isinstance(own[n], Holder) else t for n, t in found.items()}
        return found

    @property
    def memory(self) -> Memory:
        """Planned bytes; see `Memory`."""
        return self.program().plan.memory

    @property
    def report(self) -> Any:
        """What each stage of passes changed: a list of reports (built anew after a warm start)."""
        return self._report()

    def source(self) -> Graph:
        """The graph as it was imported. It must not be edited."""
        assert self._source is not None
        return self._source()

    def sections(self) -> dict[str, Any] | None:
        """The programs that are kept, the last used last, as sections of a .tin file; None where
        they cannot be written. Raises InputShapeError where there are none yet."""
        if self._sections is None:
            return None
        self.program()
        with self._lock:
            programs = dict(self._programs)
        return self._sections(programs)

    def graph(self, stage: str = "imported") -> str:
        """The model's text at a stage: imported, canonical, placed or plan. The last two are of one
        signature, as `explain` is."""
        if stage not in ("imported", "canonical", "placed", "plan"):
            raise UnknownName("stage", stage, ["imported", "canonical", "placed", "plan"])
        if stage == "plan":
            return str(self.program().plan)
        shaped = stage == "placed" and self._runner is None
        return self._stages(stage, self.program() if shaped else None)

    def explain(self, node: str | None = None) -> str:
        """What was fused and why not, which kernels were candidates, which won; for one node (by
        its name in the model) or for all, with the nodes that run in numpy first. Of a model of
        free shapes, for those last compiled for; raises InputShapeError before there are any."""
        found = self._explain(None if self._runner is not None else self.program())
        if node is None:
            unique = list(dict.fromkeys(found.values()))
            unique.sort(key=lambda text: "-> reference" not in text.split("\n")[0])
            return "\n\n".join([*self.notes, *unique])
        if not isinstance(node, str) or node not in found:
            raise UnknownName("node", str(node), found)
        return found[node]

    def profile(self, /, *args: Any, repeat: int = 10, **kwargs: Any) -> Profile:
        """Per-step times over `repeat` runs; a Profile, which prints as a table."""
        from tinsmith.runtime.profile import profile_session

        if isinstance(repeat, bool) or not isinstance(repeat, int) or repeat < 1:
            raise OptionError(f"repeat must be a number from 1, not {repeat!r}")
        arrays = self._arrays(args, kwargs)
        return profile_session(self.session(self._signature(arrays)), arrays, repeat)

    def __repr__(self) -> str:
        shown = ", ".join(f"{n}: {t}" for n, t in self.inputs.items())
        return f"<Net {self.name}({shown}) -> {', '.join(self.output_names)}>"


def _fits(shape: Sequence[str | int], dims: Sequence[int]) -> bool:
    return len(shape) == len(dims) and all(
        isinstance(d, str) or d == n for d, n in zip(shape, dims, strict=True)
    )


def _evict(
    kept: OrderedDict[Signature, Any], program: Callable[[Any], Program], own: Callable[[Any], int]
) -> None:
    """Drop things from the front until the bounds hold; the last one always stays. Counted are the
    bytes that each has of its `own`, and the weights of all their programs, shared ones once."""

    def nbytes() -> int:
        blobs = {b: b.nbytes for k in kept.values() for b in program(k).blobs}
        return sum(blobs.values()) + sum(map(own, kept.values()))

    while len(kept) > 1 and (len(kept) > PLANS or nbytes() > PLAN_BYTES):
        kept.popitem(last=False)
