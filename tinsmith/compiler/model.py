"""One model with its options, and its programs: carried by its file, kept by the store, or made
now."""

from __future__ import annotations

import json
import os
from _thread import RLock
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from tinsmith import budget
from tinsmith.backends import DEFAULT
from tinsmith.compiler.collector import still
from tinsmith.compiler.keeping import Keeper
from tinsmith.compiler.kept import Kept, kept_of
from tinsmith.compiler.options import Options, machine_of
from tinsmith.compiler.sections import Interface, laters_of, note, noted
from tinsmith.compiler.source import Source
from tinsmith.errors import ModelFileError, OptionError
from tinsmith.formats.container import is_container
from tinsmith.plan.shared_weights import SharedWeights
from tinsmith.progress import reported, tell
from tinsmith.runtime.forks import working
from tinsmith.runtime.net import Net
from tinsmith.runtime.program import Program

if TYPE_CHECKING:
    from tinsmith.codegen.target import Target
    from tinsmith.compiler.build import Compilation
    from tinsmith.compiler.carried import Carried
    from tinsmith.compiler.free import Found, FreePrograms
    from tinsmith.compiler.later import Parts
    from tinsmith.compiler.sections import Told
    from tinsmith.compiler.takeover import Takeover
    from tinsmith.graph import Graph
    from tinsmith.progress import Listener
    from tinsmith.runtime.explanation import Explanation
    from tinsmith.runtime.inputs import Signature
    from tinsmith.runtime.often import Again, Often
    from tinsmith.runtime.states import State


class Model:
    """What `compile` was asked for. Its methods may be called from several threads."""

    def __init__(
        self,
        model: Graph | str | os.PathLike[str],
        target: str | Target | None,
        given: Mapping[str, Any],
        tune: bool,
        cache: bool,
        trust: bool,
        progress: Listener | bool | None,
        fixed: Mapping[str, Any],
        reading: Mapping[str, Any] = {},
        states: Sequence[State] = (),
    ) -> None:
        self._states = states
        self._model, self._tune, self._cache = model, tune, cache
        self._progress, self._fixed = progress, fixed
        self._reading = {name: value for name, value in reading.items() if value is not None}
        self._is_file = isinstance(model, str | os.PathLike)
        self._source = Source(model if self._is_file else "")  # type: ignore[arg-type]
        self._target = None if target in ("host", "native") else target
        self.notes: list[str] = []
        self._carried = self._found({**given, "tune": True} if tune else given, trust)
        # No kernels rather than None, which would ask the environment again.
        self._options = Options(**{"kernels": "", **given})
        if self._carried is not None:
            self._options = self._carried.options
        elif self._target is not None or self._options.backend != DEFAULT:
            _ = self._machine  # what cannot be had is told now
        # What trusted code does without: the key of the file.
        self._keeper = Keeper(self.notes.append, None if self._carried else self._keep())
        self._made: Compilation | None = None
        self._told: WeakKeyDictionary[Program, Told] = WeakKeyDictionary()
        self._shared_weights = SharedWeights()
        self._built = 0  # how many shapes have a program
        self._lock = RLock()

    @cached_property
    def _machine(self) -> Target:
        if self._carried is not None:
            return self._carried.machine
        return machine_of(self._target, self._options.backend)

    @cached_property
    def _free(self) -> FreePrograms:
        """The programs for free sizes, with those that are stored."""
        from tinsmith.compiler.free import FreePrograms

        free = FreePrograms(hints=self._options.sizes)
        if (made := self._carried) is not None:
            self._offer(free, (partial(made.free_program, k) for k in range(made.free)))
        self._offer_kept(free)
        return free

    @cached_property
    def _takeover(self) -> Takeover:
        from tinsmith.compiler.takeover import Takeover

        return Takeover(self._apart, self.notes.append)

    @cached_property
    def _calls(self) -> Often:
        from tinsmith.runtime.often import Often

        return Often(self._again, self._takeover.settle)

    def _often(self) -> Often:
        with self._lock:
            return self._calls

    def _found(self, wanted: Mapping[str, Any], trust: bool) -> Carried | None:
        """The programs that the file carries, if they are trusted."""
        if not self._is_file or not is_container(self._source.path):
            return None
        from tinsmith.compiler.carried import carried, carrier

        machine = machine_of(self._target, wanted.get("backend", DEFAULT))
        found = carrier(self._source.path)
        if found is None:
            return None
        if not trust:
            self.notes.append(
                f"{self._model} carries machine code, which was not used: "
                "compile(..., trust=True), or --trust, runs it"
            )
            return None
        if self._fixed:
            raise OptionError(
                f"fixed: the machine code that {self._model} carries takes all inputs; compile it "
                "without trust"
            )
        programs = carried(found, None if self._target is None else machine, wanted)
        self._source.seen()
        return programs

    def _keep(self) -> Kept | None:
        if not self._cache or not self._is_file:
            return None
        known = repr(self._states) if self._states else ""
        if self._fixed or self._reading:
            from tinsmith.compiler.fixed import given_key

            known = given_key(self._fixed, self._reading) + known
        target = self._machine if self._target is not None or self._carried else None
        return kept_of(self._source, target, self._options, known)

    @property
    def compilation(self) -> Compilation:
        with working(), self._lock:
            if self._made is None:
                from tinsmith.compiler.build import Compilation
                from tinsmith.compiler.fixed import with_fixed
                from tinsmith.compiler.rooms import kept_in, with_rooms

                graph, _ = with_fixed(self._loaded(), self._fixed)
                if self._states:
                    graph = with_rooms(graph, self._states)
                self._made = Compilation(graph, self._machine, self._options, self._cache)
                self._made.later = self._parts
                self._made.kept = kept_in(graph, self._states)
            return self._made

    def _loaded(self) -> Graph:
        if not self._is_file:
            return self._model  # type: ignore[return-value]
        from tinsmith.frontends import load

        tell(0, 1, "reading")
        graph = load(self._source.path, **self._reading)
        self._source.check()
        return graph

    def _telling(self) -> AbstractContextManager[None]:
        given = self._source.given if self._is_file else self._model.name  # type: ignore[union-attr]
        return reported(self._progress, f"compiling {given}")

    def net(self) -> Net:
        with self._telling():
            return self._net()

    def _net(self) -> Net:
        found, hints, ranges = self._interface(), self._options.sizes, {}
        if hints:
            from tinsmith.compiler.hints import check_names, ranges_of

            check_names(hints, found.inputs)
            self._free.dims = [t.shape for t in found.inputs.values()]
            ranges = ranges_of(hints)
        net = Net(
            found.name, found.inputs, found.outputs, self.build, self.stage, self.explain,
            notes=self.notes, report=lambda: self.compilation.reports, sections=self.sections,
            source=lambda: self.compilation.imported, others=self.others, sized=self.sized,
            often=self._often if self._has_both else None,
            ranges=ranges, keeping=self.keeping, sizes=self.sizes,
        )  # fmt: skip
        if self._carried is not None:
            net.program(self._carried.last)
        elif all(t.is_static for t in found.inputs.values()):
            net.program()
        elif hints and self._options.shapes == "free":
            from tinsmith.compiler.hints import make_typical

            make_typical(net, hints, lambda: self._free.typical(self.compilation))
        return net

    def _interface(self) -> Interface:
        if self._carried is not None:
            return self._carried.interface
        kept = self._keeper.kept
        found = kept.interface() if kept is not None else None
        if found is None:
            graph = self.compilation.imported
            inputs = {v.name: v.type for v in graph.inputs}
            files = self._source.names_of(graph.files)
            found = Interface(graph.name, inputs, [v.name for v in graph.outputs], files)
            if kept is not None:
                kept.put_interface(found)
        return found

    def _offer_kept(self, free: FreePrograms) -> None:
        if (kept := self._keeper.kept) is not None:
            self._offer(free, (partial(kept.free, k) for k in range(free.most)))

    def _offer(self, free: FreePrograms, stored: Iterable[Callable[[], Found | None]]) -> None:
        """Let programs for free sizes be found where they are stored."""

        def ready(read: Callable[[], Found | None]) -> Found | None:
            found = read()
            if found is not None:
                self._bind(found[0].program, tuple(found[0].shapes))
            return found

        free.offer(partial(ready, read) for read in stored)

    def _bind(self, program: Program, shapes: tuple[Any, ...]) -> None:
        """Let the steps of a program that was read be compiled that run programs of their own."""
        if laters_of(program):
            from tinsmith.compiler.later import bind

            bind(program, self._parts, lambda: self.compilation, shapes, self._keeper.kept)

    @cached_property
    def _parts(self) -> Parts:
        from tinsmith.compiler.later import Parts

        return Parts(self.notes)

    def sized(self, signature: Signature) -> Program | None:
        """The program for a signature, if one for free sizes admits it: it costs no compilation."""
        if "_free" not in vars(self) or not self._free.found or self._tune:
            return None  # nor were programs for free sizes asked for before
        with self._lock:
            if self._has_own(signature):
                return None
            found = self._free.known(signature)
            if found is None:
                return None
            self._told[found[0]] = found[1]
            return found[0]

    def _has_own(self, signature: Signature) -> bool:
        """Whether there is a stored program for exactly these shapes, which then runs instead of
        one for free sizes."""
        if self._options.shapes == "free":
            return False
        if self._carried is not None and signature in self._carried.signatures:
            return True
        kept = self._keeper.kept
        return kept is not None and kept.has(signature) and self._takeover.may_have(signature)

    @property
    def _has_both(self) -> bool:
        """Whether shapes that come often get programs of their own besides the free one."""
        return self._options.shapes == "both" and not self._tune

    def _again(self, signature: Signature, seconds: float) -> Program | Again:
        """The own program of a shape that comes often, or when to ask again; see `Often`."""
        found = self._takeover.again(signature, seconds)
        if isinstance(found, int):
            return found
        program, told = found
        self._told[program] = told
        note(self.notes, noted(told))
        return program

    @still
    def _apart(self, signature: Signature) -> tuple[Program, Told]:
        """A program for these shapes alone, made with nothing that other threads use."""
        from tinsmith.compiler.build import Compilation
        from tinsmith.compiler.fixed import with_fixed

        with working(), budget.told("compiling this model"):
            made = self._made
            graph = with_fixed(self._loaded(), self._fixed)[0] if made is None else made.imported
            weights = SharedWeights()
            for ref in self._told.keyrefs():
                if (program := ref()) is not None:
                    weights.add(program.blobs[0])
            apart = Compilation(graph, self._machine, self._options, self._cache)
            return self._keeper.fixed(apart, signature, weights)

    @still
    def build(self, signature: Signature) -> Program:
        """The program for a signature: carried, kept, or made now."""
        with working(), self._lock, self._telling(), budget.told("compiling this model"):
            found = self._known(signature)
            if found is None:
                self._beyond(signature)
                found = (self._known(signature) if self._carried else None) or self._new(signature)
            program, told = found
            self._told[program] = told
            self._built += 1
            return program

    def _known(self, signature: Signature) -> tuple[Program, Told] | None:
        """A program that is stored, for these shapes alone, or for others, too."""
        policy = self._options.shapes
        found = None
        if policy == "free" and not self._tune:
            found = self._free.program(signature)
        found = found or self._own(signature)
        if found is None and policy == "both" and not self._tune:
            found = self._free.program(signature)
        if found is not None:
            note(self.notes, noted(found[1]))
        return found

    def _own(self, signature: Signature) -> tuple[Program, Told] | None:
        """A program for these shapes alone that the file carries, or that is kept."""
        if self._carried is not None and signature in self._carried.signatures:
            found = self._carried.program(signature)
        else:
            kept = self._keeper.kept
            found = kept.get(signature) if kept is not None else None
            if found is None or (self._tune and not found[1]("tuned")):
                return None
            self._shared_weights.add(found[0].blobs[0])
        self._bind(found[0], signature)
        return found

    def _beyond(self, signature: Signature) -> None:
        """Note that the file carries no code for these shapes; what is kept may have it."""
        if self._carried is None:
            return
        shapes = "; ".join([*map(_text, self._carried.signatures), *self._carried.takes])
        self.notes.append(
            f"{self._source.given} carries code for inputs of shape {shapes}; "
            f"for {_text(signature)} it was compiled anew"
        )
        if self._keeper.kept is None:
            self._source.check()
            free = self._free  # those of the file come first
            self._keeper.kept = self._keep()
            self._offer_kept(free)

    def _leaving_free(self, signature: Signature) -> tuple[Program, Told] | None:
        """A program that takes other sizes, too; None where this shape gets one of its own."""
        policy, free = self._options.shapes, self._free
        if self._tune or policy == "fixed" or not free.wants_more:
            return None
        if policy == "both" and not self._built:
            return None
        made = self._keeper.free(free, self.compilation, signature, self._shared_weights)
        note(self.notes, free.notes)
        if made is None:
            return None
        note(self.notes, noted(made[1]))
        return free.known(signature) or self._leaving_free(signature)

    def _new(self, signature: Signature) -> tuple[Program, Told]:
        found = self._leaving_free(signature)
        if found is not None:
            return found
        begun = perf_counter()
        made = self._keeper.fixed(self.compilation, signature, self._shared_weights, self._tune)
        self._takeover.price = perf_counter() - begun
        note(self.notes, noted(made[1]))
        return made

    @still
    def others(self, names: Sequence[str]) -> Net:
        """The same model, compiled for other outputs."""
        with budget.told("compiling this model"):
            from tinsmith.graph.copy import with_outputs

            graph = with_outputs(self.compilation.imported, names)
            given = vars(self._options)
            return Model(
                graph, self._machine, given, self._tune, self._cache, False, self._progress, {}
            ).net()

    @still
    def keeping(self, states: Sequence[State]) -> Net | None:
        """The same model with states that are kept in place (see `with_rooms`); None where it has
        none such, or is compiled for each shape on its own."""
        if self._options.shapes == "fixed" or self._states:
            return None
        from tinsmith.compiler.rooms import held_states

        with budget.told("compiling this model"):
            held = held_states(self.compilation.imported, states)
            if not held:
                return None
            given = {**vars(self._options), "shapes": "free"}
            return Model(
                self._model, self._machine, given, False, self._cache, False, self._progress,
                self._fixed, self._reading, held,
            ).net()  # fmt: skip

    def sizes(self, signature: Signature) -> list[Any]:
        """The shapes of the outputs for a signature, as far as types tell."""
        with working(), self._lock:
            graph = self.compilation.canonical_for(signature)
            return [v.type.shape for v in graph.outputs]

    def sections(self, programs: Mapping[Signature, Program]) -> dict[str, Any] | None:
        """Programs of this model as sections of a .tin file; None where one cannot be written."""
        from tinsmith.runtime.free import SizedProgram

        with working(), self._lock:
            from tinsmith.compiler.carried import bundle

            graph = self.compilation.imported
            rows = {s: (p, self._told[p]) for s, p in programs.items() if not p.is_sized}
            used = {p.free for p in programs.values() if isinstance(p, SizedProgram)}
            free = {one: told for one, told in self._free.found if one in used}
            last = list(programs)[-1]
            return bundle(graph, self._machine, self._options, rows, free, last)

    def stage(self, name: str, program: Program | None) -> str:
        if name == "placed":
            return "" if program is None else self._told[program]("placed")
        made = self.compilation
        return str(made.imported if name == "imported" else made.canonical)

    def explain(self, program: Program | None) -> list[Explanation]:
        if program is None:
            return []
        return self._explained(program, self._told[program])

    def _explained(self, program: Program, told: Told) -> list[Explanation]:
        """What is told of a program, and of those that its steps run."""
        try:
            from tinsmith.plain import decode
            from tinsmith.runtime.explanation import Explanation

            found = decode(list[Explanation], json.loads(told("explain")))
        except ValueError as error:
            raise ModelFileError(
                f"{self._source.given} has corrupt explanations: {error}"
            ) from error
        for op, _ in program.nodes.values():
            for one in getattr(op, "told", ()):
                found += self._explained(*one)
        return found


def _text(signature: Signature) -> str:
    return ", ".join("-" if dims is None else str(list(dims)) for dims in signature)
