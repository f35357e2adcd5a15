"""A model with its options: finds or compiles the program for each signature."""

from __future__ import annotations

import json
from _thread import RLock
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from tinsmith import budget
from tinsmith.codegen.host import usable_cores
from tinsmith.compiler.collector import still
from tinsmith.compiler.kept import Stored
from tinsmith.compiler.sections import laters_of, note, tell
from tinsmith.compiler.source import Request
from tinsmith.errors import ModelFileError, TypeRuleError
from tinsmith.plan.shared_weights import SharedWeights
from tinsmith.runtime.forks import working
from tinsmith.runtime.net import Net
from tinsmith.runtime.program import Program
from tinsmith.runtime.programs import Provider

if TYPE_CHECKING:
    from tinsmith.compiler.build import Compilation
    from tinsmith.compiler.free import FreePrograms
    from tinsmith.compiler.later import Parts
    from tinsmith.compiler.sections import Told
    from tinsmith.compiler.takeover import Takeover
    from tinsmith.graph import Graph
    from tinsmith.runtime.explanation import Explanation
    from tinsmith.runtime.free import FreeProgram
    from tinsmith.runtime.inputs import Signature
    from tinsmith.runtime.often import Again, Often
    from tinsmith.runtime.states import State


class Model(Provider):
    """The provider of programs behind a `Net`: finds, reads or compiles the program for each
    signature that comes, with the options of a `Request`. `Provider` tells what methods without a
    docstring do."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.notes = []
        self._stored = Stored(request, self.notes)
        self._options, self._tune = self._stored.options, request.tune
        if (threads := self._options.threads) > (cores := usable_cores()):
            self.notes.append(f"threads: {threads} are more than can run at once, {cores} here")
        self._made: Compilation | None = None
        self._told: WeakKeyDictionary[Program, Told] = WeakKeyDictionary()
        """`Program.base` of a program -> the texts about it."""
        self._built = 0  # how many shapes have a program
        self._lock = RLock()

    @cached_property
    def _free(self) -> FreePrograms:
        """The programs for free sizes; stored ones are read when they are needed."""
        from tinsmith.compiler.free import FreePrograms

        free = FreePrograms(hints=self._options.sizes)
        free.offer(self._stored.free(free.most), self._ready)
        return free

    @cached_property
    def _takeover(self) -> Takeover:
        from tinsmith.compiler.takeover import Takeover

        return Takeover(self._apart, self.notes.append)

    @cached_property
    def _calls(self) -> Often:
        from tinsmith.runtime.often import Often

        return Often(self._again, self._takeover.settle)

    def often(self) -> Often | None:
        if not self._has_both:
            return None
        with self._lock:
            return self._calls

    @property
    def compilation(self) -> Compilation:
        with working(), self._lock:
            if self._made is None:
                from tinsmith.compiler.rooms import kept_in, with_rooms

                graph, states = self._request.graph(), self._request.states
                if states:
                    graph = with_rooms(graph, states)
                self._made = self._compilation(graph)
                self._made.later = self._parts
                self._made.kept = kept_in(graph, states)
            return self._made

    def _compilation(self, graph: Graph) -> Compilation:
        from tinsmith.compiler.build import Compilation

        return Compilation(graph, self._stored.machine, self._options, self._request.cache)

    def net(self) -> Net:
        with self._request.telling():
            return self._net()

    def _net(self) -> Net:
        hints, ranges = self._options.sizes, {}
        found = self._stored.interface(lambda: self.compilation.imported)
        if hints:
            from tinsmith.compiler.hints import check_names, ranges_of

            check_names(hints, found.inputs)
            self._free.dims = [t.shape for t in found.inputs.values()]
            ranges = ranges_of(hints)
        net = Net(found.name, found.inputs, found.outputs, self, ranges)
        if (carried := self._stored.carried) is not None:
            net.program(carried.last)
        elif all(t.is_static for t in found.inputs.values()):
            net.program()
        elif hints and self._options.shapes == "free":
            from tinsmith.compiler.hints import make_typical

            make_typical(net, hints, lambda: self._free.typical(self.compilation))
        return net

    def _ready(self, free: FreeProgram, _: Told) -> None:
        self._bind(free.program, tuple(free.shapes))

    def _bind(self, program: Program, shapes: tuple[Any, ...]) -> None:
        """Connect the `Later` steps of a program that was read from a file with this model, so that
        they can compile further programs."""
        if laters_of(program):
            from tinsmith.compiler.later import bind

            bind(program, self._parts, lambda: self.compilation, shapes, self._stored.keeper.kept)

    @cached_property
    def _parts(self) -> Parts:
        from tinsmith.compiler.later import Parts

        return Parts(self.notes)

    def known(self, signature: Signature) -> Program | None:
        if "_free" not in vars(self) or not self._free.found or self._tune:
            return None  # no program for free sizes is in memory
        with self._lock:
            if self._has_own(signature):
                return None
            found = self._free.known(signature)
            if found is None:
                return None
            self._told[found[0].base] = found[1]
            return found[0]

    def _has_own(self, signature: Signature) -> bool:
        """Whether there is a stored program for exactly this signature that is to run instead of
        one for free sizes."""
        if self._options.shapes == "free":
            return False
        if self._stored.carries(signature):
            return True
        return self._stored.keeps(signature) and self._takeover.may_have(signature)

    @property
    def _has_both(self) -> bool:
        """Whether signatures that come often get programs of their own, besides the one for free
        sizes."""
        return self._options.shapes == "both" and not self._tune

    def _again(self, signature: Signature, seconds: float) -> Program | Again:
        """For `Often`: return the program made for a signature that comes often, or, if it is not
        ready, the number of calls after which to ask again, or NEVER. `seconds`: time of one
        call."""
        found = self._takeover.again(signature, seconds)
        if isinstance(found, int):
            return found
        program, told = found
        self._told[program] = told
        tell(self.notes, told)
        return program

    @still
    def _apart(self, signature: Signature) -> tuple[Program, Told]:
        """Compile the program for this signature alone. `Takeover` calls this on a background
        thread; a `Compilation` is not thread-safe, so a new one is made, not the model's used."""
        with working(), budget.told("compiling this model"):
            made = self._made
            graph = self._request.graph() if made is None else made.imported
            weights = SharedWeights()
            for ref in self._told.keyrefs():
                if (program := ref()) is not None:
                    weights.add(program.blobs[0])
            return self._stored.keeper.fixed(self._compilation(graph), signature, weights)

    @still
    def build(self, signature: Signature) -> Program:
        with working(), self._lock, self._request.telling(), budget.told("compiling this model"):
            found = self._read(signature)
            if found is None and self._stored.carried is not None:
                free = self._free  # the programs of the file come first
                if self._stored.beyond(signature):
                    free.offer(self._stored.kept_free(free.most), self._ready)
                found = self._read(signature)
            try:
                program, told = found or self._new(signature)
            except TypeRuleError as error:
                if asked := self._request.reading.get("input_shapes"):
                    error.add_note(
                        f"input_shapes asks for {asked}, which this node contradicts: most likely "
                        "a size is fixed inside the file; export it with that size free"
                    )
                raise
            self._told[program.base] = told
            self._built += 1
            return program

    def _read(self, signature: Signature) -> tuple[Program, Told] | None:
        """Return a stored program for this signature, or one for free sizes, in memory or stored,
        that takes it, with its texts; None if there is none. With `shapes="free"` the latter is
        looked for first; with "fixed", or when tuning, not at all."""
        policy = self._options.shapes
        found = None
        if policy == "free" and not self._tune:
            found = self._free.program(signature)
        found = found or self._own(signature)
        if found is None and policy == "both" and not self._tune:
            found = self._free.program(signature)
        if found is not None:
            tell(self.notes, found[1])
        return found

    def _own(self, signature: Signature) -> tuple[Program, Told] | None:
        """Return the program for exactly this signature from the file or the store, with its texts;
        None if there is none."""
        found = self._stored.program(signature)
        if found is not None:
            self._bind(found[0], signature)
        return found

    def _leaving_free(self, signature: Signature) -> tuple[Program, Told] | None:
        """Compile a program for free sizes that takes this signature; return it with its texts.
        None where the signature is to get a program of its own, or none for free sizes can be
        made."""
        policy, free = self._options.shapes, self._free
        if self._tune or policy == "fixed" or not free.wants_more:
            return None
        if policy == "both" and not self._built:
            return None
        weights = self._stored.weights
        made = self._stored.keeper.free(free, self.compilation, signature, weights)
        note(self.notes, free.notes)
        if made is None:
            return None
        tell(self.notes, made[1])
        return free.known(signature) or self._leaving_free(signature)

    def _new(self, signature: Signature) -> tuple[Program, Told]:
        found = self._leaving_free(signature)
        if found is not None:
            return found
        begun = perf_counter()
        weights = self._stored.weights
        made = self._stored.keeper.fixed(self.compilation, signature, weights, self._tune)
        self._takeover.price = perf_counter() - begun
        tell(self.notes, made[1])
        return made

    @still
    def others(self, names: Sequence[str]) -> Net:
        with budget.told("compiling this model"):
            from tinsmith.graph.copy import with_outputs

            graph = with_outputs(self.compilation.imported, names)
            return Model(self._again_for(model=graph, fixed={}, reading={}, states=())).net()

    def _again_for(self, **changes: Any) -> Request:
        """Return this model's request with some fields changed; machine and options are those in
        use, also if they came from the file."""
        known = {"target": self._stored.machine, "given": vars(self._options), "trust": False}
        return replace(self._request, **known | changes)

    @still
    def keeping(self, states: Sequence[State]) -> Net | None:
        if self._options.shapes == "fixed" or self._request.states:
            return None
        from tinsmith.compiler.rooms import held_states

        with budget.told("compiling this model"):
            held = held_states(self.compilation.canonical, states)
            if not held:
                return None
            given = {**vars(self._options), "shapes": "free"}
            return Model(self._again_for(given=given, tune=False, states=held)).net()

    def source(self) -> Graph:
        return self.compilation.imported

    def report(self) -> Any:
        return self.compilation.reports

    def sizes(self, signature: Signature) -> list[Any]:
        with working(), self._lock:
            graph = self.compilation.canonical_for(signature)
            return [v.type.shape for v in graph.outputs]

    def sections(self, programs: Mapping[Signature, Program]) -> dict[str, Any] | None:
        from tinsmith.runtime.free import SizedProgram

        with working(), self._lock:
            from tinsmith.compiler.carried import bundle

            graph = self.compilation.imported
            rows = {s: (p, self._told[p]) for s, p in programs.items() if not p.is_sized}
            used = {p.free for p in programs.values() if isinstance(p, SizedProgram)}
            free = {one: told for one, told in self._free.found if one in used}
            last = list(programs)[-1]
            return bundle(graph, self._stored.machine, self._options, rows, free, last)

    def stage(self, name: str, program: Program | None) -> str:
        if name == "placed":
            return "" if program is None else self._told[program.base]("placed")
        made = self.compilation
        return str(made.imported if name == "imported" else made.canonical)

    def explain(self, program: Program | None) -> list[Explanation]:
        if program is None:
            return []
        return self._explained(program, self._told[program.base])

    def _explained(self, program: Program, told: Told) -> list[Explanation]:
        """Return the explanations of a program's steps, and of the programs that its `Later` steps
        run. Raises ModelFileError."""
        try:
            from tinsmith.plain import decode
            from tinsmith.runtime.explanation import Explanation

            found = decode(list[Explanation], json.loads(told("explain")))
        except ValueError as error:
            raise ModelFileError(
                f"{self._request.source.given} has corrupt explanations: {error}"
            ) from error
        for op, _ in program.nodes.values():
            for one in getattr(op, "told", ()):
                found += self._explained(*one)
        return found
