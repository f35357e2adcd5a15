"""The sizes, strides and activations of a recurrent layer, and which layers kernels decline."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tinsmith.codegen.builder import Val
from tinsmith.codegen.expr import Expr, emit_expr
from tinsmith.codegen.functions import sigmoid, unsupported
from tinsmith.codegen.math import tanh
from tinsmith.codegen.products import FLOAT32, VECTORS, Product, narrow_lane, product_of
from tinsmith.codegen.types import BF16, Ty
from tinsmith.kernels._kernel import Site, Skip
from tinsmith.kernels.float_products import float_product
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.trace import Maker, Traced
from tinsmith.ops.recurrent import functions
from tinsmith.records import dataclass


@dataclass(frozen=True)
class Matrix:
    """How the input weights W or the recurrent weights R of a layer are multiplied and stored.

    row     the row of the table of products that multiplies
    stored  the type of a packed lane, which may be narrower than `row.lane`
    depth   lanes along k, the summed axis
    scale   the number of the input with a scale for each column of the products, if weights are
            whole numbers of 8 or 16 bits; None: weights are float32
    """

    row: Product
    stored: Ty
    depth: int
    scale: int | None

    @property
    def halves(self) -> bool:
        """Whether weights and their left operand are rounded to bfloat16."""
        return self.row.left == BF16


@dataclass(frozen=True)
class Layer:
    """One recurrent layer: T time steps (`steps`), N rows of the batch, I inputs, H hidden units in
    blocks of V (`lanes`), D directions.

    gates        how many gates a cell has; products have one column for each gate of each unit
    states       how many states it has: 2 (LSTM: h and c) or 1
    directions   for each direction, whether it goes from the last step to the first
    functions    emit the activations of the cell, in ONNX's order; one set for all directions
    lens         whether input 4 tells the number of steps of each row
    peepholes    the number of the input with the peephole weights, or None
    apart        whether the recurrent bias of the last gate is added inside the step, not to the
                 products of the inputs (a GRU with linear_before_reset)
    batch_first  x is (N, T, I), y (N, T, D, H) and states are (N, D, H); otherwise these are
                 (T, N, I), (T, D, N, H) and (D, N, H)
    matrices     how the input weights and the recurrent weights are multiplied
    rounded      inputs and states h are rounded to bytes before they are multiplied
    """

    site: Site
    gates: int
    states: int
    steps: int
    batch: int
    inputs: int
    hidden: int
    directions: tuple[bool, ...]
    lanes: int
    functions: tuple[Function, ...]
    lens: bool
    peepholes: int | None
    apart: bool
    batch_first: bool
    matrices: tuple[Matrix, Matrix]
    rounded: bool

    @property
    def product_strides(self) -> tuple[int, int]:
        """(the stride of time steps, of batch rows) in the products of inputs, in elements."""
        step, row = (1, self.steps) if self.batch_first else (self.batch, 1)
        return step * self.columns, row * self.columns

    @property
    def output_strides(self) -> tuple[int, int, int]:
        """(the stride of time steps, of directions, of batch rows) in y, in elements."""
        ways, hidden = len(self.directions), self.hidden
        if self.batch_first:
            return ways * hidden, hidden, self.steps * ways * hidden
        return ways * self.batch * hidden, self.batch * hidden, hidden

    @property
    def state_strides(self) -> tuple[int, int]:
        """(the stride of directions, of batch rows) in first and last states, in elements."""
        if self.batch_first:
            return self.hidden, len(self.directions) * self.hidden
        return self.batch * self.hidden, self.hidden

    @property
    def weights(self) -> list[int]:
        """The numbers of all present inputs with weights, biases, peepholes or scales."""
        of = (1, 2, 3, self.peepholes, *(m.scale for m in self.matrices))
        return [i for i in of if i is not None and self.site.has(i)]

    @property
    def computed(self) -> bool:
        """Whether some weights are known only when the model runs: then a phase packs all."""
        return any(self.site.input(i).const is None for i in self.weights)

    @property
    def arrays(self) -> tuple[str, ...]:
        """The names of the packed arrays (`weights.packed`), in order."""
        scaled = [name for name, m in zip("wr", self.matrices, strict=True) if m.scale is not None]
        sums = self.rounded and not self.matrices[0].row.centred
        return (
            "w", "bias", "r", "rb", *(["peepholes"] if self.peepholes is not None else []),
            *(f"{name}_scale" for name in scaled), *(f"{name}_sums" for name in scaled if sums),
        )  # fmt: skip

    @property
    def buffers(self) -> int:
        """How many buffers [row][padded] one direction has in scratch. Two states (LSTM): two for
        h, one for c. One state: two for h, and two more, where a GRU has r * h and z."""
        return 3 if self.states > 1 else 4

    @property
    def blocks(self) -> int:
        """The number of blocks of hidden units."""
        return -(-self.hidden // self.lanes)

    @property
    def padded(self) -> int:
        """Hidden units, rounded up to whole blocks."""
        return self.blocks * self.lanes

    @property
    def columns(self) -> int:
        """Columns of the products of one direction, padding included: [block][gate][V]."""
        return self.blocks * self.gates * self.lanes

    @property
    def rows(self) -> int:
        """Rows of the products of all inputs: one for each step and row of the batch."""
        return self.steps * self.batch


def layer_of(
    site: Site, gates: int, states: int, plain: Sequence[str], apart: bool = False
) -> Layer:
    """The layer of a site. Raises Skip if the native kernels do not compute it.

    gates, states, apart  as in `Layer`
    plain                 the names of the activations of one direction, if the site names none
    """
    if site.has(4) and site.input(4).dtype.kind not in "iu":
        raise Skip(f"sequence_lens is {site.input(4).dtype}")
    batch_first = bool(site.attr("layout"))
    t, n, i = site.input(0).dims
    if batch_first:
        t, n = n, t
    count, hidden = site.input(1).dims[0], site.input(2).dims[2]
    functions = gate_functions(site, plain, count)
    way = site.attr("direction")
    directions = (False, True) if way == "bidirectional" else (way == "reverse",)
    peepholes = 5 + states if states > 1 else None
    rounded = states > 1 and bool(site.attr("rounded"))
    scales = 5 + states + (states > 1)
    halves = _may_be_halves(site)
    w, r = (_matrix(site, k, rounded, halves, scales + k - 1) for k in (1, 2))
    found = Layer(
        site, gates, states, t, n, i, hidden, directions, block_of(site.target), functions,
        site.has(4), peepholes if peepholes and site.has(peepholes) else None, apart, batch_first,
        (w, r), rounded,
    )  # fmt: skip
    if found.computed and any(m.scale is not None for m in found.matrices):
        raise Skip("its weights are small, and others are known only when the model runs")
    return found


def _may_be_halves(site: Site) -> bool:
    """Whether both weights are constant, and `float_product` lets them be rounded to bfloat16."""
    try:
        for i in (1, 2):
            float_product(site, VECTORS, site.const(i))
    except Skip:
        return False
    return True


def _matrix(site: Site, number: int, rounded: bool, halves: bool, scale: int) -> Matrix:
    """How the weights that are input `number` are multiplied: as bytes if `rounded`; as bfloat16 if
    `halves`, for float32 weights without scales; else as float32, to which weights with scales are
    converted. Input `scale` has the scales, if present. Raises Skip if `rounded` and they are not
    int8 or int16 with scales, or if weights with scales are not constant."""
    w, row = site.input(number), FLOAT32
    if not site.has(scale):
        if rounded:
            raise Skip(f"{w.name} has no scales, and is to be multiplied by bytes")
        if halves and w.dtype == np.float32:
            row = float_product(site, VECTORS)
        return Matrix(row, row.lane, row.depth(w.dims[2]), None)
    for i, what in ((number, "the weights"), (scale, "their scales")):
        site.const(i, what)
    if rounded:
        if w.dtype.name not in ("int8", "int16"):
            raise Skip(f"{w.name} is {w.dtype}, and is to be multiplied by bytes")
        row = product_of(site.target, "uint8", w.dtype.name)
    return Matrix(row, narrow_lane(row, w.dtype), row.depth(w.dims[2]), scale)


Function = Callable[[Val], Val]

USUAL: dict[str, Function] = {"sigmoid": sigmoid, "tanh": tanh}


def gate_functions(site: Site, plain: Sequence[str], count: int) -> tuple[Function, ...]:
    """The functions that emit the activations of one direction's cell, in ONNX's order, with the
    site's `clip`. `plain`: their names if the site names none. Raises Skip if one has no code, or
    the `count` directions have different ones."""
    names = tuple(a.lower() for a in site.attr("activations") or tuple(plain) * count)
    clip = site.attr("clip")
    if clip is None and names == tuple(plain) * count:
        return tuple(USUAL[name] for name in plain)
    maker = Maker()
    leaf = Traced(maker, maker.leaf(0, np.dtype(np.float32)))
    found: list[Expr] = []
    alphas, betas = site.attr("activation_alpha"), site.attr("activation_beta")
    each = len(plain)
    for name, function in zip(names, functions(names, alphas, betas, clip, each), strict=True):
        try:
            expr = function(leaf).expr  # type: ignore[arg-type]
        except Skip as why:
            raise Skip(f"the activation {name}: {why}") from None
        if reason := unsupported(expr):
            raise Skip(f"the activation {name}: {reason}")
        found.append(expr)
    if any(expr is not found[i % each] for i, expr in enumerate(found)):
        raise Skip(f"the directions have different activations: {', '.join(names)}")
    return tuple(lambda x, expr=expr: emit_expr(x.b, expr, [x]) for expr in found[:each])
