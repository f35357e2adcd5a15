"""The programs for free sizes of a model: which there are, and when one is made.

With `shapes="both"`, the first signature of a model gets a program of its own. At the second, a
program for free sizes is made (`runtime/free.py`): only numbers are computed when its sizes change.
It can run calls whose sizes meet its conditions (`conditions.py`); other sizes get a further one,
up to `MOST`, then programs of their own. Where there are hints (`compiler/hints.py`), a program is
first made for typical sizes.
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
"""A program, and the texts about it."""
Read = Callable[[], "Found | None"]
"""Reads a stored program; None where there is none."""

MOST = 4
"""Programs for free sizes that a model has at most: sizes of 0 and 1 often need programs other than
larger sizes. Estimated."""
OWN_NAMES = r"(at|d)\d+|peak"
"""Names of symbols that are not the model's: offsets in the arena (at0, peak), and dimensions whose
names are no identifiers (d0)."""
LEAST = 2
"""A size becomes a symbol only if it is at least this in the example: for 0 and 1, most kernels
would be others. The program can still run with 0 and 1 where its conditions admit them."""
ALIKE = 64
"""The size that all free dimensions get where `FreePrograms.typical` finds which of them a model
requires to be equal; also the typical size in place of 0. It can be halved often. Estimated."""
LARGEST = 1 << 40
"""The largest size that becomes a symbol: larger numbers mean "to the end" in Slice. Estimated."""


class HeldSizes(Exception):
    """After the passes, a condition requires a free size to be one number. The compilation stops,
    and is repeated with this size as a number."""


class FreePrograms:
    """The programs for free sizes of one model. Not thread-safe.

    most   how many there may be
    hints  ranges or typical sizes of free dimensions
    read   indices of inputs whose elements, not sizes, are in signatures (`later.told_by`)
    """

    def __init__(
        self, most: int = MOST, hints: Hints | None = None, read: Collection[int] = ()
    ) -> None:
        self.most, self._hints, self._read = most, hints or {}, read
        self.dims: Sequence[Sequence[Any] | None] = ()
        """Dims of the model's inputs, in which hints name the free ones; () without hints."""
        self._too_large = False
        """Whether no program could be made for typical sizes."""
        self._memories = threading.local()
        self.found: list[Found] = []
        self.notes: list[str] = []
        self._numbers: set[str] = set()
        """Names of dimensions that must be one number, as earlier compilations have shown."""
        self._stored: list[tuple[Read, Callable[[FreeProgram, Told], None]]] = []

    def offer(self, stored: Iterable[Read], ready: Callable[[FreeProgram, Told], None]) -> None:
        """Add functions that read stored programs. They are called when no program in memory takes
        a signature, and `ready` then for each program that was read."""
        self._stored += [(read, ready) for read in stored]

    def known(self, signature: Signature) -> tuple[Program, Told] | None:
        """Return the program in memory for a signature, with its texts; None if none takes it. Of
        several, the first that was made or read."""
        for free, told in self.found:
            program = free.sized(signature)
            if program is not None:
                return program, told
        return None

    def program(self, signature: Signature) -> tuple[Program, Told] | None:
        """As `known`, but reads stored programs until one takes the signature."""
        found = self.known(signature)
        while found is None and self._stored:
            self._read_next()
            found = self.known(signature)
        return found

    def every(self) -> list[Found]:
        """Return all programs, after reading those that are stored."""
        while self._stored:
            self._read_next()
        return self.found

    def _read_next(self) -> None:
        read, ready = self._stored.pop(0)
        found = read()
        if found is not None:
            ready(*found)
            self._add(*found)

    def _add(self, free: FreeProgram, told: Told) -> Found:
        free.memories = self._memories
        if self.dims:
            free.bound(self.dims, {n: most for n, (_, most) in ranges_of(self._hints).items()})
        self.found.append((free, told))
        return free, told

    @property
    def wants_more(self) -> bool:
        """Whether another program may be made: there are fewer than `most`, and none failed."""
        return len(self.found) < self.most and not self.notes

    def make(
        self,
        made: Compilation,
        signature: Signature,
        build: Callable[[tuple[Any, ...]], tuple[Program, Told]],
    ) -> Found | None:
        """Make a program for free sizes with `build` (shapes with symbols -> program, texts), add
        it, and return it with its texts. Its example is the signature, or typical sizes (see
        `_symbols`): it then perhaps does not take the signature. None where the model has no free
        sizes, or the compilation needs numbers; `notes` gets the latter. Raises OptionError for
        contradictory hints."""
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
        """Return a signature of typical sizes, equal where the model requires it; None where type
        inference fails, a rank is not known, or a size is outside its range. Raises OptionError for
        contradictory hints."""
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
        """Return (is_typical, symbols): the result of `leaving_free` for the next program's
        example. That has typical sizes if there are hints or sizes of 0, or LEAST for numbers that
        have changed (`_changed`). It is `signature` instead if a program takes these already, or
        the model refuses them."""
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
        """Return the signature with LEAST, so that it becomes a symbol, in the place of numbers 0
        and 1 of the inputs `read` that had another value for an earlier program. Example: a padding
        that is 0 at first, then 1."""
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
    """Whether an input of a model has no elements, as a cache of keys at first. False for parts,
    where a 0 in a shape may stand for a number (`later.told_by`)."""
    return not made.is_part and any(0 in dims for dims in signature if dims)


def _name(symbol: str, number: int) -> str:
    """Return the name in formulas of the symbol for the dimension `symbol`: the same name, or
    "d{number}" if that is no identifier or one of `OWN_NAMES`."""
    return symbol if symbol.isidentifier() and not re.fullmatch(OWN_NAMES, symbol) else f"d{number}"


def _typical(
    made: Compilation, signature: Signature, told: Mapping[str, str | int], hints: Hints
) -> Signature:
    """Return the signature with typical sizes for free dimensions: that of the hint, or `ALIKE` for
    a size of 0 without a hint, as of a cache at first. Sizes of 1, and others without a hint, stay.
    `told` is as in `_shapes`."""
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
    """The result of `leaving_free`: the signature with symbols (`shapes`), their `scope`, symbol ->
    the model's `names`, and `told`: name -> the number or the other name that it must equal."""

    scope: Scope
    shapes: tuple[Any, ...]
    told: Mapping[str, str | int]
    names: dict[Any, str]


def leaving_free(made: Compilation, signature: Signature, numbers: Collection[str] = ()) -> Leaving:
    """Replace the sizes of free dimensions in a signature by symbols, if they lie from LEAST to
    LARGEST. Type inference, with these sizes as the example, finds which must be equal (those of x
    and y in `x + y`: one symbol) or stay a number (channels that meet weights). `numbers`: names of
    dimensions that are known to stay numbers. Raises TypeRuleError where sizes do not fit."""
    told: dict[str, str | int] = dict.fromkeys(numbers, 0)
    while True:
        scope = Scope()
        shapes, names = _shapes(made, signature, scope, told)
        if made.is_part:  # its passes find more: less was known of its sizes before
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
    """Yield (symbol, its number) for conditions that fix one symbol, such as h == 224 or h//4 ==
    56, and (symbol, other symbol) for h == w. Not for h//4096 == 0, which only bounds h."""
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
    """Return the names of dimensions that the scope's conditions require to be one number."""
    return {names[a] for a, b in _equal(scope) if a in names and isinstance(b, int)}


def check_held(shapes: Signature) -> None:
    """Raise HeldSizes if a condition that was noted for a symbol of the shapes (`Scope.conditions`)
    requires it to be one number."""
    sizes = [d for dims in shapes for d in dims or () if isinstance(d, Size)]
    for scope in {id(d.scope): d.scope for d in sizes}.values():
        if any(isinstance(b, int) for _, b in _equal(scope)):
            raise HeldSizes


def _symbols(form: Form) -> set[Atom]:
    """Return the symbols in a formula, also inside its operations."""
    atoms = {a for m, _ in form for a in m}
    inner = [_symbols(arg) for a in atoms for arg in a.args]
    return {a for a in atoms if not a.args}.union(*inner)


def _shapes(
    made: Compilation, signature: Signature, scope: Scope, told: Mapping[str, str | int]
) -> tuple[tuple[Any, ...], dict[Any, str]]:
    """Return the signature with symbols (`Size`), made in `scope`, for named dimensions, and symbol
    -> the model's name of its dimension. Dimensions of one name get one symbol. Sizes below LEAST
    or above LARGEST stay numbers. `told`: name of a dimension -> the name that it equals; or any
    number: its size in the signature stays a number."""
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
