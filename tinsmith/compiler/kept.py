"""Programs of a model that exist already: in the store, or carried by its .tin file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import astuple
from functools import cached_property, partial
from typing import TYPE_CHECKING

from tinsmith.backends import DEFAULT
from tinsmith.codegen.cache import open_cache
from tinsmith.codegen.host import identity
from tinsmith.compiler.keeping import Keeper
from tinsmith.compiler.options import Options, machine_of
from tinsmith.compiler.sections import Interface
from tinsmith.compiler.store import Store
from tinsmith.errors import ModelFileError, OptionError
from tinsmith.formats.container import is_container
from tinsmith.plan.shared_weights import SharedWeights
from tinsmith.registry import Registry
from tinsmith.runtime.program import Program

if TYPE_CHECKING:
    from tinsmith.codegen.target import Target
    from tinsmith.compiler.carried import Carried
    from tinsmith.compiler.free import Found
    from tinsmith.compiler.sections import Told
    from tinsmith.compiler.source import Request, Source
    from tinsmith.formats.container import Draft
    from tinsmith.graph import Graph
    from tinsmith.runtime.free import FreeProgram
    from tinsmith.runtime.inputs import Signature

    Place = Signature | tuple[str, int]
    """The name of a program in the store, within its model: its signature, or ("free", number)."""


class Kept:
    """The store's programs of one model file, for given options and machine (`target` None: this
    one). Their key includes `fixed`, which is `Request.known`, and the contents of the model's
    files, which `source` records for its `check`. Raises ModelFileError for an unreadable file."""

    def __init__(
        self, store: Store, source: Source, target: Target | None, options: Options, fixed: str
    ) -> None:
        self._store, self._source, self._asked = store, source, target
        machine = identity() if target is None else ""
        machine = machine or repr(astuple(self._target))
        digest = source.digest(store)
        self._base = self._key = store.key(digest, source.path.name, machine, options, fixed)

    @cached_property
    def _target(self) -> Target:
        return machine_of(self._asked)

    def interface(self) -> Interface | None:
        """Return the stored interface; the further files that it names become part of the key of
        programs. None where none is stored, or a file cannot be read: loading the model then raises
        the error."""
        found = self._store.interface(self._base)
        try:
            self._depend(found.files if found is not None else ())
        except ModelFileError:
            return None
        return found

    def put_interface(self, found: Interface) -> None:
        self._depend(found.files)
        self._store.put_interface(self._base, found)

    def _depend(self, files: Iterable[str]) -> None:
        self._key = self._store.key_with(self._base, self._source.digests(files))

    def has(self, signature: Signature) -> bool:
        """Whether the store has a program for exactly this signature."""
        return self._store.has(self._key, signature)

    def get(self, signature: Signature) -> tuple[Program, Told] | None:
        found = self._store.get(self._key, signature)
        return found if found is not None and isinstance(found[0], Program) else None  # type: ignore[return-value]

    def free(self, number: int) -> tuple[FreeProgram, Told] | None:
        """Return the program for free sizes with a number, and its texts; None if there is none."""
        found = self._store.get(self._key, _free(number))
        return found if found is not None and not isinstance(found[0], Program) else None  # type: ignore[return-value]

    def inside(self, program: Program, step: str) -> Kept:
        """Return the store's programs that the `Later` step named `step` of `program` runs."""
        found = copy(self)
        found._key = self._store.key_with(self._key, {step: program.blobs[0].tag})
        return found

    def room(self, most: int) -> Place | None:
        """Return the first place ("free", number), number < `most`, that is not taken; None if all
        are."""
        return next((p for p in map(_free, range(most)) if not self._store.has(self._key, p)), None)

    def draft(self, place: Place) -> Draft | None:
        """Open a file for a program at `place`, into which weights are written while they are
        packed; None where that is not possible."""
        from tinsmith.codegen.library import uses_elf

        return self._store.draft(self._key, place) if uses_elf(self._target) else None

    def put(
        self, place: Place, program: Program | FreeProgram, told: Told, draft: Draft | None = None
    ) -> str:
        """Store a program at `place`, with its texts `told`; `draft` is from `draft(place)`, if its
        weights are there already. Return a text for the user if it is too large to be kept, else
        ""."""
        return self._store.put(self._key, place, self._target, program, told, draft)


def _free(number: int) -> Place:
    return ("free", number)


def kept_of(source: Source, target: Target | None, options: Options, fixed: str) -> Kept | None:
    """Return the store's `Kept` of a model file. None where programs cannot be kept: there is no
    cache, the file is missing, or code that is neither ours nor an installed extension has
    registered rows (operators, passes, kernels, ...), which are not part of the key. Raises
    ModelFileError for an unreadable file."""
    if any(table.outside for table in Registry.tables):
        return None
    code_cache = open_cache()
    if code_cache is None or not source.is_file():  # loading it says so
        return None
    return Kept(Store(code_cache), source, target, options, fixed)


class Stored:
    """The programs of a model that exist already, in its .tin file (if it is trusted) or in the
    store; and the options and machine for which all its programs are compiled.

    notes    list for lines of text that a net shows
    carried  the programs in the file; None if it has none or is not trusted
    keeper   compiles new programs, and writes them to the store
    weights  packed weights of existing programs, which new ones share
    """

    def __init__(self, request: Request, notes: list[str]) -> None:
        self._request, self.notes = request, notes
        self._target = None if request.target in ("host", "native") else request.target
        self.carried = self._trusted()
        # No kernels rather than None, which would ask the environment again.
        self.options = Options(**{"kernels": "", **request.given})
        if self.carried is not None:
            self.options = self.carried.options
        elif self._target is not None or self.options.backend != DEFAULT:
            _ = self.machine  # raises now for a target that cannot be had
        # Trusted code needs no store, whose key would need a hash of the file.
        self.keeper = Keeper(notes.append, None if self.carried else self._kept())
        self.weights = SharedWeights()

    @cached_property
    def machine(self) -> Target:
        if self.carried is not None:
            return self.carried.machine
        return machine_of(self._target, self.options.backend)

    def _trusted(self) -> Carried | None:
        """Return the programs that the .tin file carries; None if it has none, or is not trusted,
        which is noted. For a trusted one, raises OptionError for `fixed` inputs, and the errors of
        `carried`."""
        request, source = self._request, self._request.source
        if not request.is_file or not is_container(source.path):
            return None
        from tinsmith.compiler.carried import carried, carrier

        wanted = {**request.given, **({"tune": True} if request.tune else {})}
        machine = machine_of(self._target, wanted.get("backend", DEFAULT))
        found = carrier(source.path)
        if found is None:
            return None
        if not request.trust:
            self.notes.append(
                f"{request.model} carries machine code, which was not used: "
                "compile(..., trust=True), or --trust, runs it"
            )
            return None
        if request.fixed:
            raise OptionError(
                f"fixed: the machine code that {request.model} carries takes all inputs; compile "
                "it without trust"
            )
        programs = carried(found, None if self._target is None else machine, wanted)
        source.seen()
        return programs

    def _kept(self) -> Kept | None:
        request = self._request
        if not request.cache or not request.is_file:
            return None
        target = self.machine if self._target is not None or self.carried else None
        return kept_of(request.source, target, self.options, request.known)

    def interface(self, imported: Callable[[], Graph]) -> Interface:
        """Return the names and types of inputs and outputs; `imported` is called for the graph
        where they are not stored."""
        if self.carried is not None:
            return self.carried.interface
        kept = self.keeper.kept
        found = kept.interface() if kept is not None else None
        if found is None:
            graph = imported()
            inputs = {v.name: v.type for v in graph.inputs}
            files = self._request.source.names_of(graph.files)
            found = Interface(graph.name, inputs, [v.name for v in graph.outputs], files)
            if kept is not None:
                kept.put_interface(found)
        return found

    def carries(self, signature: Signature) -> bool:
        """Whether the .tin file, if it is trusted, has a program for exactly this signature."""
        return self.carried is not None and signature in self.carried.signatures

    def keeps(self, signature: Signature) -> bool:
        """Whether the store has a program for exactly this signature."""
        kept = self.keeper.kept
        return kept is not None and kept.has(signature)

    def program(self, signature: Signature) -> tuple[Program, Told] | None:
        """Return the program for exactly this signature, with its texts; None if there is none, or,
        with `tune`, none that was tuned."""
        if self.carried is not None and signature in self.carried.signatures:
            return self.carried.program(signature)
        kept = self.keeper.kept
        found = kept.get(signature) if kept is not None else None
        if found is None or (self._request.tune and not found[1]("tuned")):
            return None
        self.weights.add(found[0].blobs[0])
        if self._request.tune:
            return found
        return found[0], lambda name: "" if name == "tuned" else found[1](name)

    def free(self, most: int) -> Iterator[Callable[[], Found | None]]:
        """Yield functions that each read a program for free sizes (None where there is none), first
        those of the file. `most`: how many of them the store has at most."""
        if (made := self.carried) is not None:
            yield from (partial(made.free_program, k) for k in range(made.free))
        yield from self.kept_free(most)

    def kept_free(self, most: int) -> Iterator[Callable[[], Found | None]]:
        if (kept := self.keeper.kept) is not None:
            yield from (partial(kept.free, k) for k in range(most))

    def beyond(self, signature: Signature) -> bool:
        """Note that the trusted file has no program for a signature, which is therefore compiled.
        Return whether that is the first: from now on the store is used, too, which may have the
        program. If there is no such file, only return False."""
        if self.carried is None:
            return False
        shapes = "; ".join([*map(_text, self.carried.signatures), *self.carried.takes])
        self.notes.append(
            f"{self._request.source.given} carries code for inputs of shape {shapes}; "
            f"for {_text(signature)} it was compiled anew"
        )
        if self.keeper.kept is not None:
            return False
        self._request.source.check()
        self.keeper.kept = self._kept()
        return True


def _text(signature: Signature) -> str:
    return ", ".join("-" if dims is None else str(list(dims)) for dims in signature)
