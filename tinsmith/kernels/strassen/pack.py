"""The left factors of the seven products, in the order in which a panel reads them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.kernels.strassen.plan import Plan

Array = np.ndarray[Any, Any]


def factors(w: Array, height: int, depth: int) -> list[Array]:
    """The factors of `STEPS` of a matrix [outputs, channels], whose halves have `height` rows and
    `depth` columns: added in double precision, rounded once."""
    wide = w.astype(np.float64)
    w00, w01 = wide[:height, :depth], wide[:height, depth : 2 * depth]
    w10, w11 = wide[height : 2 * height, :depth], wide[height : 2 * height, depth : 2 * depth]
    s1 = w10 + w11
    s2 = s1 - w00
    made = [w00, w01, s2, w00 - w10, -w11, s1, w01 - s2]
    return [m.astype(np.float32) for m in made]


def pack(w: Array, plan: Plan) -> Array:
    """[outputs, channels] as [panel][factor][channel][lane], then, for a panel, the channels
    beyond the halves of its outputs of the first and of the second half, flat."""
    rows, columns = plan.height * plan.width, plan.steps
    made = factors(w, rows, columns)
    made += [w[h * rows : (h + 1) * rows, 2 * columns :] for h in range(2)]
    parts, first = [], 0
    for count, lanes in plan.kinds():
        wide = sum(lanes)
        for _ in range(count):
            parts += [m[first : first + wide].T.reshape(-1) for m in made]
            first += wide
    return np.concatenate(parts)


def pack_bias(bias: Array | None, plan: Plan) -> Array:
    """The bias of the outputs of both halves, zeros where there is none."""
    count = 2 * plan.height * plan.width
    return np.zeros(count, np.float32) if bias is None else np.ascontiguousarray(bias[:count])
