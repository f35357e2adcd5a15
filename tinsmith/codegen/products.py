"""The ways to multiply that machines have: a table with a row for each.

Everything heavy is `acc[i][j] += a[i][k..k+g] . b[k..k+g][j]`. A row says which element types both
operands have when packed, how many elements of k a lane of 32 bits holds (the group g, 1 for
float32), the type of sums, the instructions of one step, and what these need of a machine.
Skeletons (tiles, panels, threads, prefetches, epilogues) are written once for all rows of a unit:
for vectors, of which a tile may have many (`kernels/dot/skeleton.py`), and for matrix registers,
each a tile (`kernels/amx/sums.py`, of bytes `kernels/dot/matrices.py`).

Packed, a row of `a` has its elements in the order of k; `b` has [k / g][column][g]. Elements beyond
the end of k are 0 in at least one operand.

Split precision: a row may keep each operand as a sum of several parts (`codegen/matrix.py`). A
product is then the sum of some products of parts, which the row lists: of two parts, hi lo + hi hi
+ lo hi, without lo lo.

Bytes: sums of (a - a_zero) (b - b_zero). A row whose elements are wider than bytes has zero points
taken off when operands are packed (`centred`). In other rows `a` is unsigned (in sdot signed) and
`b` signed: operands of the other signedness, and their zero points, are packed as x XOR 0x80, which
is x + 128 or x - 128. What zero points add is taken off the sums (`kernels/dot/zeros.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tinsmith.codegen import matrix
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import BF16, F32, I32, Ty, from_dtype
from tinsmith.codegen.values import Val
from tinsmith.errors import CodegenError
from tinsmith.records import dataclass

Array = np.ndarray[Any, Any]
Step = Callable[..., Any]
"""Of vectors: (sums, a lane of `a` in all lanes, a lane of `b` for each sum) -> sums. Of matrix
registers: (builder, register of sums, of `a`, of `b`), by their numbers."""
VECTORS, MATRICES = "vectors", "matrix registers"

BITS = 32  # of a lane
MANY = 32  # registers
I8, U8, I16 = Ty("i8"), Ty("u8"), Ty("i16")
_NUMPY = {"i8": np.int8, "u8": np.uint8, "i16": np.int16, "bf16": np.uint16, "f32": np.float32}
"""Of packed elements; those of bfloat16 are their bits."""
_WHOLE = ("i8", "u8", "i16", "u16", "i32")


@dataclass(frozen=True)
class Product:
    """A row of the table: a way to multiply operands `a` and `b` and to add to sums.

    takes        pairs of element types (numpy's names) of `a` and `b` in a model
    left, right  element types of `a` and `b` as they are packed
    lane, sums   the type of a lane, which holds a k-group of them, and of a sum
    step         the instructions (see `Step`)
    rate         products of the model per second, over those by float32 multiply-adds: the time of
                 all `terms` and of additions counts
    needs        whether a target has the instructions
    unit         VECTORS or MATRICES: which skeletons are written for its step
    folds        of matrix registers and bytes: the name of the row of vectors whose operands are
                 packed alike, which adds up their elements; "" for others
    terms        pairs (part of `a`, part of `b`) that are multiplied, in order; part 0 is hi
    error        relative error of a product, beyond what sums of type `sums` round
    kept         registers that the step needs for constants
    prepared     whether its sums are right only for operands that a kernel prepares
                 (`kernels/dot/saturating.py`)
    """

    name: str
    takes: frozenset[tuple[str, str]]
    left: Ty
    right: Ty
    lane: Ty
    sums: Ty
    step: Step
    rate: float = 1.0
    needs: Callable[[Target], bool] = lambda target: True
    unit: str = VECTORS
    folds: str = ""
    terms: tuple[tuple[int, int], ...] = ((0, 0),)
    error: float = 0.0
    kept: int = 0
    prepared: bool = False

    @property
    def parts(self) -> int:
        """How many parts (hi, lo, ...) each element of an operand is split into; 1: not split."""
        return 1 + max(part for term in self.terms for part in term)

    @property
    def group(self) -> int:
        """The k-group: how many consecutive elements along k one lane holds."""
        return self.lane.bits // self.left.bits

    @property
    def centred(self) -> bool:
        """Whether packed elements are wider than bytes: bytes are then packed less their zero
        points (the module's docstring)."""
        return self.left.bits > 8

    @property
    def is_whole(self) -> bool:
        """For a row of the table: whether sums are integers, and so exact."""
        return self.sums.kind != "f32"

    def depth(self, k: int) -> int:
        """How many lanes `k` elements along k take, the last perhaps in part; for matrix registers,
        which take SIDE lanes in a step, rounded up to a multiple of SIDE."""
        lanes = -(-k // self.group)
        return lanes if self.unit == VECTORS else -(-lanes // matrix.SIDE) * matrix.SIDE

    @property
    def fold(self) -> Product:
        """For rows of bytes: the row of vectors by whose steps elements of one operand that is
        packed for this row are added up, as zero points need: products by lanes of ones (`one`). It
        is the row `folds`, or this one."""
        return PRODUCTS[self.folds] if self.folds else self

    def one(self, kind: Ty) -> int:
        """The lane, as a number, in which each element of the k-group is 1; elements are of the
        integer type `kind` (`left` or `right`)."""
        return sum(1 << i * kind.bits for i in range(self.group))

    def widened(self, v: Val) -> Val:
        """Lanes of `b` as the step takes them, from as many narrower lanes (`narrow_lane`), whose
        elements are converted to the type `right`."""
        if v.ty.kind == self.lane.kind:
            return v
        if self.group == 1:
            return (v.to("i32") if v.ty.kind in _WHOLE else v).to(self.lane.kind)
        bytes = v.bitcast(Ty(f"i{v.ty.bits // self.group}", v.ty.lanes * self.group))
        return bytes.to(self.right.kind).bitcast(self.lane.x(v.ty.lanes))

    def vectors(self, target: Target) -> int:
        """How many vectors of columns a register tile has at most: 6; 2 where the target has few
        registers and lanes hold several elements, as a step needs registers for products then."""
        return 2 if target.registers < MANY and self.lane != self.left else 6


# ---- steps


def fused(acc: Val, x: Val, w: Val) -> Val:
    """The `Step` of rows with one element in a lane: acc + x * w, lane by lane."""
    return x.fma(w, acc).fenced()


def spelled(left: Ty, right: Ty) -> Step:
    """The `Step` of an integer row in instructions that any machine has: it adds the products of a
    k-group one after the other. Rows with special instructions must give the same results."""

    def step(acc: Val, x: Val, w: Val) -> Val:
        for i in range(BITS // left.bits):
            acc = acc + _element(x, i, left) * _element(w, i, right)
        return acc.fenced()

    return step


def _element(v: Val, i: int, kind: Ty) -> Val:
    """Element i, of type `kind`, of the k-group in each lane of v, extended to int32."""
    above = BITS - (i + 1) * kind.bits
    raised = v << above if above else v
    if kind.is_signed:
        return raised >> (BITS - kind.bits)
    return (Val(v.b, raised.ty.of("u32"), raised.ref) >> BITS - kind.bits).to("i32")


PMADDWD = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd",
           16: "llvm.x86.avx512.pmaddw.d.512"}  # fmt: skip
"""Sums of two products of 16 bits, by lanes (Intel 64 and IA-32 Architectures SDM, volume 2)."""
WHOLE = ("scalar", "sse2", "avx2", "avx512")
"""Instruction sets of x86-64 that have whole numbers in vectors as wide as those of floats."""


def multiply_pairs(acc: Val, x: Val, w: Val) -> Val:
    lanes = acc.ty.lanes
    both = [v.bitcast(I16.x(2 * lanes)) for v in (x, w)]
    return (acc + acc.b.intrinsic(PMADDWD[lanes], acc.ty, both)).fenced()


PMADDUBSW = {4: "llvm.x86.ssse3.pmadd.ub.sw.128", 8: "llvm.x86.avx2.pmadd.ub.sw",
             16: "llvm.x86.avx512.pmaddubs.w.512"}  # fmt: skip
"""Sums of two products of unsigned by signed bytes, in 16 bits, which saturate (ibidem)."""


def multiply_quads(acc: Val, x: Val, w: Val) -> Val:
    """The `Step` of four products of bytes: each two are added in 16 bits, which saturate, and then
    both sums to `acc`."""
    b, lanes = acc.b, acc.ty.lanes
    both = [x.bitcast(U8.x(4 * lanes)), w.bitcast(I8.x(4 * lanes))]
    pairs = b.intrinsic(PMADDUBSW[lanes], I16.x(2 * lanes), both)
    ones = b.const(0x10001, acc.ty).bitcast(pairs.ty)
    return (acc + b.intrinsic(PMADDWD[lanes], acc.ty, [pairs, ones])).fenced()


VPDPBUSD, VPDPWSSD = (f"llvm.x86.avx512.{name}.{{bits}}" for name in ("vpdpbusd", "vpdpwssd"))
"""Four products of unsigned by signed bytes, and two products of 16 bits, added to 32 bits without
saturation (ibidem)."""
SDOT, USDOT = (f"llvm.aarch64.neon.{name}.v4i32.v16i8" for name in ("sdot", "usdot"))
"""Four products of signed bytes, and of unsigned by signed ones, added to 32 bits without
saturation (Arm Architecture Reference Manual for A-profile, C7)."""


def added_by(intrinsic: str, left: Ty, right: Ty) -> Step:
    """The `Step` of an integer row for which one instruction adds the products of a k-group to a
    sum. `{bits}` in the name `intrinsic` stands for the bits of a vector; the instruction takes
    elements `left` of x and `right` of w."""

    def step(acc: Val, x: Val, w: Val) -> Val:
        bits = BITS * acc.ty.lanes
        both = [v.bitcast(ty.x(bits // ty.bits)) for v, ty in ((x, left), (w, right))]
        return acc.b.intrinsic(intrinsic.format(bits=bits), acc.ty, [acc, *both])

    return step


VDPBF16PS = {lanes: f"llvm.x86.avx512bf16.dpbf16ps.{BITS * lanes}" for lanes in (4, 8, 16)}
"""The odd elements' product is added first, then the even ones' (Intel Architecture Instruction Set
Extensions Programming Reference, chapter 5)."""


def multiply_halves(acc: Val, x: Val, w: Val) -> Val:
    lanes = acc.ty.lanes
    native = f"<{2 * lanes} x bfloat>"
    both = [acc.b.emit(acc.ty, f"bitcast {v.ty.llvm} {v.ref} to {native}") for v in (x, w)]
    kinds = f"{acc.ty.llvm}, {native}, {native}"
    shown = ", ".join([f"{acc.ty.llvm} {acc.ref}", *(f"{native} {v.ref}" for v in both)])
    return acc.b.intrinsic(VDPBF16PS[lanes], acc.ty, text=shown, params=kinds)


# ---- the table


def multiply_adds(ty: Ty) -> Product:
    """A row that is not in the table: multiply-adds of operands and sums of the one type `ty`."""
    return Product(ty.kind, frozenset(), ty, ty, ty, ty, fused)


_FLOATS = frozenset({("float32", "float32")})
_BYTES = frozenset((a, b) for a in ("int8", "uint8") for b in ("int8", "uint8"))
_SHORTS = frozenset((a, "int16") for a in ("int8", "uint8"))
_pairs = partial(Product, takes=_BYTES | _SHORTS, left=I16, right=I16, lane=I32, sums=I32)

PRODUCTS: dict[str, Product] = {
    row.name: row
    for row in (
        Product("float32", _FLOATS, F32, F32, F32, F32, fused),
        _pairs("pairs", step=spelled(I16, I16), rate=0.7),
        _pairs("pmaddwd", step=multiply_pairs, rate=1.6,
               needs=lambda target: target.vectors in WHOLE),
        Product("pmaddubsw", _BYTES, U8, I8, I32, I32, multiply_quads, rate=2.1, kept=1,
                needs=lambda target: target.vectors in ("avx2", "avx512"), prepared=True),
        _pairs("vpdpwssd", step=added_by(VPDPWSSD, I16, I16), rate=2.0,
               needs=lambda target: target.byte_products == "vpdpbusd"),
        Product("vpdpbusd", _BYTES, U8, I8, I32, I32, added_by(VPDPBUSD, U8, I8), rate=4.0,
                needs=lambda target: target.byte_products == "vpdpbusd"),
        Product("sdot", _BYTES, I8, I8, I32, I32, added_by(SDOT, I8, I8), rate=4.0,
                needs=lambda target: target.byte_products == "sdot"),
        Product("usdot", _BYTES, U8, I8, I32, I32, added_by(USDOT, U8, I8), rate=4.0,
                needs=lambda target: target.byte_products == "usdot"),
        Product("tdpbusd", _BYTES, U8, I8, I32, I32, matrix.multiply_bytes, rate=16.0,
                needs=lambda target: target.has_matrices, unit=MATRICES, folds="vpdpbusd"),
        Product("vdpbf16ps", _FLOATS, BF16, BF16, I32, F32, multiply_halves, rate=2.0,
                needs=lambda target: target.has_half_products, error=2.0**-8),
        Product("split", _FLOATS, BF16, BF16, F32, F32, matrix.multiply, rate=8 / 3,
                needs=lambda target: target.has_matrices, unit=MATRICES,
                terms=((0, 1), (0, 0), (1, 0)), error=2.0**-15),
        Product("bfloat16", _FLOATS, BF16, BF16, F32, F32, matrix.multiply, rate=8.0,
                needs=lambda target: target.has_matrices, unit=MATRICES, error=2.0**-8),
    )
}  # fmt: skip
"""By name. Rates are measured on Zen 4 by `python -m benchmarks.peak --products`; that of vpdpbusd
is what Zen 4 and Intel's processors are documented to do, those of sdot and usdot what Arm's
Cortex-A76 and later are. That of split: 64 issue slots (half a cycle each) for every product of
registers, which take 35 to 45 where a core has its matrix unit to itself, and two to three times as
long where another thread of the core is busy; in between lies what is right more often than not.
bfloat16 has one of its three products, and tdpbusd multiplies twice as many elements in the same
time (documented, not measured). That of vdpbf16ps is what Zen 4 is documented to do; Intel's
processors begin half as many of them as of multiply-adds."""

FLOAT32 = PRODUCTS["float32"]


def product_of(
    target: Target, left: str, right: str, error: float = 0.0, prepared: bool = False
) -> Product:
    """The target's fastest row of the table for operands of these element types (numpy's names), of
    those that compute in vectors, with relative errors of at most `error`; of any operands, or with
    `prepared` also of prepared ones. Raises CodegenError where it has none."""
    exact = [p for p in PRODUCTS.values() if p.unit == VECTORS and p.error <= error]
    exact = [p for p in exact if p.prepared <= prepared]
    rows = [p for p in exact if (left, right) in p.takes and p.needs(target)]
    if not rows:
        raise CodegenError(f"{target.isa} has no exact products of {left} and {right} in vectors")
    return max(rows, key=lambda p: p.rate)


# ---- packing


def packed_lanes(right: Array, row: Product, stored: Any = None) -> Array:
    """Pack a matrix [k, n] of elements of `b` as lanes [row.depth(k), n]: integers that each hold a
    k-group of a column (where the group is 1, the elements themselves), with zeros beyond the end
    of k. Elements of bfloat16 are given as bits (uint16). With `stored`, elements are kept in this
    numpy dtype: lanes may be narrower than the step takes, and `Product.widened` widens them."""
    k, n = right.shape
    g, dtype = row.group, np.dtype(stored or _NUMPY[row.right.kind])
    wide = np.zeros((row.depth(k) * g, n), dtype, "C" if g == 1 else "F")
    wide[:k] = right
    return wide if g == 1 else wide.T.view(f"i{g * dtype.itemsize}").T


def narrow_lane(row: Product, stored: Any) -> Ty:
    """The type of the lanes that `packed_lanes` makes for `row` with elements kept in the dtype
    `stored`."""
    dtype = np.dtype(stored)
    return from_dtype(dtype) if row.group == 1 else Ty(f"i{8 * dtype.itemsize * row.group}")


def joined(elements: list[Val], row: Product) -> Val:
    """Emit the packing of `b`, and return its lanes, a vector of int32: element i of the k-group in
    a lane is the same lane of `elements[i]`, a vector of int32, cut to the bits of `right`."""
    bits, lane = row.right.bits, None
    for i, v in enumerate(elements):
        part = v if (i + 1) * bits == BITS else v & ((1 << bits) - 1)
        part = part << (i * bits) if i else part
        lane = part if lane is None else lane | part
    assert lane is not None, "a lane has at least one element"
    return lane
