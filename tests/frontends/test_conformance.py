"""Every node test case of ONNX passes, but for those with a reason not to."""

from __future__ import annotations

from fnmatch import fnmatch

import pytest

from tests.frontends.conformance import EXCLUDED, cases, failure, reason

SHARDS = 8


@pytest.mark.parametrize("shard", range(SHARDS))
def test_cases_pass(shard: int) -> None:
    chosen = [c for c in cases()[shard::SHARDS] if reason(c.name) is None]
    assert len(chosen) > 150
    failed = {c.name: why for c in chosen if (why := failure(c)) is not None}
    assert not failed, "\n".join(f"{name}: {why[:300]}" for name, why in failed.items())


@pytest.mark.parametrize("pattern", EXCLUDED)
def test_exclusions_are_needed(pattern: str) -> None:
    """An exclusion matches something, and at least one of what it matches fails."""
    matching = [c for c in cases() if fnmatch(c.name, pattern)]
    assert matching
    assert any(failure(c) is not None for c in matching)


def test_most_cases_are_expected_to_pass() -> None:
    expected = sum(reason(c.name) is None for c in cases())
    assert expected >= 0.95 * len(cases())
