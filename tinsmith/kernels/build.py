"""From a settled choice to the text of one native function for each of its phases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tinsmith.codegen.builder import Builder, Module, Val
from tinsmith.codegen.types import I64, PTR, U8, from_dtype
from tinsmith.conditions import deciding, trial
from tinsmith.formulas import computed
from tinsmith.hashing import blake2b
from tinsmith.kernels._kernel import Choice, Emit, Phase, Site, View
from tinsmith.kernels.generic import Outline, Shared, Specs, outline
from tinsmith.kernels.layout import Spec
from tinsmith.records import dataclass
from tinsmith.sizes import Number


@dataclass(frozen=True)
class Code:
    """One native function: its name (`symbol`), the LLVM text of its module, and whether it applies
    the epilogue (`finishes`).

    Signature: void symbol(ptr..., i64 begin, i64 end), then i64 step if the phase is repeated. The
    pointers are the operands that are read (inputs, then extras), outputs, packed arrays, workspace
    and scratch. Pointers to tables of numbers and sizes come last.
    """

    symbol: str
    text: str
    finishes: bool
    sizes: tuple[Any, ...] = ()
    """The table of sizes that it reads, its last parameter: free ones, or, of generic code, numbers
    of this layer. (): it gets no such table."""
    reads_numbers: bool = False
    """Whether it gets a table of the epilogue's `Expr.numbers`, as the parameter before `sizes`."""


def build_phase(
    site: Site, choice: Choice, phase: int, reads: Specs, writes: Sequence[Spec],
    packed: Sequence[np.dtype],
) -> Code:  # fmt: skip
    """Generate the code of phase number `phase` of a choice, given where each operand and output
    lies and the dtypes of packed arrays.

    `reads` is in the order of `site.operands` (None: not read). The symbol is a hash of the text,
    so that equal code is compiled once.
    """
    found = outlined(site, choice, phase, reads, writes)
    if found is None:
        what = choice.phases[phase]
        return _emitted(site, what, reads, writes, packed, what.generic or ())
    code = build_generic(site, choice, phase, found, packed).serving(found.numbers)
    assert code is not None, "conditions that the numbers decided hold for them"
    return code


def outlined(
    site: Site, choice: Choice, phase: int, reads: Specs, writes: Sequence[Spec]
) -> Outline | None:
    """The `Outline` of a phase's operands, outputs and `generic` numbers, by which code that other
    layers use, too, is found; arguments as of `build_phase`. None if the phase is not generic, or
    it or its epilogue reads sizes that are known only in a call."""
    more = choice.phases[phase].generic
    if more is None or (site.epilogue is not None and site.epilogue.sizes):
        return None
    return outline((*reads, *writes), more)


def build_generic(
    site: Site, choice: Choice, phase: int, found: Outline, packed: Sequence[np.dtype]
) -> Shared:
    """Generate the generic code of a phase (`kernels/generic.py`). `found` is what `outlined` gave,
    other arguments are as of `build_phase`. Where the code depends on values of sizes, it is
    generated for `found.numbers`, and what it depended on becomes a condition of the `Shared`."""
    specs, more, symbols = found.sized()
    count = len(site.operands)
    with deciding(), trial() as conditions:
        writes: Any = specs[count:]
        code = _emitted(site, choice.phases[phase], specs[:count], writes, packed, more)
    forms, names = [s.form for s in code.sizes], [str(s) for s in symbols]
    return Shared(code, computed(forms, names, conditions))


def _emitted(
    site: Site, phase: Phase, reads: Specs, writes: Sequence[Spec], packed: Sequence[np.dtype],
    more: Sequence[Number],
) -> Code:  # fmt: skip
    module = Module(site.target)
    present = [i for i, spec in enumerate(reads) if spec is not None]
    names = [f"in{i}" for i in present] + [f"out{i}" for i in range(len(writes))]
    names += [f"pack{i}" for i in range(len(packed))] + ["workspace", "scratch"]
    repeated = phase.repeat > 1
    numbers = ["begin", "end", "step"] if repeated else ["begin", "end"]
    b = module.function("kernel", [*((n, PTR) for n in names), *((n, I64) for n in numbers)])
    if site.epilogue is not None:
        b.tables.numbers = {key: i for i, key in enumerate(site.epilogue.numbers)}

    def view(name: str, spec: Spec) -> View:
        return View(b.pointer(name, from_dtype(spec.dtype)), spec)

    count = len(site.inputs)
    views = [None if s is None else view(f"in{i}", s) for i, s in enumerate(reads)]
    dims = writes[0].dims
    extras = []
    for i, spec in enumerate(reads[count:], start=count):
        assert spec is not None, "every extra of an epilogue is read"
        spec = spec.broadcast_to(dims)
        if spec.layout.is_plain and not writes[0].layout.is_plain:
            spec = replace(spec, lane=0)  # its channel axis is broadcast: see Site.extra_reads
        extras.append(view(f"in{i}", spec))
    em = Emit(
        b=b, site=site, ins=tuple(views[:count]), extras=tuple(extras),
        outs=tuple(view(f"out{i}", s) for i, s in enumerate(writes)),
        packed=tuple(b.pointer(f"pack{i}", from_dtype(d)) for i, d in enumerate(packed)),
        workspace=b.pointer("workspace", U8), scratch=b.pointer("scratch", U8),
        begin=Val(b, I64, "%begin"), end=Val(b, I64, "%end"), finished=[],
        step=Val(b, I64, "%step") if repeated else 0,
    )  # fmt: skip
    phase.emit(em, *more)
    b.ret()
    return code_of(b, "k", bool(em.finished))


def code_of(b: Builder, prefix: str, finishes: bool = False) -> Code:
    """The `Code` of the function "kernel", which `b` has written, and of its module. The symbol is
    `prefix` and a hash of the text."""
    text = b.module.text()
    symbol = f"{prefix}_{blake2b(text.encode(), digest_size=10).hexdigest()}"
    text = text.replace("@kernel(", f"@{symbol}(", 1)
    return Code(symbol, text, finishes, tuple(b.tables.sizes), bool(b.tables.read))
