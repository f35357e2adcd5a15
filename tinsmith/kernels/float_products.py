"""Faster products of float32: rows of the table of products that round operands to bfloat16, and
algorithms that add up operands before they multiply (Winograd's, Strassen's). Which of the rows a
site may use, and bounds on operands under which sums of these and products of sums stay finite."""

from __future__ import annotations

from collections.abc import Callable
from math import log2

import numpy as np

from tinsmith.codegen.products import FLOAT32, PRODUCTS, Product
from tinsmith.graph import Array
from tinsmith.kernels.site import PRODUCT_ERROR, Site, Skip

LARGE = 1e15
"""Elements must be smaller. Algorithms that add up data or weights before they multiply scale each
by less than 1e4, so that products of such sums (1e19 times 1e19) are finite in float32."""


def are_moderate(w: Array) -> bool:
    """Whether all elements are below LARGE in magnitude; False if one is infinite or NaN."""
    return bool(np.min(w) > -LARGE and np.max(w) < LARGE)


def are_finite(w: Array) -> bool:
    """Whether no element is infinite or NaN, so that their products with zeros are zeros."""
    return bool(np.isfinite(w).all())


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
    """Whether all weights are below LARGEST in magnitude, so that parts and sums never overflow."""
    return bool(np.all(np.abs(w) < np.float32(LARGEST)))


def fits_of(row: Product) -> Callable[[Array], bool] | None:
    """The test `Packed.fits` for constant weights that are packed for a row of the table of
    products; None if the row takes any weights."""
    return None if row.is_whole or row is FLOAT32 else can_be_split
