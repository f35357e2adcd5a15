"""Programs for the parts of a model whose sizes are known when what is before them has run.

A `Later` runs one Part node that `cut` made. When it is called, the shapes of what it reads are
numbers; so are those of its inputs from which sizes are computed. It makes one program that leaves
free what the run tells (`free.FreePrograms`), and gives each call the one for its numbers. Where
none can be made, the part runs by the references of its nodes, as where sizes contradict each
other: they then say what is wrong.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.compiler.free import Found, FreePrograms
from tinsmith.compiler.keeping import Keeper
from tinsmith.compiler.sections import Told, laters_of, note, noted
from tinsmith.errors import ModelFileError, OutOfMemory, PlanError, TypeRuleError
from tinsmith.formats.mapped import check_unchanged
from tinsmith.graph import Graph, Node
from tinsmith.graph.text import nested_weights
from tinsmith.ops.control import Part
from tinsmith.plan.shared_weights import SharedWeights
from tinsmith.runtime.inputs import Signature
from tinsmith.runtime.later import Cycles, LaterStep
from tinsmith.runtime.program import Program
from tinsmith.runtime.session import Session

if TYPE_CHECKING:
    from tinsmith.compiler.build import Compilation
    from tinsmith.compiler.kept import Kept

Array = np.ndarray[Any, Any]

SESSIONS = 64
"""For how many sets of sizes a thread keeps sessions, which share memory. Estimated."""
MOST = 12
"""How many programs for free sizes a part has at most: counts of 0 and 1 have their own.
Estimated."""
TRIES = 64
"""For how many sets of sizes it is kept that no program takes them. Estimated."""


class Parts:
    """What the parts of one model that are compiled while it runs have in common."""

    def __init__(self, notes: list[str]) -> None:
        self.lock, self.weights, self.notes = threading.RLock(), SharedWeights(), notes

    def tell(self, told: Told) -> None:
        """Note what is told of a program, once for all."""
        note(self.notes, noted(told))


class Later(LaterStep):
    """Computes a Part node whose sizes only a run tells: makes or finds programs when they are
    known. Any number of threads may call.

    step    the name of the node
    read    the inputs, by number, whose elements become sizes inside
    stored  the numbers of its programs in the file from which it was read
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
        """Set what it shares with other parts of the model, and `find`, which gives its node and
        the compilation of the model around it when a program must be made."""
        self._parts, self._find = parts, find
        self._keeper = Keeper(parts.notes.append)

    def offer(self, stored: Iterable[Callable[[], Found | None]]) -> None:
        """Let these functions read stored programs, when the programs known so far do not take some
        sizes."""
        self.free.offer(partial(self._ready, read) for read in stored)

    def keep(self, kept: Kept) -> None:
        """Find its programs in `kept`, and keep new ones there."""
        self._keeper.kept = kept
        self.offer(partial(kept.free, k) for k in range(MOST))

    def _ready(self, read: Callable[[], Found | None]) -> Found | None:
        """Read a stored program and connect it with this model; None if there is none. Raises
        ModelFileError for one that is not for this step."""
        found = read()
        if found is not None:
            free, told = found
            if len(free.shapes) <= max(self.read, default=-1):
                raise ModelFileError(f"{self.step}: a stored program is not for this step")
            inside = partial(self._compilation, tuple(free.shapes))
            bind(free.program, self._parts, inside, tuple(free.shapes), self._keeper.kept)
            self._parts.weights.add(free.program.blobs[0])
            self._parts.tell(told)
        return found

    @cached_property
    def _whole(self) -> tuple[Graph, list[Array], Compilation]:
        """(the part's graph, its constants, the compilation of the model around it)."""
        node, around = self._find()
        body: Graph = node.attrs["body"]
        return body, nested_weights([body]), around

    def evaluate(self, arrays: tuple[Any, ...], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The results for arrays that lie there until it returns."""
        return self.run(arrays, None)

    def run(self, arrays: Sequence[Any], cycles: dict[int, int] | None) -> tuple[Any, ...]:
        """`evaluate`, with the cycles of its steps, as `Session.run` takes them."""
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
        if isinstance(cycles, Cycles):
            cycles.later[self] = session.program
        return tuple(session.run_checked(given, cycles))

    def every(self) -> list[Found]:
        """All its programs that are known or stored."""
        with self._parts.lock:
            return self.free.every()

    @property
    def told(self) -> list[tuple[Program, Told]]:
        """(program, told) of each program for free sizes that it has in memory."""
        return [(free.program, told) for free, told in self.free.found]

    def _session(self, signature: Signature) -> tuple[Session, dict[int, Array]] | None:
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
                    self._parts.tell(new[1])
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
        """What no program takes runs by reference, which is slow."""
        note = f"{self.step}: it runs by reference for some sizes: {why}"
        if not self._noted:
            self._noted = True
            self._parts.notes.append(note)

    def _compilation(self, signature: Signature) -> Compilation:
        """The compilation of the part for inputs of these ranks."""
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
    """The `Later` of a Part node in a model that is being compiled; `around` is that
    compilation."""
    from tinsmith.compiler.opened import numbers_of_sizes

    made = Later(node.name, numbers_of_sizes(node.attrs["body"]))
    made.bind(around.later, lambda: (node, around))
    return made


def bind(
    program: Program, parts: Parts, compiled: Callable[[], Compilation], shapes: tuple[Any, ...],
    kept: Kept | None,
) -> None:  # fmt: skip
    """Connect the `Later` steps of a program that was read from a file, so that they can compile
    programs that the file lacks. `compiled` gives the compilation of what the program computes,
    when it is needed; `shapes` are those of the program's inputs."""

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
    """Integers as a shape that tells them, without data: max(x, 0) of each, then max(-x, 0) of
    each."""
    numbers = array.reshape(-1).tolist()
    return tuple([max(n, 0) for n in numbers] + [max(-n, 0) for n in numbers])
