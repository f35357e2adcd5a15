"""Numbers in .csv files: read without trusting them, written with all digits, as inputs and as
expected outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.cli.harness import MODEL, read, tinsmith
from tests.real import real_file
from tinsmith.errors import (
    BudgetExceeded,
    FileNameError,
    InputNameError,
    InputShapeError,
    InputTypeError,
    ModelFileError,
)
from tinsmith.formats.csv import fit_csv, read_csv, write_csv
from tinsmith.graph import Type
from tinsmith.graph.types import dtype_of

RANDOM = np.random.default_rng(5)
SHAPES = [(), (1,), (7,), (0,), (3, 4), (2, 3, 5), (1, 1, 1, 9), (2, 0), (0, 3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "dtype",
    ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int64", "uint64", "bool"],
)
def test_what_is_written_is_read_again_to_the_last_bit(
    shape: tuple[int, ...], dtype: str, tmp_path: Path
) -> None:
    wanted = dtype_of(dtype)
    if wanted.kind in "iu":
        info = np.iinfo(wanted)
        array = RANDOM.integers(info.min, info.max, shape, wanted, endpoint=True)
    else:
        array = np.asarray(RANDOM.standard_normal(shape) * 1e1 ** RANDOM.standard_normal(shape))
        array = (array > 0) if wanted.kind == "b" else array.astype(wanted)
    array = np.asarray(array, wanted)
    path = tmp_path / "x.csv"
    write_csv(path, "x", array)
    got = fit_csv(read_csv(path, wanted), shape, "the input 'x'", path)
    assert (got.dtype, got.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(got, array)


def test_infinities_and_nan_are_numbers(tmp_path: Path) -> None:
    array = np.array([[np.inf, -np.inf], [np.nan, -0.0]], np.float32)
    write_csv(tmp_path / "x.csv", "x", array)
    got = read_csv(tmp_path / "x.csv", "float32")
    np.testing.assert_array_equal(got, array)
    assert np.signbit(got[1, 1])


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("1,2\n3,4\n", [[1, 2], [3, 4]]),
        ("1, 2\n\n 3 ,4", [[1, 2], [3, 4]]),
        ("\n1;2\r\n3;4\r\n", [[1, 2], [3, 4]]),
        ("1 2\n3\t4\n", [[1, 2], [3, 4]]),
        ("\ufeff1,2\n", [[1, 2]]),
        ("1e0\n2.0\n", [[1], [2]]),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_rows_as_programs_write_them(text: str, want: Any, dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text, encoding="utf-8", newline="")
    assert read_csv(path, dtype).tolist() == want


@pytest.mark.parametrize(
    ("text", "dtype", "says"),
    [
        (b"1,2\n3\n", "float32", "line 2 holds 1 number, those before it 2"),
        (b"1,2\n3,4,5\n", "int64", "line 2 holds 3 numbers"),
        (b"a,b\n1,2\n", "float32", "line 1, field 1: 'a' is no number; names have no place"),
        (b"1,2\n3,x\n", "float32", "line 2, field 2: 'x' is no number"),
        (b"1,,2\n", "float32", "line 1, field 2: '' is no number"),
        (b"1,2,\n", "float32", "line 1, field 3: '' is no number"),
        (b"1,2\n3;4\n", "float32", "line 2, field 1: '3;4' is no number"),
        (b"1-2-3\n", "float32", "'1-2-3' is no number"),
        (b"1.5\n", "int32", "number 1 of row 1 is 1.5, and int32 is wanted"),
        (b"300\n", "uint8", "300, and uint8 is wanted"),
        (b"-1\n", "uint64", "uint64 is wanted"),
        (b"nan\n", "int32", "not all of int32"),
        (b"1e30\n", "int64", "not all of int64"),
        (b"0.5\n", "bool", "bool is wanted"),
        (b"\xff\xfe\x00\n", "float32", "cannot be read as .csv"),
        (b"\x00\x01", "float32", "cannot be read as .csv"),
        (b"PK\x03\x04 no text", "float32", "is no number"),
        (b"1\n", "complex64", "not complex64"),
        (b"1\n", "object", "not object"),
    ],
)
def test_what_is_wrong_is_named(text: bytes, dtype: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(text)
    with pytest.raises(ModelFileError) as error:
        read_csv(path, dtype)
    assert says in str(error.value) and str(path) in str(error.value)


def test_damaged_files_are_named_errors_or_numbers(tmp_path: Path) -> None:
    good = b"1.5,2e3,-3\n4,5,nan\n"
    path = tmp_path / "x.csv"
    for seed in range(300):
        rng = np.random.default_rng(seed)
        data = bytearray(good)
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(len(data))] = rng.integers(256)
        path.write_bytes(bytes(data[: rng.integers(len(data) + 1)]))
        for dtype in ("float32", "int64"):
            try:
                assert read_csv(path, dtype).ndim == 2
            except ModelFileError as error:
                assert str(path) in str(error)


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelFileError, match=r"cannot be read as \.csv: No such file"):
        read_csv(tmp_path / "none.csv", "float32")
    with pytest.raises(ModelFileError, match=r"cannot be read as \.csv: it is not a regular file"):
        read_csv("/dev/zero", "float32")
    (tmp_path / "large.csv").write_text("1," * 1000 + "1")
    monkeypatch.setenv("TINSMITH_BUDGET", "array=1000")
    with pytest.raises(BudgetExceeded, match=r"numbers of .*large\.csv"):
        read_csv(tmp_path / "large.csv", "float32")


def test_inputs_get_the_shape_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.csv").write_text("0,1,2\n3,4,5\n")
    for shape, want in [
        ((3, 2), (3, 2)), (("N", 2), (3, 2)), ((1, "N", 3), (1, 2, 3)), (("N", "M"), (2, 3)),
        (None, (2, 3)), ((6,), (6,)),
    ]:  # fmt: skip
        got = read({"x": Type("float32", shape)}, "x.csv")["x"]
        assert got.shape == want and got.ravel().tolist() == [0, 1, 2, 3, 4, 5]
    two = {"x": Type("float32", ("N", 3)), "y": Type("int64", ("N", "M", 1))}
    assert read(two, "x=x.csv", "y=x.csv")["y"].shape == (2, 3, 1)  # the size that x gives
    assert read(two, "y=x.csv", dims={"M": 2})["y"].shape == (3, 2, 1)
    for shape, says in [
        ((7,), r"x.csv holds 6 numbers in 2 rows, and the input 'x', \[7\], has 7"),
        ((4, "N"), "a multiple of 4"), ((0, "N"), "a multiple of 0"),
        (("N", "M", 1), "--dim N=SIZE"),
    ]:  # fmt: skip
        with pytest.raises(InputShapeError, match=says):
            read({"x": Type("float32", shape)}, "x.csv")


def test_run_and_verify_take_and_give_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = RANDOM.random((2, 1, 8, 8), np.float32)
    write_csv("x.csv", "x", x)
    assert "saved   y.csv" in tinsmith("run", MODEL, "x.csv", "--save", "y.csv").output
    y = ts.compile(MODEL)(x)
    np.testing.assert_array_equal(read_csv("y.csv", "float32"), y)
    write_csv("part.csv", "y", y[1])
    np.save("y.npy", y)
    for against in ("y.csv", "y.npy", "probabilities=y.csv", "probabilities[1]=part.csv"):
        tinsmith("verify", MODEL, "x.csv", "--against", against)
    parts = ["--against", "probabilities[1]=part.csv", "--against", "probabilities=y.csv"]
    assert tinsmith("verify", MODEL, "x.csv", *parts).output.count("agrees") == 2
    write_csv("wrong.csv", "y", y[::-1])
    tinsmith("verify", MODEL, "x.csv", "--against", "wrong.csv", code=3)
    for arguments, says in [
        (["--against", "part.csv"], "name the part: 'probabilities[0]=part.csv' is the first"),
        (["--against", "none.csv"], "'none.csv' is no file"),
        (["--against", "p=y.csv"], "p, but no output of the model: probabilities"),
        (["--against", "probabilities[2]=part.csv"], "there is no part probabilities[2]"),
        (["--against", "probabilities[0,1,0]=part.csv"], "there is no part"),
        ([*parts, "--against", "y.csv"], "each is NAME=FILE"),
    ]:
        with_error = tinsmith_error("verify", MODEL, "x.csv", *arguments)
        assert says in with_error
    assert "a .csv holds one array" in tinsmith_error(
        "run", MODEL, "--save", "y.csv", "--save-inputs"
    )


def tinsmith_error(*arguments: str) -> str:
    """What a command that fails says."""
    from click.testing import CliRunner

    from tinsmith.cli import main

    got = CliRunner().invoke(main, list(arguments))
    assert got.exit_code in (1, 2), got.output
    return got.output + str(got.exception)


def test_several_outputs_are_no_csv(tmp_path: Path) -> None:
    from tinsmith.cli.run import write

    one = np.zeros(2)
    with pytest.raises(FileNameError, match=r"the outputs are a, b; name the file '.*y.npz'"):
        write(tmp_path / "y.csv", {"a": one, "b": one})
    for value in ([one], np.array(["a"], object), np.zeros(2, np.complex64)):
        with pytest.raises(FileNameError, match="holds an array of numbers"):
            write(tmp_path / "y.csv", {"a": value})


def test_files_of_expected_outputs_by_name(tmp_path: Path) -> None:
    x = RANDOM.random((1, 1, 8, 8), np.float32)
    y = ts.compile(MODEL)(x)
    path = tmp_path / "y.csv"
    write_csv(path, "y", y)
    assert ts.verify(MODEL, [x], against=path)
    assert ts.verify(MODEL, [x], against={"probabilities[0]": path, "probabilities": y})
    with pytest.raises(InputNameError, match="but no output of the model"):
        ts.verify(MODEL, [x], against={"probabilities": y, "p": path})
    with pytest.raises(InputTypeError, match=r"an \.npz, \.npy or \.csv file"):
        ts.verify(MODEL, [x], against=3)
    with pytest.raises(ModelFileError, match="cannot compare with"):
        ts.verify(MODEL, [x], against="y.txt")


def test_records_of_kuiperinfer_as_they_are(tmp_path: Path) -> None:
    data = read_csv(real_file("pnnx", "data_loader/data2.csv"), "float32")
    assert data.tolist() == np.arange(12.0).reshape(3, 4).tolist()
    wrong = {3: "line 3 holds 10 numbers", 4: "line 3, field 2: ''", 5: "is no number"}
    for name, says in wrong.items():
        with pytest.raises(ModelFileError, match=says):
            read_csv(real_file("pnnx", f"data_loader/data{name}.csv"), "float32")
    model = real_file("pnnx", "linear/linear_512_1000.pnnx.param")
    write_csv(tmp_path / "ones.csv", "x", np.ones((4 * 32, 512), np.float32))
    want = f"1[0]={real_file('pnnx', 'linear/linear_512x1000.csv')}"
    tinsmith("verify", model, tmp_path / "ones.csv", "--against", want, "--tolerance", "1e-5")
