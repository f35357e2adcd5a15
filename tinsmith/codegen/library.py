"""Texts of LLVM IR -> functions in this process, through the cache.

The functions of a program are linked into one shared library. If the cache has that, it is loaded
without importing LLVM; otherwise the objects that the cache lacks are compiled on all cores. On
systems without ELF, LLVM's own linker loads the objects.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tinsmith.codegen.cache import Cache, key_of
from tinsmith.codegen.host import usable_cores
from tinsmith.codegen.recent import Recent
from tinsmith.codegen.workers import Call, Together, Workers, after
from tinsmith.errors import CodegenError
from tinsmith.progress import tell

if TYPE_CHECKING:
    from tinsmith.codegen.target import Target

_serial = itertools.count(1)


class SharedLibrary:
    """A shared library in this process. Keep it as long as its code may run."""

    def __init__(self, data: bytes) -> None:
        import _ctypes

        self.data = data
        self._handle = _opened(data)
        # A process maps some 10,000 libraries at most: unload those that are no longer used.
        after(self, _ctypes.dlclose, self._handle._handle)

    def address(self, symbol: str) -> int:
        """The address of a function. Raises CodegenError where there is none."""
        try:
            function = self._handle[symbol]
        except AttributeError:
            raise CodegenError(f"the loaded code has no function {symbol!r}") from None
        return ctypes.cast(function, ctypes.c_void_p).value or 0


def _opened(data: bytes) -> Any:
    """Load a shared library from its bytes; return its `ctypes.CDLL`. It is not loaded from the
    cache's file, which may change while the code runs."""
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError), open(os.memfd_create("tinsmith"), "wb") as out:
            out.write(data)
            out.flush()
            return ctypes.CDLL(f"/proc/self/fd{_detour(next(_serial))}/{out.fileno()}")
    import tempfile

    try:
        with tempfile.TemporaryDirectory(prefix="tinsmith-") as folder:
            file = os.path.join(folder, "code.so")
            with open(file, "wb") as out:
                out.write(data)
            return ctypes.CDLL(file)
    except OSError as error:
        hint = ": the limit on files (ulimit -f) is too low" * (error.errno == errno.EFBIG)
        raise CodegenError(f"the generated library cannot be loaded: {error}{hint}") from error


def _detour(number: int) -> str:
    """A relative path that leads from a folder back to itself, different for each number: "/.//."
    for 5. So each library has its own path, by which the loader identifies it; numbers of file
    descriptors are reused."""
    return f"{number:b}".replace("0", "/").replace("1", "/.")


def uses_elf(target: Target) -> bool:
    return "linux" in target.triple and sys.platform == "linux"


class Compiler:
    """Compiles texts of LLVM IR to objects on other threads, unless the cache holds them.

    `add` begins a text and returns at once: then all cores but one compile. `objects` waits: then
    all cores do. The caller's thread never compiles, as an interrupt there would leave LLVM's lock
    held. A context manager: leaving it cancels texts for which nobody waited.
    """

    def __init__(self, target: Target, cache: Cache | None = None) -> None:
        self.target, self.cache = target, cache
        self._pools = [Workers(max(1, usable_cores() - 1))]
        self._calls: dict[str, Call[bytes]] = {}
        self._found: dict[str, bytes] = {}

    def add(self, text: str) -> None:
        if text in self._calls or text in self._found:
            return
        known = _known.get(self._key(text))
        if known is None:
            self._calls[text] = self._pools[-1].submit(self._object, text)
        else:
            self._found[text] = known

    def objects(self, codes: Mapping[str, str]) -> dict[str, bytes]:
        """The objects of `codes` (symbol -> text), by symbol, once all are there. Raises
        CodegenError if LLVM refuses a text."""
        calls, self._calls = self._calls, {}  # after an interrupt none must be left cancelled
        self._calls = {text: call for text, call in calls.items() if not call.cancel()}
        self._pools.append(Workers(usable_cores()))
        for text in sorted([*calls, *codes.values()], key=len, reverse=True):
            self.add(text)
        found: dict[str, bytes] = {}
        for symbol, text in codes.items():
            tell(len(found), len(codes), "kernels")
            found[symbol] = self._result(text)
        return found

    def load(self, codes: Mapping[str, str]) -> Any:
        """Load all functions of `codes` (symbol -> text) into this process, from the cache if their
        library is there. Return a SharedLibrary, or an InProcess where there is no ELF: both have
        `address(symbol)`, and `data`, bytes. Raises CodegenError for an undefined symbol, and for
        text that LLVM refuses."""
        if not uses_elf(self.target):
            from tinsmith.codegen.jit import InProcess

            return InProcess(list(self.objects(codes).values()), self.target, list(codes))
        texts = itertools.chain.from_iterable(sorted(codes.items()))
        key = key_of("library", self.target.key, *texts)
        if self.cache is not None and (data := self.cache.get(key)) is not None:
            return SharedLibrary(data)
        from tinsmith.codegen.elf import link

        data = link(list(self.objects(codes).values()), f"tinsmith-{key[:16]}.so")
        if self.cache is not None:
            self.cache.put(key, data)
        return SharedLibrary(data)

    def _result(self, text: str) -> bytes:
        return self._found[text] if text in self._found else self._calls[text].result()

    def _key(self, text: str) -> tuple[str, str, str]:
        return ("" if self.cache is None else str(self.cache.path), self.target.key, text)

    def _object(self, text: str) -> bytes:
        with _short_slices:
            data = self._made(text)
        _known.put(self._key(text), data)
        return data

    def _made(self, text: str) -> bytes:
        key = "" if self.cache is None else key_of("object", self.target.key, text)
        if self.cache is not None and (kept := self.cache.get(key)) is not None:
            return kept
        from tinsmith.codegen.jit import compile_object

        data = compile_object(text, self.target)
        if self.cache is not None:
            self.cache.put(key, data)
        return data

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._pools:
            pool.close()


LIMIT = 16 << 20  # bytes of objects and texts in `_known`; estimated

_known: Recent[bytes] = Recent(LIMIT, lambda key, data: len(key[-1]) + len(data))
"""(cache, target, text) -> object, for what this process used last: compiling a model for another
shape needs most of it again."""
forget = _known.clear


SLICE = 0.00003
"""Seconds of a time slice of Python's threads while code is compiled. On two cores of Zen 5, in
turns, with an empty cache, mobilenet_v3_large of bytes compiles in 0.95 of the time that 0.0003
takes, vit_tiny of bytes in 0.96."""


def _shorten() -> float:
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(SLICE, before))
    return before


_short_slices = Together(_shorten, sys.setswitchinterval)
"""A context in which Python switches between threads sooner: a thread that compiles asks for the
interpreter's lock some ten times a kernel, and each time waits for a whole time slice. Entered only
by threads that no interrupt strikes."""


def load_library(codes: Mapping[str, str], target: Target, cache: Cache | None = None) -> Any:
    """`Compiler.load` by a compiler that is made for these `codes` alone."""
    with Compiler(target, cache) as compiler:
        return compiler.load(codes)
