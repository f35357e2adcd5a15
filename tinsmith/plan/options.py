"""How a graph is planned: the options, apart from the machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tinsmith.records import dataclass

if TYPE_CHECKING:
    from tinsmith.plan.pick import Preferences


@dataclass(frozen=True)
class PlanOptions:
    """How a graph is planned for a target.

    threads         that compute
    precision       "default", "strict" or "bfloat16", as in `compile`
    overrides       kernels of operators and nodes, as `parse_overrides` gives them
    preferences     kernels that were measured to be fastest, by the signatures of sites
    small           whether kernels are left out whose packed weights outgrow the model's
    micro_batches   into how many the batch is cut wherever that is possible (1: nowhere); None:
                    the cost model says it
    kept            outputs, by number, that are kept in the memory of these inputs, of which only
                    some elements are written
    """

    threads: int = 1
    precision: str = "default"
    overrides: Mapping[str, str] | None = None
    preferences: Preferences | None = None
    small: bool = False
    micro_batches: int | None = None
    kept: Mapping[int, int] | None = None
