"""What a kernel sees of a model: one node, or one fused region, on one machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from tinsmith.codegen.expr import Expr
from tinsmith.codegen.target import Target
from tinsmith.graph import Node, Value
from tinsmith.kernels.layout import PLAIN, Layout
from tinsmith.records import dataclass


class Skip(Exception):
    """Raised by a kernel that looked at a site and declines it; the message says why."""


@dataclass
class Site:
    """What a kernel sees: an anchor node (None for a purely elementwise region), its operands,
    and the epilogue that must be applied to its result.

    `inputs` are the anchor's input Values (None where absent), `extras` the further operands of
    the epilogue; `operands` is both. All shapes are static. `epilogue` is an Expr over
    Leaf(0) = the anchor's result and Leaf(1 + k) = extras[k]; None where there is none. Without
    anchor the leaves are the extras, from Leaf(0).
    """

    node: Node
    anchor: Node | None
    inputs: tuple[Value | None, ...]
    extras: tuple[Value, ...]
    outputs: tuple[Value, ...]
    epilogue: Expr | None
    target: Target
    precision: str = "default"
    threads: int = 1  # that will share the work
    layouts: dict[Value, Layout] = field(default_factory=dict)  # of values already produced
    by_channels: set[Value] = field(default_factory=set)  # whose channels were shared by threads

    @property
    def operands(self) -> tuple[Value | None, ...]:
        return self.inputs + self.extras

    @property
    def out(self) -> Value:
        return self.outputs[0]

    def attr(self, name: str) -> Any:
        assert self.anchor is not None
        return self.anchor.attrs[name]

    def input(self, index: int) -> Value:
        """The input, or Skip where it is absent."""
        if index >= len(self.inputs) or self.inputs[index] is None:
            raise Skip(f"input {index} is absent")
        return self.inputs[index]  # type: ignore[return-value]

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] is not None

    def const(self, index: int, what: str = "") -> np.ndarray[Any, Any]:
        """The array of a constant input, or Skip."""
        value = self.input(index)
        if value.const is None:
            raise Skip(f"{what or f'input {index}'} ({value.name}) is not a constant")
        return value.const

    def need_no_epilogue(self, why: str) -> None:
        """Skip for this reason if anything is fused to the node."""
        if self.extras or self.epilogue is not None:
            raise Skip(why)

    def layout(self, value: Value | None) -> Layout:
        """The layout in which a value lies now (plain for inputs and constants)."""
        return self.layouts.get(value, PLAIN) if value is not None else PLAIN

    def extra_reads(self, layout: Layout) -> tuple[Layout, ...]:
        """How the extras must lie where the output has `layout`: the same block, or plain where
        their channel axis is broadcast (one element is then read for all lanes)."""
        if layout.is_plain:
            return (PLAIN,) * len(self.extras)
        rank, channels = len(self.out.dims), self.out.dims[1]

        def one(v: Value) -> Layout:
            broadcast = v.type.size == 1 or (_channels(v, rank) == 1 and channels != 1)
            return PLAIN if broadcast else Layout(layout.block)

        return tuple(map(one, self.extras))

    def reads(self, inputs: Sequence[Layout | None], layout: Layout) -> tuple[Layout | None, ...]:
        """`Choice.reads`: the given layouts for the inputs, then those of the extras."""
        assert len(inputs) == len(self.inputs), (inputs, self.inputs)
        return (*inputs, *self.extra_reads(layout))

    def reads_first(self, first: Layout, layout: Layout) -> tuple[Layout | None, ...]:
        """`reads` where of the inputs only the first is read at run time."""
        return self.reads([first, *(None for _ in self.inputs[1:])], layout)


def _channels(value: Value, rank: int) -> int:
    dims = (1,) * (rank - len(value.dims)) + value.dims
    return dims[1]
