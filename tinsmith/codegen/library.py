"""Texts of LLVM IR -> functions in this process, through the cache.

A program's functions are linked into one shared library. Found in the cache, it is loaded without
importing LLVM; else the objects that the cache lacks are compiled on all cores. Where the system
has no ELF, LLVM's own linker loads the objects instead.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinsmith.codegen.cache import Cache, key_of
from tinsmith.codegen.target import Target, usable_cores
from tinsmith.errors import CodegenError

_serial = itertools.count(1)


class SharedLibrary:
    """A shared library in this process; it stays until the process ends."""

    def __init__(self, data: bytes, file: Path | None = None) -> None:
        """Load `data`; `file` is a file that holds it, if there is one."""
        self.data = data
        self._handle = _open_bytes(data) if file is None else _open_file(file, data)

    def address(self, symbol: str) -> int:
        """The address of a function. Raises CodegenError where there is none."""
        try:
            function = self._handle[symbol]
        except AttributeError:
            raise CodegenError(f"the loaded code has no function {symbol!r}") from None
        return ctypes.cast(function, ctypes.c_void_p).value or 0


def _open_file(file: Path, data: bytes) -> Any:
    try:
        return ctypes.CDLL(str(file.absolute()))
    except OSError:  # dropped by another process meanwhile, or on a disk mounted noexec
        return _open_bytes(data)


def _open_bytes(data: bytes) -> Any:
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("tinsmith")
        try:
            with os.fdopen(handle, "wb", closefd=False) as out:
                out.write(data)
            # The loader knows libraries by path: one path for each, as numbers are reused.
            return ctypes.CDLL(f"/proc/self/fd{'/' * next(_serial)}{handle}")
        except OSError:
            pass
        finally:
            os.close(handle)
    import tempfile

    with tempfile.TemporaryDirectory(prefix="tinsmith-") as folder:
        file = Path(folder) / "code.so"
        file.write_bytes(data)
        try:
            return ctypes.CDLL(str(file))
        except OSError as error:
            raise CodegenError(f"the generated library cannot be loaded: {error}") from error


def uses_elf(target: Target) -> bool:
    return "linux" in target.triple and sys.platform == "linux"


def compile_all(
    codes: Mapping[str, str], target: Target, cache: Cache | None = None
) -> dict[str, bytes]:
    """The object of each text, by symbol; what the cache lacks is compiled on all cores."""
    from tinsmith.codegen.jit import compile_object

    keys = {symbol: key_of("object", target.key, text) for symbol, text in codes.items()}
    done = {}
    if cache is not None:
        done = {s: data for s, key in keys.items() if (data := cache.get(key)) is not None}
    missing = sorted((s for s in codes if s not in done), key=lambda s: -len(codes[s]))

    def make(symbol: str) -> tuple[str, bytes]:
        data = compile_object(codes[symbol], target)
        if cache is not None:
            cache.put(keys[symbol], data)
        return symbol, data

    workers = min(usable_cores(), len(missing))
    if workers > 1:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(workers, thread_name_prefix="tinsmith-compile") as pool:
            done |= dict(pool.map(make, missing))
    else:
        done |= dict(map(make, missing))
    return {symbol: done[symbol] for symbol in codes}


def load_library(codes: Mapping[str, str], target: Target, cache: Cache | None = None) -> Any:
    """All functions of the texts, in this process: an object with `address(symbol)` and `data`.

    Raises CodegenError where code refers to what nothing defines.
    """
    if not uses_elf(target):
        from tinsmith.codegen.jit import load_in_process

        return load_in_process(
            list(compile_all(codes, target, cache).values()), target, list(codes)
        )
    key = key_of("library", target.key, *itertools.chain.from_iterable(sorted(codes.items())))
    if cache is not None and (data := cache.get(key)) is not None:
        return SharedLibrary(data, cache.file(key))
    from tinsmith.codegen.elf import link

    data = link(list(compile_all(codes, target, cache).values()), f"tinsmith-{key[:16]}.so")
    kept = cache is not None and cache.put(key, data)
    return SharedLibrary(data, cache.file(key) if cache is not None and kept else None)
