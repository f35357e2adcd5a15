"""Generated code is kept: equal choices are emitted once in a process.

Layers of the same shape, and plans for other input shapes, share kernels; generating their text is
most of the time of planning. The contract that makes this safe: what a kernel emits depends on its
site's operators, types, layouts, epilogue and target, and on the *values* of constants only if they
are integers or have at most `SMALL` elements. Larger floating-point constants, weights of 8 bits or
less (`is_weights`), tables of functions of bytes and inputs that a choice calls `unseen` reach code
as packed arrays, never as text; numbers of epilogues that handle bytes (`Expr.numbers`) as a table.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np

from tinsmith.codegen.recent import Recent
from tinsmith.graph import Graph, Node, Value
from tinsmith.graph.types import name_of
from tinsmith.hashing import blake2b
from tinsmith.kernels._kernel import KERNELS, Choice, Site
from tinsmith.kernels.build import Code, build_generic, build_phase, outlined
from tinsmith.kernels.generic import Outline, Shared
from tinsmith.kernels.layout import Spec

SMALL = 16
"""The most elements of a floating-point constant on whose values code may depend. Estimated."""
WEIGHTS = 1 << 12
"""Bytes from which on a matrix of whole numbers of 8 bits or less is taken for weights: code does
not depend on its values, which are not looked at. Estimated."""
LIMIT = 48 << 20  # characters of text that are kept, an eighth of them of generic code; estimated

kept: Recent[Code] = Recent(7 * LIMIT // 8, lambda _, code: len(code.text))
generic: Recent[Shared] = Recent(LIMIT // 8, lambda _, shared: len(shared.code.text))


def forget() -> None:
    """Drop all code that is kept."""
    kept.clear()
    generic.clear()


def phase_code(
    site: Site, choice: Choice, phase: int, reads: Sequence[Spec | None], writes: Sequence[Spec],
    packed: Sequence[np.dtype[Any]], key: Any,
) -> Code:  # fmt: skip
    """The code of a phase: what was generated before in this process and is the same, else what
    `build_phase` gives now. `key` is a `choice_key`, other arguments are as of `build_phase`. Code
    is the same for equal key, phase, specs and dtypes; of a generic phase, for an equal first part
    of the key, phase, operator, epilogue, dtypes and `Outline.key`, where its conditions hold."""
    found = outlined(site, choice, phase, reads, writes)
    if found is not None:
        return _generic(site, choice, phase, found, packed, key[0])
    whole = (key, phase, tuple(reads), tuple(writes), tuple(packed))
    code = kept.get(whole)
    if code is None:
        code = build_phase(site, choice, phase, reads, writes, packed)
        kept.put(whole, code)
    return code


def _generic(
    site: Site, choice: Choice, phase: int, found: Outline, packed: Sequence[np.dtype[Any]],
    kernel: Any,
) -> Code:  # fmt: skip
    """Generic code that serves the numbers of `found`: one that is kept, or a new one. `kernel` is
    the first part of a `choice_key`."""
    form = None if site.epilogue is None else site.epilogue.form
    op = None if site.anchor is None else (site.anchor.op.name, _attrs(site.anchor.attrs))
    whole = (kernel, phase, op, form, found.key, tuple(packed))
    for number in count():
        shared = generic.get((whole, number))
        if shared is None:
            shared = build_generic(site, choice, phase, found, packed)
            generic.put((whole, number), shared)
        code = shared.serving(found.numbers)
        if code is not None:
            return code
    raise AssertionError("count() ends")


def choice_key(site: Site, kernel: str, index: int, choice: Choice, computed: Hashable) -> Any:
    """A key for the code of a choice: choices of equal keys have equal code, if their operands lie
    alike. `index` is the choice's place among those of the site. `computed`, if not None, stands
    for the `site_key` in it, unless the choice has `unseen` inputs or the epilogue `numbers`."""
    row = KERNELS.get(kernel)
    anew = computed is None or choice.unseen or (site.epilogue and site.epilogue.numbers)
    return (
        (
            kernel, id(row.rule) if row is not None else 0, index, site.threads, site.target,
            site.precision,
        ),
        choice.detail if site.anchor is not None else "",  # else the epilogue, with its numbers
        choice.cost,
        tuple((p.tiles, p.repeat, p.sweep) for p in choice.phases),
        tuple([site.layout(v) for v in site.operands]),
        site_key(site, unseen=choice.unseen) if anew else computed,
    )  # fmt: skip


def site_key(site: Site, small: int = SMALL, unseen: Sequence[int] = ()) -> tuple[Any, ...]:
    """A key for what a site computes: operator, attributes, types, epilogue, and the values of
    constants that are integers or have at most `small` elements, but for weights (`is_weights`)
    and the inputs `unseen`."""
    anchor = site.anchor
    return (
        None if anchor is None else (anchor.op.name, _attrs(anchor.attrs)),
        tuple(_operand(v, small, i in unseen) for i, v in enumerate(site.inputs)),
        tuple(_operand(v, small) for v in site.extras),
        tuple((name_of(v.dtype), v.dims) for v in site.outputs),
        None if site.epilogue is None else site.epilogue.form,
    )


def node_key(node: Node) -> tuple[Any, ...]:
    """A key for what a node computes, known before its site is made. Constants count as in
    `site_key`, but those of operators with the trait `table` by their types alone. It includes the
    reference functions, which kernels trace: an operator may be registered again with others."""
    tables = "table" in node.op.traits
    return (
        node.op.name,
        tuple(_references(node)),
        _attrs(node.attrs),
        tuple([_operand(v, SMALL, tables) for v in node.inputs]),
        tuple([(name_of(v.dtype), v.dims) for v in node.outputs]),
    )


def _references(node: Node) -> Iterator[Any]:
    """The functions that define a node's operator, and those in its nested graphs."""
    yield getattr(node.op, "reference", None)
    for value in node.attrs.values():
        if isinstance(value, Graph):
            for inner in value.nodes:
                yield from _references(inner)


def _operand(v: Value | None, small: int, unseen: bool = False) -> Any:
    if v is None:
        return None
    if v.const is None:
        return name_of(v.dtype), v.dims
    if unseen or (v.dtype.kind == "f" and v.const.size > small) or is_weights(v.const):
        return name_of(v.dtype), v.dims, True
    if v.const.dtype == object:
        return name_of(v.dtype), v.dims, tuple(v.const.reshape(-1).tolist())
    data = np.ascontiguousarray(v.const)
    return name_of(v.dtype), v.dims, blake2b(data.tobytes(), digest_size=16).digest()


def is_weights(array: np.ndarray[Any, Any]) -> bool:
    """Whether a constant is taken for weights, on whose values code may not depend: whole numbers
    of 8 bits or less, or bfloat16, in a matrix of at least `WEIGHTS` bytes, or more than `SMALL` in
    more axes, as those of convolutions. Bytes along a single one of more axes are not: zero points
    lie so, and kernels ask whether these are 0."""
    column = array.ndim > 2 and max(array.shape) == array.size
    small = array.dtype.itemsize == 1 and array.dtype != np.bool_ and not column
    large = array.nbytes >= WEIGHTS if array.ndim == 2 else array.ndim > 2 and array.size > SMALL
    return large and (small or array.dtype.name == "bfloat16")


def _attrs(attrs: Any) -> Any:
    return tuple(
        [(k, _graph(v) if isinstance(v, Graph) else repr(v)) for k, v in sorted(attrs.items())]
    )


def _graph(graph: Graph) -> Any:
    """A key for what a nested graph computes, whatever the names of its values."""
    number: dict[Value, int] = {v: i for i, v in enumerate(graph.inputs)}

    def operand(v: Value | None) -> Any:
        return number[v] if v in number else _operand(v, SMALL)

    rows = []
    for node in graph.nodes:
        rows.append((node.op.name, _attrs(node.attrs), tuple(map(operand, node.inputs))))
        for v in node.outputs:
            number[v] = len(number)
    types = tuple((name_of(v.dtype), str(v.type)) for v in graph.inputs)
    return types, tuple(rows), tuple(map(operand, graph.outputs))
