"""The import directions of the rooms: `python tests/lint_imports.py`, and a test beside it.

Every import counts, also those inside functions and under TYPE_CHECKING: the rule is about what
a reader must know, not about when a module is loaded. Heavy packages may be imported inside
functions only, so that `import tinsmith` stays light.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "tinsmith"

COMMON = {
    "budget", "conditions", "errors", "extensions", "formulas", "hashing", "html", "plain",
    "progress", "records", "registry", "sizes", "version",
}  # fmt: skip

# What each room may import, besides itself and COMMON. A file directly under the package is a
# room of its own name; the package's own `__init__` (the public surface) may import every room.
ALLOWED: dict[str, set[str]] = {
    "budget": set(),
    "errors": set(),
    "extensions": set(),
    "formulas": set(),
    "hashing": set(),
    "html": set(),
    "plain": set(),
    "progress": set(),
    "records": set(),
    "registry": set(),
    "sizes": set(),
    "conditions": set(),
    "version": set(),
    "graph": set(),
    "formats": {"graph"},
    "codegen": set(),
    "ops": {"graph"},
    "rewrite": {"graph", "ops"},
    "passes": {"graph", "ops", "rewrite"},
    "frontends": {"graph", "ops", "formats"},
    "writers": {"graph", "ops", "formats", "frontends"},
    "kernels": {"graph", "ops", "codegen"},
}
ALLOWED["plan"] = ALLOWED["kernels"] | {"kernels"}
ALLOWED["runtime"] = ALLOWED["plan"] | {"plan"}
ALLOWED["backends"] = ALLOWED["runtime"] | {"runtime"}
ALLOWED["compiler"] = ALLOWED["backends"] | {"backends", "passes", "rewrite", "frontends"}
ALLOWED["compiler"] |= {"formats", "writers"}
ALLOWED["quantizer"] = ALLOWED["compiler"] | {"compiler"}
ALLOWED["onnx_backend"] = ALLOWED["compiler"] | {"compiler"}
ALLOWED["cli"] = ALLOWED["compiler"] | {"compiler", "quantizer", ""}
ALLOWED["__main__"] = {"cli"}

# Inside a room, where a list is given, a module imports only those before it.
INSIDE: dict[str, list[str]] = {
    "plan": [
        "plan", "memory", "shared_weights", "footprint", "gate", "equivalence", "pick",
        "options", "kept", "tensors", "placed", "state", "placement", "arena", "parts", "rows",
        "offers", "blocks", "micro_batch", "place", "micro_batching", "main", "planner",
    ],
}  # fmt: skip

# Edges against the direction, inside functions only, each with its reason.
EXCEPTIONS = {("tinsmith.graph.text", "ops"): "a parser looks operators up by their names"}

# Imported where they are used, never while `import tinsmith` runs. The command line has its own
# two, and ONNX's backend interface is what onnx defines; neither is loaded by `import tinsmith`.
HEAVY = {"llvmlite", "onnx", "PIL", "rich", "click", "google", "scipy", "sklearn", "torch"}
EAGER = {"cli": {"rich", "click"}, "onnx_backend": {"onnx"}}


def room_of(module: str) -> str:
    """`tinsmith.graph.core` -> `graph`; the package itself -> ''."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def module_of(path: Path, package: Path = PACKAGE) -> str:
    parts = [package.name, *path.relative_to(package).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree: ast.Module, module: str, is_package: bool) -> Iterator[tuple[int, str, bool]]:
    """(line, absolute name of the imported module, whether it is imported when loaded).

    `from a import b` counts as `a.b` as well as `a`, since b may be a module.
    """
    late: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        ):
            late.update(ast.walk(node))
    for node in ast.walk(tree):
        eager = node not in late
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name, eager
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")
                above = above[: len(above) - node.level + is_package]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for name in node.names:
                yield node.lineno, f"{base}.{name.name}", eager


def faults_in(source: str, module: str, is_package: bool = False) -> list[tuple[int, str]]:
    """(line, what is wrong) for one module's text."""
    room, faults = room_of(module), []
    if room and room not in ALLOWED:
        faults.append((1, f"room {room!r} has no row in the table of allowed imports"))
    for line, name, eager in imports_of(ast.parse(source), module, is_package):
        top = name.split(".")[0]
        if top != module.split(".")[0]:
            if eager and top in HEAVY - EAGER.get(room, set()):
                faults.append((line, f"imports {top} when loaded; import it where it is used"))
            continue
        target = room_of(name)
        # `from tinsmith import x` is room x, or the public surface, which only the top may use.
        target = target if target in ALLOWED or not target else ""
        may = ALLOWED.get(room, set()) | COMMON | {room}
        if not eager and (module, target) in EXCEPTIONS:
            continue
        if room == target and (why := _against(room, module, name)):
            faults.append((line, why))
        if room and target not in may:
            faults.append((line, f"{room} may not import {target or 'the public surface'}"))
    return faults


def _against(room: str, module: str, name: str) -> str:
    """What is wrong with an import of one module of a room by another; "" where nothing is."""
    order = INSIDE.get(room, [])
    own, other = (m.split(".")[2:3] for m in (module, name))
    if not order or not own or not other or own == other:
        return ""
    if missing := {own[0], other[0]} - set(order):
        return f"{', '.join(sorted(missing))} has no place in the order of {room}"
    if order.index(other[0]) > order.index(own[0]):
        return f"{own[0]} comes before {other[0]} in {room} and may not import it"
    return ""


def all_faults(package: Path = PACKAGE) -> list[str]:
    """`path:line: what is wrong` for every module of the package."""
    out: list[str] = []
    for path in sorted(package.rglob("*.py")):
        module = module_of(path, package)
        where = path.relative_to(package.parent)
        for line, text in faults_in(path.read_text(), module, path.name == "__init__.py"):
            out.append(f"{where}:{line}: {text}")
    return list(dict.fromkeys(out))


if __name__ == "__main__":
    found = all_faults()
    print("\n".join(found) if found else "import directions hold")
    sys.exit(bool(found))
