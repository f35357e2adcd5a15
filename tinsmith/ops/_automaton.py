"""Finite automata (NFAs) that match texts in linear time: all states that a text may have reached
are followed at once, so nothing is tried again."""

from __future__ import annotations

import string
from collections.abc import Callable

from tinsmith import budget

KEPT = 200_000
"""How many steps and members of sets of states a `Matcher` remembers; then it forgets all."""

Test = Callable[[str], bool]

WORD = frozenset(string.ascii_letters + string.digits + "_")

BEGIN, END, LINE_BEGIN, LINE_END, BOUNDARY, INSIDE = 1, 2, 4, 8, 16, 32
"""Bits of what may be true between two characters of a text: its begin or end, the begin or end of
a line, a boundary of a word (`\\b`), or none (`\\B`)."""


class Automaton:
    """A nondeterministic finite automaton: numbered states, and links from one to the next. A text
    matches if its characters lead from the state `begin` to the state `end`. `places` is True if
    some link is open only at certain places of a text, such as the begin of a line. `name` stands
    in the BudgetExceeded that too many states raise."""

    def __init__(self, name: str) -> None:
        self.tests: list[Test | None] = []  # of the character that a state takes; None: takes none
        self.next: list[list[tuple[int, int]]] = []  # of each state: (bits that must hold, state)
        self._name = name
        self.begin, self.end = self.state(), self.state()
        self.places = False

    def state(self, test: Test | None = None) -> int:
        """Add a state and return its number. It is left by taking one character that passes `test`,
        or, without a test, by taking none (an epsilon transition)."""
        if not len(self.tests) % 256:
            budget.check("states", len(self.tests), self._name)
        self.tests.append(test)
        self.next.append([])
        return len(self.tests) - 1

    def link(self, a: int, b: int, need: int = 0) -> None:
        """Add a link from state `a` to state `b`, open only at places of a text where all bits of
        `need` (BEGIN, LINE_END, ...) hold; 0: everywhere."""
        self.next[a].append((need, b))
        self.places = self.places or bool(need)

    def closed(self, states: frozenset[int], place: int) -> set[int]:
        """The epsilon closure: `states`, and all that are reached from them without taking a
        character, at a place of the text where the bits `place` (BEGIN, ...) hold."""
        found, work = set(states), list(states)
        while work:
            state = work.pop()
            if self.tests[state] is not None:
                continue
            for need, b in self.next[state]:
                if not need & ~place and b not in found:
                    found.add(b)
                    work.append(b)
        return found


class Matcher:
    """Matches whole texts with an automaton. It remembers sets of states and the steps from one set
    to the next (a lazily built DFA), so that most characters take one look-up. When the steps and
    the members of the sets are together more than KEPT, it forgets all. Not thread-safe."""

    def __init__(self, automaton: Automaton) -> None:
        self._automaton = automaton
        self._forget()

    def fullmatch(self, text: str) -> bool:
        """Whether the whole text matches."""
        automaton, at = self._automaton, self._number(frozenset([self._automaton.begin]))
        for i, c in enumerate(text):
            place = _place(text, i) if automaton.places else 0
            following = self._steps.get((at, place, c))
            if following is None:
                if self._size > KEPT:
                    states = self._known[at]
                    self._forget()
                    at = self._number(states)
                following = self._steps[at, place, c] = self._step(at, place, c)
            at = following
        place = _place(text, len(text)) if automaton.places else 0
        return automaton.end in automaton.closed(self._known[at], place)

    def _forget(self) -> None:
        self._numbers: dict[frozenset[int], int] = {}
        self._known: list[frozenset[int]] = []
        self._steps: dict[tuple[int, int, str], int] = {}
        self._size = 0

    def _number(self, states: frozenset[int]) -> int:
        if states not in self._numbers:
            self._numbers[states] = len(self._known)
            self._known.append(states)
            self._size += len(states)
        return self._numbers[states]

    def _step(self, at: int, place: int, c: str) -> int:
        automaton = self._automaton
        taken: set[int] = set()
        for state in automaton.closed(self._known[at], place):
            test = automaton.tests[state]
            if test is not None and test(c):
                taken.update(b for _, b in automaton.next[state])
        self._size += 1
        return self._number(frozenset(taken))


def _place(text: str, i: int) -> int:
    """The bits (BEGIN, LINE_END, ...) that hold just before text[i], or, where `i` is the length,
    at the end of the text."""
    before, after = text[i - 1 : i] if i else "", text[i : i + 1]
    found = (BEGIN | LINE_BEGIN) if not i else LINE_BEGIN * (before == "\n")
    found |= (END | LINE_END) if not after else LINE_END * (after == "\n")
    return found | (BOUNDARY if (before in WORD) != (after in WORD) else INSIDE)
