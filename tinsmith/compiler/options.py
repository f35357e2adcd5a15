"""How a model is compiled."""

from __future__ import annotations

from collections.abc import Mapping

from tinsmith.records import dataclass

MEMORY = ("default", "small")


@dataclass(frozen=True)
class Options:
    """What, besides the model and the machine, decides which program comes out; see `compile`."""

    threads: int = 1
    kernels: str | Mapping[str, str] | None = None
    passes: str | None = None
    precision: str = "default"
    memory: str = "default"
