"""What the store has of one model, compiled with some options for a machine."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import astuple
from functools import cached_property
from typing import TYPE_CHECKING

from tinsmith.codegen.cache import open_cache
from tinsmith.codegen.host import identity
from tinsmith.compiler.options import machine_of
from tinsmith.compiler.store import Store
from tinsmith.errors import ModelFileError
from tinsmith.registry import Registry
from tinsmith.runtime.program import Program

if TYPE_CHECKING:
    from tinsmith.codegen.target import Target
    from tinsmith.compiler.options import Options
    from tinsmith.compiler.sections import Interface, Told
    from tinsmith.compiler.source import Source
    from tinsmith.formats.container import Draft
    from tinsmith.runtime.free import FreeProgram
    from tinsmith.runtime.inputs import Signature

    Place = Signature | tuple[str, int]
    """What a program is kept under: the shapes that it is for, or "free" and a number."""


class Kept:
    """The programs of one model that the store has: under the contents of all files that it is in,
    which `source` checks from now on."""

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
        """The model as callers see it; None where that is not known, or where a file cannot be
        read, which loading the model says."""
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
        """Whether there is a program for these shapes alone."""
        return self._store.has(self._key, signature)

    def get(self, signature: Signature) -> tuple[Program, Told] | None:
        found = self._store.get(self._key, signature)
        return found if found is not None and isinstance(found[0], Program) else None  # type: ignore[return-value]

    def free(self, number: int) -> tuple[FreeProgram, Told] | None:
        """One of the programs for free sizes, by the number that it was kept under."""
        found = self._store.get(self._key, _free(number))
        return found if found is not None and not isinstance(found[0], Program) else None  # type: ignore[return-value]

    def inside(self, program: Program, step: str) -> Kept:
        """What the store has of the programs that a step of a kept program runs."""
        found = copy(self)
        found._key = self._store.key_with(self._key, {step: program.blobs[0].tag})
        return found

    def room(self, most: int) -> Place | None:
        """A number below `most` under which no program for free sizes is kept."""
        return next((p for p in map(_free, range(most)) if not self._store.has(self._key, p)), None)

    def draft(self, place: Place) -> Draft | None:
        """Where a program's weights may be written while they are packed; None: they cannot."""
        from tinsmith.codegen.library import uses_elf

        return self._store.draft(self._key, place) if uses_elf(self._target) else None

    def put(
        self, place: Place, program: Program | FreeProgram, told: Told, draft: Draft | None = None
    ) -> str:
        """See `Store.put`."""
        return self._store.put(self._key, place, self._target, program, told, draft)


def _free(number: int) -> Place:
    return ("free", number)


def kept_of(source: Source, target: Target | None, options: Options, fixed: str) -> Kept | None:
    """What the store has, and takes, of a model file compiled with these options. `target` None is
    this machine; `fixed` is a text that tells fixed inputs and how the file is read.

    None where nothing can be kept: there is no cache or no such file, or another package has
    registered operators, passes, kernels or importers, of which a key says nothing."""
    if any(table.outside for table in Registry.tables):
        return None
    code_cache = open_cache()
    if code_cache is None or not source.is_file():  # loading it says so
        return None
    return Kept(Store(code_cache), source, target, options, fixed)
