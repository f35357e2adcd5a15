"""The linker: symbols across objects, constants, duplicates, damage, and AArch64."""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import subprocess
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.codegen.arrays import PARAMS, X, apply, text_of
from tinsmith.codegen import math as m
from tinsmith.codegen.builder import Function, Module
from tinsmith.codegen.elf import link
from tinsmith.codegen.jit import InProcess, compile_object
from tinsmith.codegen.library import SharedLibrary
from tinsmith.codegen.target import host, level
from tinsmith.codegen.types import F32
from tinsmith.errors import CodegenError


@cache
def mapped(name: str, function, target=None) -> bytes:
    """An object with `name(x, y, n)`: y[i] = function(x[i])."""
    return compile_object(text_of(name, function, target), target or host())


def chain(*names: str, target=None) -> bytes:
    """An object with `main(x, y, n)`, which calls functions of other objects in turn."""
    module = Module(target or host())
    b = module.function("main", PARAMS)
    for name in names:
        module.declare(name, f"declare void @{name}(ptr, ptr, i64)")
        b.call(Function(name, PARAMS), [b.pointer("x", F32), b.pointer("y", F32), b.args["n"]])
    b.ret()
    return compile_object(module.text(), module.target)


def test_calls_and_constants_across_objects():
    objects = [mapped("first", m.exp), mapped("second", m.tanh), chain("first", "second")]
    library = SharedLibrary(link(objects))
    np.testing.assert_allclose(apply(library, "first", X), np.exp(X), rtol=1e-6)
    np.testing.assert_allclose(apply(library, "main", X), np.tanh(X), rtol=1e-6)
    with pytest.raises(CodegenError, match="no function 'third'"):
        library.address("third")


def test_undefined_symbols_are_all_named():
    with pytest.raises(CodegenError, match="alpha, beta"):
        link([chain("alpha", "beta")])


def test_equal_duplicates_are_taken_once():
    one, again = mapped("f", m.exp), mapped.__wrapped__("f", m.exp)
    assert len(link([one, again])) == len(link([one]))


def test_contradicting_duplicates_are_refused():
    with pytest.raises(CodegenError, match="f is defined twice"):
        link([mapped("f", m.exp), mapped("f", m.tanh)])


def test_addresses_of_data_and_of_functions():
    """A table of functions, which needs the load address, and writable data."""
    text = f"""target triple = "{host().triple}"
@table = internal constant [2 x ptr] [ptr @one, ptr @two]
@count = internal global i64 40
define internal i64 @one() {{
  ret i64 1
}}
define internal i64 @two() {{
  ret i64 2
}}
define i64 @pick(i64 %i) {{
  %p = getelementptr ptr, ptr @table, i64 %i
  %f = load ptr, ptr %p
  %r = call i64 %f()
  %old = load i64, ptr @count
  %new = add i64 %old, %r
  store i64 %new, ptr @count
  ret i64 %new
}}
"""
    user = f"""target triple = "{host().triple}"
declare i64 @pick(i64)
define ptr @where() {{
  ret ptr @pick
}}
"""
    library = SharedLibrary(link([compile_object(t, host()) for t in (text, user)]))
    pick = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(library.address("pick"))
    assert [pick(0), pick(1)] == [41, 43]
    where = ctypes.CFUNCTYPE(ctypes.c_void_p)(library.address("where"))
    assert where() == library.address("pick")


@pytest.mark.parametrize("size", [0, 3, 40, 64, 200, 700])
def test_damaged_objects(size):
    with pytest.raises(CodegenError, match="object 0"):
        link([mapped("f", m.exp)[:size]])


@pytest.mark.parametrize("seed", range(60))
def test_corrupt_objects_never_crash(seed):
    rng = np.random.default_rng(seed)
    data = bytearray(mapped("f", m.exp))
    for at in rng.integers(0, len(data), 4):
        data[at] = rng.integers(256)
    with contextlib.suppress(CodegenError):
        link([bytes(data)])


def test_machines_do_not_mix():
    with pytest.raises(CodegenError, match="not all for"):
        link([mapped("f", m.exp), mapped("g", m.exp, level("neon"))])
    with pytest.raises(CodegenError, match="no objects"):
        link([])


def test_no_page_is_writable_and_executable():
    data = link([mapped("f", m.exp), chain("f")])
    count = int.from_bytes(data[56:58], "little")
    rights = {int.from_bytes(data[64 + 56 * i + 4 :][:4], "little") for i in range(count)}
    assert rights == {4, 5, 6}


def test_many_libraries_at_once():
    """Loaders know libraries by path: none may be taken for another."""
    libraries = [SharedLibrary(link([mapped("f", lambda v, k=k: v + float(k))])) for k in range(5)]
    for k, library in enumerate(libraries):
        np.testing.assert_array_equal(apply(library, "f", X), X + np.float32(k))


def test_llvms_own_linker_agrees():
    objects = [mapped("first", m.exp), chain("first")]
    loaded = InProcess(objects, host(), ["first", "main"])
    np.testing.assert_allclose(apply(loaded, "main", X), np.exp(X), rtol=1e-6)
    with pytest.raises(CodegenError, match="cannot be linked"):
        InProcess([chain("other")], host(), ["main"]).address("main")


def test_aarch64(tmp_path):
    """Relocations are written where a disassembler sees them; run under qemu where it is here."""
    neon = level("neon")
    data = link([mapped("first", m.exp, neon), chain("first", target=neon)])
    assert data[18:20] == (183).to_bytes(2, "little")
    file = tmp_path / "k.so"
    file.write_bytes(data)
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("no readelf here")
    shown = subprocess.run(
        [readelf, "-WlDs", str(file)], capture_output=True, text=True, check=True
    )
    assert "first" in shown.stdout and "main" in shown.stdout and not shown.stderr


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs a list of mappings")
def test_code_goes_with_its_library() -> None:
    """Other threads close libraries, a moment later, and have memory of their own meanwhile."""

    def mapped_code() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:tinsmith")

    data = link([mapped("f", lambda v: v + 1.0)])
    count = mapped_code()
    library = SharedLibrary(data)
    assert mapped_code() > count
    del library
    for _ in range(30):
        np.testing.assert_array_equal(apply(SharedLibrary(data), "f", X), X + 1)
    end = time.monotonic() + 60
    while mapped_code() > count and time.monotonic() < end:
        time.sleep(0.01)
    assert mapped_code() <= count
