"""The search for garbage stands still while a model is compiled, and goes on as it was."""

from __future__ import annotations

import gc
import weakref

import pytest

from tinsmith.compiler.collector import _Collector

MANY = 5000


@pytest.fixture(autouse=True)
def enabled():
    gc.collect()
    gc.enable()
    yield
    gc.unfreeze()
    gc.enable()


def young() -> int:
    return len(gc.get_objects(0)) + len(gc.get_objects(1))


def test_it_stands_still_until_all_have_left():
    collector = _Collector()
    with collector:
        with collector:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_who_has_switched_it_off_finds_it_off():
    gc.disable()
    with _Collector():
        pass
    assert not gc.isenabled()


def test_what_the_first_made_is_old_but_not_what_later_ones_make():
    collector = _Collector()
    with collector:
        first = [[] for _ in range(MANY)]
    assert young() < MANY
    with collector:
        later = [[] for _ in range(MANY)]
        assert young() >= MANY
    assert len(first) == len(later)


class _Ring:
    def __init__(self) -> None:
        self.next = self


def test_what_is_old_is_still_searched():
    with _Collector():
        gone = weakref.ref(_Ring())
    assert gc.get_freeze_count() == 0 and gone() is not None
    gc.collect()
    assert gone() is None


def test_what_a_program_has_frozen_stays_frozen():
    gc.freeze()
    frozen = gc.get_freeze_count()
    with _Collector():
        pass
    assert frozen > 0 and gc.get_freeze_count() == frozen
