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
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.compiler.cut import counts, numbers_read
from tinsmith.compiler.free import FreePrograms
from tinsmith.compiler.sections import Told
from tinsmith.errors import OutOfMemory, PlanError, TypeRuleError
from tinsmith.formats.mapped import check_unchanged
from tinsmith.graph import Graph, Node, Type, Value
from tinsmith.graph.copy import Copier
from tinsmith.graph.text import nested_weights
from tinsmith.ops import OPS
from tinsmith.ops.interpret import run_graph
from tinsmith.ops.region import Part
from tinsmith.passes.contents import computes_sizes
from tinsmith.runtime.inputs import Signature
from tinsmith.runtime.later import Cycles, LaterStep
from tinsmith.runtime.program import Program
from tinsmith.runtime.session import Session
from tinsmith.sizes import Size

if TYPE_CHECKING:
    from tinsmith.compiler.build import Compilation

Array = np.ndarray[Any, Any]

SESSIONS = 64
"""For how many sets of sizes a thread keeps sessions, which share memory. Estimated."""
MOST = 12
"""How many programs for free sizes a part has at most: counts of 0 and 1 have their own.
Estimated."""
TRIES = 64
"""For how many sets of sizes it is kept that no program takes them. Estimated."""


class Later(LaterStep):
    """What computes a Part node of sizes that only a run tells. Any number of threads may call."""

    name, traits = Part.name, Part.traits

    def __init__(self, node: Node, around: Compilation) -> None:
        self.step, self._noted = node.name, False
        body: Graph = node.attrs["body"]
        self._body, self._around = body, around
        self._read = _numbers_of_sizes(body)
        self._weights = nested_weights([body])
        self._made: dict[tuple[int, ...], Compilation] = {}
        self.free = FreePrograms(MOST)
        self._refused: OrderedDict[Signature, str] = OrderedDict()
        self._local = threading.local()

    def evaluate(self, arrays: tuple[Any, ...], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The results for arrays that lie there until it returns."""
        return self.run(arrays, None)

    def run(self, arrays: Sequence[Any], cycles: dict[int, int] | None) -> tuple[Any, ...]:
        """`evaluate`, with the cycles of its steps, as `Session.run` takes them."""
        signature = tuple([_told(a) if k in self._read else a.shape for k, a in enumerate(arrays)])
        found = self._session(signature)
        if found is None:
            check_unchanged(self._weights)
            results = tuple([np.array(a) for a in run_graph(self._body, arrays)])
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

    @property
    def told(self) -> list[tuple[Program, Told]]:
        """The programs that were made, without numbers, and what is told of each."""
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
            empty = {k: np.empty(signature[k] or (), np.bool_) for k in self._read}
        except ValueError:  # numbers beyond what arrays can have
            return None
        found = sessions[signature] = program.thread_session(), empty
        while len(sessions) > SESSIONS:
            sessions.popitem(last=False)
        return found

    def _program(self, signature: Signature) -> Program | None:
        with self._around.later.lock:
            if signature in self._refused:
                return None
            try:
                found = self.free.program(signature)
                if found is None and self.free.wants_more:
                    check_unchanged(self._weights)
                    made = self._compilation(signature)
                    weights = self._around.later.weights
                    new = self.free.make(
                        made, signature, lambda shapes: made.build(shapes, shared_weights=weights)
                    )
                    if new is not None:
                        self._around.later.tell(new[1])
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
            self._around.later.notes.append(note)

    def _compilation(self, signature: Signature) -> Compilation:
        ranks = tuple([len(dims or ()) for dims in signature])
        if ranks not in self._made:
            self._made[ranks] = self._around.inner(_open(self._body, self._read, signature))
        made = self._made[ranks]
        if not _fits(made.canonical, signature):
            raise PlanError(f"{self._body.name}: sizes of one name differ in {signature}")
        return made


def _told(array: Array) -> tuple[int, ...]:
    """Numbers as a shape that tells them: what each has above 0, then what it has below."""
    numbers = array.reshape(-1).tolist()
    return tuple([max(n, 0) for n in numbers] + [max(-n, 0) for n in numbers])


def _numbers_of_sizes(body: Graph) -> frozenset[int]:
    """The inputs of a part, by number, from whose numbers sizes are computed."""
    wanted: set[Value] = set()
    work = [v for n in body.nodes for k in numbers_read(n) if (v := n.inputs[k]) is not None]
    while work:
        v = work.pop()
        if v in wanted or v.const is not None:
            continue
        if v.producer is None:
            wanted.add(v)
        elif computes_sizes(v.producer):
            work += [x for x in v.producer.inputs if x is not None]
    return frozenset(k for k, v in enumerate(body.inputs) if v in wanted and counts(v))


def _open(body: Graph, read: frozenset[int], signature: Signature) -> Graph:
    """A copy of a part for any sizes of the ranks of a signature: those that the program around it
    tells by formulas have names. Inputs whose numbers are sizes are computed from the shape of an
    empty one."""
    names: dict[Any, str] = {}

    def name(d: Any) -> Any:
        return names.setdefault(d.form, f"f{len(names)}") if isinstance(d, Size) else d

    def freed(v: Value, dims: Sequence[int] | None) -> Type:
        own = v.type.shape
        if own is None:
            own = tuple([f"{v.name}.{axis}" for axis in range(len(dims or ()))])
        return v.type.like(shape=tuple(map(name, own)))

    types = {
        v.name: v.type if k in read else freed(v, dims)
        for k, (v, dims) in enumerate(zip(body.inputs, signature, strict=True))
    }
    graph = Copier(body).copy(types)
    for k in read:
        _tell(graph, k)
    return graph


def _tell(graph: Graph, k: int) -> None:
    """Let an input be computed from the shape of another one, which takes its place: `_told`."""
    v, first = graph.inputs[k], graph.nodes[0]
    dims, n = v.type.dims, v.type.size
    shape = tuple([f"{v.name}.{sign}{i}" for sign in ("more", "less") for i in range(n)])
    told = Value(graph, Type(np.dtype(np.bool_), shape), v.name)

    def add(op: str, *inputs: Any, **attrs: Any) -> Value:
        return OPS[op](*inputs, name=f"{v.name}.{op}", before=first, origin=first.origin, **attrs)

    both = add("Shape", told)
    more, less = (add("Slice", both, [a], [a + n], [0]) for a in (0, n))
    found = add("Reshape", add("Sub", more, less), np.array(dims, np.int64))
    graph.replace(v, found if v.dtype == np.int64 else add("Cast", found, to=v.dtype.name))
    graph.inputs[k] = told


def _fits(graph: Graph, signature: Signature) -> bool:
    """Whether sizes of one name are equal in a signature, and known sizes so."""
    known: dict[Any, int] = {}
    for v, dims in zip(graph.inputs, signature, strict=True):
        for d, n in zip(v.type.shape or (), dims or (), strict=True):
            if (d if isinstance(d, int) else known.setdefault(d, n)) != n:
                return False
    return True
