"""Values that are no plain arrays: outputs that hold several, numbers and sounds as inputs, and
inputs that were made up where something does not fit."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tinsmith as ts
from tests.cli.harness import LABELS, MODEL, SEVEN, parsed, read, tinsmith
from tinsmith import ops
from tinsmith.cli import run as running
from tinsmith.compiler.compare import compare
from tinsmith.errors import InputNameError, InputShapeError, InputTypeError, ModelFileError
from tinsmith.formats.npz import parts, read_arrays, whole, write_npz
from tinsmith.graph import Graph, Type

VALUES = {
    "map": {2: 0.5, 1: 0.25},
    "maps": [{"b": 1.0, "a": 2.0}, {"a": 3.0, "b": 4.0}],
    "others": [{1: 1.0}, {2: 1.0}],
    "list": [np.zeros((2, 3), np.float32), np.ones(4, np.float32)],
    "text": np.array(["one", "deux"], object),
    "plain": np.arange(3),
}


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    """Softmax(x @ w), as a list of maps, and as a sequence of its columns."""
    info = helper.make_tensor_value_info
    weights = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    sequence = helper.make_tensor_sequence_value_info("columns", TensorProto.FLOAT, None)
    table = onnx.ValueInfoProto(name="table")
    held = table.type.sequence_type.elem_type.map_type
    held.key_type = TensorProto.STRING
    held.value_type.tensor_type.elem_type = TensorProto.FLOAT
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"], "product"),
            helper.make_node("Softmax", ["m"], ["p"], "shares", axis=-1),
            helper.make_node("SplitToSequence", ["p"], ["columns"], "split", axis=1),
            helper.make_node(
                "ZipMap", ["p"], ["table"], "zip", domain="ai.onnx.ml",
                classlabels_strings=["cat", "dog", "cow"],
            ),
        ],
        "classes",
        [info("x", TensorProto.FLOAT, ["N", 4])],
        [table, sequence],
        [onnx.numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "maps.onnx")
    return tmp_path / "maps.onnx"


# ---- outputs that hold several arrays


@pytest.mark.parametrize("name", VALUES)
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    got = whole(name, read_arrays(write_npz(tmp_path / "v", {name: VALUES[name]})))
    assert compare(name, got, VALUES[name], 0).ok
    assert type(got) is type(VALUES[name])


def test_nothing_has_no_parts_and_keys_are_believed_no_more_than_files() -> None:
    assert parts("x", None) == parts("x", []) == {} and whole("x", {}) is None
    with pytest.raises(ModelFileError, match=r"holds .* numbers, 'm.keys' 3 keys"):
        whole("m", {"m": np.zeros((2, 2)), "m.keys": np.arange(3)})


@pytest.mark.parametrize(
    ("got", "want", "says"),
    [
        ([{1: 1.0, 2: 2.0}], [{2: 2.0000001, 1: 1.0}], ""),
        ([{1: 1.0, 2: 2.0}], [{1: 1.0, 2: 2.1}], "sequence[1] of map: max error 0.1, rel"),
        ([{1: 1.0, 2: 2.0}], [{1: 1.0, 3: 2.0}], "at y.keys[1] it is 2, not 3"),
        ([{1: 1.0}], [{1: 1.0}, {1: 1.0}], "it is float64[1, 1], not float64[2, 1]"),
        ({"a": 1.0}, {"a": 1.00001}, ""),
        ([np.ones(2), np.ones(3)], [np.ones(2), np.ones(3) * 1.00001], ""),
        ([np.ones(2), np.ones(3)], [np.ones(2), np.ones(3) * 2], "at y[1][0] it is 1.0, not 2.0"),
        ([np.ones(2)], [np.ones(2), np.ones(3)], "it is sequence[1] of float64, not sequence[2]"),
        ([np.ones(2)], [np.ones(3)], "y[0]: it is float64[2], not float64[3]"),
        (np.ones(2), [np.ones(2)], "it is float64[2], not sequence[1] of float64"),
        (np.ones(2), [1, 1.0000001], ""),
        (None, None, ""),
        (None, np.ones(1), "it is -, not float64[1]"),
        ([], [], ""),
    ],
)
def test_what_holds_arrays_is_compared_part_by_part(got: object, want: object, says: str) -> None:
    found = compare("y", got, want, 1e-3)
    assert found.ok is (not says) and says in str(found)


def test_maps_and_sequences_are_verified_within_the_tolerance(maps: Path, tmp_path: Path) -> None:
    said = tinsmith("verify", maps, "--dim", "N=5").stdout
    assert "agrees  table: sequence[5] of map: max error" in said
    assert "agrees  columns: sequence[3] of float32: max error" in said
    arguments = ["--save", tmp_path / "out.npz", "--save-inputs", "--dim", "N=5"]
    shown = tinsmith("run", maps, *arguments).stdout
    assert "output  table: sequence[5] of map" in shown and "saved" in shown
    assert sorted(read_arrays(tmp_path / "out.npz")) == sorted(
        ["x", "table", "table.keys", *(f"columns[{i}]" for i in range(3))]
    )
    assert tinsmith("verify", maps, "--against", tmp_path / "out.npz").stdout.count("agrees") == 2
    arrays = read_arrays(tmp_path / "out.npz")
    arrays["table"] = arrays["table"] + np.float64(0.01)
    write_npz(tmp_path / "off.npz", arrays)
    options = ["--against", tmp_path / "off.npz", "--no-bisect"]
    assert "DIFFERS table: sequence[5] of map" in tinsmith("verify", maps, *options, code=3).stdout
    tinsmith("verify", maps, *options, "--tolerance", 0.1)
    row = parsed("run", maps, "--dim", "N=5")["outputs"]["table"]
    assert (row["dtype"], row["shape"], row["type"]) == ("sequence", [5], "sequence[5] of map")
    assert {c["label"] for c in row["classes"][0]} == {"cat", "cow", "dog"}


def test_a_sequence_as_an_input_is_saved_and_taken(tmp_path: Path) -> None:
    given = [np.ones((2, 2), np.float32), np.zeros((1, 2), np.float32)]
    from tinsmith.graph import SequenceType
    from tinsmith.ops import OPS

    g = Graph("joined")
    s = g.input("s", SequenceType(Type("float32", ("n", 2))))
    g.outputs = [g.add(OPS["ConcatFromSequence"], s, axis=0, name="y").output]
    ts.save(g, tmp_path / "joined.tin")
    write_npz(tmp_path / "in.npz", {"s": given})
    files = [tmp_path / "joined.tin", tmp_path / "in.npz"]
    assert "y: float32[3, 2]" in tinsmith("run", *files).stdout
    assert "inputs   s [2]" in tinsmith("bench", *files, "--repeat", 3).stdout
    assert ts.verify(g, {"s": given}).ok


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    arrays = {"a": np.zeros(3), "b": np.array([{}, 1], object)}
    (tmp_path / "out.npz").write_bytes(b"what was there")
    arrays["b"] = np.empty(1, [("x", object)])  # which no .npy holds
    with pytest.raises(ModelFileError, match="cannot be written"):
        write_npz(tmp_path / "out.npz", arrays)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"what was there"]


def test_a_folder_that_is_not_there_is_said_before_anything_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "run_twice", None)
    said = tinsmith("run", MODEL, "--save", tmp_path / "no" / "out.npz", code=1).stderr
    assert "there is no such folder" in said
    assert "needs --save FILE" in tinsmith("run", MODEL, "--save-inputs", code=2).stderr


# ---- inputs: numbers, sounds, files that hold more


RATE = {"x": Type("float32", ("N",)), "sr": Type("int64", ())}


def test_numbers_and_lists_are_inputs() -> None:
    got = read(RATE, "sr=16000", "x=[0.5, 1]")
    assert got["sr"].shape == () and got["sr"] == 16000 and got["x"].tolist() == [0.5, 1]
    assert read({"n": Type("int64", (1,))}, "n=7")["n"].tolist() == [7]
    assert read({"b": Type("bool", ())}, "b=true")["b"]
    with pytest.raises(InputTypeError, match=r"which cannot hold 1\.5"):
        read(RATE, "sr=1.5")
    with pytest.raises(InputShapeError, match=r"must have shape \[\]"):
        read(RATE, "sr=[1, 2]")


def test_an_array_of_its_name_is_taken_from_among_others(tmp_path: Path) -> None:
    file = str(tmp_path / "two.npz")
    np.savez(file, x=np.zeros(3, np.float32), y=np.ones(3, np.float32))
    assert read(RATE, f"x={file}", "sr=1")["x"].tolist() == [0, 0, 0]
    with pytest.raises(InputNameError, match="holds 2 arrays"):
        read(RATE, f"sr={file}")


def test_what_is_made_up_has_the_sizes_of_what_is_given() -> None:
    pair = {"a": Type("float32", ("N", 2)), "b": Type("float32", ("N", "M"))}
    assert read(pair, "a=[[1, 2], [3, 4], [5, 6]]")["b"].shape == (3, 1)


def sound(path: Path, samples: np.ndarray, width: int = 2) -> str:
    """A .wav file of [samples, channels], whose integers are of 32 bits; the upper ones go in."""
    with wave.open(str(path), "wb") as out:
        out.setparams((samples.shape[1], width, 16000, 0, "NONE", ""))
        raw = samples.astype("<i4").view(np.uint8).reshape(*samples.shape, 4)[..., 4 - width :]
        out.writeframes((raw ^ 0x80 if width == 1 else raw).tobytes())
    return str(path)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_sounds_of_every_width(tmp_path: Path, width: int) -> None:
    want = np.array([[0.5, -0.5], [-1, 0.25], [0, 0.75]])
    file = sound(tmp_path / "s.wav", want * 2**31, width)
    stereo = read({"x": Type("float32", ("N", 2, "T"))}, file)["x"]
    assert stereo.dtype == np.float32 and np.array_equal(stereo, want.T[None])
    mono = sound(tmp_path / "m.wav", want[:, :1] * 2**31, width)
    assert np.array_equal(read({"x": Type("float32", ("T",))}, mono)["x"], want[:, 0])
    assert np.array_equal(read({"x": Type("float32", ("N", "T"))}, mono)["x"], want.T[:1])
    if width == 2:
        got = read({"x": Type("int16", ("T",))}, mono)["x"]
        assert got.tolist() == [16384, -32768, 0]


@pytest.mark.parametrize(
    ("type_", "error", "says"),
    [
        (Type("float32", ("N", "T")), InputShapeError, "has 2 channels, the input 'x' takes 1"),
        (Type("float32", (1, 3, "T")), InputShapeError, "has 2 channels, the input 'x' takes 3"),
        (Type("int64", ("T",)), InputTypeError, r"a sound fits \[samples\]"),
        (Type("int16", (1, 2, "T")), InputTypeError, "no samples of 16 bits"),
    ],
)
def test_sounds_that_do_not_fit(tmp_path: Path, type_: Type, error: type, says: str) -> None:
    file = sound(tmp_path / "s.wav", np.zeros((4, 2)), 1)
    with pytest.raises(error, match=says):
        read({"x": type_}, file)


def test_damaged_sounds_are_said_to_be_that(tmp_path: Path) -> None:
    whole_file = Path(sound(tmp_path / "s.wav", np.zeros((8, 1)))).read_bytes()
    types = {"x": Type("float32", ("T",))}
    for length in range(len(whole_file)):
        (tmp_path / "cut.wav").write_bytes(whole_file[:length])
        with pytest.raises(ModelFileError, match="cannot be read as a sound"):
            read(types, str(tmp_path / "cut.wav"))
    odd = bytearray(whole_file)
    odd[34] = 8 * 7  # bits of a sample
    (tmp_path / "odd.wav").write_bytes(odd)
    with pytest.raises(ModelFileError, match="samples of 7 bytes"):
        read(types, str(tmp_path / "odd.wav"))


def test_a_bad_picture_names_no_object_of_python(tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"hello")
    said = tinsmith("run", MODEL, tmp_path / "bad.png", code=1).stderr
    assert "no picture that Pillow knows" in said and str(io.BufferedReader) not in said


# ---- inputs that were made up


@pytest.fixture
def shaped(tmp_path: Path) -> Path:
    """x in the shape that an input has."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"], "turned")],
        "shaped",
        [info("x", TensorProto.FLOAT, ["H", "W"]), info("shape", TensorProto.INT64, [2])],
        [info("y", TensorProto.FLOAT, ["R", "C"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "shaped.onnx")
    return tmp_path / "shaped.onnx"


@pytest.mark.parametrize("command", [["run"], ["bench", "--repeat", "3"], ["verify"]])
def test_an_error_says_which_inputs_were_random(shaped: Path, command: list[str]) -> None:
    said = tinsmith(*command, shaped, code=1).stderr
    assert "H, W counted as 1, which --dim H=SIZE --dim W=SIZE changes" in said
    assert "shape, x were random: give shape=FILE, or a number" in said
    tinsmith(*command, shaped, "shape=[3,2]", "--dim", "H=2", "--dim", "W=3")


def test_outputs_of_random_inputs_are_not_blamed_on_the_importer(tmp_path: Path) -> None:
    np.savez(tmp_path / "want.npz", probabilities=np.zeros((1, 10), np.float32))
    said = tinsmith("verify", MODEL, "--against", tmp_path / "want.npz", code=3).stdout
    assert "image was random: are the expected outputs those of other inputs?" in said
    found = ts.verify(MODEL, against=tmp_path / "want.npz")
    assert "image was random" in found.note and "importer" not in found.note
    given = ts.verify(MODEL, [np.zeros((1, 1, 8, 8), np.float32)], against=tmp_path / "want.npz")
    assert "importer" in given.note


# ---- what is said


def test_labels_of_another_number_of_classes(tmp_path: Path) -> None:
    (tmp_path / "five.txt").write_text("a\nb\nc\nd\ne\n")
    said = tinsmith("run", MODEL, "--labels", tmp_path / "five.txt", code=1).stderr
    assert "5 labels, 10 classes" in said
    assert "labels" not in tinsmith("run", MODEL, "--labels", LABELS).stderr


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("profile", "`tinsmith bench`"),
        ("tune", "--tune of `run`"),
        ("compile", "`tinsmith run`"),
        ("pnnx", "`tinsmith convert net.onnx net.pnnx.param`"),
        ("benchncnn", "`tinsmith bench`"),
        ("ncnn2int8", "`tinsmith quantize"),
        ("onnx2ncnn", "`tinsmith convert IN OUT`"),
    ],
)
def test_commands_that_are_looked_for(name: str, says: str) -> None:
    assert says in tinsmith(name, MODEL, code=2).stderr


def test_explain_takes_inputs() -> None:
    for given in ([SEVEN], ["image=zeros"], ["conv1", SEVEN], ["conv1", "--dim", "N=4"]):
        said = tinsmith("explain", MODEL, *given).stdout
        assert "conv1: Fused -> " in said
        assert ("conv0" in said.split("\n")[0]) is False or len(given) == 1
        assert "assumed" not in said
    assert tinsmith("explain", MODEL, "conv1").stdout.startswith("assumed N = 1")


def test_one_of_a_thing_is_no_plural(tmp_path: Path) -> None:
    g = Graph("one")
    g.outputs = [ops.Tanh(g.input("x", Type("float32", (4,))))]
    ts.save(g, tmp_path / "one.tin")
    assert "1 node became 1 step\n" in tinsmith("run", tmp_path / "one.tin", "--no-cache").stdout
    assert tinsmith("kernels", "TopK").stdout.splitlines()[0].strip() in ("1 kernel", "2 kernels")


@pytest.mark.parametrize("arguments", [["run", "nowhere"], ["run", MODEL, "a=random"]])
def test_errors_are_text_on_standard_error_with_json_too(arguments: list[str]) -> None:
    got = tinsmith(*arguments, "--json", code=2)
    assert got.stdout == "" and "rror: " in got.stderr
