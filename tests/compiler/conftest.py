"""A cache of each test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinsmith.codegen import cache as code_cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("TINSMITH_CACHE", str(folder))
    code_cache._open.cache_clear()
    return folder
