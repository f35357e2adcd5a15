"""Products and convolutions of bytes: shapes, and operands at the ends of their ranges."""

from __future__ import annotations

import itertools

import numpy as np

RNG = np.random.default_rng(17)
SIGNS = list(itertools.product(("uint8", "int8"), repeat=2))
ZEROS = [(None, None), ("one", "one"), ("many", "many"), (None, "many"), ("one", None)]
CONSTANT = [(), (1,), (1, 3)]

BATCHES = [((2, 3, 5, 6), (6, 7)), ((2, 3, 5, 6), (3, 6, 7)), ((5, 6), (2, 6, 7)), ((6,), (6, 7)),
           ((2, 5, 6), (6,)), ((2, 1, 4, 9), (1, 3, 9, 20)),
           ((1, 60, 70), (1, 70, 40))]  # fmt: skip

CONVS = [
    ((1, 3, 9, 9), (8, 3, 3, 3), {"pad": (1, 1, 1, 1)}),
    ((2, 20, 7, 6), (12, 20, 1, 1), {}),
    ((1, 16, 9, 8), (20, 16, 3, 3), {"pad": (1, 2, 1, 0)}),
    ((2, 13, 5, 5), (16, 13, 2, 2), {"stride": (2, 2)}),
    ((1, 16, 9, 9), (16, 1, 3, 3), {"group": 16, "pad": (1, 1, 1, 1)}),
    ((1, 16, 12), (8, 4, 5), {"group": 4, "auto_pad": "SAME_UPPER"}),
    ((1, 32, 9, 9), (64, 16, 3, 3), {"group": 2, "dilation": (2, 2), "pad": (2, 2, 2, 2)}),
    ((1, 24, 4, 5, 6), (9, 24, 2, 3, 2), {"pad": (0, 1, 1, 1, 1, 0), "stride": (1, 2, 1)}),
    ((1, 12, 7, 7), (30, 4, 3, 3), {"group": 3, "stride": (2, 1)}),
    ((2, 40, 7, 6), (40, 8, 3, 3), {"group": 5, "pad": (1, 1, 1, 1)}),
    ((1, 28, 7, 6), (28, 4, 3, 3), {"group": 7, "stride": (2, 2)}),
    ((1, 5, 1, 1), (3, 5, 1, 1), {}),
]


def ends(dtype, *shape):
    """Mostly the ends of the range, so that sums are long and would saturate."""
    info = np.iinfo(dtype)
    return RNG.choice([info.min, info.max, info.max, 0, 5], shape).astype(dtype)


def operands(at, x, w):
    """The arrays of a ConvInteger of sizes x and w, with zero points as row `at` of ZEROS says, and
    which of them are constants."""
    a, b = ZEROS[at]
    signs = SIGNS[(at + len(w) + w[1]) % 4]
    a = None if a is None else "one"
    arrays = [ends(signs[0], *x), ends(signs[1], *w), zero(a, signs[0], 1),
              zero(b, signs[1], w[0])]  # fmt: skip
    return arrays, [i for i in [*CONSTANT, (1, 2, 3)][at % 4] if arrays[i] is not None]


def zero(kind, dtype, many):
    return None if kind is None else ends(dtype) if kind == "one" else ends(dtype, many)
