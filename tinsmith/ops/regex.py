"""Regular expressions in the syntax of RE2, as ONNX asks for them, parsed to automata
(`_automaton.py`), so that matching takes linear time.

As in RE2, references to groups, and looking ahead or behind, are refused. Of Unicode's properties
the general categories are known (`\\pL`, `\\p{Lu}`), scripts are not.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

from tinsmith.errors import TypeRuleError
from tinsmith.ops._automaton import (
    BEGIN,
    BOUNDARY,
    END,
    INSIDE,
    LINE_BEGIN,
    LINE_END,
    WORD,
    Automaton,
    Test,
)  # fmt: skip

REPEATS = 1000
"""The largest number in `{n,m}`, as in RE2."""

NESTED = 100
"""How deep groups may lie inside each other."""

_PERL = {"d": frozenset(string.digits), "s": frozenset("\t\n\f\r "), "w": WORD}
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
    "word": WORD,
    "xdigit": frozenset(string.hexdigits),
}
_ESCAPES = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_CATEGORIES = {unicodedata.category(chr(c)) for c in range(0x3000)} | {"Co", "Cs"}


class Pattern(Automaton):
    """The automaton of a regular expression in the syntax of RE2; immutable once made. Raises
    TypeRuleError for any other text, BudgetExceeded for too many states."""

    def __init__(self, pattern: str) -> None:
        super().__init__(f"the regular expression {pattern[:80]!r}")
        _Parser(pattern, self).whole(self.begin, self.end)


@lru_cache(maxsize=64)
def compiled(pattern: str) -> Pattern:
    """The Pattern of a regular expression, from a cache of the last 64."""
    return Pattern(pattern)


class _Parser:
    """Adds the states of a regular expression to an automaton, by recursive descent. Methods read
    the text from index `self.i` on, and lead from state `a` to state `b` (or return the state to
    which they lead) by the characters that match."""

    def __init__(self, text: str, automaton: Automaton) -> None:
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
        """Read alternatives, `x|y|z`. Flags that they set end with them."""
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
        """Read one item and the repetition after it (`*`, `{2,3}`, ...), if any; return the state
        after both. The item is read again for each copy that is needed."""
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
        """Read a repetition: (least, most) times, most None for any number. None, and nothing is
        read, if there is none."""
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
        """Look for {n}, {n,} or {n,m} without reading it: (index after it, (least, most)). None for
        other braces, which stand for themselves."""
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
        """Read one group, class, character or assertion; return the state after it."""
        b, c = self.to.state(), self.char()
        if c == "(":
            self.group(a, b)
        elif c == "[":
            self.takes(a, b, self.bracket())
        elif c == ".":
            dots = self.dots
            self.takes(a, b, lambda x: dots or x != "\n")
        elif c == "^":
            self.to.link(a, b, LINE_BEGIN if self.lines else BEGIN)
        elif c == "$":
            self.to.link(a, b, LINE_END if self.lines else END)
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
        """`test`, or, under the flag i, a test that ignores the case of characters."""
        if not self.fold:
            return test
        return lambda x: any(test(v) for v in {x, x.lower(), x.upper()} if len(v) == 1)

    def group(self, a: int, b: int) -> None:
        """Read a group after its `(`. Flags that it sets itself, as `(?i:x)`, end with it."""
        flags = self.fold, self.lines, self.dots
        if self.take("?"):
            named = self.take("P<") or (
                self.text[self.i : self.i + 1] == "<"
                and self.text[self.i + 1 : self.i + 2] not in ("=", "!")
                and self.take("<")
            )
            if named:
                while (c := self.char()) != ">":
                    if c not in WORD:
                        raise self.fail("bad name of a group")
            elif self.sets_flags():
                self.to.link(a, b)
                return
        self.choice(a, b)
        if not self.take(")"):
            raise self.fail("missing )")
        self.fold, self.lines, self.dots = flags

    def sets_flags(self) -> bool:
        """Read the flags after `(?`, as `i-s)` or `i-s:`, and set them. Returns whether it was
        `i-s)`: then they hold for the rest of the group around it."""
        found, on = {"i": self.fold, "m": self.lines, "s": self.dots, "U": False}, True
        while (c := self.char()) not in ":)":
            if c == "-" and on:
                on = False
            elif c in found:
                found[c] = on
            else:
                raise self.fail("(? is not followed by flags: RE2 does not look ahead or behind")
        self.fold, self.lines, self.dots = found["i"], found["m"], found["s"]
        return c == ")"

    def escape(self, a: int, b: int) -> None:
        places = {"A": BEGIN, "z": END, "b": BOUNDARY, "B": INSIDE}
        c = self.text[self.i : self.i + 1]
        if c in places and c:
            self.i += 1
            self.to.link(a, b, places[c])
        else:
            self.takes(a, b, self.folded(self.class_escape() or self.literal()))

    def class_escape(self) -> Test | None:
        """Read a class after a backslash, such as d, S or pL; return the test of its characters.
        None, and nothing is read, if there is none."""
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
        """Read an escape after its backslash, such as n, x41 or a dot; return its character."""
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
        """Read a class [...] after its `[`; return the test of its characters."""
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
    """For a match of \\Q...\\E: its characters, escaped; for any other escape: itself."""
    if match[1] is None:
        return match[0]
    return "".join(c if c.isalnum() else f"\\{c}" for c in match[1])


def _within(members: frozenset[str], negated: bool) -> Test:
    return (lambda x: x not in members) if negated else members.__contains__


def _any(ranges: Iterable[tuple[str, str]], tests: Iterable[Test]) -> Test:
    rows, others = tuple(ranges), tuple(tests)
    return lambda x: any(a <= x <= b for a, b in rows) or any(test(x) for test in others)
