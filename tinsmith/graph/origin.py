"""Where nodes come from, and errors that say so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinsmith.errors import TypeRuleError
from tinsmith.records import dataclass

if TYPE_CHECKING:
    from tinsmith.graph.value import OpLike, Value


@dataclass(frozen=True)
class Origin:
    """Where a node comes from, as messages, profile rows and errors print it.

    file   the name of the model's file; "" if there is none
    name   the node's name in that file
    type   the node's operator, as that file calls it
    """

    file: str = ""
    name: str = ""
    type: str = ""

    def __str__(self) -> str:
        label = f"{self.type} {self.name!r}" if self.type else repr(self.name)
        return f"{label} of {self.file}" if self.file else label


def at_node(
    error: TypeRuleError, origin: Origin, op: OpLike, values: Sequence[Value | None]
) -> TypeRuleError:
    """A TypeRuleError like `error`, with the origin, the operator and the types of `values`, its
    inputs, in front."""
    shown = ", ".join("-" if v is None else str(v.type) for v in values)
    return TypeRuleError(f"{origin}: {op.name}({shown}): {error}")
