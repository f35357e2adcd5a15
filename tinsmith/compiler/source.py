"""The request of a caller of `compile`, and the files of its model.

Programs are stored under a hash of these files. A program that is compiled later must come from the
same contents, also if a file was replaced meanwhile: `Source` checks that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinsmith.compiler.store import Store
from tinsmith.errors import ModelFileError
from tinsmith.formats.mapped import State as FileState
from tinsmith.formats.mapped import state_of
from tinsmith.progress import reported, tell
from tinsmith.records import dataclass

if TYPE_CHECKING:
    from tinsmith.codegen.target import Target
    from tinsmith.graph import Graph
    from tinsmith.progress import Listener
    from tinsmith.runtime.states import State


def _check_format(file: Path) -> None:
    from tinsmith.frontends import recognise

    recognise(file)


class Source:
    """The files of a model: its path as given and as absolute, and the state (size, times) and hash
    of each file when it was first read. `check` raises an error if one has changed since."""

    def __init__(self, given: str | os.PathLike[str]) -> None:
        self.given = given
        try:
            self.path = Path(given).absolute()
        except OSError:  # the working directory is gone
            self.path = Path(given)
        self._store: Store | None = None
        self._states: dict[Path, FileState] = {}
        self._digests: dict[Path, str] = {}

    def is_file(self) -> bool:
        try:
            return self.path.is_file()
        except (OSError, ValueError):
            return False  # no path at all

    def seen(self) -> None:
        """Record the present state of the model's file for `check`. Raises ModelFileError."""
        self._see(self.path)

    def digest(self, store: Store) -> str:
        """Return the hash of the model's file, and record it for `check`. Raises ModelFileError."""
        self._store = store
        return self._hashed(self.path, _check_format)

    def digests(self, names: Iterable[str]) -> dict[str, str]:
        """Return name -> hash of further files, named as by `names_of`, and record them for
        `check`. To be called after `digest`. Raises ModelFileError."""
        return {name: self._hashed(self.path.parent / name) for name in names}

    def names_of(self, files: Mapping[Path, FileState]) -> tuple[str, ...]:
        """Return the names of a model's further files, relative to its folder if they lie there.
        `files`: file -> its state when it was read, which is recorded for `check`."""
        home = self.path.parent
        further = sorted(file for file in files if file != self.path)
        self._states |= {file: files[file] for file in further}
        return tuple(str(f.relative_to(home) if f.is_relative_to(home) else f) for f in further)

    def check(self) -> None:
        """Raise ModelFileError if a file is no longer as it was when it was hashed or read."""
        for file, state in self._states.items():
            try:
                same = state_of(file) == state or self._hashes_alike(file)
            except OSError:
                same = False
            if not same:
                raise self._changed(file)

    def _see(self, file: Path) -> None:
        try:
            self._states.setdefault(file, state_of(file))
        except OSError as error:
            raise self._unreadable(file, error) from error

    def _hashed(self, file: Path, check: Callable[[Path], None] = lambda file: None) -> str:
        assert self._store is not None
        self._see(file)
        try:
            digest = self._store.digest(file, check)
            if state_of(file) != self._states[file]:
                raise self._changed(file)  # the hash may be of other contents than were read
        except OSError as error:
            raise self._unreadable(file, error) from error
        self._digests[file] = digest
        return digest

    def _changed(self, file: Path) -> ModelFileError:
        return ModelFileError(
            f"{file} was replaced or written to before all programs of it were made; "
            f"compile {self.given} again"
        )

    def _unreadable(self, file: Path, error: OSError) -> ModelFileError:
        name = self.given if file == self.path else file
        return ModelFileError(f"{name} cannot be read: {error.strerror or error}")

    def _hashes_alike(self, file: Path) -> bool:
        if self._store is None or file not in self._digests:
            return False
        return self._store.digest(file) == self._digests[file]


@dataclass(frozen=True, eq=False)
class Request:
    """The arguments of `compile`, checked: a model (a graph, or the path of a file) and options.

    target   the machine; None for this one
    given    the fields of `Options` that the caller gave, by name
    fixed    values of inputs, by name, which become constants
    reading  keyword arguments of `load`
    states   outputs that are inputs of the next run, and are to be kept in place

    Other fields are as in `compile`.
    """

    model: Graph | str | os.PathLike[str]
    target: str | Target | None
    given: Mapping[str, Any]
    tune: bool
    cache: bool
    trust: bool
    progress: Listener | bool | None
    fixed: Mapping[str, Any]
    reading: Mapping[str, Any]
    states: Sequence[State] = ()

    @property
    def is_file(self) -> bool:
        return isinstance(self.model, str | os.PathLike)

    @cached_property
    def source(self) -> Source:
        return Source(self.model if self.is_file else "")  # type: ignore[arg-type]

    @property
    def known(self) -> str:
        """A text for the key of stored programs: states, fixed inputs and arguments of `load`."""
        known = repr(self.states) if self.states else ""
        if self.fixed or self.reading:
            from tinsmith.compiler.fixed import given_key

            known = given_key(self.fixed, self.reading) + known
        return known

    def graph(self) -> Graph:
        """Return the model as a graph, read from its file if it is one, with fixed inputs as
        constants."""
        from tinsmith.compiler.fixed import with_fixed

        return with_fixed(self._loaded(), self.fixed)[0]

    def _loaded(self) -> Graph:
        if not self.is_file:
            return self.model  # type: ignore[return-value]
        from tinsmith.frontends import load

        tell(0, 1, "reading")
        graph = load(self.source.path, **self.reading)
        self.source.check()
        return graph

    def telling(self) -> AbstractContextManager[None]:
        """Return a context in which progress is reported to the caller's `progress`."""
        given = self.source.given if self.is_file else self.model.name  # type: ignore[union-attr]
        return reported(self.progress, f"compiling {given}")
