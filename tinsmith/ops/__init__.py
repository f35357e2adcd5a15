"""The operators of graphs: signature, type rule, numpy reference, traits, cost. See `_op`."""

from __future__ import annotations

from typing import Any

from tinsmith.errors import UnknownName
from tinsmith.ops._dims import broadcast, fresh, reserve
from tinsmith.ops._op import OPS, Op, need, op
from tinsmith.ops._rules import axis_of

__all__ = ["OPS", "Op", "axis_of", "broadcast", "fresh", "need", "op", "reserve"]


def __getattr__(name: str) -> Any:
    """Let `ops.Conv` be the operator Conv (`OPS["Conv"]`), for all operators. Raises AttributeError
    for other names."""
    if name.startswith("_") or not name[0].isupper():
        raise AttributeError(name)
    try:
        return OPS[name]
    except UnknownName as error:
        raise AttributeError(str(error)) from error
