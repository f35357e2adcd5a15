"""The file that a model is compiled from: programs are kept under the key of its content, so what
is read of it later must be that content, wherever the process has gone and whatever lies there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tinsmith.compiler.store import Store, fingerprint
from tinsmith.errors import ModelFileError


class Source:
    """A model's path as it was given, and where that is."""

    def __init__(self, given: str | os.PathLike[str]) -> None:
        self.given = given
        try:
            self.path = Path(given).absolute()
        except OSError:  # the working directory is gone
            self.path = Path(given)
        self._store: Store | None = None
        self._digest = ""
        self._states: dict[Path, list[int]] = {}

    def is_file(self) -> bool:
        try:
            return self.path.is_file()
        except (OSError, ValueError):
            return False  # no path at all

    def seen(self) -> None:
        """What the file is now is what `check` wants. Raises ModelFileError."""
        try:
            self._states[self.path] = fingerprint(self.path)
        except OSError as error:
            why = error.strerror or error
            raise ModelFileError(f"{self.given} cannot be read: {why}") from error

    def digest(self, store: Store) -> str:
        """The hash of the content, which `check` wants from now on. Raises ModelFileError."""
        self.seen()
        try:
            self._digest = store.digest(self.path)
        except OSError as error:
            why = error.strerror or error
            raise ModelFileError(f"{self.given} cannot be read: {why}") from error
        self._store = store
        return self._digest

    def depends(self, files: Mapping[str, list[int]]) -> None:
        """Further files that the model is in, in the states that `check` wants."""
        self._states |= {Path(file): state for file, state in files.items()}

    def check(self) -> None:
        """Raises ModelFileError where the content is no longer what was hashed."""
        for file, state in self._states.items():
            try:
                same = fingerprint(file) == state or self._hashes_alike(file)
            except OSError:
                same = False
            if not same:
                raise ModelFileError(
                    f"{file} was replaced or written to before all programs of it were made; "
                    f"compile {self.given} again"
                )

    def _hashes_alike(self, file: Path) -> bool:
        if file != self.path or self._store is None:
            return False
        return self._store.digest(file) == self._digest
