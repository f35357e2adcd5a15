"""Programs for free sizes: which a model has, and when one is made.

The first shapes that a model is called with get a program of their own. With the second, a program
is made that leaves free what the model leaves free (`runtime/free.py`): it takes other sizes by
arithmetic alone. It is right where the conditions hold that its code was made under; sizes beyond
these get another one, of `MOST` at most, and then again programs of their own. Where there are
hints (`compiler/hints.py`), a program is made for typical sizes first.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tinsmith.compiler.hints import Hints, common, ranges_of, typical
from tinsmith.compiler.sections import Told
from tinsmith.conditions import Scope
from tinsmith.errors import CodegenError, PassError, PlanError, ReferenceFailed, TypeRuleError
from tinsmith.formulas import Atom, Form
from tinsmith.records import NamedTuple
from tinsmith.runtime.inputs import Signature
from tinsmith.runtime.program import Program
from tinsmith.sizes import NeedsNumber, Size, same, symbol

if TYPE_CHECKING:
    from tinsmith.compiler.build import Compilation
    from tinsmith.runtime.free import FreeProgram

Found = tuple["FreeProgram", Told]
"""A program, and what is told of it."""

MOST = 4
"""How many programs for free sizes a model has at most: sizes of 0 and 1 often need others than
larger ones. Estimated."""
OWN_NAMES = r"(at|d)\d+|peak"
"""Names that sizes have besides the model's: places in the arena, and sizes whose own names would
not look like one in a formula."""
LEAST = 2
"""The least size for which a program is made that leaves it free: where one is 0 or 1, most kernels
would be others. It takes 0 and 1 as well where no decision was made by these."""
ALIKE = 64
"""A size that all dimensions may have at once, to find which of them a model holds equal: it can be
halved often. Estimated."""
LARGEST = 1 << 40
"""The largest: numbers beyond it stand for "to the end" in Slice, and for no size. Estimated."""


class HeldSizes(Exception):
    """The passes hold sizes that were left free to numbers: other symbols are tried, and no code is
    made for these."""


class FreePrograms:
    """The programs for free sizes of one model, of whose sizes there may be hints; of the inputs
    `read` the elements, not the sizes, are in signatures. Not thread-safe."""

    def __init__(
        self, most: int = MOST, hints: Hints | None = None, read: Collection[int] = ()
    ) -> None:
        self.most, self._hints, self._read = most, hints or {}, read
        self.dims: Sequence[Sequence[Any] | None] = ()
        """Of the model's inputs, where there are hints."""
        self._too_large = False
        """Whether no program could be made for typical sizes."""
        self._memories = threading.local()
        self.found: list[Found] = []
        self.notes: list[str] = []
        self._numbers: set[str] = set()
        """The names of dimensions that nodes hold to numbers, as planning the model has shown."""
        self._stored: list[Callable[[], Found | None]] = []

    def offer(self, stored: Iterable[Callable[[], Found | None]]) -> None:
        """Programs that are read once those that are known do not do."""
        self._stored += stored

    def known(self, signature: Signature) -> tuple[Program, Told] | None:
        """The program for these shapes, if one admits them that was made or read before: the first,
        so that it is the same one whatever was called since."""
        for free, told in self.found:
            program = free.sized(signature)
            if program is not None:
                return program, told
        return None

    def program(self, signature: Signature) -> tuple[Program, Told] | None:
        """The program for these shapes, if one admits them."""
        found = self.known(signature)
        while found is None and self._stored:
            one = self._stored.pop(0)()
            if one is not None:
                self._add(*one)
                found = self.known(signature)
        return found

    def every(self) -> list[Found]:
        """All programs that are known or stored."""
        while self._stored:
            one = self._stored.pop(0)()
            if one is not None:
                self._add(*one)
        return self.found

    def _add(self, free: FreeProgram, told: Told) -> Found:
        free.memories = self._memories
        if self.dims:
            free.bound(self.dims, {n: most for n, (_, most) in ranges_of(self._hints).items()})
        self.found.append((free, told))
        return free, told

    @property
    def wants_more(self) -> bool:
        """Whether another one may be made."""
        return len(self.found) < self.most and not self.notes

    def make(
        self,
        made: Compilation,
        signature: Signature,
        build: Callable[[tuple[Any, ...]], tuple[Program, Told]],
    ) -> Found | None:
        """A program for these shapes and others, or, first, for typical ones, which may not admit
        these; None where the model leaves nothing free, or where something cannot do without
        numbers, which is noted. Raises OptionError for hints that contradict each other."""
        try:
            while True:
                is_typical, (scope, shapes, _, names) = self._symbols(made, signature)
                if not scope.symbols and not made.is_part:
                    return None
                try:
                    program, told = build(shapes)
                except HeldSizes:
                    self._numbers |= _held(scope, names)
                    continue
                except (PlanError, TypeRuleError, NeedsNumber, PassError, CodegenError):
                    # Perhaps typical sizes need more memory than there is, or do not fit others.
                    if not is_typical:
                        raise
                    self._too_large = True
                    continue
                held = _held(scope, names)
                if not held:
                    break
                self._numbers |= held
        except (NeedsNumber, PassError, CodegenError) as why:
            self.notes.append(f"shapes: each shape is compiled on its own: {why}")
            return None
        from tinsmith.runtime.free import FreeProgram

        return self._add(FreeProgram(program, shapes, scope), told)

    def typical(self, made: Compilation) -> Signature | None:
        """Shapes of typical sizes, of which those that the model holds equal are; None where that
        cannot be told. Raises OptionError for hints that contradict each other."""
        types = [v.type.shape for v in made.canonical.inputs]
        if any(own is None for own in types):
            return None
        alike = tuple(tuple(d if isinstance(d, int) else ALIKE for d in own or ()) for own in types)
        try:
            told = leaving_free(made, alike, self._numbers).told
            found = _typical(made, alike, told, self._hints)
        except (NeedsNumber, TypeRuleError, ReferenceFailed, PassError):
            return None
        ranges = ranges_of(self._hints)
        for own, dims in zip(types, found, strict=True):
            for d, n in zip(own or (), dims or (), strict=True):
                if d in ranges and not ranges[d][0] <= n <= ranges[d][1]:
                    return None
        return found

    def _symbols(self, made: Compilation, signature: Signature) -> tuple[bool, Leaving]:
        """As `leaving_free`: of typical sizes (True) where there are hints, sizes of 0, or numbers
        that the run tells and that changed since an earlier program, and no program of these."""
        freed = leaving_free(made, signature, self._numbers)
        wanted = self._changed(signature)
        if self._hints or _begins_empty(made, signature):
            wanted = _typical(made, signature, freed.told, self._hints)
        if self._too_large or wanted == signature or self.known(wanted) is not None:
            return False, freed
        try:
            return True, leaving_free(made, wanted, self._numbers)
        except (TypeRuleError, ReferenceFailed, PassError):  # the model has no such sizes
            return False, freed

    def _changed(self, signature: Signature) -> Signature:
        """The signature with LEAST, which is left free, for a number below it that the run tells,
        and that was another for an earlier program: so much padding, say, which is 0 for one
        picture and 1 for the next."""
        wanted = list(signature)
        for k in self._read:
            given = signature[k] or ()
            earlier = [free.shapes[k] or () for free, _ in self.found]
            earlier = [dims for dims in earlier if len(dims) == len(given)]  # files may say others
            wanted[k] = tuple(
                LEAST if n in range(LEAST) and not all(same(d[i], n) for d in earlier) else n
                for i, n in enumerate(given)
            )
        return tuple(wanted)


def _begins_empty(made: Compilation, signature: Signature) -> bool:
    """Whether some input of a model has no elements, as a cache has none at first. The inputs of
    parts are not asked: a 0 there may be a number that the shape tells (`later.told_by`)."""
    return not made.is_part and any(0 in dims for dims in signature if dims)


def _name(symbol: str, number: int) -> str:
    """The model's own name for a size, where that is like one in formulas, and no other's."""
    return symbol if symbol.isidentifier() and not re.fullmatch(OWN_NAMES, symbol) else f"d{number}"


def _typical(
    made: Compilation, signature: Signature, told: Mapping[str, str | int], hints: Hints
) -> Signature:
    """A signature with the typical sizes of hints, but where it has 1: such sizes mostly have
    programs of their own. Where it has 0, as a cache has at first, and there is no hint, it is of
    `ALIKE`. `told` is as in `_shapes`."""
    groups: dict[str | int, list[str]] = {}

    def last(name: str) -> str | int:
        found: str | int = name
        while found in told:
            found = told[found]  # type: ignore[index]
        return found

    types = [v.type.shape for v in made.canonical.inputs]
    for name in dict.fromkeys(d for own in types for d in own or () if isinstance(d, str)):
        groups.setdefault(last(name), []).append(name)
    chosen = {group: common(hints, names) for group, names in groups.items()}

    def size(wanted: str | int, given: int) -> int:
        group = last(wanted) if isinstance(wanted, str) else wanted
        hint = chosen.get(group)
        if isinstance(group, int) or not (given == 0 or LEAST <= given <= LARGEST):
            return given
        found = typical(hint) if hint is not None else given or ALIKE
        return found if LEAST <= found <= LARGEST else given

    return tuple(
        given if own is None or given is None else tuple(map(size, own, given))
        for own, given in zip(types, signature, strict=True)
    )


class Leaving(NamedTuple):
    """A signature with symbols; which dimensions are numbers, or equal to others; and the model's
    names of the symbols."""

    scope: Scope
    shapes: tuple[Any, ...]
    told: Mapping[str, str | int]
    names: dict[Any, str]


def leaving_free(made: Compilation, signature: Signature, numbers: Collection[str] = ()) -> Leaving:
    """A signature with symbols for the dimensions that the model leaves free, as far as its nodes
    take any size there: of `x + y` the sizes are one symbol, the channels that weights have are
    numbers. `numbers`: the dimensions that are known to be numbers, too. Raises TypeRuleError where
    sizes do not fit."""
    told: dict[str, str | int] = dict.fromkeys(numbers, 0)
    while True:
        scope = Scope()
        shapes, names = _shapes(made, signature, scope, told)
        if made.is_part:  # of which less was known before
            made.sized(shapes)
        else:
            made.copy(shapes)
        new = {
            names[a]: b if isinstance(b, int) else names[b]
            for a, b in _equal(scope)
            if a in names and (isinstance(b, int) or b in names)
        }
        if not new:
            scope.conditions.clear()
            return Leaving(scope, shapes, told, names)
        told |= new


def _equal(scope: Scope) -> Iterator[tuple[Atom, Atom | int]]:
    """The symbols that are equal to another, or held to numbers, by the conditions: of
    `h//4 == 56` the example's, but not of `h//4096 == 0`, which is a bound."""
    for form, relation in scope.conditions:
        if relation != "==":
            continue
        symbols = _symbols(form)
        if len(symbols) == 1 and len(form) == 2 and not form[0][0]:
            [only] = symbols
            yield only, only.value
            continue
        atoms = [a for m, _ in form if len(m) == 1 for a in m if not a.args]
        if any(len(m) > 1 or any(a.args for a in m) for m, _ in form):
            continue
        if len(form) == 2 and sum(k for _, k in form) == 0:
            yield atoms[1], atoms[0]


def _held(scope: Scope, names: Mapping[Any, str]) -> set[str]:
    """The names of dimensions that the conditions hold to numbers."""
    return {names[a] for a, b in _equal(scope) if a in names and isinstance(b, int)}


def check_held(shapes: Signature) -> None:
    """Raise HeldSizes where conditions hold a size of a signature to a number."""
    sizes = [d for dims in shapes for d in dims or () if isinstance(d, Size)]
    for scope in {id(d.scope): d.scope for d in sizes}.values():
        if any(isinstance(b, int) for _, b in _equal(scope)):
            raise HeldSizes


def _symbols(form: Form) -> set[Atom]:
    """The symbols in a formula, also inside its operations."""
    atoms = {a for m, _ in form for a in m}
    inner = [_symbols(arg) for a in atoms for arg in a.args]
    return {a for a in atoms if not a.args}.union(*inner)


def _shapes(
    made: Compilation,
    signature: Signature,
    scope: Scope,
    told: Mapping[str, str | int],
) -> tuple[tuple[Any, ...], dict[Any, str]]:
    """The shapes of `signature` with symbols (`Size`) where the model leaves dimensions free, and
    by each symbol the model's name of that dimension. Dimensions of one name are one symbol.
    Sizes below LEAST (2) or above LARGEST stay numbers, as do dimensions that `told` has as
    numbers; `told` gives to other names the name that they equal."""
    symbols: dict[str, Size] = {}
    names: dict[Any, str] = {}

    def dim(wanted: Any, given: int) -> Any:
        while wanted in told:
            wanted = told[wanted]
        if not isinstance(wanted, str) or not LEAST <= given <= LARGEST:
            return given
        if wanted not in symbols:
            symbols[wanted] = symbol(scope, _name(wanted, len(symbols)), given)
            names[scope.symbols[-1]] = wanted
        return symbols[wanted]

    def dims(own: Sequence[Any] | None, given: Sequence[int] | None) -> Any:
        if own is None or given is None:
            return given
        return tuple(dim(d, n) for d, n in zip(own, given, strict=True))

    types = [v.type.shape for v in made.canonical.inputs]
    shapes = tuple(dims(own, given) for own, given in zip(types, signature, strict=True))
    return shapes, names
