"""What must hold of the sizes of a call for a program to be right: the conditions of a `Scope`.

Each relation that code asks for between two formulas has the answer of the example, and is recorded
as a condition. One that follows from the formulas alone is not: `h < h + 1`. Nor is what is decided
inside `estimating()`: costs, on which no result depends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

from tinsmith.formulas import (
    OPERATIONS,
    OPPOSITE,
    RELATIONS,
    Atom,
    Form,
    Monomial,
    added,
    constant,
    negated,
    number_form,
    valued,
)

P = ParamSpec("P")
R = TypeVar("R")


class Scope:
    """The symbols of one program, and what must hold of them for it to be right. Not thread-safe.

    atoms       symbols by name, operations by (name, formulas)
    conditions  what has been recorded (see `Conditions`)
    least       atom -> a number that it never falls below, where one is known
    """

    def __init__(self) -> None:
        self.atoms: dict[Any, Atom] = {}
        self.symbols: list[Atom] = []
        self.conditions: Conditions = {}
        self.least: dict[Atom, int] = {}

    def symbol(self, name: str, value: int, least: int = 0) -> Form:
        """The formula of a new symbol, whose value in the example call is `value`, and in no call
        below `least`."""
        atom = Atom(len(self.atoms), name, (), value)
        self.atoms[name] = atom
        self.symbols.append(atom)
        self.least[atom] = least
        return (((atom,), 1),)

    def atom(self, name: str, *args: Form) -> Atom:
        """The one atom of an operation ("//", "max", "min", "pieces") on these formulas, made when
        it is first asked for. Its value is computed for the example."""
        found = self.atoms.get((name, args))
        if found is None:
            value = OPERATIONS[name](*map(valued, args))
            found = Atom(len(self.atoms), name, args, value)
            self.atoms[name, args] = found
            low = [self.low(a) for a in args]
            if name == "//" and (low[0] or 0) > 0 and (low[1] or 0) > 0:
                top, least = constant(args[1]), low[0]
                self.least[found] = least // top if top and least else 0
            elif name == "pieces":
                self.least[found] = 0
            elif name == "max" and any(a is not None for a in low):
                self.least[found] = max(a for a in low if a is not None)
        return found

    def low(self, form: Form) -> int | None:
        """A number that the formula never falls below, as its atoms' `least` tell; None if none
        follows."""
        shifted: dict[Monomial, int] = {}  # of atoms that are 0 where the form's are least
        for atoms, k in form:
            parts: dict[Monomial, int] = {(): k}
            for a in atoms:
                least = self.least.get(a)
                if least is None:
                    return None
                grown: dict[Monomial, int] = {}
                for m, j in parts.items():
                    grown[m] = grown.get(m, 0) + j * least
                    wide = tuple(sorted((*m, a)))
                    grown[wide] = grown.get(wide, 0) + j
                parts = grown
            for m, j in parts.items():
                shifted[m] = shifted.get(m, 0) + j
        if any(k < 0 for m, k in shifted.items() if m):
            return None
        return shifted.get((), 0)

    def holds(self, form: Form, relation: str) -> bool:
        """Whether the formula is `relation` ("==", "!=", "<", ">=") 0 in the example. Recorded as a
        condition is what holds there, `relation` or its opposite, unless that follows in every
        call."""
        truth = RELATIONS[relation](valued(form))
        if constant(form) is not None:
            return truth
        if _thread.by_formula and relation in ("==", "!="):
            return relation == "!="
        held = relation if truth else OPPOSITE[relation]
        known = _thread.estimates or (form, held) in self.conditions  # nothing would be recorded
        if not known and not self._follows(form, held):
            self._record(form, held)
        return truth

    def _follows(self, form: Form, relation: str) -> bool:
        """Whether the form is known to stand in that relation to 0 in every call."""
        low, below = self.low(form), self.low(negated(form))
        if relation == ">=":
            return low is not None and low >= 0
        is_negative = below is not None and below > 0
        is_positive = low is not None and low > 0
        return (relation in ("<", "!=") and is_negative) or (relation == "!=" and is_positive)

    def fix(self, form: Form) -> None:
        """Use the formula's value in the example as a number: records that it must have this
        value."""
        if constant(form) is None:
            self._record(added(form, number_form(-valued(form))), "==")

    def _record(self, form: Form, relation: str) -> None:
        if _thread.estimates:
            return
        into = _thread.trials[-1] if _thread.trials else self.conditions
        if (form, relation) not in into and (form, relation) not in self.conditions:
            into[form, relation] = self


Conditions = dict["tuple[Form, str]", "Scope"]
"""(form, relation): the form stands in that relation ("==", "!=", "<", ">=") to 0."""


class _Thread(threading.local):
    estimates = 0
    by_formula = False

    def __init__(self) -> None:
        self.trials: list[Conditions] = []


_thread = _Thread()


@contextmanager
def trial() -> Iterator[Conditions]:
    """A context that yields the conditions of what is decided inside, instead of recording them;
    `meet` records them if the decision is used."""
    found: Conditions = {}
    _thread.trials.append(found)
    try:
        yield found
    finally:
        _thread.trials.pop()


def meet(conditions: Conditions) -> None:
    """Record the conditions that a `trial` has collected, as if they were decided here."""
    for (form, relation), scope in conditions.items():
        scope._record(form, relation)


def cached(most: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator like `functools.lru_cache(most)`, for functions that decide by Sizes: also a call
    that is answered from the cache records the conditions of its result."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @lru_cache(most)
        def known(*args: Any, **kwargs: Any) -> tuple[R, Conditions]:
            with _deciding(), trial() as found:  # also for callers that only estimate
                return function(*args, **kwargs), found

        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            result, conditions = known(*args, **kwargs)
            if conditions:
                meet(conditions)
            return result

        return run

    return decorate


@contextmanager
def _deciding() -> Iterator[None]:
    """A context in which conditions are recorded even inside `estimating` or `by_formula`."""
    before = _thread.estimates, _thread.by_formula
    _thread.estimates, _thread.by_formula = 0, False
    try:
        yield
    finally:
        _thread.estimates, _thread.by_formula = before


@contextmanager
def by_formula() -> Iterator[None]:
    """A context in which == and != of sizes compare formulas: sizes whose formulas differ are
    unequal, even if the example's numbers are equal, and no condition is recorded."""
    before, _thread.by_formula = _thread.by_formula, True
    try:
        yield
    finally:
        _thread.by_formula = before


@contextmanager
def estimating() -> Iterator[None]:
    """A context for estimates, on which no result depends: comparisons of sizes give the example's
    answers, and no condition is recorded."""
    _thread.estimates += 1
    try:
        yield
    finally:
        _thread.estimates -= 1
