"""Shared libraries in this process."""

from __future__ import annotations

import ctypes
import os
from functools import cache

import pytest

from tinsmith.codegen import library
from tinsmith.codegen.elf import link
from tinsmith.codegen.jit import compile_object
from tinsmith.codegen.library import SharedLibrary
from tinsmith.codegen.target import host
from tinsmith.errors import CodegenError


@cache
def answering(number: int) -> bytes:
    """A library with `answer()`, which returns the number."""
    text = f"""
target triple = "{host().triple}"
define i32 @answer() {{
  ret i32 {number}
}}
"""
    return link([compile_object(text, host())], f"answer-{number}.so")


def answer(loaded: SharedLibrary) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int)(loaded.address("answer"))()


def test_a_system_that_refuses_files_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some do by a rule (vm.memfd_noexec); a file takes their place."""

    def refused(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "memfd_create", refused, raising=False)
    assert answer(SharedLibrary(answering(5))) == 5


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no files in memory")
def test_the_thousandth_library_is_in_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    def refused(*_: object, **__: object) -> str:
        raise OSError("no file was to be written")

    monkeypatch.setattr(tempfile, "mkdtemp", refused)
    monkeypatch.setattr(library, "_serial", iter(range(10**6, 10**6 + 50)))
    loaded = [SharedLibrary(answering(number)) for number in range(5)]
    assert [answer(one) for one in loaded] == [0, 1, 2, 3, 4]


def test_paths_of_libraries_differ() -> None:
    assert len({library._detour(number) for number in range(1, 5000)}) == 4999


def test_a_limit_on_the_size_of_files_is_named() -> None:
    resource = pytest.importorskip("resource")
    data, limits = answering(27), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
        with pytest.raises(CodegenError, match="ulimit -f"):
            SharedLibrary(data)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
