"""Where the benchmarks keep their environments and models; options win over variables."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def default_home() -> Path:
    """`$TINSMITH_BENCH_DIR`, or a folder in the user's cache."""
    if named := os.environ.get("TINSMITH_BENCH_DIR"):
        return Path(named)
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("tinsmith")) / "benchmarks"


@dataclass(frozen=True)
class Places:
    """The models' folder, and the Pythons of the two environments."""

    models: Path
    peers: Path
    export: Path

    @classmethod
    def find(
        cls, models: str | None = None, peers: str | None = None, export: str | None = None
    ) -> Places:
        home, env = default_home(), os.environ
        return cls(
            Path(models or env.get("TINSMITH_BENCH_MODELS") or home / "models"),
            Path(peers or env.get("TINSMITH_BENCH_PEERS") or home / "peers" / "bin" / "python"),
            Path(export or env.get("TINSMITH_BENCH_EXPORT") or home / "export" / "bin" / "python"),
        )
