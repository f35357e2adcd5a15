"""The fastest kernels that `tune=True` has measured on this machine, kept on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tinsmith.codegen.cache import Cache, read_note, write_note
from tinsmith.codegen.target import Target
from tinsmith.compiler.store import source_fingerprint
from tinsmith.hashing import blake2b
from tinsmith.plan.pick import Preference


class Winners:
    """A file in the cache directory: signature of a kind of site -> preferred kernel, for one
    target.

    Measurements with other sources of Tinsmith count as absent. If the file cannot be written,
    nothing is kept. Delete `tuned-*.json` to measure anew.
    """

    def __init__(self, cache: Cache | None, target: Target) -> None:
        name = blake2b(f"{target.key}|{target.model}".encode(), digest_size=8).hexdigest()
        self._file: Path | None = None if cache is None else cache.path / f"tuned-{name}.json"

    def read(self) -> dict[str, Preference]:
        if self._file is None:
            return {}
        try:
            kept = json.loads(read_note(self._file) or "{}")
            if kept["source"] != source_fingerprint():
                return {}
            return {s: Preference(*map(str, row)) for s, row in kept["sites"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def add(self, found: Mapping[str, Preference]) -> None:
        if self._file is None or not found:
            return
        sites = self.read() | dict(found)
        rows = {s: [p.kernel, p.detail, p.note] for s, p in sorted(sites.items())}
        text = json.dumps({"source": source_fingerprint(), "sites": rows}, indent=0)
        write_note(self._file, text)
