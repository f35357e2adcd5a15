"""Free dimensions that the command line gives no size, or one that does not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tinsmith as ts
from tests.cli.harness import parsed, tinsmith
from tinsmith import ops
from tinsmith.errors import InputShapeError, OptionError, TypeRuleError
from tinsmith.graph import Graph, Type


@pytest.fixture
def shorter(tmp_path: Path) -> Path:
    """Zeros, two fewer than the input has elements."""
    g = Graph("shorter")
    x = g.input("x", Type("float32", ("N",)))
    count = ops.Sub(ops.Shape(x), g.const(np.array([2]), "two"))
    g.outputs = [ops.Relu(ops.ConstantOfShape(count))]
    ts.save(g, tmp_path / "shorter.tin")
    return tmp_path / "shorter.tin"


def test_the_pass_is_named_that_met_a_size_that_does_not_fit(shorter: Path) -> None:
    said = tinsmith("inspect", shorter, "--at", "placed", "--dim", "N=1", code=1).stderr
    assert "ConstantOfShape" in said and said.endswith(
        "has a negative dim; in pass propagate-shapes\n"
    )


@pytest.fixture
def picked(tmp_path: Path) -> Path:
    """The fourth of the input's places, which only a reference can tell there is not."""
    g = Graph("picked")
    x = g.input("x", Type("float32", ("N",)))
    zero, one = g.const(np.array(0), "zero"), g.const(np.array(1), "one")
    places = ops.Range(zero, ops.Size(x), one)
    g.outputs = [ops.Add(x, ops.Cast(ops.Gather(places, g.const(np.array(3))), to="float32"))]
    ts.save(g, tmp_path / "picked.tin")
    return tmp_path / "picked.tin"


@pytest.mark.parametrize("name", ["shorter", "picked"])
def test_what_is_in_a_model_that_no_size_of_1_fits(
    name: str, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(name)
    got = tinsmith("inspect", model)
    assert "nodes of unknown shape" in got.stdout and "memory" not in got.stdout
    assert got.stderr.startswith("warning: no memory is planned: ")
    assert got.stderr.endswith("N counted as 1, which --dim N=SIZE changes\n")
    assert parsed("inspect", model)["memory"] is None
    whole = parsed("inspect", model, "--dim", "N=5")
    assert whole["nodes_of_unknown_shape"] == 0 and whole["memory"]["peak"] >= 0
    for chosen in ([], ["--dim", "N=1"]):
        tinsmith("inspect", model, "--at", "placed", *chosen, code=1)
    tinsmith("inspect", model, "--dim", "N=1", code=1)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    g = Graph("rows")
    g.outputs = [ops.Relu(g.input("x", Type("float32", ("N", 3))))]
    ts.save(g, tmp_path / "rows.tin")
    return tmp_path / "rows.tin"


@pytest.mark.parametrize("command", ["run", "bench", "verify", "explain", "inspect"])
def test_every_command_takes_a_range(command: str, rows: Path) -> None:
    more = ["--seconds", "0.01"] if command == "bench" else []
    said = tinsmith(command, rows, "--dim", "N=2..128", *more).stdout
    assert "counted as 1" not in said and "assumed" not in said
    if command in ("run", "verify"):
        assert "float32[16, 3]" in said


def test_a_range_and_a_size_within_it(rows: Path) -> None:
    said = tinsmith("run", rows, "--dim", "N=2..128", "--dim", "N=100").stdout
    assert "float32[100, 3]" in said


def test_an_input_outside_a_range_is_refused(rows: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((129, 3), np.float32))
    said = tinsmith("run", rows, tmp_path / "x.npy", "--dim", "N=2..128", code=1).stderr
    assert "is 129 in 'x'; it was compiled for 2 to 128" in said and "--dim N=2..129" in said


@pytest.mark.parametrize(
    ("dims", "says"),
    [
        (["N=4..2"], "the range 4..2 of N is empty"),
        (["N=..3"], "a range with one end"),
        (["N=3.."], "a range with one end"),
        (["N=.."], "is not NAME=SIZE or NAME=LEAST..LARGEST"),
        (["N=1..2..3"], "is not NAME=SIZE or NAME=LEAST..LARGEST"),
        (["N=1..9999999999"], "greater than 2147483647"),
        (["N=1..3", "N=4"], "N=4 is outside its range 1..3"),
        (["N=1..3", "N=1..3"], "N is given two ranges"),
    ],
)
def test_ranges_that_are_none(dims: list[str], says: str, rows: Path) -> None:
    said = tinsmith("run", rows, *(w for d in dims for w in ("--dim", d)), code=2).stderr
    assert says in " ".join(said.split())


def test_sizes_are_shown_as_formulas(tmp_path: Path) -> None:
    g = Graph("halved")
    x = g.input("x", Type("float32", ("N", 3, "H", "W")))
    wide = {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1, 1, 1)}
    g.outputs = [ops.MaxPool(ops.Relu(x), **wide)]
    file = tmp_path / "halved.tin"
    ts.save(g, file)
    said = tinsmith("inspect", file, "--values", "--shapes", "free", "--dim", "N=2", "--dim", "H=9")
    assert "float32[N,3,((H + 1)//2),((W + 1)//2)]" in said.stdout
    assert "float32[N,3,H,W]" in said.stdout
    sizes = [w for name, n in (("N", 4), ("H", 20), ("W", 30)) for w in ("--dim", f"{name}={n}")]
    found = parsed("inspect", file, "--values", "--shapes", "free", *sizes)
    assert found["formulas"] == {"maxpool": ["N", 3, "((H + 1)//2)", "((W + 1)//2)"]}
    assert [v["name"] for v in found["values"]] == ["relu", "maxpool"]
    known = {"N": 4, "H": 20, "W": 30, "max": max, "min": min}
    assert eval(found["memory"]["formula"], known) == found["memory"]["lower_bound"]
    plain = parsed("inspect", file)
    assert plain["values"] is None and plain["memory"]["formula"] is None


@pytest.fixture
def baked(tmp_path: Path) -> Path:
    """A Reshape that has the batch of 1 as a constant."""
    g = Graph("baked")
    g.outputs = [ops.Reshape(ops.Relu(g.input("x", Type("float32", (1, 2, 3)))), [1, 6])]
    ts.write(g, tmp_path / "baked.onnx")
    return tmp_path / "baked.onnx"


def test_a_batch_that_a_node_has_as_a_constant_contradicts_a_freed_one(baked: Path) -> None:
    asked = ("run", baked, "--input-shape", "x=N,2,3", "--dim")
    tinsmith(*asked, "N=1")
    said = tinsmith(*asked, "N=3", code=1).stderr
    assert "Reshape" in said and "a size is fixed inside the file" in said and "random" not in said
    net = ts.compile(baked, input_shapes={"x": ("N", 2, 3)})
    with pytest.raises(TypeRuleError, match="has 18 elements"):
        net(np.ones((3, 2, 3), np.float32))


def test_a_batch_that_is_fixed_is_freed_by_a_name(tmp_path: Path) -> None:
    g = Graph("one")
    g.outputs = [ops.Relu(g.input("x", Type("float32", (1, 3))))]
    ts.write(g, tmp_path / "one.onnx")
    x = np.ones((4, 3), np.float32)
    hint = r"input_shapes=\{'x': \('N', 3\)\}, which frees it"
    with pytest.raises(InputShapeError, match=hint):
        ts.compile(tmp_path / "one.onnx")(x)
    assert ts.compile(tmp_path / "one.onnx", input_shapes={"x": ("N", 3)})(x).shape == (4, 3)
    with pytest.raises(OptionError, match="such as 'N', leaves a size free"):
        ts.load(tmp_path / "one.onnx", input_shapes={"x": (4, 3)})
