"""Installed packages that bring kernels and passes: found, listed, chosen, left out, refused."""

from __future__ import annotations

import configparser  # noqa: F401 - before the path is another
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.kernels.harness import one_node
from tinsmith import extensions
from tinsmith.codegen.target import ISAS, level
from tinsmith.errors import OptionError, UnknownName
from tinsmith.kernels._kernel import KERNELS, Skip, Tier, kernel
from tinsmith.kernels.trace import make_site

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "extension"

MODEL = """
import sys
import numpy as np
import tinsmith as ts
from tinsmith import ops
from tinsmith.graph import Graph, Type

def model():
    rng = np.random.default_rng(0)
    g = Graph("depthwise")
    x = g.input("x", Type("float32", (2, 19, 13, 18)))
    w, b = rng.standard_normal((19, 1, 3, 3)), rng.standard_normal(19)
    w, b = g.const(w.astype(np.float32), "w"), g.const(b.astype(np.float32), "b")
    y = ops.Relu(ops.Conv(x, w, b, pad=(1, 1, 1, 1), group=19, name="conv"))
    g.outputs = [ops.Sub(y, ops.Neg(ops.Sigmoid(y)), name="z")]
    return g

data = np.random.default_rng(1).standard_normal((2, 19, 13, 18)).astype(np.float32)
want = ts.compile(model(), backend="numpy")(data)

def kernels(net):
    np.testing.assert_allclose(net(data), want, rtol=1e-5, atol=1e-5)
    return " ".join(s.kernel for s in net.program().plan.steps if s.kernel != "relayout")
"""


def installed_in(folder: Path, name: str, entries: dict[str, str]) -> None:
    """What an installer leaves of a package's entry points."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    lines = [f"[{extensions.GROUP}]", *(f"{n} = {m}" for n, m in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """A folder in which the example is installed."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    installed_in(tmp_path / "site", "tinsmith_depthwise", project["entry-points"][extensions.GROUP])
    (tmp_path / "site" / "tinsmith_depthwise").symlink_to(EXAMPLE / "tinsmith_depthwise")
    return tmp_path / "site"


def run(site: Path, text: str, **variables: str) -> str:
    env = {
        **os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(site)]),
        "TINSMITH_CACHE": str(site.parent / "cache"), **variables,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", MODEL + text], env=env, capture_output=True, text=True, cwd=site
    )
    return done.stdout + done.stderr


def test_an_installed_kernel_computes_what_it_is_for(example: Path) -> None:
    said = run(
        example,
        """
net = ts.compile(model())
print("plain:", kernels(net))
print(net.explain("conv"))
print("out:", kernels(ts.compile(model(), kernels="-depthwise_3x3_rows")))
print("out, too:", kernels(ts.compile(model(), kernels={"depthwise_3x3_rows": "-"})))
print("forced:", kernels(ts.compile(model(), kernels="Conv=conv_depthwise")))
print("sum:", "Add" in net.graph("canonical"))
print("no sum:", "Add" in ts.compile(model(), passes="-add-negatives").graph("canonical"))
""",
    )
    assert "plain: depthwise_3x3_rows" in said, said
    assert (
        "depthwise_3x3_rows           isa" in said and "conv_depthwise               shaped" in said
    )
    assert "out: conv_depthwise" in said and "out, too: conv_depthwise" in said, said
    assert "left out by kernels=" not in said.partition("out:")[0]
    assert "forced: conv_depthwise" in said and "sum: True\nno sum: False" in said, said


def test_an_installed_kernel_computes_a_layer_of_the_panel(example: Path) -> None:
    """The first depthwise convolution of EfficientNet-B0, which it computes faster, to the bit."""
    said = run(
        example,
        """
g = Graph("efficientnet_b0")
x = g.input("x", Type("float32", (1, 32, 112, 112)))
w = np.random.default_rng(0).standard_normal((32, 1, 3, 3)).astype(np.float32)
g.outputs = [ops.Swish(ops.Conv(x, w, w[:, 0, 0, 0].copy(), group=32, pad=(1, 1, 1, 1)))]
nets = ts.compile(g), ts.compile(g, kernels="-depthwise_3x3_rows")
data = np.random.default_rng(1).standard_normal((1, 32, 112, 112)).astype(np.float32)
print(*(net.program().plan.steps[-2].kernel for net in nets))
print(np.array_equal(*(net(data) for net in nets)))
""",
    )
    assert "depthwise_3x3_rows conv_depthwise\nTrue" in said, said


@pytest.mark.parametrize(
    ("variable", "value", "kernel_", "sums"),
    [
        ("TINSMITH_KERNELS", "-depthwise_3x3_rows", "conv_depthwise", True),
        ("TINSMITH_KERNELS", "Conv=conv_depthwise", "conv_depthwise", True),
        ("TINSMITH_PASSES", "-add-negatives", "depthwise_3x3_rows", False),
        ("TINSMITH_EXTENSIONS", "off", "conv_depthwise", False),
        ("TINSMITH_EXTENSIONS", "-depthwise", "conv_depthwise", True),
        ("TINSMITH_EXTENSIONS", "-differences", "depthwise_3x3_rows", False),
    ],
)
def test_the_environment_chooses(
    example: Path, variable: str, value: str, kernel_: str, sums: bool
) -> None:
    text = "net = ts.compile(model())\nprint(kernels(net), 'Add' in net.graph('canonical'))"
    assert f"{kernel_} {sums}" in run(example, text, **{variable: value})


def test_programs_are_stored_apart_from_those_without_it(example: Path) -> None:
    """A second start finds them; one after the package has changed does not."""
    path = example.parent / "m.tin"
    run(example, f"ts.save(model(), {str(path)!r})", TINSMITH_EXTENSIONS="off")
    text = f"""
from tinsmith.compiler import model as made
new = made.Model._new
made.Model._new = lambda *a: print("compiled") or new(*a)
print(kernels(ts.compile({str(path)!r})))
"""
    first, again = (run(example, text) for _ in range(2))
    assert "compiled\ndepthwise_3x3_rows" in first and "compiled" not in again, first + again
    assert "depthwise_3x3_rows" in again
    assert "compiled\nconv_depthwise" in run(example, text, TINSMITH_EXTENSIONS="off")
    (example / "tinsmith_depthwise").unlink()
    copy = example / "tinsmith_depthwise"
    copy.mkdir()
    for file in (EXAMPLE / "tinsmith_depthwise").glob("*.py"):
        (copy / file.name).write_text(file.read_text() + "\n# another edition\n")
    assert "compiled\ndepthwise_3x3_rows" in run(example, text)


def test_lists_say_whose_rows_they_are(example: Path) -> None:
    command = "\nfrom tinsmith.cli import main\nsys.argv = ['tinsmith', *{!r}]\nmain()"
    said = run(example, command.format(["kernels", "Conv", "--json"]))
    assert '"from": "tinsmith_depthwise 1.0"' in said and '"from": "tinsmith"' in said, said
    assert "add-negatives" in run(example, command.format(["passes"]))


@pytest.mark.parametrize(
    ("entries", "value", "what"),
    [
        (
            {"mine": "not_there"},
            "",
            "the extension 'mine' of broken 1.0 cannot be imported: Module",
        ),
        ({"mine": "fails"}, "", "KeyError: 'missing'; mend or remove the package, or leave it out"),
        ({"mine": "fails"}, "mine", "must be 'off', or '-NAME' for each to leave out"),
        ({"mine": "fails"}, "-mind", "Did you mean 'mine'"),
    ],
)
def test_what_cannot_be_used_is_named(
    tmp_path: Path, entries: dict[str, str], value: str, what: str
) -> None:
    site = tmp_path / "site"
    installed_in(site, "broken", entries)
    (site / "fails.py").write_text("{}['missing']")
    said = run(site, "ts.compile(model())", TINSMITH_EXTENSIONS=value)
    assert what in said and "Error" in said, said


def test_damaged_metadata_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, data in (
        ("a", b"\xff\xfe"), ("b", f"[{extensions.GROUP}\nx = y".encode()),
        ("c", f"[{extensions.GROUP}]\nno delimiter".encode()),
    ):  # fmt: skip
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        (folder / "entry_points.txt").write_bytes(data)
    installed_in(tmp_path, "good", {"Name": "module : attribute"})
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "missing")])
    found = extensions.installed.__wrapped__()
    assert [tuple(one) for one in found] == [("Name", "module", "good-1.0.dist-info")]
    assert found[0].label == "good 1.0"


def test_a_row_for_a_core_comes_first() -> None:
    """Order: the core's own, the instruction set's own, any machine's; elsewhere it declines."""

    def row(site):  # type: ignore[no-untyped-def]
        raise Skip("asked")

    name = "for_one_core"
    kernel("Mul", Tier.CORE, cores=("Zen 3", "Zen 4"), name=name)(row)
    try:
        target = level("avx2")
        site = make_site(one_node("Mul", [np.ones(3, np.float32)] * 2), target)
        for core, reason in (
            ("Zen 3", "asked"),
            ("Skylake", "is for Zen 3 or Zen 4, this is Skylake"),
            ("", "this is a core that is not in the table"),
        ):
            with pytest.raises(Skip, match=reason):
                KERNELS[name].offer(replace(site, target=replace(target, core=core)))
    finally:
        KERNELS.remove(name)
    assert Tier.REFERENCE < Tier.VECTOR < Tier.SHAPED < Tier.ISA < Tier.CORE < Tier.MEASURED


def test_a_row_for_an_instruction_set_is_for_those_with_the_same_vectors() -> None:
    def row(site):  # type: ignore[no-untyped-def]
        raise Skip("asked")

    name = "for_avx512_alone"
    kernel("Mul", Tier.ISA, isas="avx512", name=name)(row)
    try:
        site = make_site(one_node("Mul", [np.ones(3, np.float32)] * 2), level("avx2"))
        for isa in ISAS.values():
            reason = "asked" if isa.lanes == 16 else f"needs avx512, the target is {isa.name}"
            with pytest.raises(Skip, match=reason):
                KERNELS[name].offer(replace(site, target=level(isa.name)))
    finally:
        KERNELS.remove(name)


@pytest.mark.parametrize(
    ("tier", "machines", "error", "what"),
    [
        (Tier.ISA, {}, OptionError, "names the machines that it is for"),
        (Tier.CORE, {"isas": "avx2"}, OptionError, "names the machines that it is for"),
        (Tier.CORE, {"cores": ("Zen3",)}, UnknownName, "Zen 3"),
        (Tier.SHAPED, {"isas": "avx22"}, UnknownName, "avx2"),
    ],
)
def test_machines_that_there_are_not(
    tier: Tier, machines: dict[str, object], error: type[Exception], what: str
) -> None:
    with pytest.raises(error, match=what):
        kernel("Mul", tier, **machines)  # type: ignore[arg-type]
