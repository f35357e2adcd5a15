"""What the command line makes of arrays, pictures and names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from tests.cli.harness import read
from tinsmith.cli._classes import best, read_labels, scores_of
from tinsmith.cli._model import literal
from tinsmith.errors import (
    InputNameError,
    InputShapeError,
    InputTypeError,
    MissingPackage,
    ModelFileError,
    TinsmithError,
)
from tinsmith.graph import Type

IMAGE = {"image": Type("float32", ("N", 1, 8, 8))}
TWO = {"a": Type("float32", (2, 3)), "b": Type("int64", ("N",))}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.full((2, 3), 7, np.float32))
    np.save("b.npy", np.arange(4))
    np.savez("both.npz", b=np.arange(5), a=np.ones((2, 3), np.float32), other=np.zeros(1))
    np.savez("lone.npz", np.zeros((2, 3), np.float32))
    np.savez("other.npz", whatever=np.zeros((2, 3), np.float32))
    np.savez("double.npz", whatever=np.zeros((2, 3)))
    for name in ("labels.txt", "text.npy"):
        Path(name).write_text("cat\ndog\n")
    np.savez("foreign.npz", p=np.zeros(1), q=np.zeros(1))
    Image.fromarray(np.full((16, 16), 255, np.uint8)).save("white.png")
    Image.fromarray(np.zeros((30, 20, 3), np.uint8)).save("black.jpg")
    Path("broken.png").write_bytes(Path("white.png").read_bytes()[:40])
    Path("broken.npz").write_bytes(b"PK\x03\x04 no zip")
    Path("pickle.npy").write_bytes(b"\x80\x04K\x01.")
    return tmp_path


def test_arrays_fill_the_inputs_in_order(folder: Path) -> None:
    got = read(TWO, "a.npy", "b.npy")
    assert got["a"][0, 0] == 7 and got["b"].tolist() == [0, 1, 2, 3]


def test_names_win_over_order(folder: Path) -> None:
    got = read(TWO, "a.npy", "b=b.npy")
    assert list(got) == ["a", "b"] and got["b"].size == 4
    assert read(TWO, "b=b.npy", "a.npy")["a"][0, 0] == 7


def test_a_misspelt_name_of_an_npz_is_not_made_up_for(folder: Path) -> None:
    np.savez("misspelt.npz", a=np.ones((2, 3), np.float32), q=np.arange(5))
    with pytest.raises(InputNameError, match="nothing is given for 'b'; no input takes 'q'"):
        read(TWO, "misspelt.npz")
    assert len(read(TWO, "misspelt.npz", "b=random")["b"]) == 1


def test_an_npz_is_taken_by_its_names(folder: Path) -> None:
    got = read(TWO, "both.npz")
    assert got["a"].tolist() == [[1, 1, 1], [1, 1, 1]] and got["b"].size == 5
    assert read(TWO, "lone.npz", "b.npy")["a"].sum() == 0
    assert read(TWO, "a=other.npz")["a"].sum() == 0


def test_what_is_missing_is_random_and_repeatable() -> None:
    one, two = read(TWO, dims={"N": 6}), read(TWO, dims={"N": 6})
    assert one["b"].shape == (6,) and one["b"].dtype == np.int64
    assert np.array_equal(one["a"], two["a"]) and one["a"].std() > 0
    assert not read(TWO, "zeros")["a"].any()


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "float16", "float64", "bfloat16"])
def test_random_arrays_have_the_input_s_type(dtype: str) -> None:
    type_ = Type(dtype, (2, "N"))
    got = read({"x": type_})["x"]
    assert got.dtype == type_.dtype and got.shape == (2, 1)


def test_a_picture_is_resized_and_scaled(folder: Path) -> None:
    got = read(IMAGE, "white.png")["image"]
    assert got.shape == (1, 1, 8, 8) and got.dtype == np.float32 and (got == 1).all()


@pytest.mark.parametrize(
    ("type_", "shape"),
    [
        (Type("float32", (1, 3, 5, 7)), (1, 3, 5, 7)),
        (Type("float32", (1, 5, 7, 3)), (1, 5, 7, 3)),
        (Type("float32", (3, 5, 7)), (3, 5, 7)),
        (Type("float32", ("N", 3, "H", "W")), (1, 3, 30, 20)),
        (Type("uint8", ("N", "H", "W", 4)), (1, 30, 20, 4)),
    ],
)
@pytest.mark.parametrize("fit", ["crop", "stretch"])
def test_a_picture_takes_the_input_s_layout(
    folder: Path, type_: Type, shape: tuple[int, ...], fit: str
) -> None:
    got = read({"x": type_}, "black.jpg", fit=fit)["x"]
    assert got.shape == shape and got.dtype == type_.dtype


@pytest.mark.parametrize(
    ("scale", "low", "high"), [("unit", 0, 1), ("signed", -1, 1), ("bytes", 0, 255)]
)
def test_scales(folder: Path, scale: str, low: float, high: float) -> None:
    assert (read(IMAGE, "white.png", scale=scale)["image"] == high).all()
    assert (read(IMAGE, "black.jpg", scale=scale)["image"] == low).all()


def test_imagenet_scale_is_per_channel(folder: Path) -> None:
    first = read({"x": Type("float32", (1, 3, 2, 2))}, "black.jpg", scale="imagenet")["x"]
    last = read({"x": Type("float32", (1, 2, 2, 3))}, "black.jpg", scale="imagenet")["x"]
    assert np.allclose(first[0, :, 0, 0], [-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225])
    assert np.array_equal(first.transpose(0, 2, 3, 1), last)


FREE = {"image": Type("float32", ("batch", 3, "h", "w"))}


@pytest.mark.parametrize("fit", ["crop", "stretch"])
def test_a_picture_gets_the_sizes_of_the_free_dimensions(folder: Path, fit: str) -> None:
    got = read(FREE, "black.jpg", dims={"h": 32, "w": 48}, fit=fit)["image"]
    assert got.shape == (1, 3, 32, 48)
    assert read(FREE, "black.jpg", dims={"w": 5}, fit=fit)["image"].shape == (1, 3, 30, 5)
    pair = read(FREE, "black.jpg", "white.png", dims={"batch": 2, "h": 4, "w": 4}, fit=fit)
    assert pair["image"].shape == (2, 3, 4, 4)
    with pytest.raises(InputShapeError, match=r"cannot be made 30 high and 2147483647 wide: it"):
        read(FREE, "black.jpg", dims={"w": 2147483647}, fit=fit)


@pytest.mark.parametrize(
    ("types", "arguments", "dims", "says"),
    [
        (FREE, ["black.jpg"], {"batch": 4}, r"--dim batch=4 .* 'image', .*\[1, 3, 30, 20\]"),
        (FREE, ["black.jpg"] * 2, {"batch": 4, "h": 4, "w": 4}, "for a batch of 4; give 4"),
        (TWO, ["b=b.npy"], {"N": 6}, r"--dim N=6 does not fit the input 'b', .*\[4\] by b.npy"),
        (TWO, ["both.npz"], {"N": 6}, r"\[5\] by both.npz"),
        (FREE, ["image=a.npy"], {"w": 6}, r"--dim w=6"),
    ],
)
def test_a_size_that_cannot_be_had_is_refused(
    folder: Path, types: dict[str, Type], arguments: list[str], dims: dict[str, int], says: str
) -> None:
    with pytest.raises(InputShapeError, match=says):
        read(types, *arguments, dims=dims)


def test_pictures_make_a_batch(folder: Path) -> None:
    got = read(IMAGE, "white.png", "black.jpg", "white.png")["image"]
    assert got.shape == (3, 1, 8, 8) and got[:, 0, 0, 0].tolist() == [1, 0, 1]
    pair = {"x": Type("float32", (1, 1, 4, 4)), "y": Type("float32", (1, 1, 2, 2))}
    assert read(pair, "white.png", "black.jpg")["y"].shape == (1, 1, 2, 2)


@pytest.mark.parametrize(
    ("types", "arguments", "error", "says"),
    [
        (TWO, ["c=a.npy"], InputNameError, "no input 'c'"),
        (TWO, ["a=a.npy", "a=a.npy"], InputNameError, "given twice"),
        (
            TWO,
            ["both.npz", "a.npy"],
            InputNameError,
            "nothing is left to take a.npy: 'a' takes both.npz, 'b' takes both.npz",
        ),
        (IMAGE, ["white.png", "black.jpg", "a.npy"], InputNameError, "a.npy is no picture, and"),
        (IMAGE, ["image=a.npy", "white.png", "black.jpg"], InputNameError, "take white.png: 'im"),
        (TWO, ["foreign.npz"], InputNameError, "holds p, q"),
        (TWO, ["other.npz"], InputNameError, "whatever; .* other names: a, b; a=other.npz takes"),
        (TWO, ["a=foreign.npz"], InputNameError, "holds 2 arrays"),
        (TWO, ["broken.npz"], ModelFileError, "broken.npz cannot be read"),
        (TWO, ["pickle.npy"], ModelFileError, "pickle.npy cannot be read.*but a Python pickle"),
        (TWO, ["labels.txt"], ModelFileError, "neither .npy, .npz nor a pic.* that starts 'cat'"),
        (TWO, ["text.npy"], ModelFileError, "neither .npy, .npz nor a picture.* starts 'cat'"),
        (
            TWO,
            ["a=double.npz"],
            InputNameError,
            r"only 'whatever'.*inputs are a, b; .*float64\[2,3\]",
        ),
        (TWO, ["b=double.npz"], InputNameError, "only 'whatever'.*fit 'b', which is int64"),
        (IMAGE, ["broken.png"], ModelFileError, "cannot be read as a picture"),
        (TWO, ["white.png"], InputTypeError, "a picture fits"),
        ({"x": Type("float32", (1, 1, 4, 4))}, ["white.png"] * 2, InputShapeError, "batch of 1"),
        ({"x": Type("float32", None)}, [], InputTypeError, "cannot make up"),
        ({"x": Type("object", (2,))}, [], InputTypeError, "cannot make up"),
    ],
)
def test_errors_name_what_is_wrong(
    folder: Path, types: dict[str, Type], arguments: list[str], error: type, says: str
) -> None:
    with pytest.raises(error, match=says):
        read(types, *arguments)


def test_a_file_that_is_not_there_is_wrong_usage(folder: Path) -> None:
    with pytest.raises(click.BadParameter, match=r"nowhere\.npy"):
        read(TWO, "nowhere.npy")


def test_without_pillow_the_error_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingPackage, match="pip install pillow"):
        read(IMAGE, "white.png")
    assert issubclass(MissingPackage, TinsmithError)


def test_probabilities_are_left_alone_and_scores_are_not() -> None:
    sure = np.float32([[0.25, 0.75]])
    probabilities, softmax = scores_of(sure, None) or (None, True)
    assert np.array_equal(probabilities, sure) and not softmax
    probabilities, softmax = scores_of(np.float32([[0, np.log(3)]]), ["a", "b"]) or (None, False)
    assert np.allclose(probabilities, [[0.25, 0.75]]) and softmax
    scores = np.float32([[1, 2, 3]])
    assert scores_of(scores, None) is None
    assert scores_of(scores, ["a", "b"]) is None
    found = scores_of(np.full((1, 1000, 1, 1), 1, np.float32), None)
    assert found is not None and found.probabilities.shape == (1, 1000)
    found = scores_of(sure[0], None)  # of a model without a batch
    assert found is not None and np.array_equal(found.probabilities, sure)
    assert scores_of(np.arange(10, dtype=np.float32), None) is None  # one number of each of a batch


def test_many_rows_of_a_usual_size_are_classes_only_where_they_are_said_to_be() -> None:
    rows = np.arange(5000, dtype=np.float32).reshape(500, 10)
    assert scores_of(rows, None) is None
    assert scores_of(rows, list("abcdefghij")) is not None
    assert scores_of(np.full((500, 10), 0.1, np.float32), None) is not None


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 3), np.int64),
        np.zeros((3,), np.float32),
        np.zeros((0, 10), np.float32),
        np.zeros((1, 10, 2, 2), np.float32),
        np.full((1, 10), np.nan, np.float32),
        np.zeros((1, 1), np.float32),
    ],
    ids=str,
)
def test_what_is_no_class_score(array: np.ndarray) -> None:
    assert scores_of(array, None) is None


def test_the_best_classes_come_first_and_ties_by_number() -> None:
    got = best(np.array([0.2, 0.4, 0.4]), ["x", "y", "z"], 2)
    assert [(c["class"], c["label"]) for c in got] == [(1, "y"), (2, "z")]
    assert best(np.array([0.9, 0.1]), None, 5)[0]["label"] == "class 0"


def test_labels(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_text("cat\n dog \n\n")
    assert read_labels(path) == ["cat", "dog"]
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_labels(path)
    path.write_text("\n")
    with pytest.raises(ModelFileError, match="hold no line"):
        read_labels(path)


@pytest.mark.parametrize(("text", "value"), [
    ("3", 3), ("[1, [2.5, true]]", [1, [2.5, True]]), ("name", None), ("null", None),
    ('["a"]', None), ("[{}]", None), ("[" * 100_000, None),
])  # fmt: skip
def test_what_an_option_takes_as_numbers(text: str, value: Any) -> None:
    assert literal(text) == value
