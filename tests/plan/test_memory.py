"""Offsets never overlap in space and time, and small graphs are planned as well as can be."""

from __future__ import annotations

from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

import tinsmith.plan.memory as memory
from tinsmith.plan.memory import ALIGNMENT, Buffer, Lives, align, assign_offsets, lower_bound

buffers = st.lists(
    st.tuples(st.integers(1, 5000), st.integers(0, 30), st.integers(0, 10)), min_size=0, max_size=40
).map(lambda rows: [Buffer(n, start, start + length) for n, start, length in rows])


@settings(max_examples=150, deadline=None)
@given(buffers)
def test_no_two_live_buffers_overlap(rows: list[Buffer]) -> None:
    size = assign_offsets(rows)
    assert size >= lower_bound(rows)
    for i, a in enumerate(rows):
        assert a.offset % ALIGNMENT == 0 and 0 <= a.offset <= size - align(a.nbytes)
        for b in rows[i + 1 :]:
            if a.start <= b.end and b.start <= a.end:
                assert a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset


@settings(max_examples=100, deadline=None)
@given(buffers)
def test_many_buffers_are_placed_as_few_are(rows: list[Buffer]) -> None:
    found = []
    for pairs in (len(rows) ** 2, -1):
        with mock.patch.object(memory, "PAIRS", pairs):
            found.append(Lives([(b.start, b.end) for b in rows]).offsets([b.nbytes for b in rows]))
    assert found[0] == found[1]


def test_a_chain_needs_its_two_largest_neighbours() -> None:
    rows = [Buffer(640, i, i + 1) for i in range(20)]
    assert assign_offsets(rows) == 1280 == lower_bound(rows)


def test_small_graphs_reach_the_bound_where_greedy_does_not() -> None:
    rows = [Buffer(128, 0, 1), Buffer(192, 1, 2), Buffer(256, 2, 3), Buffer(64, 0, 3)]
    assert assign_offsets(rows) == lower_bound(rows)


def test_nothing_needs_nothing() -> None:
    assert assign_offsets([]) == 0 == lower_bound([])
