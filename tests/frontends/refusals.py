"""Why importers decline nodes: the messages of `Unsupported` in their source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from tinsmith.frontends.onnx.call import IMPORTERS

ROOM = "tinsmith.frontends.onnx."


def refusals(name: str) -> list[str]:
    """The messages that the importer of an operator, and the functions it calls, may raise."""
    found: list[str] = []
    if name in IMPORTERS and isinstance(IMPORTERS[name], FunctionType):
        _collect(IMPORTERS[name], set(), found)
    return list(dict.fromkeys(found))


def _collect(function: Any, seen: set[Any], found: list[str]) -> None:
    if function in seen:
        return
    seen.add(function)
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id == "Unsupported":
            found += _text(node.args[0])
        called = function.__globals__.get(node.func.id)
        if isinstance(called, FunctionType) and called.__module__.startswith(ROOM):
            _collect(called, seen, found)


def _text(message: ast.expr) -> Iterator[str]:
    """A message, with ... for what it is told."""
    if isinstance(message, ast.Constant) and message.value:
        yield str(message.value)
    elif isinstance(message, ast.JoinedStr):
        yield "".join(
            str(v.value) if isinstance(v, ast.Constant) else "..." for v in message.values
        )
