"""The programs that a net keeps, and the interface of the model that provides them."""

from __future__ import annotations

import sys
from _thread import RLock
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar
from weakref import WeakValueDictionary

from tinsmith.errors import NestedCompilation
from tinsmith.runtime.forks import working
from tinsmith.runtime.inputs import Inputs, Signature
from tinsmith.runtime.program import Program

if TYPE_CHECKING:
    from tinsmith.graph import Graph
    from tinsmith.runtime.explanation import Explanation
    from tinsmith.runtime.net import Net
    from tinsmith.runtime.often import Often
    from tinsmith.runtime.states import State

P = ParamSpec("P")
R = TypeVar("R")

PLANS, PLAN_BYTES = 16, 1 << 30
"""Programs for different signatures that a Net keeps at most, and their bytes. Estimated."""
SIZED = 64
"""Entries at most of a cache that also holds `SizedProgram`s, which take little memory.
Estimated."""


class Provider(Protocol):
    """What a `Net` needs of the model that it runs; `compiler/model.py` has the main one. Methods
    may be called from several threads. The defaults here suit a model that builds a program for
    each signature, and no more.

    notes   lines of text that `Net.explain` prints first; more may be added at any time
    runner  a function from checked inputs to outputs, if the model has no programs; else None
    """

    notes: list[str]
    runner: Callable[[Sequence[Any]], list[Any]] | None = None

    def build(self, signature: Signature) -> Program:
        """Return the program for a signature: read from disk, or compiled."""
        ...

    def known(self, signature: Signature) -> Program | None:
        """Return a program for the signature from one for free sizes that is in memory; None if
        none takes it, or a program for this signature alone is to run."""
        return None

    def often(self) -> Often | None:
        """Return the counter of calls, by which signatures that come often get programs of their
        own; None if they do not."""
        return None

    def source(self) -> Graph:
        """Return the graph as it was imported."""
        ...

    def others(self, names: Sequence[str]) -> Net:
        """Return a net of the same model that computes the values `names` of the graph as it was
        imported; the name of a node means its first output. Raises UnknownName."""
        ...

    def keeping(self, states: Sequence[State]) -> Net | None:
        """Return a net of the same model whose runs update in place those of `states` that can be;
        None if none can."""
        return None

    def sizes(self, signature: Signature) -> list[Any]:
        """Return the outputs' shapes (None: not known) by type inference from a signature."""
        return []

    def sections(self, programs: Mapping[Signature, Program]) -> dict[str, Any] | None:
        """Return programs, the last used last, as sections of a .tin file; None if one cannot be
        written."""
        return None

    def stage(self, name: str, program: Program | None) -> str:
        """Return the text of the graph at a stage, "imported", "canonical" or "placed"; the last is
        the graph of `program`, "" if that is None."""
        ...

    def explain(self, program: Program | None) -> Sequence[Explanation]:
        """Return why each step of `program` is computed as it is; without programs (None), why each
        node of the model is."""
        ...

    def report(self) -> Any:
        """Return the report of each stage of passes."""
        return []


def imports_whole(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator of functions that may import modules: raise NestedCompilation, instead of
    ImportError, if such a module is only half imported, on the same thread, as where a signal
    handler calls."""

    @wraps(function)
    def whole(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except ImportError as error:
            spec = getattr(sys.modules.get(error.name or ""), "__spec__", None)
            if not getattr(spec, "_initializing", False):
                raise
            raise NestedCompilation(
                f"this call needs {error.name}, which is being imported on the same thread, as in "
                "a signal handler: call the net once before, or call it later"
            ) from error

    return whole


class Programs:
    """A cache of a net's programs by signature: those used last, and those that sessions still use.
    Of a program for free sizes only the last signature's is kept: others are found again by
    arithmetic. Thread-safe."""

    def __init__(self, model: Provider, takes: Inputs) -> None:
        self._model, self._takes = model, takes
        self._recent: OrderedDict[Signature, Program] = OrderedDict()
        self._alive: WeakValueDictionary[Signature, Program] = WeakValueDictionary()
        self._sized: dict[Program, Signature] = {}
        """Program for free sizes -> signature of its `SizedProgram` that is kept."""
        self._lock = RLock()  # a signal handler may call the net meanwhile

    @property
    def last(self) -> Signature | None:
        """The signature last given to `get` or `put`; None before."""
        return next(reversed(self._recent), None)

    def kept(self) -> dict[Signature, Program]:
        """Return the programs in the cache, the last used last."""
        with self._lock:
            return dict(self._recent)

    def known(self, signature: Signature) -> Program | None:
        """Return the program for a signature if it is in memory; else None."""
        with self._lock:
            return self._alive.get(signature) or self._model.known(signature)

    def get(self, signature: Signature) -> Program:
        """Return the program for a signature, built if there is none. Raises InputShapeError, and
        the errors of compiling."""
        with working(), self._lock:
            program = self._recent.get(signature) or self._alive.get(signature)
            if program is None:
                if self._takes.ranges:
                    self._takes.check_signature(signature)
                program = self._model.known(signature)
            if program is None:
                self._takes.check_signature(signature)
                program = self._model.build(signature)
            self._put(signature, program)
            return program

    def put(self, signature: Signature, program: Program) -> None:
        """Let `get` return `program` for a signature from now on."""
        with self._lock:
            self._put(signature, program)

    def _put(self, signature: Signature, program: Program) -> None:
        if program.is_sized:
            earlier = self._sized.get(program.base, signature)
            kept = self._recent.get(earlier)
            if kept is not None and kept.is_sized:  # else these sizes have their own by now
                self._recent.pop(earlier, None)
            self._recent[signature], self._sized[program.base] = program, signature
            return
        self._recent.pop(signature, None)
        self._alive[signature] = self._recent[signature] = program
        evict(self._recent, lambda p: p, lambda _: 0)


def evict(
    kept: OrderedDict[Signature, Any], program: Callable[[Any], Program], own: Callable[[Any], int]
) -> None:
    """Drop old entries of the cache `kept` after one was added. `program` gives an entry's program,
    `own` its bytes without weights.

    If the new one's is a `SizedProgram`, the oldest such entry is dropped if there are more than
    SIZED entries. Else the oldest others are dropped until these are at most PLANS, and all entries
    with weights, shared ones once, take at most PLAN_BYTES. The new entry stays. A call in a signal
    handler may change `kept` meanwhile."""
    if program(kept[next(reversed(kept))]).is_sized:
        if len(kept) > SIZED:
            oldest = next(iter(kept))
            if (one := kept.get(oldest)) is None or not program(one).is_sized:
                oldest = next(k for k, one in list(kept.items()) if program(one).is_sized)
            kept.pop(oldest, None)
        return
    alike = [k for k, one in list(kept.items()) if not program(one).is_sized]

    def nbytes() -> int:
        entries = list(kept.values())
        blobs = {b: b.nbytes for one in entries for b in program(one).blobs}
        return sum(blobs.values()) + sum(map(own, entries))

    while len(alike) > 1 and (len(alike) > PLANS or nbytes() > PLAN_BYTES):
        kept.pop(alike.pop(0), None)
