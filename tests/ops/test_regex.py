"""Regular expressions: as Python's `re` where both mean the same, as RE2 where they differ."""

from __future__ import annotations

import itertools
import random
import re
import time

import pytest

from tinsmith.errors import BudgetExceeded, TypeRuleError
from tinsmith.ops._automaton import Matcher
from tinsmith.ops.regex import NESTED, Pattern, compiled

ITEMS = [
    "a", "b", ".", "[ab]", "[^a]", r"\w", r"\W", r"\d", r"\s", "(?:^)", "(?:$)", r"(?:\b)",
    r"(?:\B)", "(?:a|b)", "(b|)", "\n", "-", "(?i:A)", "[a-b-]", "[]a]", "(?s:.)", "(?m:^a$)",
    "(?i-s:B.)", r"\.", r"\x61", r"[\d\n]",
]  # fmt: skip
OFTEN = ["", "", "", "*", "+", "?", "{2}", "{1,2}", "{0}", "{2,}", "{0,2}", "*?", "+?"]
TEXTS = ["".join(t) for k in range(5) for t in itertools.product("abA\n1-", repeat=k)]


def drawn(rng: random.Random, depth: int = 0) -> str:
    text = ""
    for _ in range(rng.randint(1, 4)):
        inner = depth < 3 and rng.random() < 0.3
        text += ("(" + drawn(rng, depth + 1) + ")" if inner else rng.choice(ITEMS)) + rng.choice(
            OFTEN
        )
    return text if rng.random() < 0.75 else text + "|" + drawn(rng, depth + 1)


def test_random_patterns_match_what_python_matches() -> None:
    """Python's `$` also stands before a last newline, and its classes are not those of ASCII."""
    rng, count = random.Random(0), 0
    for _ in range(1500):
        pattern = drawn(rng)
        python = pattern.replace("^a$", "^a@").replace("$", r"\Z").replace("@", "$")
        matcher, known = Matcher(Pattern(pattern)), re.compile(python, re.ASCII)
        for text in rng.sample(TEXTS, 12):
            found = known.fullmatch(text) is not None
            assert matcher.fullmatch(text) == found, (pattern, text)
            count += found
    assert count > 1000


@pytest.mark.parametrize(
    "pattern, yes, no",
    [
        ("(?i)straße", ["STRAßE", "Straße"], ["strasse"]),
        ("(?i)a(?-i)b", ["Ab"], ["aB"]),
        ("x(?i)a|b", ["xA", "B"], ["XA"]),
        ("(?P<year>[0-9]{4})-(?<m>..)", ["2024-10"], ["24-10"]),
        (r"\Qa.b\E+", ["a.b", "a.bbb"], ["axb", "a.ba.b"]),
        (r"\p{Lu}\pL\P{N}", ["Üßx"], ["üßx", "Üß1"]),
        (r"\p{^L}[\pN]", ["-٣"], ["a3"]),
        ("[[:alpha:][:^ascii:]]+", ["aZ漢"], ["1"]),
        (r"\d+", ["12"], ["٣"]),
        (r"\x{1F600}\x41\101\0", ["😀AA\0"], []),
        ("a{,2}", ["a{,2}"], ["aa"]),
        ("a{2", ["a{2"], []),
        (r"\Aa\z", ["a"], ["a\n"]),
        ("(?U)a+", ["aa"], []),
        ("", [""], ["a"]),
        ("a|", ["", "a"], []),
        ("(|a)*b", ["aab", "b"], ["a"]),
        ("[^\\n]", ["a"], ["\n"]),
        (r"[\]\-a]+", ["]-a"], ["b"]),
    ],
)
def test_the_syntax_of_re2(pattern: str, yes: list[str], no: list[str]) -> None:
    matcher = Matcher(Pattern(pattern))
    assert [t for t in yes if not matcher.fullmatch(t)] == []
    assert [t for t in no if matcher.fullmatch(t)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        "(a", "a)", "a**", "a++", "*a", "a{2}{3}", "a{1001}", "a{2,1}", r"\1", r"(a)\1", "(?=a)",
        "(?!a)", "(?<=a)", "(?<!a)", "(?P=n)", "(?>a)", "(?#c)", "[b-a]", "[", "[a", "[[:what:]]",
        r"\C", r"\Z", "\\", "(?P<n", "(?P<n-m>a)", r"\p{Greek}", r"\xzz", r"\x{110000}", r"\x{}",
        "(" * (NESTED + 1), "(?z)",
    ],
)  # fmt: skip
def test_what_re2_does_not_have_is_refused(pattern: str) -> None:
    with pytest.raises(TypeRuleError, match="is not a regular expression of RE2"):
        Pattern(pattern)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", "(a*)*$", "(.*)*x(.*)*y{0,900}"])
def test_time_is_linear_in_the_text(pattern: str) -> None:
    begun = time.process_time()
    assert not Matcher(compiled(pattern)).fullmatch("a" * 50_000 + "b")
    assert time.process_time() - begun < 5


def test_a_matcher_forgets_what_it_cannot_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinsmith.ops._automaton.KEPT", 50)
    matcher = Matcher(Pattern("[^x]*(a.{6}|b)c"))
    rng = random.Random(1)
    for _ in range(50):
        text = "".join(rng.choices("abc", k=30)) + "c"
        assert matcher.fullmatch(text) == (re.fullmatch("[^x]*(a.{6}|b)c", text) is not None)
    assert matcher._size < 500


def test_too_many_states_are_refused() -> None:
    with pytest.raises(BudgetExceeded, match="states"):
        Pattern("((a{1000}){1000}){1000}")
