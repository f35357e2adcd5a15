"""`load`, `compile` and `save`: from a model (a file, a graph) to a Net and back to a file."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinsmith.codegen.cache import open_cache
from tinsmith.codegen.library import uses_elf
from tinsmith.codegen.target import Target, level, need_runnable
from tinsmith.compiler.carried import carried, origin, program_in
from tinsmith.compiler.collector import still
from tinsmith.compiler.options import (
    BACKENDS,
    MEMORY,
    PRECISIONS,
    Options,
    check_flags,
    check_name,
    check_unused,
    refuse_others,
    whole_threads,
)
from tinsmith.compiler.source import Source
from tinsmith.compiler.store import NOTES, Store, program_of, sections_of
from tinsmith.errors import (
    FileNameError,
    ModelFileError,
    OptionError,
)
from tinsmith.formats.mapped import check_unchanged
from tinsmith.graph import Graph
from tinsmith.graph.copy import with_outputs
from tinsmith.graph.text import graph_weights
from tinsmith.plan.shelf import Shelf
from tinsmith.progress import Told, check_progress, reported, tell
from tinsmith.registry import Registry
from tinsmith.runtime.explanation import Explanation
from tinsmith.runtime.forks import working
from tinsmith.runtime.inputs import Signature
from tinsmith.runtime.limits import calibrated
from tinsmith.runtime.net import Net
from tinsmith.runtime.program import Program

if TYPE_CHECKING:
    from tinsmith.compiler.build import Compilation, Made
    from tinsmith.compiler.carried import Carried
    from tinsmith.formats.container import Container, Draft


def load(path: Any) -> Graph:
    """Read a model of any supported format (recognised by its content) as a Graph.

    Raises ModelFileError, ExternalDataError or ImportFailed.
    """
    with working():
        from tinsmith.frontends import load as load_model

        return load_model(path)


@refuse_others
@still
def compile(
    model: Graph | str | os.PathLike[str],
    *,
    threads: int | None = None,
    backend: str = "cpu",
    target: str | Target | None = None,
    kernels: str | Mapping[str, str] | None = None,
    passes: str | None = None,
    precision: str | None = None,
    memory: str | None = None,
    tune: bool = False,
    cache: bool = True,
    trust: bool = False,
    progress: Callable[[int, int, str], object] | bool | None = None,
) -> Net:
    """Compile a model for this machine.

    threads    of the cpu backend; 1 where nothing is said
    backend    "cpu" (generated code) or "numpy" (the reference of every operator)
    target     "host", or an instruction set this machine has: "amx", "avx512", "avx2", "sse2",
               "scalar"
    kernels    overrides, as TINSMITH_KERNELS: "Conv=reference,layer1.0.conv1=conv_direct"
    passes     which passes run, e.g. "-fuse-elementwise" (see `tinsmith passes`)
    precision  "default", or "strict" (no Strassen, no matrix registers, only small Winograd tiles:
               what rounds less)
    memory     "default", or "small" (no weights that are larger in a kernel than in the model)
    tune       time the near candidates of every kind of layer in the program, once a machine:
               the winners are kept in the cache directory, for this and all models
    cache      keep compiled programs on disk, and use them; TINSMITH_CACHE says where
    trust      run the machine code that a .tin file carries; without it, code is made anew
    progress   a function (done, total, what), called by the compiling thread as "reading",
               "passes", "steps" (nodes that get a kernel) and "kernels" (machine code) go on, also
               where a call compiles for new shapes; what it raises ends the compilation. None: a
               line on standard error, where that is a terminal and it takes longer than 0.3 s.
               False: nothing

    Options left out are those that trusted code was made with. Given ones that differ are refused
    by OptionError, and code of another release or for another machine by UntrustedCode.

    A model of free shapes is compiled at the first call of each shape. A path whose compiled
    program is in the cache is not parsed at all.

    Raises OptionError for a value of another type, UnknownName for a name that there is not,
    PassChoiceError for `passes` that are not understood, TargetError for a number of threads, or
    a target, that cannot be had.
    """
    check_name("backend", backend, BACKENDS)
    for option, name, known in (("precision", precision, PRECISIONS), ("memory", memory, MEMORY)):
        if name is not None:
            check_name(option, name, known)
    check_flags(tune=tune, cache=cache, trust=trust)
    check_progress(progress)
    threads = None if threads is None else whole_threads(threads)
    if not isinstance(model, Graph | str | os.PathLike):
        model = load(model)
    with working():
        forced = (os.environ.get("TINSMITH_KERNELS") or None) if kernels is None else kernels
        if backend == "numpy":
            graph = model if isinstance(model, Graph) else load(model)
            check_unused(graph, forced, passes)
            return _numpy_net(graph)
        asked = {
            "threads": threads, "kernels": forced, "passes": passes, "precision": precision,
            "memory": memory,
        }  # fmt: skip
        given = {name: value for name, value in asked.items() if value is not None}
        return _Model(model, target, given, tune, cache, trust, progress).net()


def machine_of(target: str | Target | None) -> Target:
    """The machine that `compile`'s `target` means. Raises TargetError where its code cannot run."""
    machine = _machine_named(target)
    return machine if isinstance(target, Target) else calibrated(machine)


def _machine_named(target: str | Target | None) -> Target:
    """`machine_of` without the limits, which are measured."""
    if target is not None and not isinstance(target, str | Target):
        raise OptionError(f"target must be a name such as 'avx2', not {target!r}")
    machine = target if isinstance(target, Target) else level(target or "host")
    need_runnable(machine)
    return machine


def save(model: Net | Graph, path: str | os.PathLike[str], *, code: bool = False) -> None:
    """Write a model as a .tin file: the graph as text, and constants that load by mapping.

    With `code` a compiled Net's machine code and packed weights go along; they are used only
    by `compile(path, trust=True)`, on a machine of the same kind. The path must end in `.tin`.
    Raises ModelFileError, FileNameError.
    """
    from tinsmith.formats.container import write_container
    from tinsmith.formats.tin import graph_sections

    if not isinstance(model, Net | Graph):
        raise OptionError(f"save takes a compiled Net or a Graph, not {type(model).__name__}")
    if not isinstance(path, str | os.PathLike):
        raise OptionError(f"save writes to a path, not to {type(path).__name__}")
    if Path(path).suffix.lower() != ".tin":
        raise FileNameError(
            f"save writes Tinsmith's own format, not that of {os.fspath(path)!r}; "
            f"name the file {Path(path).stem + '.tin'!r}"
        )
    check_flags(code=code)
    graph = model if isinstance(model, Graph) else model.source()
    sections = graph_sections(graph)
    if code:
        program = None if isinstance(model, Graph) else model.sections()
        if program is None:
            raise ModelFileError(
                f"{path}: there is no code that can be saved: a graph has none, nor the numpy "
                "backend, and steps by reference that hold a graph or text cannot be written "
                "(net.explain() lists them first; of a model of free shapes, for those last "
                "compiled for, which net.program(shapes) chooses); leave out code=True"
            )
        sections |= program
    try:
        write_container(Path(path), sections)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ModelFileError(f"{str(path)!r} cannot be written: {why}") from error


def _numpy_net(graph: Graph) -> Net:
    from tinsmith.backends.numpy import NumpyProgram

    constants = list(graph_weights(graph, max_inline=0).values())
    program = NumpyProgram(graph, lambda: check_unchanged(constants))

    def none(_: Signature) -> Program:
        raise AssertionError("the numpy backend builds no program")

    def others(names: Sequence[str]) -> Net:
        copy = with_outputs(graph, names)
        copy.sweep()
        return _numpy_net(copy)

    def explain() -> list[Explanation]:
        return [Explanation(n.name, n.op.name, "reference", "backend numpy") for n in graph]

    inputs = {v.name: v.type for v in graph.inputs}
    names = [v.name for v in graph.outputs]
    return Net(
        graph.name, inputs, names, none, lambda _: str(graph), explain, program.run,
        source=lambda: graph, others=others,
    )  # fmt: skip


class _Model:
    """One model with its options: programs from the store, or built and stored. Its methods may
    be called from several threads."""

    def __init__(
        self,
        model: Graph | str | os.PathLike[str],
        target: str | Target | None,
        given: Mapping[str, Any],
        tune: bool,
        cache: bool,
        trust: bool,
        progress: Told | bool | None,
    ) -> None:
        self.model, self.cache, self.progress = model, cache, progress
        # No kernels rather than None, which would ask the environment again.
        self.options = Options(**{"kernels": "", **given})
        self._machine = _machine_named(target)
        self._measured = isinstance(target, Target)
        self.tune = tune
        self._source = Source("" if isinstance(model, Graph) else model)
        self.notes: list[str] = []
        self._made: Compilation | None = None
        self._placed: Callable[[], str] = str
        self._explained: Callable[[], list[Explanation]] = list
        self._last: Container | None = None
        self._lock = threading.RLock()
        self.shelf = Shelf()
        self._sections: dict[Signature, dict[str, Any]] = {}
        self._bundle: Carried | None = None
        found = None if isinstance(model, Graph) else program_in(Path(model))
        if found is not None and not trust:
            self.notes.append(
                f"{model} carries machine code, which was not used: "
                "compile(..., trust=True), or --trust, runs it"
            )
        elif found is not None:
            wanted = {**given, "tune": True} if tune else given
            asked = None if target is None else self._machine
            self._bundle = carried(found, asked, wanted)
            self._machine, self.options = self._bundle.machine, self._bundle.options
            self._source.seen()
        # What trusted code does without: the limits of the machine, and with them the key.
        self.store, self.key = (None, "") if self._bundle else self._keyed()

    @cached_property
    def target(self) -> Target:
        return self._machine if self._measured else calibrated(self._machine)

    def _keyed(self) -> tuple[Store | None, str]:
        if not self.cache or isinstance(self.model, Graph) or _has_foreign_rows():
            return None, ""
        code_cache = open_cache()
        if code_cache is None or not self._source.is_file():  # loading it says so
            return None, ""
        store = Store(code_cache)
        digest = self._source.digest(store)
        return store, store.key(digest, self._source.path.name, self.target, self.options)

    @property
    def compilation(self) -> Compilation:
        with working(), self._lock:
            if self._made is None:
                from tinsmith.compiler.build import Compilation

                self._made = Compilation(self._loaded(), self.target, self.options, self.cache)
            return self._made

    def _loaded(self) -> Graph:
        if isinstance(self.model, Graph):
            return self.model
        tell(0, 1, "reading")
        graph = load(self._source.path)
        self._source.check()
        return graph

    def _telling(self) -> AbstractContextManager[None]:
        name = self.model.name if isinstance(self.model, Graph) else self._source.given
        return reported(self.progress, f"compiling {name}")

    def net(self) -> Net:
        with self._telling():
            return self._net()

    def _net(self) -> Net:
        path = self._source.path
        found = self._bundle.interface if self._bundle else None
        if self.store is not None:
            found = self.store.interface(self.key, path)
        if found is None:
            made = self.compilation
            graph = made.imported
            inputs = {v.name: v.type for v in graph.inputs}
            found = {
                "name": graph.name,
                "inputs": inputs,
                "outputs": [v.name for v in graph.outputs],
                "files": {},
            }
            if self.store is not None:
                files = {str(f) for f in made.files() if f != path}
                found["files"] = self.store.put_interface(
                    self.key, path, found["name"], inputs, found["outputs"], files
                )
        if self.store is not None:
            self.key = self.store.key_with(self.key, found["files"])
            self._source.depends(found["files"])
        net = Net(
            found["name"], found["inputs"], found["outputs"], self.build, self.stage, self.explain,
            notes=self.notes, report=lambda: self.compilation.reports, sections=self.sections,
            source=lambda: self.compilation.imported, others=self.others,
        )  # fmt: skip
        if self._bundle is not None:
            net.program(self._bundle.signature)
        elif all(t.is_static for t in found["inputs"].values()):
            net.program()
        return net

    @still
    def build(self, signature: Signature) -> Program:
        """The program for a signature: carried, stored, or built now."""
        with working(), self._lock, self._telling():
            if self._bundle is not None:
                if signature == self._bundle.signature:
                    self._last = self._bundle.file
                    return program_of(self._bundle.file, self._bundle.machine)
                self.notes.append(
                    f"{self._source.given} carries code for inputs of shape "
                    f"{_text(self._bundle.signature)}; for {_text(signature)} it was compiled anew"
                )
                if self.store is None:
                    self._source.check()
                    self.store, self.key = self._keyed()
            if self.store is not None:
                stored = self.store.get(self.key, signature, self.target)
                if stored is not None and (not self.tune or "tuned" in stored[1]):
                    program, self._last = stored
                    self.shelf.add(program.blobs[0])
                    self.notes += [self._last.text(n) for n in NOTES if n in self._last]
                    return program
            return self._built(signature)

    def _built(self, signature: Signature) -> Program:
        made, draft = self._draft(signature)
        compiled, self._placed, self._explained = made.compiled, made.placed, made.explained
        self._last = None
        program = compiled.program
        notes = {name: note for name in NOTES if (note := getattr(made, name))}
        self.notes += notes.values()
        if self.store is None:
            return program
        sections = self._sections_of(made)
        if sections is not None:
            sections |= {name: note.encode() for name, note in notes.items()}
            if why := self.store.refusal(sections):
                self.notes.append(why)
        if draft is not None:
            self.store.commit(self.key, signature, draft, sections, program.blobs[0])
        elif sections is not None:
            self.store.put(self.key, signature, sections, program.blobs[0])
        return program

    def _sections_of(self, made: Made) -> dict[str, Any] | None:
        """A program, and what `stage` and `explain` tell of it; None where it cannot be written."""
        import json

        found = sections_of(made.compiled.program, made.compiled.code, self.target)
        if found is not None:
            found["placed"] = made.placed().encode()
            found["explain"] = json.dumps([e.to_json() for e in made.explained()]).encode()
        return found

    def _draft(self, signature: Signature) -> tuple[Made, Draft | None]:
        """The program, its weights in the file where it will be stored: mapped, they need not stay
        in memory. Where that cannot be written, they do."""
        draft = None
        if self.store is not None and not self.tune and uses_elf(self.target):
            draft = self.store.draft(self.key, signature)
        if draft is not None:
            try:
                return self.compilation.build(signature, room=draft, shelf=self.shelf), draft
            except OSError:
                draft.discard()
            except BaseException:
                draft.discard()
                raise
        return self.compilation.build(signature, self.tune, shelf=self.shelf), None

    def sections(self, signature: Signature) -> dict[str, Any] | None:
        """The program for a signature as container sections, freshly built."""
        with working(), self._lock:
            found = self._sections_of(self.compilation.build(signature))
            if found is not None:
                found["made"] = origin(self.compilation.imported, self.options, signature)
            return found

    @still
    def others(self, names: Sequence[str]) -> Net:
        """The same model, compiled for other outputs."""
        graph = with_outputs(self.compilation.imported, names)
        return _Model(
            graph, self.target, vars(self.options), self.tune, self.cache, False, self.progress
        ).net()

    def stage(self, name: str) -> str:
        if name == "placed":
            return (
                self._last.text("placed")
                if self._last and "placed" in self._last
                else self._placed()
            )
        made = self.compilation
        return str(made.imported if name == "imported" else made.canonical)

    def explain(self) -> list[Explanation]:
        if self._last is not None and "explain" in self._last:
            return [Explanation(**found) for found in self._last.json("explain")]
        return self._explained()


def _text(signature: Signature) -> str:
    return ", ".join("-" if dims is None else str(list(dims)) for dims in signature)


def _has_foreign_rows() -> bool:
    """Whether another package has registered operators, passes or kernels: what they mean is not
    part of a key, so programs made with them are not kept."""
    return any(table.outside for table in Registry.tables)
