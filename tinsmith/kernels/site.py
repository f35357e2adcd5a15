"""Sites: what kernels see of a model, one node or one fused region on one machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from math import prod
from typing import Any

import numpy as np

from tinsmith.codegen.expr import Expr
from tinsmith.codegen.target import Target
from tinsmith.graph import Node, Value
from tinsmith.kernels.layout import PLAIN, Layout
from tinsmith.records import dataclass
from tinsmith.sizes import Size

PRODUCT_ERROR = {"exact": 0.0, "strict": 2.0**-22, "default": 2.0**-15, "bfloat16": 2.0**-8}
"""Precision -> the relative error that a product of float32 may have, beyond the rounding of
sums."""


class Skip(Exception):
    """Raised by a kernel that looked at a site and declines it; the message says why."""


@dataclass
class Site:
    """What a kernel sees: an anchor node (None for a purely elementwise region), its operands, and
    the epilogue that must be applied to its result.

    `node` is the anchor or the node into which it is fused. `inputs` are the anchor's inputs (None
    if absent), `extras` the other operands of the epilogue, `operands` both in this order. All
    ranks are known; sizes are ints or, if free, Sizes. `epilogue` is an expression: leaf 0 is the
    anchor's result, leaf 1 + k is extras[k]. It is None if nothing was fused. Without an anchor
    leaf k is extras[k].
    """

    node: Node
    anchor: Node | None
    inputs: tuple[Value | None, ...]
    extras: tuple[Value, ...]
    outputs: tuple[Value, ...]
    epilogue: Expr | None
    target: Target
    precision: str = "default"
    threads: int = 1  # threads that will share the work
    layouts: dict[Value, Layout] = field(default_factory=dict)  # of values already produced
    by_channels: set[Value] = field(default_factory=set)  # values whose channels threads shared

    @property
    def operands(self) -> tuple[Value | None, ...]:
        return self.inputs + self.extras

    @property
    def out(self) -> Value:
        return self.outputs[0]

    @property
    def is_strict(self) -> bool:
        """Whether algorithms that round much more than the plain sum does are forbidden: precision
        is "strict" or "exact"."""
        return PRODUCT_ERROR[self.precision] < PRODUCT_ERROR["default"]

    @property
    def is_free(self) -> bool:
        """Whether some size of an operand or an output is known only in the call."""
        values = (*self.operands, *self.outputs)
        return any(isinstance(d, Size) for v in values if v is not None for d in v.dims)

    def attr(self, name: str) -> Any:
        assert self.anchor is not None
        return self.anchor.attrs[name]

    def input(self, index: int) -> Value:
        """The anchor's input number `index`. Raises Skip if it is absent."""
        if index >= len(self.inputs) or self.inputs[index] is None:
            raise Skip(f"input {index} is absent")
        return self.inputs[index]  # type: ignore[return-value]

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] is not None

    def const(self, index: int, what: str = "") -> np.ndarray[Any, Any]:
        """The array of input number `index`. Raises Skip if that is absent or no constant; the
        reason calls it `what`, if given."""
        value = self.input(index)
        if value.const is None:
            raise Skip(f"{what or f'input {index}'} ({value.name}) is not a constant")
        return value.const

    def need_same_shape(self) -> tuple[int, ...]:
        """The dims of the first input. Raises Skip if the output has others, or there are no
        elements."""
        dims = self.input(0).dims
        if self.out.dims != dims:
            raise Skip(f"the output {self.out.dims} is not the input's shape {dims}")
        if prod(dims) == 0:
            raise Skip("the input is empty")
        return dims

    def need_no_epilogue(self, why: str) -> None:
        """Raise Skip for the reason `why` if an epilogue is fused to the node."""
        if self.extras or self.epilogue is not None:
            raise Skip(why)

    def layout(self, value: Value | None) -> Layout:
        """The layout in which a value lies now (plain for the graph's inputs and constants)."""
        return self.layouts.get(value, PLAIN) if value is not None else PLAIN

    def extra_reads(self, layout: Layout) -> tuple[Layout, ...]:
        """The layouts that extras must have if the output has `layout`. If that is blocked: plain
        for an extra of one element, or of one channel where the output has several (which is then
        broadcast to all lanes), and blocked for others. If it is plain: plain."""
        if layout.is_plain:
            return (PLAIN,) * len(self.extras)
        rank, channels = len(self.out.dims), self.out.dims[1]

        def one(v: Value) -> Layout:
            dims = (1,) * (rank - len(v.dims)) + v.dims
            broadcast = v.type.size == 1 or (dims[1] == 1 and channels != 1)
            return PLAIN if broadcast else Layout(layout.block)

        return tuple(map(one, self.extras))

    def reads(self, inputs: Sequence[Layout | None], layout: Layout) -> tuple[Layout | None, ...]:
        """`Choice.reads` for an output in `layout`: the layouts of `inputs`, then of the extras."""
        assert len(inputs) == len(self.inputs), (inputs, self.inputs)
        return (*inputs, *self.extra_reads(layout))

    def reads_first(self, first: Layout, layout: Layout) -> tuple[Layout | None, ...]:
        """`reads` if of the inputs only the first, in layout `first`, is read at run time."""
        return self.reads([first, *(None for _ in self.inputs[1:])], layout)
