"""The files that a model is compiled from: programs are kept under the key of their contents, so
what is read of them later must be that, wherever the process has gone and whatever lies there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from tinsmith.compiler.store import Store
from tinsmith.errors import ModelFileError
from tinsmith.formats.mapped import State, state_of


class Source:
    """A model's path as it was given, where that is, and what is known of it and of the further
    files that it is in."""

    def __init__(self, given: str | os.PathLike[str]) -> None:
        self.given = given
        try:
            self.path = Path(given).absolute()
        except OSError:  # the working directory is gone
            self.path = Path(given)
        self._store: Store | None = None
        self._states: dict[Path, State] = {}
        self._digests: dict[Path, str] = {}

    def is_file(self) -> bool:
        try:
            return self.path.is_file()
        except (OSError, ValueError):
            return False  # no path at all

    def seen(self) -> None:
        """What the file is now is what `check` wants. Raises ModelFileError."""
        self._see(self.path)

    def digest(self, store: Store) -> str:
        """The hash of the content, which `check` wants from now on. Raises ModelFileError."""
        self._store = store
        return self._hashed(self.path)

    def digests(self, names: Iterable[str]) -> dict[str, str]:
        """The hashes of further files, by their names as `names_of` gives them, after `digest`.
        `check` wants these contents, too. Raises ModelFileError."""
        return {name: self._hashed(self.path.parent / name) for name in names}

    def names_of(self, files: Mapping[Path, State]) -> tuple[str, ...]:
        """The further files among those that the model was read from, relative to its folder where
        they lie there. In the states in which they were read they are what `check` wants."""
        home = self.path.parent
        further = sorted(file for file in files if file != self.path)
        self._states |= {file: files[file] for file in further}
        return tuple(str(f.relative_to(home) if f.is_relative_to(home) else f) for f in further)

    def check(self) -> None:
        """Raises ModelFileError where a content is no longer what was hashed, or read."""
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

    def _hashed(self, file: Path) -> str:
        assert self._store is not None
        self._see(file)
        try:
            digest = self._store.digest(file)
            if state_of(file) != self._states[file]:
                raise self._changed(file)  # the hash may be of what nobody has read
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
