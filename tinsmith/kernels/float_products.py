"""Rows of the table of products that round operands of float32: which one a site may use."""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from typing import Any

import numpy as np

from tinsmith.codegen.products import FLOAT32, PRODUCTS, Product
from tinsmith.kernels.site import PRODUCT_ERROR, Site, Skip

Array = np.ndarray[Any, Any]

LARGEST = 1e33  # so that no sum of weights, as Winograd's transforms make, overflows


def float_product(site: Site, unit: str, w: Array | None = None) -> Product:
    """The fastest row of the table of products that rounds operands of float32, among those of
    `unit` (vectors or matrix registers) that the target has and the site's precision allows.
    Raises Skip where there is none, or constant weights `w` cannot be split (`can_be_split`)."""
    rows = [p for p in PRODUCTS.values() if p.unit == unit and p.takes == FLOAT32.takes]
    rounding = [p for p in rows if p is not FLOAT32 and p.needs(site.target)]
    if not rounding:
        raise Skip(f"{site.target.isa} has no products of bfloat16 in {unit}")
    allowed = [p for p in rounding if p.error <= PRODUCT_ERROR[site.precision]]
    if not allowed:
        power = round(log2(min(p.error for p in rounding)))
        raise Skip(f"precision is {site.precision}: products are right to 2^{power} only")
    if w is not None and not can_be_split(w):
        raise Skip(f"some weights are not below {LARGEST}")
    return max(allowed, key=lambda p: p.rate)


def can_be_split(w: Array) -> bool:
    """Whether no weight is infinite, or so large that parts of it or sums of weights overflow."""
    return bool(np.all(np.abs(w) < np.float32(LARGEST)))


def fits_of(row: Product) -> Callable[[Array], bool] | None:
    """`Packed.fits` of constant weights that are packed for a row of the table of products."""
    return None if row.is_whole or row is FLOAT32 else can_be_split
