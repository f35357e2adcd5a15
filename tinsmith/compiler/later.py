"""Programs for the parts of a model whose sizes depend on data, made while the model runs.

A `Later` runs one Part node that `cut` made. When it is called, its inputs have been computed, so
their shapes, and elements from which sizes are computed, are known numbers. It compiles programs in
which these numbers are free (`free.FreePrograms`), so that other numbers seldom need another. Where
none can be made, the part runs by the references of its nodes; if its sizes contradict each other,
a reference raises the error.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.compiler.free import Found, FreePrograms, Read
from tinsmith.compiler.keeping import Keeper
from tinsmith.compiler.sections import Told, laters_of, tell
from tinsmith.errors import ModelFileError, OutOfMemory, PlanError, TypeRuleError
from tinsmith.formats.mapped import check_unchanged
from tinsmith.graph import Array, Graph, Node
from tinsmith.graph.text import weights_in
from tinsmith.ops.control import Part
from tinsmith.plan.shared_weights import SharedWeights
from tinsmith.runtime.inputs import Signature
from tinsmith.runtime.later import Cycles, LaterStep
from tinsmith.runtime.program import Program
from tinsmith.runtime.session import Session

if TYPE_CHECKING:
    from tinsmith.compiler.build import Compilation
    from tinsmith.compiler.kept import Kept
    from tinsmith.runtime.free import FreeProgram

SESSIONS = 64
"""Sets of sizes for which a thread keeps a session; the sessions share memory. Estimated."""
MOST = 12
"""Programs for free sizes that a part has at most: counts of 0 and 1 have their own. Estimated."""
TRIES = 64
"""Sets of sizes of which it is remembered that no program takes them. Estimated."""


class Parts:
    """State shared by all `Later` steps of one model: a lock, packed weights, and the net's
    notes."""

    def __init__(self, notes: list[str]) -> None:
        self.lock, self.weights, self.notes = threading.RLock(), SharedWeights(), notes


class Later(LaterStep):
    """A step that computes a Part node whose sizes depend on data: finds or compiles a program when
    they are known. Thread-safe.

    step    the name of the node
    read    inputs, by number, whose elements are used as sizes in the part
    stored  the numbers of its programs in the file from which the step was read
    """

    name, traits = Part.name, Part.traits

    def __init__(self, step: str, read: Iterable[int], stored: Sequence[int] = ()) -> None:
        self.step, self.read, self.stored = step, frozenset(read), tuple(stored)
        self.free = FreePrograms(MOST, read=self.read)
        self._noted = False
        self._made: dict[tuple[int, ...], Compilation] = {}
        self._refused: OrderedDict[Signature, str] = OrderedDict()
        self._local = threading.local()

    def bind(self, parts: Parts, find: Callable[[], tuple[Node, Compilation]]) -> None:
        """Connect the step with its model, before the first call: `parts` is shared by all such
        steps; `find` returns the Part node and the compilation of the surrounding model, and is
        called when a program must be made."""
        self._parts, self._find = parts, find
        self._keeper = Keeper(parts.notes.append)

    def offer(self, stored: Iterable[Read]) -> None:
        """Add functions that read stored programs. They are called when no program in memory takes
        the sizes of a call."""
        self.free.offer(stored, self._ready)

    def keep(self, kept: Kept) -> None:
        """From now on, read this step's programs from `kept`, and write new ones there."""
        self._keeper.kept = kept
        self.offer(partial(kept.free, k) for k in range(MOST))

    def _ready(self, free: FreeProgram, told: Told) -> None:
        """Connect the `Later` steps of a stored program with this model. Raises ModelFileError for
        a program that is not for this step."""
        if len(free.shapes) <= max(self.read, default=-1):
            raise ModelFileError(f"{self.step}: a stored program is not for this step")
        inside = partial(self._compilation, tuple(free.shapes))
        bind(free.program, self._parts, inside, tuple(free.shapes), self._keeper.kept)
        self._parts.weights.add(free.program.blobs[0])
        tell(self._parts.notes, told)

    @cached_property
    def _whole(self) -> tuple[Graph, list[Array], Compilation]:
        """(the part's graph, its constants, the compilation of the surrounding model)."""
        node, around = self._find()
        body: Graph = node.attrs["body"]
        return body, weights_in([body]), around

    def evaluate(self, arrays: tuple[Any, ...], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the part's results for its inputs `arrays`; as `LaterStep.run`, without times.
        `attrs` is not used."""
        return self.run(arrays, None)

    def run(self, arrays: Sequence[Any], cycles: Cycles | None) -> tuple[Any, ...]:
        signature = tuple([told_by(a) if k in self.read else a.shape for k, a in enumerate(arrays)])
        found = self._session(signature)
        if found is None:
            from tinsmith.ops.interpret import run_graph

            body, weights, _ = self._whole
            check_unchanged(weights)
            results = tuple([np.array(a) for a in run_graph(body, arrays)])
            self._note(self._refused.get(signature, ""))
            return results
        session, empty = found
        given = [
            empty[k] if k in empty else a if a.flags.c_contiguous else np.ascontiguousarray(a)
            for k, a in enumerate(arrays)
        ]
        if cycles is not None:
            cycles.later[self] = session.program
        return tuple(session.run_checked(given, cycles))

    def every(self) -> list[Found]:
        """Return all its programs, after reading those that are stored."""
        with self._parts.lock:
            return self.free.every()

    @property
    def told(self) -> list[tuple[Program, Told]]:
        """Each program in memory, with the texts about it."""
        return [(free.program, told) for free, told in self.free.found]

    def _session(self, signature: Signature) -> tuple[Session, dict[int, Array]] | None:
        """Return (this thread's session for a signature, number of an input in `read` -> the array
        to pass instead: its shape passes the numbers (`told_by`)); None if no program takes the
        signature."""
        try:
            sessions = self._local.sessions
        except AttributeError:
            sessions = self._local.sessions = OrderedDict()
        found = sessions.get(signature)
        if found is not None:
            sessions.move_to_end(signature)
            return found
        program = self._program(signature)
        if program is None:
            return None
        try:
            empty = {k: np.empty(signature[k] or (), np.bool_) for k in self.read}
        except ValueError:  # numbers beyond what arrays can have
            return None
        found = sessions[signature] = program.thread_session(), empty
        while len(sessions) > SESSIONS:
            sessions.popitem(last=False)
        return found

    def _program(self, signature: Signature) -> Program | None:
        """Find, read or compile the program for a signature. None where none can be made: the
        signature is then remembered with the reason."""
        with self._parts.lock:
            if signature in self._refused:
                return None
            try:
                found = self.free.program(signature)
                while found is None and self.free.wants_more:
                    check_unchanged(self._whole[1])
                    made = self._compilation(signature)
                    self._check(made.canonical, signature)
                    new = self._keeper.free(self.free, made, signature, self._parts.weights)
                    if new is None:
                        break
                    tell(self._parts.notes, new[1])
                    found = self.free.known(signature)
            except (TypeRuleError, PlanError, OutOfMemory) as why:
                self._refuse(signature, str(why))
                return None
            if found is None:
                self._refuse(signature, "; ".join(self.free.notes) or "sizes are free no more")
                return None
            return found[0]

    def _refuse(self, signature: Signature, why: str) -> None:
        self._refused[signature] = why
        if len(self._refused) > TRIES:
            self._refused.popitem(last=False)

    def _note(self, why: str) -> None:
        """Note, once, that the part ran by reference, which is slow, and why."""
        note = f"{self.step}: it runs by reference for some sizes: {why}"
        if not self._noted:
            self._noted = True
            self._parts.notes.append(note)

    def _compilation(self, signature: Signature) -> Compilation:
        """Return the compilation of the part for inputs of the signature's ranks, made once for
        these."""
        from tinsmith.compiler.opened import opened

        ranks = tuple([len(dims or ()) for dims in signature])
        if ranks not in self._made:
            body, _, around = self._whole
            self._made[ranks] = around.inner(opened(body, self.read, signature))
        return self._made[ranks]

    def _check(self, graph: Graph, signature: Signature) -> None:
        """Raise PlanError if dimensions of one name in `graph` have different sizes in `signature`,
        or a fixed dimension has another size there."""
        known: dict[Any, int] = {}
        for v, dims in zip(graph.inputs, signature, strict=True):
            for d, n in zip(v.type.shape or (), dims or (), strict=True):
                if (d if isinstance(d, int) else known.setdefault(d, n)) != n:
                    raise PlanError(f"{self.step}: sizes of one name differ in {signature}")


def later_of(node: Node, around: Compilation) -> Later:
    """Return a new `Later`, already bound, for a Part node in a model that `around` compiles."""
    from tinsmith.compiler.opened import numbers_of_sizes

    made = Later(node.name, numbers_of_sizes(node.attrs["body"]))
    made.bind(around.later, lambda: (node, around))
    return made


def bind(
    program: Program, parts: Parts, compiled: Callable[[], Compilation], shapes: tuple[Any, ...],
    kept: Kept | None,
) -> None:  # fmt: skip
    """Connect the `Later` steps of a program that was read from a file, so that they can compile
    programs that the file lacks, and store them by `kept` (None: not). `compiled` returns the
    compilation of the program's model, when it is needed; `shapes` are those of the program's
    inputs."""

    @cache
    def nodes() -> tuple[dict[str, Node], Compilation]:
        made = compiled()
        return {n.name: n for n in made.place(shapes).nodes if n.op is Part}, made

    def find(step: str) -> tuple[Node, Compilation]:
        named, made = nodes()
        if step not in named:
            raise ModelFileError(f"{step}: there is no such step in the model")
        return named[step], made

    for later in laters_of(program):
        later.bind(parts, partial(find, later.step))
        if kept is not None:
            later.keep(kept.inside(program, later.step))


def told_by(array: Array) -> tuple[int, ...]:
    """Encode the elements of an integer array as a shape, so that they can be free sizes of a
    program: all max(x, 0), then all max(-x, 0). [3, -1] gives (3, 0, 0, 1)."""
    numbers = array.reshape(-1).tolist()
    return tuple([max(n, 0) for n in numbers] + [max(-n, 0) for n in numbers])
