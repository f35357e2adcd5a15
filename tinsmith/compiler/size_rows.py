"""Writes and reads the formulas of a program for free sizes as plain data, in the section "sizes".

Writing: `json.dumps(data, default=rows.of)`, with a `SizeRows`, puts a reference, `{"=": 3}`, in
the place of each `Size`; `rows.row(free)` is the section with the formula of each reference.
Reading: the `hook` of a `SizesRead` turns references into Sizes. Data from a file are checked: a
formula may use known operations and earlier formulas only, and is built anew; no text of the file
is executed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from tinsmith.conditions import Conditions, Scope
from tinsmith.formulas import OPERATIONS, RELATIONS, Atom, Form, is_long, valued
from tinsmith.plain import Misfit
from tinsmith.runtime.free import FreeProgram, Shape
from tinsmith.sizes import Size

REFERENCE = "="
"""The key of a JSON object that is a reference to a formula: no attribute has this name."""
LARGEST = 1 << 62
"""Factors in formulas that are written must be below this."""


class Rows(TypedDict):
    """The section "sizes". Atoms and formulas refer to each other by their numbers in these lists.

    atoms       (name, formulas that are its arguments: none for a symbol, value in the example,
                lower bound), each after the atoms in its arguments
    forms       each formula as a list of products (atoms, factor)
    shapes      of the inputs, with references for sizes
    conditions  (formula, relation): the formula must have this relation to 0
    """

    atoms: list[tuple[str, list[int], int, int]]
    forms: list[list[tuple[list[int], int]]]
    shapes: list[list[Any] | None]
    conditions: list[tuple[int, str]]


class SizeRows:
    """Writes the Sizes of one program: numbers their formulas as they occur. Raises TypeError for
    values and factors that cannot be written."""

    def __init__(self) -> None:
        self._numbers: dict[Form, int] = {}
        self._atoms: dict[Atom, None] = {}

    def of(self, value: Any) -> dict[str, int]:
        """Return the reference that is written for a Size: {"=": number of its formula}. For
        `json.dumps(default=)`."""
        if not isinstance(value, Size):
            raise TypeError(f"{type(value).__name__} is no plain data")
        return {REFERENCE: self._number(value.form)}

    def _number(self, form: Form) -> int:
        if any(abs(k) >= LARGEST for _, k in form):
            raise TypeError("a formula has a number beyond those of files")
        if form not in self._numbers:
            for atom in [a for m, _ in form for a in m]:
                self._seen(atom)
            self._numbers[form] = len(self._numbers)
        return self._numbers[form]

    def _seen(self, atom: Atom) -> None:
        if atom not in self._atoms:
            self._atoms[atom] = None
            for form in atom.args:
                self._number(form)

    def row(self, free: FreeProgram) -> dict[str, Any]:
        """Return the section "sizes" of a program, after all references were made: their formulas,
        the inputs' shapes, and the conditions."""
        conditions = [(self._number(form), relation) for form, relation in free.conditions]
        shapes = [
            None if dims is None else [self.of(d) if isinstance(d, Size) else d for d in dims]
            for dims in free.shapes
        ]
        atoms = sorted(self._atoms)  # in the order of their making: arguments first
        at = {a: i for i, a in enumerate(atoms)}
        least = free.scope.least
        return {
            "atoms": [
                (a.name, [self._numbers[f] for f in a.args], a.value, least.get(a, 0))
                for a in atoms
            ],
            "forms": [[([at[a] for a in m], k) for m, k in form] for form in self._numbers],
            "shapes": shapes,
            "conditions": conditions,
        }


class SizesRead:
    """Reads the Sizes of one program into a scope of their own. `hook` reads references in other
    sections; `shapes` are those of the inputs. Raises Misfit for rows that are not consistent."""

    def __init__(self, rows: Rows) -> None:
        self.scope, self._forms = Scope(), rows["forms"]
        self._atoms: list[Atom] = []
        try:
            for row in rows["atoms"]:
                self._atoms.append(self._atom(*row))
            self._made = [self._form(k) for k in range(len(self._forms))]
        except (ArithmeticError, TypeError) as error:
            raise Misfit(f"a formula cannot be computed: {error}") from None
        found: Conditions = {}
        for number, relation in rows["conditions"]:
            if relation not in RELATIONS:
                raise Misfit(f"there is no relation {relation!r}")
            found[self._checked(number), relation] = self.scope
        self.scope.conditions = found
        self.shapes: list[Shape | None] = [
            None if dims is None else tuple(map(self._dim, dims)) for dims in rows["shapes"]
        ]

    def _atom(self, name: str, args: list[int], value: int, least: int) -> Atom:
        if args:
            if name not in OPERATIONS:
                raise Misfit(f"there is no operation {name!r}")
            return self.scope.atom(name, *map(self._form, args))
        if name in self.scope.atoms:
            raise Misfit(f"there are two sizes {name!r}")
        (((atom,), _),) = self.scope.symbol(name, value, least)
        return atom

    def _form(self, number: int) -> Form:
        """Return a formula by its number; it may contain only atoms that have been read."""
        if not 0 <= number < len(self._forms):
            raise Misfit(f"there is no formula {number}")
        row = self._forms[number]
        if not all(0 <= i < len(self._atoms) for m, _ in row for i in m):
            raise Misfit(f"the formula {number} is made of what comes after it")
        form = tuple((tuple([self._atoms[i] for i in m]), k) for m, k in row)
        if is_long(form):
            raise Misfit(f"the formula {number} is too long")
        return form

    def _checked(self, number: int) -> Form:
        if not 0 <= number < len(self._made):
            raise Misfit(f"there is no formula {number}")
        return self._made[number]

    def _dim(self, dim: Any) -> Any:
        if isinstance(dim, Mapping):
            dim = self.hook(dict(dim))
        form = dim.form if isinstance(dim, Size) else None
        symbol = form is not None and len(form) == 1 and form[0][1] == 1 and len(form[0][0]) == 1
        if type(dim) is not int and not (symbol and not form[0][0][0].args):  # type: ignore[index]
            raise Misfit(f"{dim!r} is no dimension")
        return dim

    def hook(self, data: dict[str, Any]) -> Any:
        """For `json.loads(object_hook=)`: return the Size of a reference, other objects as they
        are."""
        if data.keys() != {REFERENCE}:
            return data
        number = data[REFERENCE]
        if type(number) is not int:
            raise Misfit(f"{data} stands for no size")
        form = self._checked(number)
        return Size(self.scope, form, valued(form))
