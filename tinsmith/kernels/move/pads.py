"""Pads that repeat elements of the input: each output element along an axis copies one place."""

from __future__ import annotations

import numpy as np

from tinsmith.kernels._kernel import Choice, Site, Skip, Tier, kernel
from tinsmith.kernels.resize import choices_for
from tinsmith.ops.resize import Table


@kernel("Pad", Tier.VECTOR)
def pad_indexed(site: Site) -> list[Choice]:
    """Reflected, repeated and wrapped edges, by a table of places for each axis."""
    mode = site.attr("mode")
    if mode == "constant":
        raise Skip("the pads are constants")
    site.need_no_epilogue("a copy has no epilogue")
    dims = site.input(0).dims
    pads = [int(p) for p in site.const(1, "pads").reshape(-1)]
    axes = range(len(dims))
    if site.has(3):
        axes = [int(a) % len(dims) for a in site.const(3, "axes").reshape(-1)]
    tables = []
    for i, axis in enumerate(axes):
        before, after = pads[i], pads[i + len(pads) // 2]
        if not before and not after:
            continue
        kept = np.arange(max(-before, 0), dims[axis] - max(-after, 0))
        grown = max(before, 0), max(after, 0)
        places = np.pad(kept, grown, mode=mode) if any(grown) else kept
        tables.append(Table(axis, places[:, None], None, np.zeros(len(places), bool)))
    return choices_for(site, sorted(tables, key=lambda t: t.axis), mode)
