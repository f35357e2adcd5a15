"""A node's reference, run on arrays: errors name the node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tinsmith.errors import BudgetExceeded, DataError, ReferenceFailed, TinsmithError
from tinsmith.graph.types import shown


class Reference(Protocol):
    """What a run needs of an operator: `evaluate`, a numpy function that computes its results; its
    `name`, for errors; and its `traits`, which `runtime/tables.py` reads."""

    @property
    def name(self) -> str: ...

    @property
    def traits(self) -> frozenset[str]: ...

    def evaluate(self, arrays: tuple[Any, ...], attrs: Mapping[str, Any]) -> tuple[Any, ...]: ...


def evaluate(
    op: Reference, arrays: tuple[Any, ...], attrs: Mapping[str, Any], origin: object
) -> tuple[Any, ...]:
    """The results of the reference of `op` for these input arrays (None where absent) and
    attributes. `origin`, printed in errors, tells where the node is from. Raises BudgetExceeded and
    DataError with it in front, other errors of Tinsmith as they are, and ReferenceFailed for all
    other exceptions."""
    try:
        return op.evaluate(arrays, attrs)
    except (BudgetExceeded, DataError) as error:
        raise type(error)(f"{origin}: {error}") from error
    except TinsmithError:
        raise
    except Exception as error:
        given = ", ".join(map(shown, arrays))
        raise ReferenceFailed(
            f"{origin}: the reference of {op.name}({given}) failed: {type(error).__name__}: {error}"
        ) from error
