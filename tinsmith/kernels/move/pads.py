"""Pads that repeat elements of the input: each output element along an axis copies one place."""

from __future__ import annotations

import numpy as np

from tinsmith.kernels._kernel import Choice, Site, Skip, Tier, kernel
from tinsmith.kernels.move.moves import moved
from tinsmith.kernels.resize import choices_for
from tinsmith.ops.resize import Table


@kernel("Pad", Tier.VECTOR)
def pad_indexed(site: Site) -> list[Choice]:
    """Reflected, repeated and wrapped edges, by a table of places for each axis."""
    mode = site.attr("mode")
    if mode == "constant":
        raise Skip("the pads are constants")
    axes = moved(site)[0].parts[0].axes
    cut = [(k, np.asarray(a.places)) for k, a in enumerate(axes) if a.places is not None]
    tables = [Table(k, at[:, None], None, np.zeros(len(at), bool)) for k, at in cut]
    return choices_for(site, tables, mode)
