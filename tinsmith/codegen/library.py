"""Texts of LLVM IR -> functions in this process, through the cache.

The functions of a program are linked into one shared library. If the cache has that, it is loaded
without importing LLVM; otherwise the objects that the cache lacks are compiled on all cores. On
systems without ELF, LLVM's own linker loads the objects.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import sys
from _thread import allocate_lock
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tinsmith.codegen.cache import Cache, key_of
from tinsmith.codegen.host import usable_cores
from tinsmith.codegen.workers import Call, Workers, after
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
    """The library, loaded from memory: a file of the cache may change while its code runs."""
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
        raise CodegenError(f"the generated library cannot be loaded: {error}") from error


def _detour(number: int) -> str:
    """A relative path that leads from a folder back to itself, different for each number. It makes
    the path of a library unique: the loader identifies libraries by path, and numbers of file
    descriptors are reused."""
    return f"{number:b}".replace("0", "/").replace("1", "/.")


def uses_elf(target: Target) -> bool:
    return "linux" in target.triple and sys.platform == "linux"


class Compiler:
    """Compiles texts on other threads: on all cores but one while more texts come (`add` returns at
    once), on all cores while somebody waits. What the cache holds is not compiled. The caller's
    thread never compiles, as an interrupt there would leave LLVM's lock held. Use it as a context
    manager; leaving drops what nobody waited for."""

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
        """symbol -> object, for `codes`: symbol -> text. Compiles what is not known yet on all
        cores. Raises CodegenError if LLVM refuses a text."""
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

    def _result(self, text: str) -> bytes:
        return self._found[text] if text in self._found else self._calls[text].result()

    def _key(self, text: str) -> Key:
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


Key = tuple[str, str, str]  # the cache, the target, the text


class _Known:
    """The objects that this process used last, up to LIMIT bytes with their texts: compiling a
    model for another shape needs most of them again."""

    LIMIT = 16 << 20  # bytes; estimated

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._kept: OrderedDict[Key, bytes] = OrderedDict()
        self._size = 0

    def get(self, key: Key) -> bytes | None:
        with self._lock:
            data = self._kept.get(key)
            if data is not None:
                self._kept.move_to_end(key)
            return data

    def put(self, key: Key, data: bytes) -> None:
        with self._lock:
            if key not in self._kept:
                self._kept[key] = data
                self._size += len(key[-1]) + len(data)
            while self._size > self.LIMIT:
                (*_, text), dropped = self._kept.popitem(last=False)
                self._size -= len(text) + len(dropped)

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._size = 0


_known = _Known()


def forget() -> None:
    """Drop the objects that this process keeps."""
    _known.clear()


class _ShortSlices:
    """Shorter time slices of Python's threads while code is compiled: a compiling thread asks for
    the interpreter's lock some ten times a kernel, and each time waits for a whole slice. Entered
    only by threads that no interrupt strikes."""

    SECONDS = 0.00003
    """Of a time slice. On two cores of Zen 5, in turns, with an empty cache, mobilenet_v3_large of
    bytes compiles in 0.95 of the time that 0.0003 takes, vit_tiny of bytes in 0.96."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._users, self._before = 0, 0.0

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self.SECONDS, self._before))

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                sys.setswitchinterval(self._before)


_short_slices = _ShortSlices()


def load_library(
    codes: Mapping[str, str],
    target: Target,
    cache: Cache | None = None,
    compiler: Compiler | None = None,
) -> Any:
    """Load all functions of `codes` (symbol -> text) into this process: an object with `data`, and
    `address(symbol)`. The library is taken from the cache if it is there. `compiler` may have begun
    with some texts. Raises CodegenError for an undefined symbol, and for text that LLVM refuses."""
    if compiler is None:
        with Compiler(target, cache) as compiler:
            return load_library(codes, target, cache, compiler)
    if not uses_elf(target):
        from tinsmith.codegen.jit import InProcess

        return InProcess(list(compiler.objects(codes).values()), target, list(codes))
    key = key_of("library", target.key, *itertools.chain.from_iterable(sorted(codes.items())))
    if cache is not None and (data := cache.get(key)) is not None:
        return SharedLibrary(data)
    from tinsmith.codegen.elf import link

    data = link(list(compiler.objects(codes).values()), f"tinsmith-{key[:16]}.so")
    if cache is not None:
        cache.put(key, data)
    return SharedLibrary(data)
