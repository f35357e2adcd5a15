"""The rooms import in one direction, and the package stays light to import."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fresh import said
from tests.lint_imports import ALLOWED, HEAVY, PACKAGE, all_faults, faults_in
from tinsmith.kernels._kernel import KERNELS


def test_the_package_follows_the_directions() -> None:
    assert all_faults() == []


def test_names_of_operators_are_seldom_compared() -> None:
    """What several operators have in common is a trait or a declared property of theirs."""
    compared = re.compile(r"op\.name\b *(==|!=|in\b|not in\b)")
    rooms = [p for p in PACKAGE.glob("**/*.py") if "ops" not in p.relative_to(PACKAGE).parts]
    lines = [line for p in rooms for line in p.read_text().splitlines() if compared.search(line)]
    assert len(lines) <= 63, "\n".join(lines)


def test_the_table_has_no_cycle() -> None:
    below: dict[str, set[str]] = {}

    def reach(room: str, path: tuple[str, ...]) -> set[str]:
        assert room not in path, f"{' > '.join((*path, room))} is a cycle"
        if room not in below:
            below[room] = set().union(
                *({n} | reach(n, (*path, room)) for n in ALLOWED.get(room, set()) - {room})
            )
        return below[room]

    for room in ALLOWED:
        reach(room, ())


def test_every_room_exists() -> None:
    rooms = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or p.is_dir()}
    assert set(ALLOWED) <= rooms


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("tinsmith.codegen.jit", "from tinsmith.ops import OPS", "codegen may not import ops"),
        ("tinsmith.codegen.jit", "import tinsmith.graph.core", "codegen may not import graph"),
        (
            "tinsmith.ops.conv",
            "def f():\n    from tinsmith import kernels",
            "may not import kernels",
        ),
        ("tinsmith.ops.conv", "from ..frontends.onnx import x", "ops may not import frontends"),
        ("tinsmith.ops.conv", "from .. import plan", "ops may not import plan"),
        ("tinsmith.formats.onnx", "from tinsmith.ops import OPS", "may not import ops"),
        ("tinsmith.kernels.dot.rows", "from tinsmith.plan import Plan", "may not import plan"),
        ("tinsmith.plan.pack", "from tinsmith import compile", "plan may not import the public"),
        ("tinsmith.passes.fold", "from tinsmith.frontends import load", "may not import frontends"),
        ("tinsmith.graph.text", "from tinsmith.ops import OPS", "graph may not import ops"),
        ("tinsmith.attic.x", "", "room 'attic' has no row"),
        ("tinsmith.codegen.jit", "import llvmlite.binding as b", "imports llvmlite when loaded"),
        ("tinsmith.formats.onnx", "from onnx import helper", "imports onnx when loaded"),
        ("tinsmith", "import rich.table", "imports rich when loaded"),
        ("tinsmith.plan.tensors", "from tinsmith.plan.place import place", "tensors comes before"),
        ("tinsmith.plan.novel", "from tinsmith.plan.plan import Plan", "novel has no place"),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str, fault: str) -> None:
    assert any(fault in text for _, text in faults_in(source, module))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("tinsmith.codegen.jit", "def f():\n    import llvmlite.binding"),
        ("tinsmith.codegen.jit", "from tinsmith.errors import CodegenError"),
        ("tinsmith.kernels.dot", "from tinsmith.ops import OPS\nfrom tinsmith.codegen import isa"),
        ("tinsmith.cli.run", "import click\nimport tinsmith as ts\nfrom tinsmith import compile"),
        ("tinsmith", "from tinsmith.runtime import compile"),
        ("tinsmith.ops.conv", "import numpy as np\nimport ml_dtypes"),
    ],
)
def test_a_right_import_passes(module: str, source: str) -> None:
    assert faults_in(source, module) == []


def test_no_module_imports_one_that_holds_tests() -> None:
    tests = Path(__file__).parent
    imported = re.compile(r"^\s*(from|import) tests\.(\w+\.)*test_", re.MULTILINE)
    assert not [p.name for p in tests.rglob("*.py") if imported.search(p.read_text("utf-8"))]


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, tinsmith; print(*{m.split('.')[0] for m in sys.modules})"
    assert not {*HEAVY, "numpy"} & set(said(code).split())


def test_a_folder_named_tinsmith_does_not_hide_the_package(tmp_path: Path) -> None:
    """A clone is such a folder to scripts that lie beside it."""
    (tmp_path / "tinsmith").mkdir()
    said("import tinsmith; assert tinsmith.compile", cwd=tmp_path)


def test_kernels_are_summed_up_in_a_line() -> None:
    """`tinsmith kernels` prints the first line of a rule's docstring: a sentence."""
    KERNELS.load()
    rows = [k for k in KERNELS.rows() if k.rule.__module__.startswith("tinsmith.")]
    assert not [k.name for k in rows if not k.summary.endswith(".")]
