"""The options of `quantize`, and checks of their values."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from tinsmith.compiler.options import check_flags, check_name, whole_threads
from tinsmith.errors import OptionError, QuantizeError
from tinsmith.quantizer.forms import FORMS
from tinsmith.quantizer.ranges import METHODS
from tinsmith.records import dataclass

ROUNDINGS = ("nearest", "compensated")
WEIGHT_BITS = (4, 7, 8)
"""Bits of weights that kernels read. Seven bits are stored in eight (see `quantize`)."""
ACTIVATION_BITS = (8,)
"""Bits of activations that kernels read."""


@dataclass(frozen=True)
class Settings:
    """The options of `quantize`, which says what they mean."""

    method: str = "minmax"
    per_channel: bool = True
    symmetric: bool = False
    weight_bits: int = 8
    activation_bits: int = 8
    equalise: bool = True
    correct: bool = True
    rounding: str | None = None
    products: bool = False
    keep: tuple[str, ...] = ()
    max_drop: float | None = None
    form: str = "qdq"
    threads: int = 1

    @property
    def compensates(self) -> bool:
        """Whether weights are rounded with compensation (`rounding.py`): if asked for, or by
        default for few bits."""
        return (self.rounding or ROUNDINGS[bool(self.weight_bits < 7)]) == "compensated"


def settings_of(**given: Any) -> Settings:
    """Check options, by name, and return them as Settings; the form "ncnn" sets `symmetric`. Raises
    OptionError, UnknownName; QuantizeError for bits that no kernel reads."""
    found = Settings(**given)
    check_name("method", found.method, METHODS)
    if found.rounding is not None:
        check_name("rounding", found.rounding, ROUNDINGS)
    check_flags(
        per_channel=found.per_channel, symmetric=found.symmetric, equalise=found.equalise,
        correct=found.correct, products=found.products,
    )  # fmt: skip
    if isinstance(found.keep, str) or not isinstance(found.keep, Collection):
        raise OptionError(f"keep must be a list of names of nodes, not {found.keep!r}")
    found = replace(found, keep=tuple(found.keep))
    check_name("form", found.form, FORMS)
    if FORMS[found.form].symmetric:
        found = replace(found, symmetric=True)
        if found.products or found.weight_bits != 8:
            raise OptionError(
                f"the form {found.form!r} has no products of computed matrices, and 8 bits for"
                " weights: leave `products` and `weight_bits` out"
            )
    check_bits("weights", found.weight_bits, WEIGHT_BITS)
    check_bits("activations", found.activation_bits, ACTIVATION_BITS)
    whole_threads(found.threads)
    drop = found.max_drop
    if drop is not None and not (isinstance(drop, float | int) and 0 <= drop <= 100):
        raise OptionError(f"max_drop must be a number of points from 0 to 100, not {drop!r}")
    return found


def check_bits(what: str, bits: object, known: Collection[int]) -> None:
    """Raise QuantizeError where `bits`, the width of `what` ("weights"), is not in `known`, the
    widths that kernels read."""
    if isinstance(bits, bool) or bits not in known:
        raise QuantizeError(
            f"no kernel reads {what} of {bits!r} bits: give {' or '.join(map(str, known))}"
        )
