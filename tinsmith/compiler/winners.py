"""What was measured on this machine: the fastest kernel of each kind of site, kept on disk."""

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
    """Preferences by the signatures of sites, for one target, in the cache directory.

    Measurements of another state of Tinsmith's sources count as absent. A place that cannot be
    written only means that nothing is kept. Delete `tuned-*.json` there to measure anew.
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
