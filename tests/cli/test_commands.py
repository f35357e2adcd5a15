"""The commands, as a user types them: what they print, as text and as JSON, and how they exit."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.cli.harness import DIGITS, LABELS, MODEL, SEVEN, parsed, tinsmith
from tinsmith.backends import BACKENDS
from tinsmith.cli import _show
from tinsmith.codegen.target import ISAS
from tinsmith.compiler.options import PRECISIONS
from tinsmith.ops import OPS
from tinsmith.runtime.explanation import Explanation

COMMANDS = ("bench", "explain", "inspect", "kernels", "ops", "passes", "run", "verify")


@pytest.fixture(scope="module")
def two_by_two(tmp_path_factory: pytest.TempPathFactory) -> str:
    """sum = a + b, scaled = 2 * b with b of any length."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["a", "b"], ["sum"], "adding"),
            helper.make_node("Mul", ["b", "two"], ["scaled"], "scaling"),
        ],
        "two",
        [info("a", TensorProto.FLOAT, [3]), info("b", TensorProto.FLOAT, ["rows", 3])],
        [
            info("sum", TensorProto.FLOAT, ["rows", 3]),
            info("scaled", TensorProto.FLOAT, ["rows", 3]),
        ],
        [numpy_helper.from_array(np.float32(2), "two")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path_factory.mktemp("models") / "two.onnx"
    onnx.save(model, path)
    return str(path)


# ---- the group


def test_help_lists_every_command_and_each_teaches() -> None:
    text = tinsmith("--help").output
    for name in COMMANDS:
        assert name in text
        own = tinsmith(name, "--help").output
        assert "Examples:" in own and "--json" in own


def test_help_names_what_options_take() -> None:
    text = tinsmith("run", "--help").output
    for names in (BACKENDS, PRECISIONS, ("host", *ISAS)):
        assert f"[{'|'.join(names)}]" in text
    assert "anchor|associative" in tinsmith("ops", "--help").output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["runn"], "Did you mean 'run'"),
        (["run"], "Missing argument 'MODEL'"),
        (["run", "nowhere.onnx"], "does not exist"),
        (["run", MODEL, "nowhere.npy"], "nowhere.npy"),
        (["run", MODEL, "--threads", "0"], "range 1<=x<=64"),
        (["bench", MODEL, "--threads", "65"], "range 1<=x<=64"),
        (["run", MODEL, "--backend", "abacus"], "Known: cpu, numpy"),
        (["explain", MODEL, "--precision", "stric"], "Did you mean 'strict'"),
        (["run", MODEL, "--target", "avx3"], "Did you mean 'avx2'"),
        (["run", MODEL, "--dim", "N"], "is not NAME=SIZE"),
        (["run", MODEL, "--dim", "N=2", "--dim", "N=3"], "N is given twice: 2 and 3"),
        (["run", MODEL, "--save", "out.npy"], "written as .npz, not as 'out.npy' says; name"),
        (["inspect", MODEL, "--at", "nirvana"], "nirvana"),
        (["inspect", MODEL, "--no-memory", "--dim", "M=2"], "there are: N"),
        (["ops", "--trait", "shiny"], "'anchor'"),
        (["run", MODEL, "picture=random"], "no input 'picture'"),
        (["run", MODEL, "pnnx_input_0=random"], "Did you mean 'image'"),
        (["run", MODEL, "--kernels", "Conv=magic"], "magic"),
        (["run", MODEL, "--kernels", "Conv=softmax"], "'softmax' does not compute Conv"),
        (["run", MODEL, "--kernels", "Conv=foo"], "`tinsmith kernels Conv` lists them"),
        (["run", MODEL, "--kernels", "conv1=qqq"], "`tinsmith kernels` lists them"),
        (["run", MODEL, "--kernels", "Softmax=foo"], "kernel of Softmax named 'foo'. Known: ref"),
        (["run", MODEL, "--passes", "-no-such-pass"], "no-such-pass"),
        (["run", MODEL, "--passes", "-qqq"], "`tinsmith passes` lists them"),
        (["run", MODEL, "--passes", "merge-common"], "write -merge-common to leave it out or +m"),
        (["passes", "--device", "gpu"], "no device named 'gpu'. Did you mean 'cpu'"),
        (["explain", MODEL, "conv7"], "conv7"),
        (["ops", "Convv"], "Did you mean 'Conv'"),
        (["kernels", "Convv"], "Did you mean 'Conv'"),
        (["passes", "fold-into-konv"], "Did you mean"),
        (["passes", "fold"], "Did you mean 'fold-constants' or 'fold-into-conv' or"),
        (["ops", "Qqqqqqq"], f" and {len(OPS) - 12} more."),
        (["run", MODEL, "zeros", "zeros"], "nothing is left to take zeros"),
        (["run", MODEL, "--kernels", "conv7=reference"], "conv7"),
        (["run", MODEL, "--backend", "numpy", "--kernels", "Conv=magic"], "magic"),
        (["run", MODEL, "--backend", "numpy", "--passes", "-no-such-pass"], "no-such-pass"),
        (["run", MODEL, "--passes", "merge-common@1.2.3"], "not understood"),
        (["run", MODEL, "--passes", "fuse-blocks{x=1}"], "no option of the pass 'fuse-blocks'"),
        (["inspect", MODEL, "--at", "canonical", "--kernels", "Conv=magic"], "magic"),
        (["verify", MODEL, "--against", "nowhere.npz"], "'nowhere.npz' is no file"),
    ],
)
def test_wrong_usage_is_2(arguments: list[str], says: str) -> None:
    assert says in tinsmith(*arguments, code=2).stderr


def test_a_wrong_name_in_the_environment_is_said_to_be_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TINSMITH_KERNELS", "Conv=foo")
    assert (
        "no kernel of Conv in TINSMITH_KERNELS named 'foo'" in tinsmith("run", MODEL, code=2).stderr
    )
    said = tinsmith("run", MODEL, "--kernels", "Conv=bar", code=2).stderr
    assert "no kernel of Conv named 'bar'" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", LABELS], "labels.txt"),
        (["run", MODEL, "--labels", MODEL], "labels"),
        (["run", MODEL, "--kernels", "conv1=winograd_stem"], "declines: stride is 1x1"),
    ],
)
def test_a_tinsmith_error_is_1_and_goes_to_stderr(arguments: list[str], says: str) -> None:
    got = tinsmith(*arguments, code=1)
    assert got.stderr.startswith("error: ") and says in got.stderr
    assert got.stdout == ""


# ---- run


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_run_recognises_a_seven(backend: str) -> None:
    text = tinsmith("run", MODEL, SEVEN, "--labels", LABELS, "--backend", backend).stdout
    lines = [line.split() for line in text.splitlines()]
    first = next(line for line in lines if line[-1].endswith("%"))
    assert first[0] == "seven" and float(first[-1].rstrip("%")) > 95
    assert "10 nodes" in text or "compiled by an earlier run" in text
    assert "compile " in text and "first run " in text


def test_run_as_json() -> None:
    got = parsed("run", MODEL, SEVEN, DIGITS / "nine.png", "--labels", LABELS, "--top", 2)
    rows = got["outputs"]["probabilities"]["classes"]
    assert [r[0]["label"] for r in rows] == ["seven", "nine"]
    assert all(len(r) == 2 for r in rows)
    assert got["inputs"]["image"]["shape"] == [2, 1, 8, 8]
    assert min(got["compile_ms"], got["first_ms"], got["run_ms"]) > 0


def test_run_takes_an_npz_by_name_and_saves_what_came_out(tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    tinsmith("run", MODEL, DIGITS / "digits.npz", "--save", out)
    with np.load(out) as got, np.load(DIGITS / "digits.npz") as want:
        assert np.allclose(got["probabilities"], want["probabilities"], atol=1e-5)


def test_run_with_two_inputs_and_two_outputs(two_by_two: str, tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", np.float32([[1, 2, 3]]))
    got = parsed("run", two_by_two, "zeros", f"b={tmp_path / 'b.npy'}")
    assert got["outputs"]["sum"]["values"] == [[1, 2, 3]]
    assert got["outputs"]["scaled"]["values"] == [[2, 4, 6]]
    text = tinsmith("run", two_by_two, "--dim", "rows=4").stdout
    assert "b: float32[4, 3] from random" in text and "sum: float32[4, 3]" in text


@pytest.mark.parametrize(
    ("command", "runs"), [(["run"], "run_twice"), (["bench", "--repeat", "1"], "measure")]
)
def test_the_compiler_s_time_is_no_run_s(
    command: list[str], runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(f"tinsmith.cli.{command[0]}")
    real = getattr(module, runs)

    def measured(net: Any, *arguments: Any) -> Any:
        assert net.program().plan  # an error where none is built
        return real(net, *arguments)

    monkeypatch.setattr(module, runs, measured)
    tinsmith(*command, MODEL, "--dim", "N=3")


def test_run_says_what_is_not_finite(two_by_two: str, tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", np.float32([[1, np.nan, np.inf]]))
    got = tinsmith("run", two_by_two, "zeros", tmp_path / "b.npy")
    assert got.stdout.count("2 of its elements are NaN or infinite") == 2


def test_labels_that_fit_no_output_are_an_error(two_by_two: str) -> None:
    got = tinsmith("run", two_by_two, "--labels", LABELS, code=1)
    assert "10 labels, 3 classes" in got.stderr
    got = tinsmith("run", two_by_two, "--top", 2, code=1)
    assert "no output looks like them: sum [1, 3], scaled [1, 3]; --labels FILE" in got.stderr


@pytest.mark.parametrize("labels", [[], ["--labels", LABELS]])
def test_of_many_rows_the_first_are_shown(labels: list[str]) -> None:
    arguments = ["run", MODEL, DIGITS / "digits.npz", "--top", 1, *labels]
    text = tinsmith(*arguments).stdout
    assert text.count("%") == 16 and "and 84 more rows" in text
    classes = parsed(*arguments)["outputs"]["probabilities"]["classes"]
    assert len(classes) == 100 and all(len(row) == 1 for row in classes)


def test_softmax_of_an_output_is_said(two_by_two: str, tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("a\nb\nc\n")
    arguments = ["run", two_by_two, "zeros", "--labels", labels]
    assert tinsmith(*arguments).stdout.count("; its softmax:") == 2
    assert parsed(*arguments)["outputs"]["sum"]["softmax"] is True
    assert "softmax" not in tinsmith("run", MODEL, SEVEN).stdout
    assert parsed("run", MODEL, SEVEN)["outputs"]["probabilities"]["softmax"] is False


def test_a_wrong_shape_names_what_was_expected(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 8, 8), np.float32))
    got = tinsmith("run", MODEL, tmp_path / "x.npy", code=1)
    assert "image" in got.stderr and "8" in got.stderr


# ---- bench, inspect, explain


def test_bench_measures_as_often_as_it_is_told() -> None:
    got = parsed("bench", MODEL, "--repeat", 7, "--dim", "N=2")
    assert got["runs"] == 7 and "runs_ms" not in got
    assert len(parsed("bench", MODEL, "--repeat", 7, "--runs")["runs_ms"]) == 7
    assert got["min_ms"] <= got["median_ms"] <= got["p90_ms"] <= got["p99_ms"]
    assert got["inputs"] == {"image": [2, 1, 8, 8]}
    assert got["flops"] > 300_000 and got["gflops"] > 0 and got["layers"]
    told = tinsmith("bench", MODEL, "--runs", 10, code=1).output
    assert "--repeat 10 runs 10 times" in " ".join(told.split())
    text = tinsmith("bench", MODEL, "--repeat", 3).stdout
    assert "median" in text and "of the peak" in text and "conv1" in text
    assert "conv1" not in tinsmith("bench", MODEL, "--repeat", 3, "--no-layers").stdout


def test_bench_rates_each_operation_at_its_layers_peak(tmp_path: Path) -> None:
    import tinsmith as ts

    g, w = ts.Graph("mix"), np.ones((64, 64), np.int8)
    sums = ts.ops.MatMulInteger(g.input("x", ts.Type("uint8", (64, 64))), w)
    g.outputs = [ts.ops.MatMul(ts.ops.Cast(sums, to="float32"), w.astype(np.float32))]
    ts.save(g, path := tmp_path / "mix.tin")
    for option in ("--layers", "--no-layers"):
        got = parsed("bench", path, "--repeat", 3, option)
        seconds = got["flops"] / 2e9 * sum(1 / peak for peak in got["peaks"].values())
        assert len(got["peaks"]) == 2 and "float32" in got["peaks"]
        assert got["peak_share"] == pytest.approx(1e3 * seconds / got["median_ms"], rel=0.03)


def test_bench_measures_kernels_and_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINSMITH_CACHE", str(tmp_path / "cache"))
    got = parsed("bench", MODEL, "--repeat", 2, "--no-layers", "--tune", "--small-memory")
    assert len(got["notes"]) == 1 and "kind" in got["notes"][0]
    assert got["memory"]["weights"] > 0
    text = tinsmith("bench", MODEL, "--repeat", 2, "--no-layers", "--tune").stdout
    assert "note" in text and "of code" in text


def test_bench_names_the_instructions_that_ran() -> None:
    got = parsed("bench", MODEL, "--target", "sse2", "--repeat", "1", "--no-layers")
    assert "sse2" in got["target"]


def test_trusted_code_runs_by_its_own_options(tmp_path: Path) -> None:
    import tinsmith as ts

    net = ts.compile(MODEL, threads=2)
    net.program(((64, 1, 8, 8),))
    path = tmp_path / "with-code.tin"
    ts.save(net, path, code=True)
    assert "--trust, runs it" in tinsmith("run", path).stdout
    text = tinsmith("run", path, "--dim", "N=64", "--trust").stdout
    assert "2 threads" in text and "note" not in text
    assert "threads=2, not 1" in tinsmith("run", path, "--trust", "--threads", 1, code=2).stderr


def test_inspect_counts() -> None:
    got = parsed("inspect", MODEL)
    assert got["inputs"] == [{"name": "image", "dtype": "float32", "shape": ["N", 1, 8, 8]}]
    assert got["ops"]["Conv"] == 2 and got["nodes"] == sum(got["ops"].values())
    assert got["parameters"] == 16 * 10 + 32 * (9 * 16 + 1) + 129 * 10
    assert got["memory"]["lower_bound"] <= got["memory"]["peak"] <= got["memory"]["naive"]
    assert got["memory"]["weights"] > 0 and got["memory"]["code"] > 0
    text = tinsmith("inspect", MODEL).stdout
    assert "float32[N,1,8,8]" in text and "Conv" in text and "memory" in text
    assert "memory" not in tinsmith("inspect", MODEL, "--no-memory").stdout


def test_inspect_scales_with_the_batch() -> None:
    one, eight = (
        parsed("inspect", MODEL, "--no-memory", "--dim", f"N={n}")["flops"] for n in (1, 8)
    )
    assert eight == 8 * one


@pytest.mark.parametrize("stage", ["imported", "canonical", "placed", "plan"])
def test_inspect_prints_every_stage(stage: str) -> None:
    text = tinsmith("inspect", MODEL, "--at", stage).stdout
    assert "conv1" in text or "relu1" in text or "pool1" in text
    assert parsed("inspect", MODEL, "--at", stage)["stage"] == stage


def test_the_canonical_graph_is_what_the_machine_s_passes_get() -> None:
    """The choice of which size a reshape leaves open is made before any is known."""
    shapes = [
        [
            line
            for line in tinsmith("inspect", MODEL, "--at", stage).stdout.splitlines()
            if "int64" in line
        ]
        for stage in ("canonical", "placed")
    ]
    assert shapes[0] == shapes[1] != []


def test_sizes_that_nobody_chose_are_named_where_they_do_not_fit(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"], "cut")],
        "five",
        [info("x", TensorProto.FLOAT, ["batch", "time"])],
        [info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([5, -1], np.int64), "shape")],
    )
    opsets = [helper.make_opsetid("", 17)]
    path = tmp_path / "five.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    says = "time counted as 1, which --dim time=SIZE changes"
    for command in (["run"], ["inspect"], ["inspect", "--at", "canonical"], ["explain"], ["bench"]):
        got = tinsmith(*command, path, "--dim", "batch=2", code=1)
        assert says in got.stderr, command
    tinsmith("run", path, "--dim", "time=5")


def test_explain_the_whole_and_one_node() -> None:
    whole, one = tinsmith("explain", MODEL).stdout, tinsmith("explain", MODEL, "conv1").stdout
    assert whole.strip() and "conv1" in one
    refused = [line for line in one.splitlines() if line.startswith("  not ")]
    assert refused and len(refused) == len(set(refused))
    said, _, text = one.partition("\n\n")
    assert said == "assumed N = 1; --dim N=SIZE chooses"
    got = parsed("explain", MODEL, "conv1")
    assert got["assumed"] == {"N": 1}
    assert "\n\n".join(str(Explanation(**step)) for step in got["steps"]) == text.strip()
    assert parsed("explain", MODEL, "conv1", "--dim", "N=2")["assumed"] == {}
    assert len(parsed("explain", MODEL)["steps"]) > 1


def test_sizes_that_were_assumed_are_said() -> None:
    says = "assumed N = 1; --dim N=SIZE chooses\n"
    assert "  assumed     N = 1; --dim N=SIZE chooses\n" in tinsmith("inspect", MODEL).stdout
    assert parsed("inspect", MODEL)["assumed"] == {"N": 1}
    for stage in ("imported", "canonical", "placed", "plan"):
        got = tinsmith("inspect", MODEL, "--at", stage)
        assert got.stderr == ("" if stage == "imported" else says)
        unsaid = {} if stage == "imported" else {"N": 1}
        assert parsed("inspect", MODEL, "--at", stage)["assumed"] == unsaid
        assert tinsmith("inspect", MODEL, "--at", stage, "--dim", "N=2").stderr == ""
    sized = ["--dim", "N=2"]
    assert "assumed" not in tinsmith("inspect", MODEL, *sized).stdout
    assert parsed("inspect", MODEL, *sized)["assumed"] == {}


# ---- the tables


def test_ops_kernels_and_passes_agree_as_text_and_json() -> None:
    for command in ("ops", "kernels", "passes"):
        rows = parsed(command)
        assert rows and f"{len(rows)} {'operators' if command == 'ops' else command}" in tinsmith(
            command
        ).stdout.replace("  ", " ")
        assert len({r["name"] for r in rows}) == len(rows)


def test_an_operator_shows_its_signature_formula_and_kernels() -> None:
    text = tinsmith("ops", "Conv").stdout
    assert "Conv(x, w, b?, *, " in text and "sum over" in text and "reference" in text
    got = parsed("ops", "Conv")
    assert got["kernels"] == [k["name"] for k in parsed("kernels", "Conv")]


def test_a_kernel_is_found_by_its_name() -> None:
    assert {k["name"] for k in parsed("kernels", "pool_max")} == {"pool_max"}
    assert "Did you mean 'pool_max'" in tinsmith("kernels", "pool_maxx", code=2).stderr


def test_names_are_whole_on_a_narrow_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """What is folded are sentences."""
    name = "canonicalise-shapes"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            _show, "console", lambda: Console(width=40, force_terminal=True, color_system=None)
        )
        _show.table("", ["name", "number", "what"], [[name, 10, "words " * 30]], left=["what"])
    assert name in capsys.readouterr().out


@pytest.mark.parametrize("command", ["kernels", "ops"])
@pytest.mark.parametrize(
    ("op", "says"),
    [
        ("DFT", ["lower-fourier (", "narrow-fourier ("]),
        ("STFT", ["lower-fourier ("]),
        ("Einsum", ["lower-einsum"]),
        ("If", ["take-branches"]),
        ("LpPool", ["lower-windows ("]),
        ("OneHot", ["lower-rare (one_hot"]),
        ("Unsqueeze", ["it moves no data"]),
    ],
)
def test_an_operator_without_a_kernel_names_what_replaces_it(
    command: str, op: str, says: list[str]
) -> None:
    text = tinsmith(command, op).stdout
    assert all(part in text for part in says) and "what is left" in text
    assert "it runs as its numpy reference" not in text


def test_a_fused_region_has_the_kernels_of_elementwise_operators() -> None:
    assert parsed("ops", "Fused")["kernels"] == parsed("ops", "Tanh")["kernels"] != []
    assert parsed("kernels", "Fused") == parsed("kernels", "Tanh")


def test_an_operator_that_nothing_takes_or_replaces_runs_as_its_reference() -> None:
    says = "no kernel takes Unique itself; it runs as its numpy reference"
    assert tinsmith("kernels", "Unique").stdout == says + "\n"
    assert says in tinsmith("ops", "Unique").stdout
    assert parsed("ops", "Unique")["passes"] == {} and parsed("kernels", "Unique") == []
    named = parsed("ops", "DFT")["passes"]
    rules = {r["name"] for r in parsed("passes", "lower-fourier")["rules"]}
    assert named["lower-fourier"] and rules.issuperset(named["lower-fourier"])


def test_a_pass_shows_its_rules() -> None:
    got = parsed("passes", "fold-into-conv")
    assert got["rules"] and all(r["formula"] for r in got["rules"])
    assert got["rules"][0]["name"] in tinsmith("passes", "fold-into-conv").stdout


def test_a_choice_of_passes_is_shown() -> None:
    every = [p["name"] for p in parsed("passes", "--passes", "")]
    fewer = [p["name"] for p in parsed("passes", "--passes", f"-{every[0]}")]
    assert fewer == every[1:]
    spec = "-merge-common,stop-after=fold-into-conv"
    stopped = [p for p in parsed("passes", "--passes", spec) if p["stage"] == "portable"]
    assert stopped[-1]["name"] == "fold-into-conv"


def test_output_through_a_pipe_is_not_cut() -> None:
    assert all(line == line.rstrip() for line in tinsmith("ops").stdout.splitlines())
    assert "…" not in tinsmith("ops").stdout


def test_convert_writes_what_runs_the_same(tmp_path: Path) -> None:
    want = parsed("run", MODEL, SEVEN)["outputs"]
    for name in ("digits.tin", "digits.onnx"):
        out = str(tmp_path / name)
        told = parsed("convert", MODEL, out, "--canonical")
        assert told["written"] == out and told["bytes"] == Path(out).stat().st_size
        assert parsed("run", out, SEVEN)["outputs"] == want
    assert "says no format" in tinsmith("convert", MODEL, str(tmp_path / "a.txt"), code=2).output
