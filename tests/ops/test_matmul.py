"""Products against numpy in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ops.checking import assert_static, check, close, normal, refused, types_of
from tinsmith.errors import DataError
from tinsmith.graph import Type
from tinsmith.ops import OPS

F32 = np.dtype(np.float32)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 4)),
        ((2, 3), (3, 4)),
        ((1, 1), (1, 1)),
        ((5, 2, 3), (3, 4)),
        ((5, 2, 3), (5, 3, 4)),
        ((6, 1, 2, 3), (5, 3, 4)),
        ((2, 3), (7, 3, 4)),
        ((3,), (7, 3, 4)),
        ((0, 3), (3, 4)),
        ((2, 0), (0, 4)),
        ((0, 2, 3), (3, 4)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "int64"])
def test_matmul(a, b, dtype):
    real = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    x, y = ((normal(*s, seed=i) * 4).astype(real) for i, s in enumerate((a, b)))
    (z,) = check("MatMul", x, y)
    assert z.dtype == real
    assert_static("MatMul", x, y)
    eps = float(ml_dtypes.finfo(real).eps) * 8 if "float" in dtype else 0
    close(z, np.matmul(x.astype(np.float64), y.astype(np.float64)), rtol=eps, atol=16 * eps)


def test_half_products_are_summed_wide():
    a = np.full((1, 4096), 4, np.float16)
    close(check("MatMul", a, a.T.copy())[0], [[np.inf]])
    close(check("MatMul", a, a.T.copy() / 4)[0], [[16384]])


@pytest.mark.parametrize(
    ("equation", "shapes", "shape"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)], (2, 4)),
        ("ij , jk", [(2, 3), (3, 4)], (2, 4)),
        ("ba", [(2, 3)], (3, 2)),
        ("ii->i", [(3, 3)], (3,)),
        ("ii", [(3, 3)], ()),
        ("...ij,...jk->...ik", [(5, 1, 2, 3), (6, 3, 4)], (5, 6, 2, 4)),
        ("b...d,cd->b...c", [(2, 5, 6, 3), (4, 3)], (2, 5, 6, 4)),
        ("...ii->...i", [(2, 3, 3)], (2, 3)),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)], (2, 3, 4, 6)),
        ("i,j,k->kji", [(2,), (3,), (4,)], (4, 3, 2)),
        ("ij,ij->", [(2, 3), (2, 3)], ()),
        ("ij,jk->ik", [(0, 3), (3, 4)], (0, 4)),
    ],
)
def test_einsum(equation, shapes, shape):
    xs = [normal(*s, seed=i) for i, s in enumerate(shapes)]
    (y,) = check("Einsum", *xs, equation=equation)
    assert_static("Einsum", *xs, equation=equation)
    assert y.shape == shape
    close(y, np.einsum(equation.replace(" ", ""), *(x.astype(np.float64) for x in xs)), atol=1e-4)


@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 3), (2, 1, 1, 1), (0, 2, 2)])
def test_det(shape):
    x = normal(*shape)
    close(check("Det", x)[0], np.linalg.det(x.astype(np.float64)), atol=1e-4)


@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 3), (2, 1, 1, 1), (0, 2, 2)])
def test_inverse(shape):
    x = normal(*shape)
    assert_static("Inverse", x)
    close(check("Inverse", x)[0], np.linalg.inv(x.astype(np.float64)), atol=1e-4)


def test_a_singular_matrix_has_no_inverse():
    x = np.stack([np.eye(2), np.ones((2, 2))]).astype(F32)
    with pytest.raises(DataError, match="a matrix is singular"):
        OPS["Inverse"](x)


def of(*shape: Any) -> Type:
    return Type(F32, shape)


def test_symbols_pass_through():
    assert types_of("MatMul", [of("N", "T", 3), of(3, "K")], {})[0].shape == ("N", "T", "K")
    got = types_of("Einsum", [of("N", "T", 3), of(3, 8)], {"equation": "ntc,cd->ntd"})
    assert got[0].shape == ("N", "T", 8)


@pytest.mark.parametrize(
    ("op", "types", "attrs", "fragments"),
    [
        ("MatMul", [of(2, 3), of(4, 5)], {}, ["b wants 4 columns, a has 3"]),
        ("MatMul", [of(2, 2, 3), of(3, 3, 5)], {}, ["broadcast"]),
        ("MatMul", [of(), of(3, 5)], {}, ["a is a scalar"]),
        ("MatMul", [of(2, 3), Type(np.dtype(np.float64), (3, 5))], {}, ["float64"]),
        ("Einsum", [of(2, 3), of(4, 5)], {"equation": "ij,jk->ik"}, ["'j'", "3 and 4"]),
        ("Einsum", [of(2, 3)], {"equation": "ij,jk->ik"}, ["2 terms, 1 inputs"]),
        ("Einsum", [of(2, 3)], {"equation": "ijk->i"}, ["rank 2"]),
        ("Einsum", [of(2, 3)], {"equation": "ij->z"}, ["z"]),
        ("Einsum", [of(2, 3)], {"equation": "i1->i"}, ["not well formed"]),
        ("Det", [of(2, 3)], {}, ["square"]),
        ("Det", [of(2)], {}, ["rank of 2 or more"]),
        ("Inverse", [of(2, 3)], {}, ["square"]),
    ],
)
def test_refused(op, types, attrs, fragments):
    with refused(*fragments):
        types_of(op, types, attrs)
