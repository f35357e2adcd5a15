"""The programs of a net: which of them it keeps, and the model that it has them from."""

from __future__ import annotations

from _thread import RLock
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

from tinsmith.runtime.forks import working
from tinsmith.runtime.inputs import Inputs, Signature
from tinsmith.runtime.program import Program

if TYPE_CHECKING:
    from tinsmith.graph import Graph
    from tinsmith.runtime.explanation import Explanation
    from tinsmith.runtime.net import Net
    from tinsmith.runtime.often import Often
    from tinsmith.runtime.states import State

PLANS, PLAN_BYTES = 16, 1 << 30
"""How many programs for different input shapes a Net keeps, and how many bytes of them.
Estimated."""
SIZED = 64
"""For how many sets of sizes it keeps what a program for free sizes computes. Estimated."""


class Provider(Protocol):
    """What a `Net` asks of the model that it runs; `compiler/model.py` has the main one. Its
    methods may be called from several threads. What is defined here holds for classes that derive
    from it: a program is built for each signature, and there is nothing to tell.

    notes   lines of text that `Net.explain` prints first; they may become more
    runner  computes the outputs from checked inputs, if the model has no programs; else None
    """

    notes: list[str]
    runner: Callable[[Sequence[Any]], list[Any]] | None = None

    def build(self, signature: Signature) -> Program:
        """The program for a signature, made where it is not stored."""
        ...

    def known(self, signature: Signature) -> Program | None:
        """An existing program for free sizes, with the sizes of the signature; None if none admits
        these."""
        return None

    def often(self) -> Often | None:
        """What counts calls, so that shapes that come often get programs of their own; None if none
        do."""
        return None

    def source(self) -> Graph:
        """The graph as it was imported."""
        ...

    def others(self, names: Sequence[str]) -> Net:
        """A net of the same model with other outputs. Raises UnknownName."""
        ...

    def keeping(self, states: Sequence[State]) -> Net | None:
        """A net of the same model with states that are kept in place; None where none can be."""
        return None

    def sizes(self, signature: Signature) -> list[Any]:
        """The shapes of the outputs for a signature, as far as types tell."""
        return []

    def sections(self, programs: Mapping[Signature, Program]) -> dict[str, Any] | None:
        """Programs as sections of a .tin file; None where one cannot be written."""
        return None

    def stage(self, name: str, program: Program | None) -> str:
        """The text of the graph at a stage, "imported", "canonical" or "placed"; the last is that
        of `program`, and "" without one."""
        ...

    def explain(self, program: Program | None) -> Sequence[Explanation]:
        """Why each node of a program, or of a model without programs, is computed as it is."""
        ...

    def report(self) -> Any:
        """What each stage of passes changed."""
        return []


class Programs:
    """The programs of a net that were last asked for or called, and those that sessions still use:
    of sized programs the last one of each program for free sizes, as the others are found again by
    arithmetic. Thread-safe."""

    def __init__(self, model: Provider, takes: Inputs) -> None:
        self._model, self._takes = model, takes
        self._recent: OrderedDict[Signature, Program] = OrderedDict()
        self._alive: WeakValueDictionary[Signature, Program] = WeakValueDictionary()
        self._sized: dict[Program, Signature] = {}
        """The signatures of the sized programs that are kept, by their programs for free sizes."""
        self._lock = RLock()  # a signal handler may call the net meanwhile

    @property
    def last(self) -> Signature | None:
        """The signature that was last asked for."""
        return next(reversed(self._recent), None)

    def kept(self) -> dict[Signature, Program]:
        """The programs that are kept, the last used last."""
        with self._lock:
            return dict(self._recent)

    def known(self, signature: Signature) -> Program | None:
        """The program for a signature, if that takes no compilation."""
        with self._lock:
            return self._alive.get(signature) or self._model.known(signature)

    def get(self, signature: Signature) -> Program:
        """The program for a signature, built where there is none. Raises InputShapeError, and what
        compiling raises."""
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
        """Let a program compute a signature from now on."""
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
    """Drop entries of `kept`, oldest first, of the kind of the last one, which stays: of sized
    programs, which have no memory of their own, one if there are more than SIZED entries; of others
    until at most PLANS are left, with at most PLAN_BYTES. Bytes are what `own` gives for each
    entry, and the weights of all their programs, shared ones once. Another call may change `kept`
    meanwhile, in a signal handler."""
    if program(kept[next(reversed(kept))]).is_sized:
        if len(kept) > SIZED:
            kept.pop(next(k for k, one in list(kept.items()) if program(one).is_sized), None)
        return
    alike = [k for k, one in list(kept.items()) if not program(one).is_sized]

    def nbytes() -> int:
        entries = list(kept.values())
        blobs = {b: b.nbytes for one in entries for b in program(one).blobs}
        return sum(blobs.values()) + sum(map(own, entries))

    while len(alike) > 1 and (len(alike) > PLANS or nbytes() > PLAN_BYTES):
        kept.pop(alike.pop(0), None)
