"""The sizes of a recurrent layer, and its weights in the order in which the kernels read them.

Gate columns are interleaved by blocks of V hidden units ([block][gate][V]), so that one register
tile holds all gates of a block and the cell's arithmetic follows the product directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tinsmith.kernels._kernel import Site, Skip
from tinsmith.kernels.dot.matmul import pack_columns
from tinsmith.kernels.dot.tiles import Columns
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.recurrent.functions import Function, gate_functions


@dataclass(frozen=True)
class Layer:
    """Sizes of one recurrent layer: T steps, N rows, I inputs, H units in blocks of V, D
    directions; `gates` columns of each unit in the product, `bias` (D, gates, H). `peepholes` are
    (D, 3, H) or absent; with `lens` the input 4 tells how many steps each row has."""

    site: Site
    gates: int
    steps: int
    batch: int
    inputs: int
    hidden: int
    directions: tuple[bool, ...]  # True: from the last step to the first
    lanes: int
    w: np.ndarray = field(repr=False)
    r: np.ndarray = field(repr=False)
    wb: np.ndarray = field(repr=False)
    rb: np.ndarray = field(repr=False)
    peepholes: np.ndarray | None = field(repr=False)
    functions: tuple[Function, ...]
    lens: bool

    @property
    def blocks(self) -> int:
        return -(-self.hidden // self.lanes)

    @property
    def padded(self) -> int:
        return self.blocks * self.lanes

    @property
    def columns(self) -> int:
        return self.blocks * self.gates * self.lanes

    @property
    def rows(self) -> int:
        return self.steps * self.batch

    def interleave(self, per_gate: np.ndarray) -> np.ndarray:
        """(..., gates, H) as (..., blocks * gates * V), zero-padded."""
        *lead, g, h = per_gate.shape
        wide = np.zeros((*lead, g, self.padded), np.float32)
        wide[..., :h] = per_gate
        wide = wide.reshape(*lead, g, self.blocks, self.lanes)
        return np.ascontiguousarray(np.moveaxis(wide, -3, -2)).reshape(*lead, -1)

    def gated(self, weights: np.ndarray, d: int) -> np.ndarray:
        """Direction d of (D, gates * H, K) weights as a (K, columns) matrix."""
        per_gate = weights[d].reshape(self.gates, self.hidden, -1)
        return self.interleave(np.moveaxis(per_gate, 2, 0))

    def packed_inputs(self, columns: Columns) -> np.ndarray:
        """The input weights of all directions in panels."""
        every = range(len(self.directions))
        return np.concatenate([pack_columns(self.gated(self.w, d), columns) for d in every])

    def packed_states(self) -> np.ndarray:
        """The recurrent weights as [direction][block][unit before][gate][V]."""
        every = range(len(self.directions))
        full = np.stack([self.gated(self.r, d) for d in every])
        shape = (len(every), self.hidden, self.blocks, self.gates * self.lanes)
        return np.ascontiguousarray(full.reshape(shape).swapaxes(1, 2))


def layer_of(site: Site, gates: int, states: int, plain: Sequence[str]) -> Layer:
    """The layer of a site, or Skip for what the native kernel does not do."""
    x = site.input(0)
    w, r = site.const(1, "w"), site.const(2, "r")
    if site.attr("layout") != 0:
        raise Skip("layout is 1")
    if site.has(4) and site.input(4).dtype.kind not in "iu":
        raise Skip(f"sequence_lens is {site.input(4).dtype}")
    count, hidden = w.shape[0], r.shape[2]
    functions = gate_functions(site, plain, count)
    peepholes = None
    if site.has(5 + states):
        peepholes = site.const(5 + states, "peepholes").reshape(count, 3, hidden)
    bias = site.const(3, "b") if site.has(3) else np.zeros((count, 2 * gates * hidden), np.float32)
    wb, rb = np.split(bias.reshape(count, 2, gates, hidden), 2, axis=1)
    way = site.attr("direction")
    directions = (False, True) if way == "bidirectional" else (way == "reverse",)
    t, n, i = x.dims
    return Layer(
        site, gates, t, n, i, hidden, directions, block_of(site.target), w, r, wb[:, 0], rb[:, 0],
        peepholes, functions, site.has(4),
    )  # fmt: skip
