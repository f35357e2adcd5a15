"""Parts of a kernel as functions of their own, so that LLVM allocates registers for each alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32, I64, PTR
from tinsmith.kernels._kernel import Emit, View

Stage = Callable[..., None]


def stage(em: Emit, name: str, params: str, body: Callable[..., None]) -> Stage:
    """Emit `body(em, *indices)` as a function `name` of its own, where `em` is a copy of the
    kernel's whose builder and pointers are those of the new function. Return `call(*indices)`,
    which emits a call of it into the kernel, or, given `b`, into another function with the kernel's
    parameters, such as another stage.

    The function has the kernel's own parameters, and behind them an i64 for each name in `params`;
    a name that ends in `*` is a pointer to float32 instead. Every pointer of `em` must be a
    parameter plus a constant.
    """
    names = [(n.rstrip("*"), PTR if n.endswith("*") else I64) for n in params.split()]
    b = em.b.module.function(name, [*em.b.function.params, *names], internal=True)
    b.tables = em.b.tables

    def pointer(p: Ptr) -> Ptr:
        return Ptr(b, p.ref, p.elem, p.offset)

    def view(v: View | None) -> View | None:
        return None if v is None else View(pointer(v.pointer), v.spec)

    inner = replace(
        em, b=b, ins=tuple(map(view, em.ins)),
        extras=tuple(View(pointer(v.pointer), v.spec) for v in em.extras),
        outs=tuple(View(pointer(v.pointer), v.spec) for v in em.outs),
        packed=tuple(map(pointer, em.packed)), workspace=pointer(em.workspace),
        scratch=pointer(em.scratch), begin=b.args["begin"], end=b.args["end"],
    )  # fmt: skip
    body(inner, *(b.pointer(n, F32) if ty == PTR else b.args[n] for n, ty in names))
    function = b.ret()
    outer: Builder = em.b

    def call(*indices: Val | Ptr | int, b: Builder = outer) -> None:
        b.call(function, [*(b.args[name] for name in outer.args), *indices])

    return call
