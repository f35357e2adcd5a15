"""The search for garbage stands still while a model is compiled, and goes on as it was."""

from __future__ import annotations

import gc
import weakref

import pytest

from tests.interrupts import strikes
from tinsmith.compiler import collector
from tinsmith.compiler.collector import still

MANY = 5000


@pytest.fixture(autouse=True)
def enabled(monkeypatch):
    monkeypatch.setattr(collector, "_first", True)
    gc.collect()
    gc.enable()
    yield
    gc.unfreeze()
    gc.enable()


def young() -> int:
    return len(gc.get_objects(0)) + len(gc.get_objects(1))


def test_it_stands_still_until_the_outermost_has_ended():
    @still
    def inner():
        assert not gc.isenabled()

    @still
    def outer():
        inner()
        assert not gc.isenabled()

    outer()
    assert gc.isenabled()


def test_who_has_switched_it_off_finds_it_off():
    gc.disable()
    still(list)()
    assert not gc.isenabled()


def test_what_the_first_made_is_old_but_not_what_later_ones_make():
    first = still(lambda: [[] for _ in range(MANY)])()
    assert young() < MANY

    @still
    def again():
        later = [[] for _ in range(MANY)]
        assert young() >= MANY
        return later

    assert len(first) == len(again())


def test_an_interrupt_at_any_moment_leaves_it_as_it_was(monkeypatch):
    def first():
        monkeypatch.setattr(collector, "_first", True)
        still(list)()

    for moment in strikes(first):
        assert gc.isenabled() and not gc.get_freeze_count(), moment


class _Ring:
    def __init__(self) -> None:
        self.next = self


def test_what_is_old_is_still_searched():
    gone = still(lambda: weakref.ref(_Ring()))()
    assert gc.get_freeze_count() == 0 and gone() is not None
    gc.collect()
    assert gone() is None


def test_what_a_program_has_frozen_stays_frozen():
    gc.freeze()
    frozen = gc.get_freeze_count()
    still(list)()
    assert frozen > 0 and gc.get_freeze_count() == frozen
