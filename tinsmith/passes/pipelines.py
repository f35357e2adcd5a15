"""The order of Tinsmith's own passes."""

from __future__ import annotations

PORTABLE = (
    "take-branches",
    "propagate-shapes",
    "drop-proven",
    "canonicalise",
    "canonicalise-shapes",
    "lower-einsum",
    "fold-constants",
    "drop-empty",
    "merge-constants",
    "merge-common",
    "recognise-activations",
    "recognise-norms",
    "stack-recurrent",
    "stack-loops",
    "recognise-moves",
    "fold-into-norm",
    "fold-into-conv",
    "sum-weights",
    "drop-dead-taps",
    "drop-dead",
)

PRECISION = ("widen-halves", "small-weights")

MACHINE = (
    "move-bytes",
    "byte-tables",
    "split-dequantised",
    "integer-products",
    "integer-transposed",
    "integer-pairs",
    "quantise-early",
    "undo-quantised",
    "drop-rounded",
    "requantise",
    "quantise-by-factor",
    "small-products",
    "fold-remaining",
    "split-attention",
    "append-in-place",
    "lower-attention",
    "narrow-fourier",
    "lower-fourier",
    "lower-rare",
    "lower-quant",
    "lower-integers",
    "float-channels",
    "lower-windows",
    "split-far-taps",
    "slice-gathers",
    "lower-norm",
    "transpose-planes",
    "sink-transposes",
    "lift-over-moves",
    "nest-concats",
    "gather-channels",
    "fuse-elementwise",
    "fuse-blocks",
    "drop-dead-machine",
)

FILES = ("dense-after-pool",)


def place(stage: str, name: str) -> float | None:
    """The priority of a pass that is listed above for the stage: ten times its place, from 1; None
    if it is not listed."""
    stages = {"portable": PORTABLE, "precision": PRECISION, "machine": MACHINE, "files": FILES}
    order = stages[stage]
    return 10.0 * (order.index(name) + 1) if name in order else None
