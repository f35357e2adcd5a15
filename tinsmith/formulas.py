"""Formulas of sizes: polynomials with integer coefficients in symbols and in operations on formulas
(`OPERATIONS`: //, max, min, and pieces, which counts the pieces of one size that `cut` makes).

A `Form` is a normal form: formulas that are equal by the rules of this module are equal tuples.
Formulas that are equal for other reasons count as different, as x // 2 + (x + 1) // 2 and x."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Protocol

Monomial = tuple["Atom", ...]
Form = tuple[tuple[Monomial, int], ...]
"""A polynomial: products of atoms, in order, each with its coefficient. () is 0."""


class Atom:
    """A variable of the polynomials: a symbol, such as H (no `args`), or an operation on formulas
    other than + - *, such as (H + 1) // 2. Equal atoms of a scope are one object.

    number  counts the atoms of a scope; orders them in a product
    value   in the example call, for which the program is compiled
    length  number of atoms and numbers, written out
    depth   of operations inside each other"""

    __slots__ = ("args", "depth", "length", "name", "number", "value")

    def __init__(self, number: int, name: str, args: tuple[Form, ...], value: int) -> None:
        self.number, self.name, self.args, self.value = number, name, args, value
        self.length = 1 + sum(map(length_of, args))
        self.depth = 1 + max((a.depth for form in args for m, _ in form for a in m), default=0)

    def __lt__(self, other: Atom) -> bool:
        return self.number < other.number


LONGEST, DEEPEST = 3000, 100
"""Limits of a formula's length and depth (see `Atom`). Formulas grow little with the depth of usual
networks, but a file can make a formula that doubles with every node. Estimated."""

RELATIONS: dict[str, Callable[[int], bool]] = {
    "==": lambda v: v == 0,
    "!=": lambda v: v != 0,
    "<": lambda v: v < 0,
    ">=": lambda v: v >= 0,
}
OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<"}


def widths(most: int, length: int) -> tuple[int, ...]:
    """The sizes of pieces for which code is made, the largest first: `most`, most - 1, the balanced
    ones of the example's `length`, and most // 2, most // 4, ... 1, so that every length can be
    cut."""
    found = {most, most - 1, *(size for size, _ in balanced(length, most))}
    while most:
        found.add(most)
        most //= 2
    return tuple(sorted(found - {0}, reverse=True))


def balanced(length: int, most: int) -> list[tuple[int, int]]:
    """Cut `length` into the fewest pieces of at most `most`, whose sizes differ by at most 1: pairs
    (size, count), the larger size first. balanced(10, 4) is [(4, 1), (3, 2)]."""
    pieces = -(-length // most)
    least, more = divmod(length, pieces) if pieces else (0, 0)
    return [(s, n) for s, n in ((least + 1, more), (least, pieces - more)) if n > 0]


def pieces_of(length: int, sizes: int, size: int) -> int:
    """How many pieces of `cut(length, sizes)` have this `size`."""
    return cut(length, sizes).get(size, 0)


@lru_cache(maxsize=4096)
def cut(length: int, sizes: int) -> Mapping[int, int]:
    """Cut `length` into pieces of allowed sizes: size -> count. Bit s of `sizes` allows the size s;
    1 must be allowed. The pieces are those of `balanced` if their sizes are allowed, else as few as
    possible."""
    found = balanced(length, sizes.bit_length() - 1)
    if all(sizes >> s & 1 for s, _ in found):
        return dict(found)
    last = _last_pieces(1 << length.bit_length(), sizes)
    fewest: dict[int, int] = {}
    while length:
        fewest[last[length]] = fewest.get(last[length], 0) + 1
        length -= last[length]
    return fewest


@lru_cache(maxsize=256)
def _last_pieces(end: int, sizes: int) -> list[int]:
    """For every length below `end`, the size of one piece of a cut into the fewest pieces (`sizes`
    as in `cut`)."""
    known = [s for s in range(sizes.bit_length() - 1, 0, -1) if sizes >> s & 1]
    counts, last = [0], [0]
    for n in range(1, end):
        count, size = min((counts[n - s] + 1, -s) for s in known if s <= n)
        counts.append(count)
        last.append(-size)
    return last


OPERATIONS: dict[str, Callable[..., int]] = {
    "//": lambda a, b: a // b,
    "max": max,
    "min": min,
    "pieces": pieces_of,
}
"""What formulas have besides sums and products, by name."""


class Atoms(Protocol):
    """The part of `conditions.Scope` that formulas use: `atom` makes each atom once, `low` knows a
    lower bound."""

    def atom(self, name: str, *args: Form) -> Atom: ...

    def low(self, form: Form) -> int | None: ...


# ---- forms


def valued(form: Form) -> int:
    """The value of a form in the example call."""
    total = 0
    for atoms, k in form:
        for a in atoms:
            k *= a.value
        total += k
    return total


def length_of(form: Form) -> int:
    """How many atoms and numbers a formula has when it is written out."""
    return sum([1 + sum([a.length for a in atoms]) for atoms, _ in form])


def is_long(form: Form) -> bool:
    """Whether a formula has more than LONGEST atoms and numbers, or nests operations deeper than
    DEEPEST: it is then neither written nor computed."""
    length = 0
    for atoms, _ in form:
        length += 1
        for a in atoms:
            if a.depth > DEEPEST:
                return True
            length += a.length
    return length > LONGEST


def constant(form: Form) -> int | None:
    """The value of a form without atoms; None for other forms."""
    if not form:
        return 0
    return form[0][1] if len(form) == 1 and not form[0][0] else None


def number_form(value: int) -> Form:
    return (((), value),) if value else ()


def _form(terms: Mapping[Monomial, int]) -> Form:
    found = [(m, k) for m, k in terms.items() if k]
    return tuple(sorted(found, key=_order) if len(found) > 1 else found)


def _order(term: tuple[Monomial, int]) -> tuple[int, ...]:
    return tuple(a.number for a in term[0])


def added(a: Form, b: Form, times: int = 1) -> Form:
    """a + times * b."""
    terms = dict(a)
    for m, k in b:
        terms[m] = terms.get(m, 0) + k * times
    return _form(terms)


def negated(a: Form) -> Form:
    return tuple((m, -k) for m, k in a)


def multiplied(a: Form, b: Form) -> Form:
    terms: dict[Monomial, int] = {}
    for m, k in a:
        for n, j in b:
            both = tuple(sorted(m + n))
            terms[both] = terms.get(both, 0) + k * j
    return _form(terms)


def divided(scope: Atoms, a: Form, b: Form) -> Form:
    """a // b, rounded down: a polynomial where rules find one, else an atom "//" of `scope`. A b
    that is no number is taken for nonzero. Raises ZeroDivisionError if b is the number 0."""
    n = constant(b)
    if n == 0:
        raise ZeroDivisionError("a size is divided by 0")
    if n is None:
        if a == b:
            return number_form(1)
        if len(b) == 1:  # by a product of atoms: drop these where all terms have them
            atoms, k = b[0]
            whole = {_without(m, atoms): c for m, c in a}
            if None not in whole:
                return divided(scope, _form(whole), number_form(k))  # type: ignore[arg-type]
        quotient = _multiple(a, b)
        if quotient is not None:
            return quotient
        if all(k < 0 for m, k in a if m) and (scope.low(b) or 0) > 0:
            above = added(added(negated(a), b), number_form(1), -1)
            return negated((((scope.atom("//", above, b),), 1),))
        return (((scope.atom("//", a, b),), 1),)
    if n < 0:
        return divided(scope, negated(a), number_form(-n))
    whole = {m: k // n for m, k in a if k % n == 0 or not m}
    rest = _form({m: k if m else k % n for m, k in a if k % n})
    if constant(rest) is not None:  # 0 <= rest < n
        return _form(whole)
    if all(k < 0 for m, k in rest if m):  # -x // n is -((x + n - 1) // n)
        above = divided(scope, added(negated(rest), number_form(n - 1)), b)
        return added(_form(whole), above, -1)
    for m, k in rest:
        if m and k // n:
            whole[m] = whole.get(m, 0) + k // n
    rest = _form({m: k % n for m, k in rest})
    if len(rest) <= 2:  # (x // m + c) // n is (x + c m) // (m n)
        c = sum(k for m, k in rest if not m)
        inner = [(m, k) for m, k in rest if m]
        if len(inner) == 1 and inner[0][1] == 1 and len(inner[0][0]) == 1:
            atom = inner[0][0][0]
            m = constant(atom.args[1]) if atom.name == "//" and atom.args else None
            if m is not None:
                below = divided(scope, added(atom.args[0], number_form(c * m)), number_form(m * n))
                return added(_form(whole), below)
    return added(_form(whole), (((scope.atom("//", rest, b),), 1),))


def _multiple(a: Form, b: Form) -> Form | None:
    """The polynomial q with a = q * b, for b != 0, by long division; None where there is none with
    at most as many terms as `a`."""
    q, first = (), max(b, key=_degrees)
    left = a
    while left and len(q) < len(a):
        leading = max(left, key=_degrees)
        atoms = _without(leading[0], first[0])
        if atoms is None or leading[1] % first[1]:
            return None
        term: Form = ((atoms, leading[1] // first[1]),)
        q, left = added(q, term), added(left, multiplied(term, b), -1)
    return None if left else q


def _degrees(term: tuple[Monomial, int]) -> tuple[int, ...]:
    """Sort key of monomials for long division: m < n must imply m * p < n * p. Compares the atoms'
    numbers, the largest first."""
    return tuple(sorted((a.number for a in term[0]), reverse=True))


def _without(monomial: Monomial, factors: Monomial) -> Monomial | None:
    left = list(monomial)
    for f in factors:
        if f not in left:
            return None
        left.remove(f)
    return tuple(left)


# ---- formulas as text


def shown(form: Form) -> str:
    """A formula as readable text, which is also a Python expression in the symbols."""
    if not form:
        return "0"
    words: list[str] = []
    for atoms, k in sorted(form, key=lambda t: (not t[0], t[1] < 0)):
        factors = [shown_atom(a) for a in atoms]
        if abs(k) != 1 or not atoms:
            factors.insert(0, str(abs(k)))
        words += ["-" if k < 0 else "+", "*".join(factors)]
    return " ".join(words[1:] if words[0] == "+" else ["-" + words[1], *words[2:]])


def shown_atom(atom: Atom) -> str:
    if not atom.args:
        return atom.name
    if atom.name != "//":
        return f"{atom.name}({', '.join(map(shown, atom.args))})"
    a, b = map(shown, atom.args)
    return f"(({a})//{b})" if constant(atom.args[1]) else f"(({a})//({b}))"


def computed(
    forms: Sequence[Form], symbols: Iterable[str], conditions: Iterable[tuple[Form, str]] = ()
) -> Callable[..., Any]:
    """Compile forms to one Python function: from the values of `symbols` (names), in order, to the
    tuple of all forms' values. Each atom, product of atoms and cut into pieces is computed once.

    The function returns None if one of `conditions`, pairs (form, relation to 0), does not hold.
    They are tested in order, each before what follows is computed, so that a condition n != 0 can
    protect a later division by n."""
    given = {name: f"s{k}" for k, name in enumerate(symbols)}
    names: dict[str, str] = {}
    lines: list[str] = []

    def named(formula: str) -> str:
        """The local variable that holds the value of `formula`, an expression; its line is added
        once."""
        if formula not in names:
            names[formula] = f"a{len(names)}"
            lines.append(f" {names[formula]} = {formula}")
        return names[formula]

    @cache
    def word(atom: Atom) -> str:
        if not atom.args:
            return given[atom.name]
        a, *others = [text(arg) for arg in atom.args]
        if atom.name == "//":
            return named(f"({a})//({others[0]})")
        if atom.name == "pieces":
            return named(f"{named(f'cut({a}, {others[0]})')}({others[1]}, 0)")
        return named(f"{atom.name}({', '.join((a, *others))})")

    def term(atoms: Monomial, k: int) -> str:
        if not atoms:
            return str(k)
        words = [word(a) for a in atoms]
        while len(words) > 1:
            words[:2] = [named("*".join(words[:2]))]
        return words[0] if k == 1 else f"{k}*{words[0]}"

    def text(form: Form) -> str:
        return " + ".join(term(*t) for t in form) or "0"

    for form, relation in conditions:
        lines.append(f" if {text(form)} {OPPOSITE[relation]} 0: return None")
    rows = "".join(f"{text(form)}, " for form in forms)
    source = "\n".join([f"def run({', '.join(given.values())}):", *lines, f" return ({rows})"])
    counts = {"cut": lambda length, sizes: cut(length, sizes).get}
    space: dict[str, Any] = {**OPERATIONS, **counts, "__builtins__": {}}
    exec(source, space)
    return space["run"]
