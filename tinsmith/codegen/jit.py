"""LLVM: text -> object or assembly. The only module that imports llvmlite, and only when called."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from tinsmith.codegen.target import ISAS, Target
from tinsmith.codegen.types import QUICK
from tinsmith.codegen.workers import Together
from tinsmith.errors import CodegenError

_lock = threading.Lock()
_ready = False


def _llvm() -> Any:
    global _ready
    import llvmlite.binding as llvm

    with _lock:
        if not _ready:
            llvm.initialize_all_targets()
            llvm.initialize_all_asmprinters()
            _ready = True
    return llvm


def _machine(target: Target, effort: int = 2) -> Any:
    if target.isa not in ISAS:  # an unknown CPU name aborts the process inside LLVM
        raise CodegenError(f"no code can be generated for the instruction set {target.isa!r}")
    return (
        _llvm()
        .Target.from_triple(target.triple)
        .create_target_machine(
            cpu=target.cpu, features=target.features, opt=effort, reloc="pic", codemodel="small"
        )
    )


class _Machines(threading.local):
    """LLVM's target machines of one thread, with the layouts of their data: one for each target and
    level of optimisation, used for all its modules."""

    def __init__(self) -> None:
        self.of = cache(self._made)

    def _made(self, target: Target, effort: int) -> tuple[Any, str]:
        machine = _machine(target, effort)
        return machine, str(machine.target_data)


_machines = _Machines()


@contextmanager
def _module(text: str, layout: str) -> Iterator[Any]:
    """A context with the parsed and verified module of a text; `layout` is LLVM's data layout of
    the target. The module is closed before LLVM's context, which garbage collection would not
    guarantee. Raises CodegenError if LLVM refuses the text."""
    llvm, module = _llvm(), None
    try:
        try:
            module = llvm.parse_assembly(text, context=llvm.create_context())
            module.verify()
        except RuntimeError as error:
            raise CodegenError(f"LLVM refused generated code: {error}") from error
        module.data_layout = layout
        yield module
    finally:
        if module is not None:
            module.close()


_as_written = Together(
    lambda: _llvm().set_option("tinsmith", "-disable-lsr"),
    lambda _: _llvm().set_option("tinsmith", "-disable-lsr=false"),
)
"""A context in which LLVM leaves out loop strength reduction, and so keeps the address arithmetic
of loops as written: the pass took most of the time of compiling deep loops, whose code was no
faster. The option is of the whole process; others that use LLVM find it set back."""


def compile_object(text: str, target: Target) -> bytes:
    """Compile a module's text to a relocatable object (ELF, on Linux), without optimisation if the
    text contains QUICK. Thread-safe. Raises CodegenError if LLVM refuses the text."""
    machine, layout = _machines.of(target, 0 if QUICK in text else 2)
    with _module(text, layout) as module:
        return _emit(machine, module)


def _emit(machine: Any, module: Any) -> bytes:
    """`machine.emit_object(module)` without llvmlite's lock, so that threads compile side by side.

    LLVM is thread-safe where contexts and target machines are not shared.
    """
    from ctypes import string_at

    from llvmlite.binding import ffi

    locked = ffi.lib.LLVMPY_TargetMachineEmitToMemory
    emit = getattr(locked, "_cfn", locked)
    with ffi.OutputString() as message:
        with _as_written:
            memory = emit(machine, module, 1, message)
        if not memory:
            raise CodegenError(f"LLVM could not generate code: {message}")
    try:
        start = ffi.lib.LLVMPY_GetBufferStart(memory)
        return string_at(start, ffi.lib.LLVMPY_GetBufferSize(memory))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(memory)


def assembly(text: str, target: Target) -> str:
    """The target's assembly for a module's text, for tests and for reading."""
    machine = _machine(target)
    with _module(text, str(machine.target_data)) as module, _as_written:
        return str(machine.emit_assembly(module))


class InProcess:
    """Objects that LLVM's LLJIT links into this process, where there is no ELF; `data` are their
    bytes. `symbols` are the functions that `address` can tell. Raises CodegenError for undefined
    symbols."""

    def __init__(self, objects: Sequence[bytes], target: Target, symbols: Sequence[str]) -> None:
        llvm = _llvm()
        self.data = b"".join(objects)
        self._jit = llvm.create_lljit_compiler(_machine(target))
        builder = llvm.JITLibraryBuilder()
        for data in dict.fromkeys(objects):
            builder.add_object_img(data)
        for symbol in symbols:
            builder.export_symbol(symbol)
        try:
            self._library = builder.link(self._jit, "tinsmith")
        except RuntimeError as error:
            raise CodegenError(f"generated code cannot be linked: {error}") from error

    def address(self, symbol: str) -> int:
        """The address of a function. Raises CodegenError where there is none."""
        try:
            return int(self._library[symbol])
        except KeyError:
            raise CodegenError(f"the loaded code has no function {symbol!r}") from None
