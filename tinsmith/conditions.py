"""Conditions on the sizes of a call, under which a program for free sizes is right (`sizes.py`).

A program is compiled for the sizes of one example call. Where the compiler compares two sizes,
whose formulas differ, it gets the example's answer, and the `Scope` records the answer as a
condition. Not recorded: an answer that follows from the formulas alone, `h < h + 1`, and
comparisons inside `estimating()`, where only costs are estimated."""

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
    """The symbols of one program, and the conditions on them. Not thread-safe.

    atoms       name of a symbol, or (operation, its formulas) -> the atom
    symbols     the symbols (free sizes), in order
    conditions  the relations that a call must meet (see `Conditions`)
    least       atom -> a known lower bound of its value in every call
    """

    def __init__(self) -> None:
        self.atoms: dict[Any, Atom] = {}
        self.symbols: list[Atom] = []
        self.conditions: Conditions = {}
        self.least: dict[Atom, int] = {}

    def symbol(self, name: str, value: int, least: int = 0) -> Form:
        """Make a symbol and return its formula. Its value is `value` in the example call, and at
        least `least` in every call."""
        atom = Atom(len(self.atoms), name, (), value)
        self.atoms[name] = atom
        self.symbols.append(atom)
        self.least[atom] = least
        return (((atom,), 1),)

    def atom(self, name: str, *args: Form) -> Atom:
        """Return the atom of an operation ("//", "max", "min", "pieces") on formulas: the same
        object for equal arguments. Its value in the example and its lower bound are computed."""
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
        """Return a lower bound of the formula in every call, None if none is known. Each atom a is
        written as least + (a - least): if no product of the differences has a negative coefficient,
        the constant term is the bound. Example: a >= 2 gives 3a - 1 = 5 + 3(a - 2) >= 5."""
        shifted: dict[Monomial, int] = {}  # the polynomial in the differences
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
        """Whether `form relation 0` is true in the example, with `relation` one of "==", "!=", "<",
        ">=". Records the relation, or its opposite if it is false, as a condition, unless it is
        true in every call. `trial`, `estimating` and `by_formula` change that."""
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
        """Whether lower bounds prove `form relation 0` for every call."""
        low, below = self.low(form), self.low(negated(form))
        if relation == ">=":
            return low is not None and low >= 0
        is_negative = below is not None and below > 0
        is_positive = low is not None and low > 0
        return (relation in ("<", "!=") and is_negative) or (relation == "!=" and is_positive)

    def fix(self, form: Form) -> None:
        """Record the condition that the formula has its value of the example, which the caller is
        about to use as a number."""
        if constant(form) is None:
            self._record(added(form, number_form(-valued(form))), "==")

    def _record(self, form: Form, relation: str) -> None:
        if _thread.estimates:
            return
        into = _thread.trials[-1] if _thread.trials else self.conditions
        if (form, relation) not in into and (form, relation) not in self.conditions:
            into[form, relation] = self


Conditions = dict["tuple[Form, str]", "Scope"]
"""(form, relation) -> its scope: a call must meet `form relation 0`, relation "==", "!=", "<",
">=". A dict, which keeps the order, for a set."""


class _Thread(threading.local):
    estimates = 0
    by_formula = False

    def __init__(self) -> None:
        self.trials: list[Conditions] = []


_thread = _Thread()


@contextmanager
def trial() -> Iterator[Conditions]:
    """A context that collects the conditions of decisions inside it, and yields them, instead of
    recording them. `meet` records them if the decisions are used."""
    found: Conditions = {}
    _thread.trials.append(found)
    try:
        yield found
    finally:
        _thread.trials.pop()


def meet(conditions: Conditions) -> None:
    """Record the conditions that a `trial` has collected."""
    for (form, relation), scope in conditions.items():
        scope._record(form, relation)


def cached(most: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator like `functools.lru_cache(most)` for functions of Sizes. A result from the cache
    rests on comparisons that were made when it was computed; their conditions are recorded
    again."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @lru_cache(most)
        def known(*args: Any, **kwargs: Any) -> tuple[R, Conditions]:
            with deciding(), trial() as found:  # also for callers that only estimate
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
def deciding() -> Iterator[None]:
    """A context that ends the effect of an outer `estimating` or `by_formula`: conditions are
    recorded."""
    before = _thread.estimates, _thread.by_formula
    _thread.estimates, _thread.by_formula = 0, False
    try:
        yield
    finally:
        _thread.estimates, _thread.by_formula = before


@contextmanager
def by_formula() -> Iterator[None]:
    """A context in which == and != of sizes compare formulas, and record no condition: sizes of
    different formulas are unequal, also if their numbers in the example are equal."""
    before, _thread.by_formula = _thread.by_formula, True
    try:
        yield
    finally:
        _thread.by_formula = before


@contextmanager
def estimating() -> Iterator[None]:
    """A context for estimates, which change no result: comparisons of sizes give the example's
    answers, and no condition is recorded."""
    _thread.estimates += 1
    try:
        yield
    finally:
        _thread.estimates -= 1
