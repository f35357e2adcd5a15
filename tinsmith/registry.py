"""One small class for every table: operators, rules, passes, kernels, formats, commands."""

from __future__ import annotations

import importlib
import sys
from _thread import RLock
from collections.abc import Iterator
from types import FrameType
from typing import Any, ClassVar, Generic, TypeVar

from tinsmith import extensions
from tinsmith.errors import DuplicateName, UnknownName

T = TypeVar("T")


class Registry(Generic[T]):
    """A table from names to rows, such as operators or kernels. For an unknown name `[]` raises
    UnknownName, `get` returns None. Iterating yields the names, sorted.

    kind     the noun for a row in errors, such as "operator"
    package  its modules register the rows; the first look-up imports them
    command  the command line that prints the table, which errors suggest
    deep     whether modules of its subpackages do, too
    edition  a number that grows whenever a row comes or goes

    `Registry.tables` lists all tables that have a package. Look-ups are thread-safe; the first one
    takes a lock.
    """

    tables: ClassVar[list[Registry[Any]]] = []

    def __init__(
        self, kind: str, package: str | None = None, command: str = "", deep: bool = True
    ) -> None:
        if package is not None:
            Registry.tables.append(self)
        self.kind, self._package, self.command, self._deep = kind, package, command, deep
        self._rows: dict[str, T] = {}
        self._sources: dict[str, dict[str, Any]] = {}
        self._loaded = package is None
        self._lock = RLock()
        self.outside: set[str] = set()
        """Names of rows that code outside the package has registered, extensions not counted."""
        self._origins: dict[str, str] = {}
        self.edition = 0

    def register(self, name: str, row: T) -> T:
        """Add a row under a name and return it. Raises DuplicateName for a name that the table has,
        unless a module of the package registers it again because its import had failed."""
        module = _registering_module()
        root = (self._package or "").partition(".")[0]
        own = module.get("__name__", "").partition(".")[0] == root
        # An import that failed, as by Ctrl-C, is made again: the same module, in other globals.
        before = self._sources.get(name, module)
        again = own and before is not module and before.get("__name__") == module["__name__"]
        if name in self._rows and not again:
            raise DuplicateName(f"{self.kind} {name!r} is registered twice")
        self._rows[name], self._sources[name] = row, module
        self.edition += 1
        if root and not own:
            origin = extensions.bring(module.get("__name__", "").partition(".")[0])
            self._origins[name] = origin or module.get("__name__", "") or "this program"
            if not origin:
                self.outside.add(name)
        return row

    def origin(self, name: str) -> str:
        """Return the name of the extension or module that registered a row; "" for our own."""
        return self._origins.get(name, "")

    def remove(self, name: str) -> None:
        """Take a row out (in tests, or a user's own). Raises KeyError."""
        del self._rows[name], self._sources[name]
        self.edition += 1
        self.outside.discard(name)
        self._origins.pop(name, None)

    def load(self) -> None:
        """Fill the table, once: import every module of its package, in the order of names, then the
        extensions."""
        self._load_own()
        if self._package is not None:
            extensions.load()  # without the lock: what they register may wait for other tables

    def _load_own(self) -> None:
        with self._lock:
            if self._loaded or self._package is None:
                return
            self._loaded = True  # set first: the modules register, and may look up, while loading
            try:
                import pkgutil  # a warm start loads no table

                package = importlib.import_module(self._package)
                walk = pkgutil.walk_packages if self._deep else pkgutil.iter_modules
                found = walk(package.__path__, package.__name__ + ".")
                for module in sorted(m.name for m in found):
                    importlib.import_module(module)
            except BaseException:
                self._loaded = False  # half a table must not answer look-ups
                raise

    def __getitem__(self, name: str) -> T:
        if name not in self._rows:
            self.load()
        try:
            return self._rows[name]
        except KeyError:
            raise UnknownName(self.kind, name, self._rows, self.command) from None

    def get(self, name: str) -> T | None:
        if name not in self._rows:
            self.load()
        return self._rows.get(name)

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        self.load()
        return iter(sorted(self._rows))

    def rows(self) -> list[T]:
        """All rows, ordered by name: never by import order."""
        self.load()
        return [self._rows[name] for name in sorted(self._rows)]

    def __len__(self) -> int:
        self.load()
        return len(self._rows)


def _registering_module() -> dict[str, Any]:
    """Return the globals of the module that is being imported and calls `register`, also through
    functions; {} if none is."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return {} if frame is None else frame.f_globals
