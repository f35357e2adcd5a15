"""Regular expressions of RE2, which ONNX means, matched in time linear in the text: an automaton
whose states advance together, so that no pattern makes it try again.

What RE2 does not have either is refused: references to groups, and looking ahead or behind. Of
Unicode's properties the general categories are known (`\\pL`, `\\p{Lu}`), scripts are not.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache

from tinsmith import budget
from tinsmith.errors import TypeRuleError

REPEATS = 1000
"""The largest number in `{n,m}`, as in RE2."""

NESTED = 100
"""Groups inside each other."""

KEPT = 200_000
"""Steps that a matcher remembers, and states in the sets between them."""

Test = Callable[[str], bool]

_WORD = frozenset(string.ascii_letters + string.digits + "_")
_PERL = {"d": frozenset(string.digits), "s": frozenset("\t\n\f\r "), "w": _WORD}
_POSIX = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "ascii": frozenset(map(chr, range(128))),
    "blank": frozenset("\t "),
    "cntrl": frozenset(map(chr, [*range(32), 127])),
    "digit": frozenset(string.digits),
    "graph": frozenset(map(chr, range(33, 127))),
    "lower": frozenset(string.ascii_lowercase),
    "print": frozenset(map(chr, range(32, 127))),
    "punct": frozenset(string.punctuation),
    "space": frozenset("\t\n\v\f\r "),
    "upper": frozenset(string.ascii_uppercase),
    "word": _WORD,
    "xdigit": frozenset(string.hexdigits),
}
_ESCAPES = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_CATEGORIES = {unicodedata.category(chr(c)) for c in range(0x3000)} | {"Co", "Cs"}

# What is true between two characters
_BEGIN, _END, _LINE_BEGIN, _LINE_END, _BOUNDARY, _INSIDE = 1, 2, 4, 8, 16, 32


class Pattern:
    """A compiled expression: states and the ways between them; immutable once it is made. Raises
    TypeRuleError where it is none, BudgetExceeded where it has too many states."""

    def __init__(self, pattern: str) -> None:
        self.tests: list[Test | None] = []  # of the character that a state takes; None: takes none
        self.next: list[list[tuple[int, int]]] = []  # (what must be true, state) for each state
        self._pattern = pattern
        self.begin, self.end = self.state(), self.state()
        _Parser(pattern, self).whole(self.begin, self.end)
        self.places = any(need for out in self.next for need, _ in out)

    def state(self, test: Test | None = None) -> int:
        """A new state, which takes a character that passes a test, if there is one."""
        if not len(self.tests) % 256:
            what = f"the regular expression {self._pattern[:80]!r}"
            budget.check("states", len(self.tests), what)
        self.tests.append(test)
        self.next.append([])
        return len(self.tests) - 1

    def link(self, a: int, b: int, need: int = 0) -> None:
        self.next[a].append((need, b))

    def closed(self, states: frozenset[int], place: int) -> set[int]:
        """The states, and those that are reached from them without a character."""
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
    """Matches texts with a pattern, and remembers the steps that it took. Not thread-safe."""

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self._forget()

    def fullmatch(self, text: str) -> bool:
        """Whether the whole text matches."""
        pattern, at = self._pattern, self._number(frozenset([self._pattern.begin]))
        for i, c in enumerate(text):
            place = _place(text, i) if pattern.places else 0
            following = self._steps.get((at, place, c))
            if following is None:
                if self._size > KEPT:
                    states = self._known[at]
                    self._forget()
                    at = self._number(states)
                following = self._steps[at, place, c] = self._step(at, place, c)
            at = following
        place = _place(text, len(text)) if pattern.places else 0
        return pattern.end in pattern.closed(self._known[at], place)

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
        pattern = self._pattern
        taken: set[int] = set()
        for state in pattern.closed(self._known[at], place):
            test = pattern.tests[state]
            if test is not None and test(c):
                taken.update(b for _, b in pattern.next[state])
        self._size += 1
        return self._number(frozenset(taken))


@lru_cache(maxsize=64)
def compiled(pattern: str) -> Pattern:
    """The pattern, which is the same object for the same text."""
    return Pattern(pattern)


def _place(text: str, i: int) -> int:
    """What is true before character `i` of a text."""
    before, after = text[i - 1 : i] if i else "", text[i : i + 1]
    found = (_BEGIN | _LINE_BEGIN) if not i else _LINE_BEGIN * (before == "\n")
    found |= (_END | _LINE_END) if not after else _LINE_END * (after == "\n")
    return found | (_BOUNDARY if (before in _WORD) != (after in _WORD) else _INSIDE)


class _Parser:
    """Adds the states of a pattern to an automaton, by descent."""

    def __init__(self, text: str, automaton: Pattern) -> None:
        self.text = re.sub(r"(?s)\\Q(.*?)(?:\\E|\Z)|\\.", _unquoted, text)
        self.i, self.to = 0, automaton
        self.fold = self.lines = self.dots = False
        self.depth = 0

    def fail(self, why: str) -> TypeRuleError:
        return TypeRuleError(
            f"pattern {self.text[:200]!r} is not a regular expression of RE2: {why} at {self.i}"
        )

    def take(self, text: str) -> bool:
        if self.text.startswith(text, self.i):
            self.i += len(text)
            return True
        return False

    def char(self) -> str:
        if self.i >= len(self.text):
            raise self.fail("it ends too early")
        self.i += 1
        return self.text[self.i - 1]

    def whole(self, a: int, b: int) -> None:
        self.choice(a, b)
        if self.i < len(self.text):
            raise self.fail("unexpected )")

    def choice(self, a: int, b: int) -> None:
        """Alternatives between two states."""
        flags = self.fold, self.lines, self.dots
        self.depth += 1
        if self.depth > NESTED:
            raise self.fail(f"more than {NESTED} nested groups")
        self.sequence(a, b)
        while self.take("|"):
            self.sequence(a, b)
        self.depth -= 1
        self.fold, self.lines, self.dots = flags

    def sequence(self, a: int, b: int) -> None:
        while self.i < len(self.text) and self.text[self.i] not in "|)":
            a = self.repeated(a)
        self.to.link(a, b)

    def repeated(self, a: int) -> int:
        """One item with what says how often; the state behind it."""
        start, flags = self.i, (self.fold, self.lines, self.dots)
        first = self.to.state()
        self.to.link(a, first)
        last = self.item(first)
        most = self.count()
        if most is None:
            return last
        self.take("?")  # lazy: no other texts match
        if self.i < len(self.text) and (self.text[self.i] in "*+?" or self.braces() is not None):
            raise self.fail("bad repetition")
        end, after = self.i, (self.fold, self.lines, self.dots)
        (low, high), out = most, self.to.state()
        for k in range(1, max(low, high or 0, 1) + 1):
            if k > 1:  # the item again
                first = self.to.state()
                self.to.link(last, first)
                self.i, (self.fold, self.lines, self.dots) = start, flags
                last = self.item(first)
            if k > low:
                self.to.link(first, out)
        self.i, (self.fold, self.lines, self.dots) = end, after
        if high != 0:
            self.to.link(last, out)
        if high is None:
            self.to.link(last, first)
        return out

    def count(self) -> tuple[int, int | None] | None:
        """The least and the most that a repetition ahead allows (None: any number)."""
        for mark, found in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.take(mark):
                return found
        braces = self.braces()
        if braces is None:
            return None
        self.i, found = braces
        low, high = found
        if max(low, high or 0) > REPEATS or (high is not None and high < low):
            raise self.fail("bad repetition")
        return found

    def braces(self) -> tuple[int, tuple[int, int | None]] | None:
        """The end and the numbers of a {n}, {n,} or {n,m} ahead; others are mere text."""
        if not self.text.startswith("{", self.i):
            return None
        end = self.text.find("}", self.i)
        low, comma, high = self.text[self.i + 1 : max(end, self.i + 1)].partition(",")
        fits = low.isascii() and low.isdecimal() and len(low) < 9
        if end < 0 or not fits or (high and not (high.isascii() and high.isdecimal())):
            return None
        most = int(high[:9]) if high else None if comma else int(low)
        return end + 1, (int(low), most)

    # ---- items

    def item(self, a: int) -> int:
        """One group, class, character or assertion from a state on; the state behind it."""
        b, c = self.to.state(), self.char()
        if c == "(":
            self.group(a, b)
        elif c == "[":
            self.takes(a, b, self.bracket())
        elif c == ".":
            dots = self.dots
            self.takes(a, b, lambda x: dots or x != "\n")
        elif c == "^":
            self.to.link(a, b, _LINE_BEGIN if self.lines else _BEGIN)
        elif c == "$":
            self.to.link(a, b, _LINE_END if self.lines else _END)
        elif c == "\\":
            self.escape(a, b)
        elif c in "*+?":
            raise self.fail(f"nothing that {c} repeats")
        else:
            self.takes(a, b, self.folded(frozenset(c).__contains__))
        return b

    def takes(self, a: int, b: int, test: Test) -> None:
        state = self.to.state(test)
        self.to.link(a, state)
        self.to.link(state, b)

    def folded(self, test: Test) -> Test:
        """The test, of a character in either case where the pattern says so."""
        if not self.fold:
            return test
        return lambda x: any(test(v) for v in {x, x.lower(), x.upper()} if len(v) == 1)

    def group(self, a: int, b: int) -> None:
        if self.take("?"):
            named = self.take("P<") or (
                self.text[self.i : self.i + 1] == "<"
                and self.text[self.i + 1 : self.i + 2] not in ("=", "!")
                and self.take("<")
            )
            if named:
                while (c := self.char()) != ">":
                    if c not in _WORD:
                        raise self.fail("bad name of a group")
            elif self.flags(a, b):
                return
            else:
                flags = self.inner
                saved = self.fold, self.lines, self.dots
                self.fold, self.lines, self.dots = flags
                self.closed(a, b)
                self.fold, self.lines, self.dots = saved
                return
        self.closed(a, b)

    def closed(self, a: int, b: int) -> None:
        self.choice(a, b)
        if not self.take(")"):
            raise self.fail("missing )")

    def flags(self, a: int, b: int) -> bool:
        """Read flags such as `i-s:` or `i-s)`; True for the second form, which sets the flags for
        the rest of the group."""
        found, on = {"i": self.fold, "m": self.lines, "s": self.dots, "U": False}, True
        while (c := self.char()) not in ":)":
            if c == "-" and on:
                on = False
            elif c in found:
                found[c] = on
            else:
                raise self.fail("(? is not followed by flags: RE2 does not look ahead or behind")
        self.inner = found["i"], found["m"], found["s"]
        if c == ")":
            self.fold, self.lines, self.dots = self.inner
            self.to.link(a, b)
        return c == ")"

    def escape(self, a: int, b: int) -> None:
        places = {"A": _BEGIN, "z": _END, "b": _BOUNDARY, "B": _INSIDE}
        c = self.text[self.i : self.i + 1]
        if c in places and c:
            self.i += 1
            self.to.link(a, b, places[c])
        else:
            self.takes(a, b, self.folded(self.class_escape() or self.literal()))

    def class_escape(self) -> Test | None:
        """The class behind a backslash, such as d, S or pL; None for a character."""
        c = self.text[self.i : self.i + 1]
        if not c or c not in "dswDSWpP":
            return None
        self.i += 1
        if c not in "pP":
            return _within(_PERL[c.lower()], c.isupper())
        name = self.char()
        if name == "{":
            end = self.text.find("}", self.i)
            name = self.text[self.i : max(end, self.i)]
            self.i = end + 1 if end >= 0 else len(self.text)
        negated = (c == "P") != name.startswith("^")
        name = name.removeprefix("^")
        if name == "Any":
            return lambda x: not negated
        if not any(known.startswith(name) for known in _CATEGORIES) or not name:
            raise self.fail(f"the property {name[:40]!r} is not known")
        return lambda x: unicodedata.category(x).startswith(name) != negated

    def literal(self) -> Test:
        return frozenset(self.escaped()).__contains__

    def escaped(self) -> str:
        """The character behind a backslash."""
        c = self.char()
        if c in _ESCAPES:
            return _ESCAPES[c]
        if c == "x":
            return self.hexadecimal()
        if c == "0" or (c in "1234567" and self.text[self.i : self.i + 1] in tuple("01234567")):
            digits = c
            while len(digits) < 3 and self.text[self.i : self.i + 1] in tuple("01234567"):
                digits += self.char()
            return chr(int(digits, 8))
        if c.isascii() and c.isalnum():
            raise self.fail(f"RE2 has no \\{c}")
        return c

    def hexadecimal(self) -> str:
        if self.take("{"):
            end = self.text.find("}", self.i)
            digits, self.i = self.text[self.i : max(end, self.i)], max(end, self.i) + 1
        else:
            digits, self.i = self.text[self.i : self.i + 2], self.i + 2
            digits = digits if len(digits) == 2 else ""
        fits = 0 < len(digits) <= 6 and all(d in string.hexdigits for d in digits)
        if not fits or int(digits, 16) > 0x10FFFF:
            raise self.fail("bad hexadecimal number")
        return chr(int(digits, 16))

    def bracket(self) -> Test:
        """The class of a [...] that has begun."""
        negated, first = self.take("^"), True
        tests: list[Test] = []
        ranges: list[tuple[str, str]] = []
        while first or not self.take("]"):
            first = False
            end = self.text.find(":]", self.i)
            if end >= 0 and self.take("[:"):
                name = self.text[self.i : max(end, self.i)]
                if name.removeprefix("^") not in _POSIX:
                    raise self.fail("bad name of a class")
                self.i = end + 2
                tests.append(_within(_POSIX[name.removeprefix("^")], name.startswith("^")))
                continue
            c = self.char()
            if c == "\\" and (test := self.class_escape()):
                tests.append(test)
                continue
            low = high = self.escaped() if c == "\\" else c
            ahead = self.text[self.i + 1 : self.i + 2]
            if self.text.startswith("-", self.i) and ahead not in ("]", ""):
                self.i += 1
                c = self.char()
                high = self.escaped() if c == "\\" else c
            if high < low:
                raise self.fail("bad range")
            ranges.append((low, high))
        held = self.folded(_any(ranges, tests))
        return (lambda x: not held(x)) if negated else held


def _unquoted(match: re.Match[str]) -> str:
    """What \\Q and \\E enclose as characters that mean themselves; another escape as it is."""
    if match[1] is None:
        return match[0]
    return "".join(c if c.isalnum() else f"\\{c}" for c in match[1])


def _within(members: frozenset[str], negated: bool) -> Test:
    return (lambda x: x not in members) if negated else members.__contains__


def _any(ranges: Iterable[tuple[str, str]], tests: Iterable[Test]) -> Test:
    rows, others = tuple(ranges), tuple(tests)
    return lambda x: any(a <= x <= b for a, b in rows) or any(test(x) for test in others)
