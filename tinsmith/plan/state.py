"""What accumulates while a plan is made: code, packed weights, and tables of sizes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field
from typing import Any, Protocol

import numpy as np

from tinsmith.codegen.expr import Expr
from tinsmith.codegen.products import FLOAT32, PRODUCTS, Product, product_of
from tinsmith.graph import Node
from tinsmith.kernels._kernel import Packed, packed_table
from tinsmith.kernels.build import Code
from tinsmith.kernels.site import PRODUCT_ERROR, Site
from tinsmith.plan.memory import align
from tinsmith.plan.placed import Placed
from tinsmith.plan.plan import Ref
from tinsmith.plan.shared_weights import Blob, Kept, Key, SharedWeights, key_of
from tinsmith.plan.tensors import Tensor
from tinsmith.records import dataclass
from tinsmith.sizes import Number, Size, estimate


class Sink(Protocol):
    """Takes code and weights as they are made, so that compiling and writing overlap with planning.
    `code` gets LLVM IR, `weights` an array and its offset in bytes."""

    def code(self, symbol: str, text: str) -> None: ...

    def weights(self, offset: int, array: np.ndarray[Any, Any]) -> None: ...


@dataclass
class State:
    """What the steps of a plan need besides themselves, collected while they are built.

    codes, weights   as in `Built`; without `weights` if a sink takes them
    own_bytes        bytes of packed arrays that no earlier program has
    shared           blobs of earlier programs that this one reads
    borrowed         (1 + index into `shared`, offset) -> bytes, of each array that it reads there
    kept             by `Key.name`: (key, where its array lies), of all arrays that it reads
    fresh            (key, where its array lies), of those that no earlier program has
    sizes            the free sizes that code reads, table after table
    made             bytes of the space "made"
    offsets          of tensors with memory of their own, in arena or workspace (`arena.py`)
    workspace        bytes for each thread
    zeroed           the tensors whose halos the steps so far zero
    """

    sink: Sink | None
    shared_weights: SharedWeights
    codes: dict[str, str] = field(default_factory=dict)
    weights: list[tuple[int, np.ndarray[Any, Any]]] = field(default_factory=list)
    own_bytes: int = 0
    shared: list[Blob] = field(default_factory=list)
    borrowed: dict[tuple[int, int], int] = field(default_factory=dict)
    kept: dict[Hashable, tuple[Key, Kept]] = field(default_factory=dict)
    fresh: list[tuple[Key, Kept]] = field(default_factory=list)
    sizes: list[Number] = field(default_factory=list)
    made: Number = 0
    offsets: dict[Tensor, int] = field(default_factory=dict)
    workspace: Number = 0
    zeroed: set[Tensor] = field(default_factory=set)
    _made: dict[Tensor, Number] = field(default_factory=dict)
    _tables: dict[tuple[Number, ...], int] = field(default_factory=dict)
    _flops: dict[Hashable, float] = field(default_factory=dict)

    def code(self, symbol: str, text: str) -> None:
        if symbol not in self.codes:
            self.codes[symbol] = text
            if self.sink is not None:
                self.sink.code(symbol, text)

    def made_at(self, tensor: Tensor) -> Number:
        """The byte offset of a tensor in the space "made", where tensors lie that are computed once
        for each set of sizes. At the first call for a tensor it gets a place."""
        if tensor not in self._made:
            self._made[tensor] = self.made
            self.made = self.made + align(tensor.settled.nbytes)
        return self._made[tensor]

    def tables(self, code: Code, epilogue: Expr | None) -> tuple[Ref, ...]:
        """The addresses of the tables that a generated function gets as its last arguments: of the
        numbers of its `epilogue` (`Expr.numbers`), if it reads them, then of sizes, if it reads
        any. A table of free sizes is added to `sizes`, any other to the weights; equal ones are
        shared."""
        numbers: tuple[Ref, ...] = ()
        if code.reads_numbers and epilogue is not None:
            data = b"".join([n.tobytes() for n in epilogue.numbers.values()])
            packed = packed_table("numbers", np.frombuffer(data, np.int32))
            numbers = (self.ref(self.packed(packed)),)
        if not code.sizes:
            return numbers
        if not any(isinstance(n, Size) for n in code.sizes):
            packed = packed_table("sizes", np.array(code.sizes, np.int64))
            return (*numbers, self.ref(self.packed(packed)))
        first = self._tables.setdefault(code.sizes, len(self.sizes))
        if first == len(self.sizes):
            self.sizes += code.sizes
        return (*numbers, Ref("sizes", 8 * first))

    def packed(self, packed: Packed) -> Kept:
        """Where the array lies that `packed` describes. It is made and added to the own weights,
        unless this program or an earlier one has it."""
        key = key_of(packed.pack, *packed.args)
        return self._known(key) or self._put(np.ascontiguousarray(packed.make()), key)

    def constant(self, array: np.ndarray[Any, Any]) -> Kept:
        """Where a constant array lies among the weights, of this program or an earlier one. It is
        added to the own ones if none has it."""
        key = key_of(array)
        return self._known(key) or self._put(array, key)

    def ref(self, kept: Kept, before: int = 0) -> Ref:
        """The address `before` bytes after the beginning of a packed array. If the array lies in
        the blob of an earlier program, that is noted in `shared` and `borrowed`."""
        if kept.blob is None:
            return Ref("weights", kept.offset + before)
        if kept.blob not in self.shared:
            self.shared.append(kept.blob)
        index = 1 + self.shared.index(kept.blob)
        self.borrowed[index, kept.offset] = kept.nbytes
        return Ref("weights", kept.offset + before, index)

    def flops(self, s: Placed) -> float:
        """How many arithmetic operations a step takes. Equivalent nodes have equal numbers, which
        are computed once."""
        if s.computed is None:
            return flops_of(s.node)
        known = self._flops.get(s.computed)
        if known is None:
            known = self._flops[s.computed] = flops_of(s.node)
        return known

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights that the program reads, each array once."""
        return self.own_bytes + sum(map(align, self.borrowed.values()))

    def _known(self, key: Key) -> Kept | None:
        """Where the array of a key lies, in this program or an earlier one; None if it is new."""
        known, kept = self.kept.get(key.name, (None, None))
        if known is not None and known.lives:  # freed memory may hold another array by now
            return kept
        kept = self.shared_weights.made(key)
        if kept is not None:
            self.kept[key.name] = key, kept
        return kept

    def _put(self, array: np.ndarray[Any, Any], key: Key) -> Kept:
        """Remember `array` under a key, and return where it lies: where an earlier program has the
        same bytes, else behind the own weights, to which it is added."""
        kept = self.shared_weights.same(array)
        if kept is None:
            kept = Kept(None, self.own_bytes, array.dtype, array.nbytes)
            self.own_bytes = align(kept.offset + array.nbytes)
            if self.sink is not None:
                self.sink.weights(kept.offset, array)
            else:
                self.weights.append((kept.offset, array))
        self.kept[key.name] = key, kept
        if kept.blob is None:
            self.fresh.append((key, kept))
        return kept


@estimate
def flops_of(node: Node | None) -> float:
    """How many arithmetic operations a node of static types takes; 0 for None."""
    if node is None:
        return 0.0
    return node.op.flops(node.inputs, node.outputs, node.attrs)  # type: ignore[attr-defined]


def product_row(site: Site) -> Product:
    """The row of the table of products whose peak is 100 % for a step, whichever its kernel takes:
    the target's fastest in vectors for what the anchor multiplies (`Op.factors`), prepared or not,
    that the precision allows. That of float32 for what multiplies nothing, or types without a
    row."""
    factors = getattr(site.anchor and site.anchor.op, "factors", None)
    types: tuple[str, str] | None = factors(site.anchor) if factors else None
    if types is None or not any(types in p.takes for p in PRODUCTS.values()):
        return FLOAT32
    return product_of(site.target, *types, PRODUCT_ERROR[site.precision], prepared=True)
