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

    precision       "default", "strict" or "bfloat16", as in `compile`
    overrides       operator or node -> kernel that is forced for it
    preferences     signature of a site -> kernel that was measured to be the fastest there
    small           whether kernels are avoided whose packed weights outgrow the model's
                    (`memory="small"`)
    micro_batches   into how many micro-batches the batch is cut wherever that is possible (1:
                    nowhere); None: the cost model decides
    kept            number of an output -> number of the input in whose memory the output is to lie
    """

    threads: int = 1
    precision: str = "default"
    overrides: Mapping[str, str] | None = None
    preferences: Preferences | None = None
    small: bool = False
    micro_batches: int | None = None
    kept: Mapping[int, int] | None = None
