"""The function table, tracing and folding: expressions mean what numpy says."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.vectors import compiled
from tests.kernels.harness import levels, one_node
from tinsmith.codegen.expr import Expr, const, emit_expr, leaf
from tinsmith.codegen.functions import FUNCTIONS, emit_function, flops_of, unsupported
from tinsmith.codegen.target import level
from tinsmith.errors import CodegenError
from tinsmith.graph import Graph, Type
from tinsmith.kernels._kernel import Skip
from tinsmith.kernels.trace import Maker, Traced, make_site, trace_region
from tinsmith.ops import OPS

F32 = np.dtype("float32")
SAMPLES = {
    "float32": np.array([0.0, -0.0, 1.5, -2.5, 3, -7, np.inf, -np.inf, np.nan, 0.3, 1e30], "f4"),
    "float64": np.array([0.0, -0.0, 1.5, -2.5, 3, -7, np.inf, -np.inf, np.nan, 0.3], "f8"),
    "int8": np.array([0, 1, -1, 7, -7, 127, -128, 3], "i1"),
    "int16": np.array([0, 1, -1, 7, -7, 32767, -32768, 3], "i2"),
    "int32": np.array([0, 1, -1, 7, -7, 2**31 - 1, -(2**31), 3], "i4"),
    "int64": np.array([0, 1, -1, 7, -7, 2**63 - 1, -(2**63), 3], "i8"),
    "uint8": np.array([0, 1, 2, 7, 255, 128, 3], "u1"),
    "uint16": np.array([0, 1, 2, 7, 2**16 - 1, 3], "u2"),
    "uint32": np.array([0, 1, 2, 7, 2**32 - 1, 3], "u4"),
    "uint64": np.array([0, 1, 2, 7, 2**64 - 1, 3], "u8"),
    "bool": np.array([False, True]),
}
TABLE = [
    (name, dtype, target)
    for name, row in sorted(FUNCTIONS.items())
    if isinstance(getattr(np, name, None), np.ufunc)
    for dtype in sorted(row.dtypes)
    for target in (("avx512", "sse2") if dtype in ("float32", "int64", "uint8") else ("avx512",))
]


@pytest.mark.parametrize("name, dtype, target", TABLE, ids=str)
def test_every_row(name, dtype, target):
    """Every function on every dtype it claims, against numpy on all pairs of awkward values."""
    if target not in {p.values[0] for p in levels() if not p.marks}:
        pytest.skip(f"no {target} here")
    ufunc, values = getattr(np, name), SAMPLES[dtype]
    arrays = [values] if ufunc.nin == 1 else [g.reshape(-1) for g in np.meshgrid(values, values)]
    with np.errstate(all="ignore"):
        want = ufunc(*arrays)
    expr = Expr(name, tuple(leaf(i, dtype) for i in range(ufunc.nin)), want.dtype)
    assert unsupported(expr) is None
    assert flops_of(expr) > 0
    run = compiled(
        lambda *v: emit_expr(v[0].b, expr, v), [dtype] * ufunc.nin, want.dtype.name, target
    )
    got = run(*arrays)
    if want.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=3e-7)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    else:
        np.testing.assert_array_equal(got, want)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(expr.evaluate(arrays), want)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("dtype", [d for d in SAMPLES if d[0] in "iu"])
def test_quotients_of_integers_of_all_magnitudes(dtype, target):
    rng, info = np.random.default_rng(0), np.iinfo(dtype)
    x, y = (
        rng.integers(info.min, info.max, 4000, dtype, True)
        >> rng.integers(0, info.bits, 4000, dtype)
        for _ in range(2)
    )
    near = np.where(rng.integers(0, 2, 4000) > 0, x // np.where(y == 0, 1, y) * y, x)
    x = near + rng.integers(-1 if info.min else 0, 2, 4000).astype(dtype)
    expr = Expr("floor_divide", (leaf(0, dtype), leaf(1, dtype)), np.dtype(dtype))
    run = compiled(lambda *v: emit_expr(v[0].b, expr, v), [dtype] * 2, dtype, target)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run(x, y), np.floor_divide(x, y))


def test_unknown_functions_are_named():
    expr = Expr("gamma", (leaf(0),), F32)
    assert "gamma" in str(unsupported(expr))
    with pytest.raises(CodegenError, match="gamma"):
        emit_function(None, expr, [], 4)


def traced(reference, *dtypes: str) -> Expr:
    maker = Maker()
    got = reference(*(Traced(maker, maker.leaf(i, np.dtype(d))) for i, d in enumerate(dtypes)))
    return got.expr


PROMOTIONS = [
    (lambda x: x * 2, ["float32"], "float32"),
    (lambda x: x * 2.5, ["int32"], "float64"),
    (lambda x, y: x + y, ["int32", "float32"], "float64"),
    (lambda x, y: x + y, ["int8", "uint8"], "int16"),
    (lambda x: x / 2, ["int32"], "float64"),
    (lambda x: np.where(x > 0, x, 0.0), ["float32"], "float32"),
    (lambda x: np.where(x > 0, x, 1), ["int8"], "int8"),
    (lambda x: np.clip(x, 0, 6), ["float32"], "float32"),
    (lambda x: x * np.float64(2), ["float32"], "float64"),
    (lambda x: x > 1, ["int16"], "bool"),
]


@pytest.mark.parametrize("reference, dtypes, result", PROMOTIONS, ids=range(len(PROMOTIONS)))
def test_promotion_is_numpys(reference, dtypes, result):
    expr = traced(reference, *dtypes)
    arrays = [np.array([3, 1, 0, 2]).astype(d) for d in dtypes]
    want = reference(*arrays)
    assert expr.dtype.name == want.dtype.name == result
    np.testing.assert_array_equal(expr.evaluate(arrays), want)


FOLDS = [
    (lambda x: x * 1, "$0"),
    (lambda x: x - 0.0, "$0"),
    (lambda x: x + 0.0, "add($0, 0)"),  # turns -0.0 into 0.0
    (lambda x: x + -0.0, "$0"),
    (lambda x: x / 4, "multiply($0, 0.25)"),
    (lambda x: x / 3, "divide($0, 3)"),
    (lambda x: np.negative(-x), "$0"),
    (lambda x: x * -1.0, "negative($0)"),
    (lambda x: x**2, "multiply($0, $0)"),
    (lambda x: np.maximum(x, -np.inf), "$0"),
    (lambda x: np.where(x > 0, x, x), "$0"),
    (lambda x: x * (np.exp(np.full_like(x, 0)) + 1), "multiply($0, 2)"),
    (lambda x: x.astype("float32"), "$0"),
]


@pytest.mark.parametrize("reference, text", FOLDS, ids=[t for _, t in FOLDS])
def test_folding(reference, text):
    assert str(traced(reference, "float32")) == text


def test_common_parts_are_shared():
    expr = traced(lambda x: np.exp(-x) / (1 + np.exp(-x)), "float32")
    assert expr.args[0] is expr.args[1].args[1]
    deep = traced(lambda x: _tower(x, 200), "float32")
    assert len(deep.key) < 200


def _tower(x, height: int):
    for _ in range(height):
        x = x * np.tanh(x)
    return x


UNTRACEABLE = [
    (lambda x: x if x > 0 else -x, "decides by the data"),
    (lambda x: np.sort(x), "sort"),
    (lambda x: x[0], "numbers themselves"),
    (lambda x: np.asarray(x) + 1, "numbers themselves"),
    (lambda x: x.sum(), r"\.sum"),
    (lambda x: np.add.reduce(x), "cannot be traced"),
    (lambda x: x + np.arange(3), "array of its own"),
    (lambda x: np.cbrt(x), "cbrt"),
]


@pytest.mark.parametrize("reference, reason", UNTRACEABLE, ids=[r for _, r in UNTRACEABLE])
def test_what_cannot_be_traced_says_why(reference, reason):
    with pytest.raises(Skip, match=reason):
        traced(reference, "float32")


# ---- regions


def test_a_region_with_an_anchor():
    x, w = np.ones((1, 3, 5, 5), "f4"), np.ones((4, 3, 3, 3), "f4")
    bias, other = np.ones((4, 1, 1), "f4"), np.ones((1, 4, 3, 3), "f4")
    epilogue = [("Add", ("const", bias)), ("Mul", ("const", np.float32(0.5)))]
    epilogue += [("Add", other), ("Relu",)]
    site = make_site(one_node("Conv", [x, w], consts=(1,), epilogue=epilogue), level("sse2"))
    assert site.anchor is not None
    assert site.anchor.op is OPS["Conv"]
    assert [v.name for v in site.inputs if v is not None] == ["x0", "c1"]
    assert [v.name for v in site.extras] == ["e0", "e2"]
    assert str(site.epilogue) == "maximum(add(multiply(add($0, $1), 0.5), $2), 0)"


def test_a_bare_anchor_has_no_epilogue():
    node = one_node("Softmax", [np.ones((2, 3), "f4")])
    assert trace_region(node) == (node, node.inputs, (), None)


def test_one_operand_twice_is_one_leaf():
    g = Graph("g")
    x = g.input("x", Type("float32", (3,)))
    _, inputs, extras, expr = trace_region(g.add(OPS["Mul"], x, x))
    assert (inputs, extras, str(expr)) == ((), (x,), "multiply($0, $0)")


def test_symbolic_shapes_are_skipped():
    g = Graph("g")
    x = g.input("x", Type("float32", ("N", 3)))
    with pytest.raises(Skip, match="not static"):
        make_site(g.add(OPS["Relu"], x), level("sse2"))


def test_printing():
    assert str(Expr("add", (leaf(0), const(1.5)))) == "add($0, 1.5)"
