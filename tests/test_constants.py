"""Numbers at the top of kernels and of the planner say what they are.

They steer choices and costs. Each has a docstring, or a comment on its line: what it is, its unit,
and where it comes from (docs/kernels.md, Constants of the cost model).
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "tinsmith"
ROOMS = ("kernels", "plan")


def _is_number(node: ast.expr) -> bool:
    """Whether an expression is made of numbers alone, or holds some: a tuple, a dict, a product."""
    match node:
        case ast.Constant(value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.UnaryOp(operand=operand):
            return _is_number(operand)
        case ast.BinOp(left=left, right=right):
            return _is_number(left) and _is_number(right)
        case ast.Tuple(elements) | ast.List(elements) | ast.Set(elements):
            return any(map(_is_number, elements))
        case ast.Dict(values=values):
            return any(map(_is_number, values))
    return False


def _names(target: ast.expr) -> Iterator[str]:
    """The names that an assignment gives, if they are those of constants."""
    targets = target.elts if isinstance(target, ast.Tuple) else [target]
    yield from (t.id for t in targets if isinstance(t, ast.Name) and t.id.isupper())


def silent(text: str) -> set[str]:
    """The numeric constants of a module with neither a docstring nor a comment on their lines."""
    found: set[str] = set()
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = {
        t.start[0]
        for t in tokens
        if t.type == tokenize.COMMENT and not t.string.startswith("# fmt")
    }
    body = ast.parse(text).body
    for statement, after in zip(body, [*body[1:], None], strict=True):
        match statement:
            case ast.Assign(targets=[target], value=value):
                pass
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                pass
            case _:
                continue
        match after:
            case ast.Expr(value=ast.Constant(value=str())):
                continue
        lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
        if _is_number(value) and comments.isdisjoint(lines):
            found.update(_names(target))
    return found


def _files() -> list[str]:
    return sorted(
        path.relative_to(ROOT).as_posix() for room in ROOMS for path in (ROOT / room).rglob("*.py")
    )


@pytest.mark.parametrize("file", _files())
def test_constants_say_what_they_are(file: str):
    found = silent((ROOT / file).read_text(encoding="utf-8"))
    assert not found, f"{file}: say what these are, their unit, and where they come from"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("A = 1", {"A"}),
        ("A = 1  # bytes", set()),
        ('A = 1\n"""Bytes."""', set()),
        ('A = 1\nB = 2\n"""Bytes."""', {"A"}),
        ("A, B = 1 << 10, -2.0**3", {"A", "B"}),
        ("A: int = 1", {"A"}),
        ("A = {'x': (1,\n 2)}", {"A"}),
        ("A = (1,\n 2)  # fmt: skip", {"A"}),
        ("A = (1,  # seconds\n 2)", set()),
        ("A = 'text'\nB = True\nc = 1\nD = f(1)", set()),
    ],
)
def test_what_counts(text: str, names: set[str]):
    assert silent(text) == names
