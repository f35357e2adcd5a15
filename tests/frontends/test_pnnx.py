"""PNNX models against the numbers of PyTorch and of KuiperInfer, and what is told of bad ones.

`pnnx_models` made the files of `tests/data/pnnx`.
"""

from __future__ import annotations

import runpy
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.fresh import said
from tests.frontends.pnnx_text import FOLDER, numbers, param, run
from tests.real import real_file
from tinsmith.errors import ImportFailed, ModelFileError, ModelKindError, OptionError, TinsmithError
from tinsmith.formats.pnnx import text_of, value_of
from tinsmith.frontends.pnnx.node import IMPORTERS, operator

NAMES = sorted(p.stem for p in FOLDER.glob("*.npz") if "quantised" not in p.stem)


def formula(expr: str, *types: str) -> bytes:
    """A model of one formula over inputs of these types."""
    ins = [f"pnnx.Input in{i} 0 1 x{i} #x{i}={t}" for i, t in enumerate(types)]
    operands = " ".join(f"x{i}" for i in range(len(types)))
    line = f"pnnx.Expression e {len(types)} 1 {operands} y expr={expr}"
    return param(*ins, line, "pnnx.Output out 1 0 y")


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("name", NAMES)
def test_the_numbers_are_those_of_pytorch(name: str, backend: str) -> None:
    xs, ys = numbers(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what the file says of shapes is what we find
        graph = ts.load(FOLDER / f"{name}.pnnx.param")
    got = ts.compile(graph, backend=backend, cache=False).run(xs)
    assert len(got) == len(ys)
    for i, (y, want) in enumerate(zip(got, ys, strict=True)):
        assert (y.dtype, y.shape) == (want.dtype, want.shape), i
        np.testing.assert_allclose(y, want, rtol=2e-5, atol=2e-5 * max(1, np.abs(want).max()))


@pytest.mark.parametrize(
    ("types", "expr", "want"),
    [
        (["(3)bf16"], "add(@0,2.0)", "bfloat16"), (["(3)bf16", "(3)f16"], "add(@0,@1)", "float32"),
        (["(3)bf16", "(3)f32"], "mul(@0,@1)", "float32"), (["(3)i32"], "add(@0,2.5)", "float32"),
        (["(3)i8", "(3)u8"], "add(@0,@1)", "int16"), (["(3)u8", "()i64"], "add(@0,@1)", "uint8"),
        (["(3)bf16", "()f32"], "sub(@0,@1)", "bfloat16"),
        (["()i8", "()i64"], "add(@0,@1)", "int64"),
    ],
)  # fmt: skip
def test_formulas_promote_types_as_pytorch(types: list[str], expr: str, want: str) -> None:
    assert ts.load(formula(expr, *types)).outputs[0].dtype.name == want


KUIPER = [
    ("add/resnet_add", "ones", "add/1", (0,)), ("add/resnet_add2", "ones", "add/3", (0,)),
    ("add/resnet_add3", "ones", "add/7", (0,)), ("batchnorm/bn1", "ones", "batchnorm/bn_5", (0, 5)),
    ("batchnorm/bn2", "ones", "batchnorm/bn2_31", (0, 31)),
    ("batchnorm/resnet_batchnorm", "ones", "batchnorm/1", (0, 0)),
    ("batchnorm/resnet_batchnorm2", "ones", "batchnorm/2", (0, 0)),
    ("batchnorm/resnet_batchnorm2", "ones", "batchnorm/3", (0, 63)),
    ("batchnorm/resnet_batchnorm_sigmoid", "ones", "batchnorm/5", (0, 63)),
    ("linear/linear_512_1000", "ones", "linear/linear_512x1000", (0,)),
    ("resnet/conv1", "count", "resnet/test13", ()),
    ("resnet/demo_deconv_dpt11", "ones", "resnet/test_convtranspose_d", ()),
    ("resnet/demo_deconv_dpt31", "ones", "resnet/test_convtranspose_d31", ()),
    ("resnet/dilation_conv_pt", "ones", "resnet/test_dilation", ()),
    ("resnet/dilation_conv_pt2", "ones", "resnet/test_dilation2", ()),
    ("softmax/softmax_dim1", "count", "softmax/softmax_dim0", (0,)),
    ("softmax/softmax_dim1_-2", "count", "softmax/softmax_dim1", (0,)),
]  # fmt: skip
"""Model, input, recorded output, and which part of ours that is."""


@pytest.mark.parametrize(("name", "fill", "csv", "part"), KUIPER)
def test_the_numbers_are_those_of_kuiperinfer(
    name: str, fill: str, csv: str, part: tuple[int, ...]
) -> None:
    path = real_file("pnnx", f"{name}.pnnx.param")
    graph = ts.load(path)
    shape: Any = graph.inputs[0].shape
    flat = np.arange(np.prod(shape)) if fill == "count" else np.ones(np.prod(shape))
    x = flat.reshape(shape).astype(np.float32)
    which = f"{graph.outputs[0].name}{list(part) if part else ''}"
    want = {which: real_file("pnnx", f"{csv}.csv")}
    found = ts.verify(path, [x], against=want, tolerance=1e-5, bisect=False, cache=False)
    assert found, str(found)


WITHOUT_WEIGHTS = [
    "linear/linear_1305_2407.pnnx.param", "mobilenet/mobile.pnnx.param",
    "mobilenet/mobile_batch8.pnnx.param", "mobilenet/mobilenet_v2.pnnx.param",
    "resnet/resnet18_batch1.param", "yolo/yolov5n_batch8.pnnx.param",
]  # fmt: skip


@pytest.fixture
def detect() -> Any:
    """The operator of `examples/yolo_detect.py`, known during the test."""
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "yolo_detect.py"))
    yield
    IMPORTERS.remove("models.yolo.Detect")


@pytest.mark.parametrize("name", WITHOUT_WEIGHTS)
def test_models_without_weights_run_with_random_ones_for_any_batch(name: str, detect: Any) -> None:
    path = real_file("pnnx", name)
    with pytest.raises(ImportFailed, match="random_weights=SEED"):
        ts.load(path)
    graph = ts.load(path, random_weights=3, batch="free")
    assert graph.inputs[0].shape is not None and graph.inputs[0].shape[0] == "N"
    fixed: Any = ts.load(path, random_weights=3).inputs[0].shape
    shape = (2, *fixed[1:])
    x = np.random.default_rng(0).random(shape, np.float32)
    net = ts.compile(graph, cache=False)
    y = net(x)
    assert len(y) == 2 and np.isfinite(y).all() and np.abs(y).max() > 1e-3
    again = ts.compile(path, random_weights=3, batch="free", cache=False)(x[1:])
    np.testing.assert_allclose(again, y[1:], rtol=1e-4, atol=1e-5 * np.abs(y).max())


def test_the_last_layer_of_yolov5_is_its_formula(tmp_path: Path, detect: Any) -> None:
    sizes, kinds, each = ((4, 6), (2, 3), (1, 2)), 3, 7
    strides = np.array([8, 16, 32], np.float32)
    weights, arrays = ["@pnnx_5=(3)f32"], {"d.pnnx_5": strides}
    rng = np.random.default_rng(1)
    for i, ((h, w), at) in enumerate(zip(sizes, ((6, 4), (3, 2), (1, 0)), strict=True)):
        shapes = {f"m.{i}.weight": (21, 5, 1, 1), f"m.{i}.bias": (21,)}
        shapes |= {f"pnnx_{k}": (1, kinds, h, w, 2) for k in at}
        for key, shape in shapes.items():
            arrays[f"d.{key}"] = rng.random(shape, np.float32)
            weights.append(f"@{key}=({','.join(map(str, shape))})f32")
    inputs = [f"pnnx.Input i{i} 0 1 x{i} #x{i}=(2,5,{h},{w})f32" for i, (h, w) in enumerate(sizes)]
    line = f"models.yolo.Detect d 3 1 x0 x1 x2 y {' '.join(weights)}"
    (tmp_path / "d.pnnx.param").write_bytes(param(*inputs, line, "pnnx.Output o 1 0 y"))
    with zipfile.ZipFile(tmp_path / "d.pnnx.bin", "w") as archive:
        for key, array in arrays.items():
            archive.writestr(key, array.tobytes())
    xs = [rng.random((2, 5, h, w), np.float32) for h, w in sizes]
    want = []
    for i, (x, at) in enumerate(zip(xs, ((6, 4), (3, 2), (1, 0)), strict=True)):
        y = np.einsum("oc,nchw->nohw", arrays[f"d.m.{i}.weight"][:, :, 0, 0], x)
        y = y + arrays[f"d.m.{i}.bias"][:, None, None]
        y = 1 / (1 + np.exp(-y.reshape(2, kinds, each, *x.shape[2:]).transpose(0, 1, 3, 4, 2)))
        y[..., :2] = (y[..., :2] * 2 + arrays[f"d.pnnx_{at[0]}"]) * strides[i]
        y[..., 2:4] = (y[..., 2:4] * 2) ** 2 * arrays[f"d.pnnx_{at[1]}"]
        want.append(y.reshape(2, -1, each))
    got = ts.compile(tmp_path / "d.pnnx.param", cache=False)(*xs)
    np.testing.assert_allclose(got, np.concatenate(want, 1), rtol=1e-5, atol=1e-5)


def test_a_user_registers_an_operator_with_parameters_and_defaults() -> None:
    @operator("house.Scale")
    def scale(node: Any, input: Any, weight: Any, *, times: float = 2.0) -> Any:
        return node.emit("Mul", node.emit("Mul", input, weight), node.number(times, input))

    try:
        line = "house.Scale s 1 1 x y @weight=(3)f32"
        model = param("pnnx.Input i 0 1 x #x=(2,3)f32", line, "pnnx.Output o 1 0 y")
        weight: Any = ts.load(model, random_weights=5).constants()[0].const
        got = run(model, np.ones((2, 3), np.float32), random_weights=5)
        np.testing.assert_allclose(got, np.tile(2 * weight, (2, 1)), rtol=1e-6)
        with pytest.raises(ImportFailed, match="attributes that are not known: 'tines'"):
            ts.load(model.replace(b"@weight", b"tines=3 @weight"), random_weights=5)
    finally:
        IMPORTERS.remove("house.Scale")


def test_everything_that_is_not_understood_is_told_at_once() -> None:
    model = param(
        "pnnx.Input i 0 1 x #x=(1,3)f32", "nn.Sigmund a 1 1 x b", "my.Own b 1 1 b c",
        "F.softmax s 1 1 x d dim=0 sharp=2", "nn.Linear l 1 1 d e bias=True", "pnnx.Output o 1 0 e",
    )  # fmt: skip
    with pytest.raises(ImportFailed) as told:
        ts.load(model)
    for text in (
        "nn.Sigmund x1: there is no importer for this operator. Did you mean 'nn.Sigmoid'",
        "my.Own x1", "not known: 'sharp'", "3 nodes are not understood",
    ):  # fmt: skip
        assert text in str(told.value), told.value


@pytest.mark.parametrize(
    ("expr", "want"),
    [
        ("add(@0,@1)", lambda a, b: a + b),
        ("sub(1,mul(@0,2.0e0))", lambda a, b: 1 - 2 * a),
        ("mul(@0,size(@1,1))", lambda a, b: a * 4),
        ("add(@0,int(2.7))", lambda a, b: a + 2),
        ("torch.float(torch.long(mul(@0,3)))", lambda a, b: np.trunc(3 * a)),
        ("log1p),square(@0)", lambda a, b: np.log1p(a * a)),
        ("expm1),@1", lambda a, b: np.expm1(b)),
        ("logaddexp(@0,@1)", np.logaddexp),
        ("remainder(@0,0.3)", lambda a, b: np.mod(a, 0.3)),
        ("fmod(@0,0.3)", lambda a, b: np.fmod(a, 0.3)),
        ("atan2(@0,@1)", np.arctan2),
        ("floor_divide(@0,0.3)", lambda a, b: np.floor(a / np.float32(0.3))),
        ("max(@0,@1)", np.maximum),
        ("rsqrt(add(1,square(@0)))", lambda a, b: 1 / np.sqrt(1 + a * a)),
        ("min(@0,@1)", np.minimum),
        ("add(@0,,mul(@1,3))", lambda a, b: a + 3 * b),
        ("log10(abs(@0))", lambda a, b: np.log10(abs(a))),
        ("trunc(mul(@0,4))", lambda a, b: np.trunc(a * 4)),
        ("pow(abs(@0),0.7)", lambda a, b: abs(a) ** 0.7),
    ],
)
def test_formulas(expr: str, want: Any) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.uniform(-1, 1, (3, 4)).astype(np.float32) for _ in range(2))
    got = run(formula(expr, "(3,4)f32", "(3,4)f32"), a, b)
    np.testing.assert_allclose(got, want(a, b), rtol=3e-6, atol=1e-6)
    assert got.dtype == np.float32


@pytest.mark.parametrize(
    ("expr", "want"),
    [
        ("and(@0,6)", lambda a: a & 6),
        ("or(@0,6)", lambda a: a | 6),
        ("xor(@0,6)", lambda a: a ^ 6),
        ("lshift(@0,2)", lambda a: a << 2),
        ("rshift(@0,1)", lambda a: a >> 1),
        ("remainder(@0,3)", lambda a: a % 3),
        ("floor_divide(@0,3)", lambda a: a // 3),
        ("fmod(@0,3)", lambda a: np.fmod(a, 3)),
        ("neg(@0)", lambda a: -a),
        ("sign(@0)", np.sign),
        ("torch.bool(@0)", lambda a: a != 0),
        ("div(@0,2)", lambda a: (a / 2).astype(np.float32)),
        ("mul(@0,0.5)", lambda a: (a * 0.5).astype(np.float32)),
        ("floor(@0)", lambda a: a),
    ],
)
def test_formulas_of_whole_numbers(expr: str, want: Any) -> None:
    a = np.arange(-7, 8, dtype=np.int64)
    got = run(formula(expr, "(15)i64"), a)
    assert got.dtype == want(a).dtype
    np.testing.assert_array_equal(got, want(a))


def test_formulas_give_numbers_lists_and_sizes() -> None:
    shapes = formula("[size(@0,0),mul(2,3),size(@0)]", "(6,?)f32")
    with pytest.raises(ImportFailed):  # a list in a list is no tensor
        ts.load(shapes)
    got = run(formula("[size(@0,1),add(size(@0,0),1)]", "(6,?)f32"), np.zeros((6, 4), np.float32))
    assert got.tolist() == [4, 7]


@pytest.mark.parametrize(
    ("expr", "told"),
    [
        ("add(@0)", "too few values"),
        ("@0,@0", "is not one value"),
        ("@7", "reads the input @7 of 1"),
        ("sine(@0)", "the function 'sine'"),
        ("div(1,0)", "ZeroDivisionError"),
        ("]", "is not one value"),
        ("add(@0,[1,2])", "computes with"),
        ("size(@0,5)", "no axis 5"),
        ("", "is not one value"),
    ],
)
def test_formulas_that_are_none(expr: str, told: str) -> None:
    with pytest.raises(ImportFailed) as found:
        ts.load(formula(expr, "(3)f32"))
    assert told in str(found.value)


def test_a_formula_may_nest_as_deep_as_it_likes() -> None:
    deep = formula("neg(" * 10_000 + "@0" + ")" * 10_000, "(3)f32")
    np.testing.assert_array_equal(run(deep, np.ones(3, np.float32)), np.ones(3))


VALUES: list[Any] = [
    None, True, False, 3, -4, 0.5, 1e-12, float("inf"), 2147483647, "zeros", "bilinear",
    (1, 2, -3), (0.1, 2.0), ("@0", 3), (None, 2), (True, False), (),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
def test_parameters_are_written_as_they_are_read(value: Any) -> None:
    assert value_of(text_of(value)) == value


def test_the_same_file_under_any_name_and_as_bytes(tmp_path: Path) -> None:
    for name in ("net.param", "net.pnnx.param", "net.txt"):
        path = tmp_path / name
        path.write_bytes((FOLDER / "norms.pnnx.param").read_bytes())
        path.with_suffix(".bin").write_bytes((FOLDER / "norms.pnnx.bin").read_bytes())
        assert len(ts.load(path).outputs) == 13
    with pytest.raises(ImportFailed, match="bytes have no file beside them"):
        ts.load((FOLDER / "norms.pnnx.param").read_bytes())


def test_a_pair_is_paths_or_bytes(tmp_path: Path) -> None:
    xs, ys = numbers("norms")
    param, weights = FOLDER / "norms.pnnx.param", tmp_path / "other.weights"
    weights.write_bytes((FOLDER / "norms.pnnx.bin").read_bytes())
    data = weights.read_bytes()
    for pair in ((str(param), str(weights)), (param, data), (param.read_bytes(), memoryview(data))):
        for got, y in zip(ts.compile(pair, backend="numpy").run(xs), ys, strict=True):
            np.testing.assert_allclose(got, y, rtol=1e-4, atol=1e-5)
    with pytest.raises(ModelFileError, match="are the two files swapped"):
        ts.load((weights, param))
    with pytest.raises(ImportFailed, match="checksum differs"):
        at = data.index(b"parts.0.running_mean") + 60
        ts.load((param, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]))
    for wrong in (b"", data[:999]):
        with pytest.raises(ImportFailed, match=r"the \.bin of .* is damaged, or no weights"):
            ts.load((param, wrong))
    with pytest.raises(ModelFileError, match=r"Give .*norms\.pnnx\.param, which lies beside it"):
        ts.load(FOLDER / "norms.pnnx.bin")
    digits = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
    with pytest.raises(ModelKindError, match="a model of ONNX is no pair of files"):
        ts.load((digits, weights))


def test_options_of_other_formats_are_refused() -> None:
    digits = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
    with pytest.raises(OptionError, match="random_weights=0 means nothing where the model is ONNX"):
        ts.load(digits, random_weights=0)
    with pytest.raises(OptionError, match=r'batch can be "free".*--dim N=SIZE'):
        ts.compile(FOLDER / "norms.pnnx.param", batch="4")
    with pytest.raises(OptionError, match="a whole number from 0 on"):
        ts.compile(FOLDER / "norms.pnnx.param", random_weights=-1)


def test_programs_are_kept_for_each_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINSMITH_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "l.param"
    line = "nn.Linear l 1 1 x y bias=False @weight=(4,3)f32"
    path.write_bytes(param("pnnx.Input i 0 1 x #x=(2,3)f32", line, "pnnx.Output o 1 0 y"))
    x = np.ones((2, 3), np.float32)
    first = [ts.compile(path, random_weights=seed)(x) for seed in (0, 1, 0)]
    assert not np.array_equal(first[0], first[1])
    np.testing.assert_array_equal(first[0], first[2])


def damaged_bin(tmp_path: Path, change: Any) -> Path:
    path = tmp_path / "norms.pnnx.param"
    path.write_bytes((FOLDER / "norms.pnnx.param").read_bytes())
    data = bytearray((FOLDER / "norms.pnnx.bin").read_bytes())
    path.with_suffix(".bin").write_bytes(change(data) or data)
    return path


def test_weights_that_do_not_fit_are_told(tmp_path: Path) -> None:
    with pytest.raises(ImportFailed, match="is damaged, or no weights"):
        ts.load(damaged_bin(tmp_path, lambda d: d[: len(d) // 2]))
    with pytest.raises(ImportFailed, match="is damaged, or no weights"):
        ts.load(damaged_bin(tmp_path, lambda d: b"x"))

    def flip(data: bytearray) -> None:
        at = data.index(b"parts.0.running_mean") + 60
        data[at] ^= 1

    with pytest.raises(ModelFileError, match="is damaged: its checksum differs"):
        ts.compile(damaged_bin(tmp_path, flip), cache=False)
    path = damaged_bin(tmp_path, lambda d: None)
    with zipfile.ZipFile(path.with_suffix(".bin"), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("parts.0.weight", bytes(10_000_000))
    with pytest.raises(ImportFailed, match=r"'parts\.0\.weight' is compressed"):
        ts.load(path)
    text = path.read_text().replace("@bias=(6)f32", "@bias=(7)f32")
    (tmp_path / "other.param").write_text(text)
    (tmp_path / "other.bin").write_bytes((FOLDER / "norms.pnnx.bin").read_bytes())
    with pytest.raises(
        ImportFailed, match=r"has 24 bytes; other\.param says that it has 7 elements"
    ):
        ts.load(tmp_path / "other.param")


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["7767517", "2 1", "pnnx.Input a 0 1 x #x=(1)f32"], "says 2: it was cut short?"),
        (["7767517", "1 1", "nn.ReLU a 1 1 x y", "nn.ReLU b 1 1 y z"], "second line says 1"),
        (["7767517", "1 1", "pnnx.Input a 0 -1 x"], "it needs a type, a name and the numbers"),
        (["7767517", "1 1", "pnnx.Input a 0 9999999999 x"], "lists fewer operands"),
        (["7767517", "1 1", "pnnx.Input a 0 1 x #x=(1,z)f32"], "is no element type and shape"),
        (["7767517", "1 1", "pnnx.Input a 0 1 x $input=y"], "names none of its inputs"),
        (
            ["7767517", "2 1", "pnnx.Input a 0 1 x", "nn.ReLU a 1 1 x y"],
            "the name of two operators",
        ),
        (["7767517", "1 1", "nn.ReLU a 1 1 x y word"], "is not key=value"),
        (
            [
                "7767517",
                "3 2",
                "pnnx.Input a 0 1 x #x=(1)f32",
                "nn.ReLU a2 1 1 z y",
                "pnnx.Output o 1 0 y",
            ],
            "reads 'z', which is neither",
        ),
        (
            ["7767517", "3 2", "nn.ReLU a 1 1 y x", "nn.ReLU b 1 1 x y", "pnnx.Output o 1 0 y"],
            "a cycle through",
        ),
        (["7767517", "2 1", "nn.ReLU a 0 1 x", "nn.ReLU b 0 1 x"], "computes the value 'x' twice"),
    ],
)
def test_files_that_are_none_say_where(lines: list[str], told: str) -> None:
    with pytest.raises(TinsmithError) as found:
        ts.load("\n".join(lines).encode())
    assert told in str(found.value)


def test_models_of_another_format_do_not_load_these_importers() -> None:
    code = (
        "import sys, tinsmith as ts; ts.load('examples/digits/digits.onnx'); "
        "print([m for m in sys.modules if m.startswith('tinsmith.frontends.pnnx.')])"
    )
    assert said(code, cwd=FOLDER.parents[2]) == "[]"
