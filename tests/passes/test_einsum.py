"""LowerEinsum: which equations become products, and that they stay what they were."""

import pytest

from tests.passes.build import Builder, check, ops_of, refused
from tinsmith import ops

EQUATIONS = [
    ("ij,jk->ik", (3, 4), (4, 5)),
    ("ij,kj->ik", (3, 4), (5, 4)),
    ("ji,kj", (3, 4), (5, 3)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
    ("bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)),
    ("bhqk,bkhd->bqhd", (2, 2, 3, 5), (2, 5, 2, 4)),
    ("bsd,dhk->bshk", (2, 3, 4), (4, 2, 5)),
    ("bshk,hkd->bsd", (2, 3, 2, 5), (2, 5, 4)),
    ("abc,abd->cd", (2, 3, 4), (2, 3, 5)),
    ("i,j->ij", (3,), (4,)),
    ("i,i->", (3,), (3,)),
    ("i,i->i", (3,), (3,)),
    ("ij,j->i", (3, 4), (4,)),
    ("j,jk->k", (4,), (4, 3)),
    ("ijk,jl->il", (2, 3, 4), (3, 5)),
    ("...ij,...jk->...ik", (2, 2, 3, 4), (2, 2, 4, 5)),
    ("...ij,jk->...ik", (2, 2, 3, 4), (4, 5)),
    ("...i,...j->...ij", (3, 2), (3, 4)),
    ("ij->ji", (3, 4)),
    ("ijk->ki", (2, 3, 4)),
    ("ij->", (2, 3)),
    ("...ij->...i", (2, 3, 4)),
    ("i->i", (3,)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)),
    ("i,ij,j->", (3,), (3, 4), (4,)),
    ("bnd,bmd,bm->bn", (2, 3, 4), (2, 5, 4), (2, 5)),
    ("bchw,bkc->bkhw", (2, 3, 4, 5), (2, 6, 3)),
    ("nctkv,kvw->nctw", (2, 3, 4, 2, 5), (2, 5, 5)),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("row", EQUATIONS, ids=lambda row: row[0])
def test_equations(row, dtype):
    equation, *shapes = row
    b = Builder(dtype)
    g = b.out(ops.Einsum(*(b.x(*s, name=f"x{i}") for i, s in enumerate(shapes)), equation=equation))
    check(g, "portable")
    assert "Einsum" not in ops_of(g)


@pytest.mark.parametrize(
    "row",
    [
        ("ii->i", (3, 3)),
        ("ij,jk->ik", (3, 1), (4, 5)),
        ("...i,...i->...", (2, 3), (1, 3)),
    ],
    ids=lambda row: row[0],
)
def test_what_stays(row):
    equation, *shapes = row
    b = Builder()
    g = b.out(ops.Einsum(*(b.x(*s, name=f"x{i}") for i, s in enumerate(shapes)), equation=equation))
    report = check(g, "portable")
    assert ops_of(g) == ["Einsum"]
    assert report is not None and refused(report.refusals, "einsum")


def test_integers_stay():
    b = Builder("int64")
    g = b.out(ops.Einsum(b.x(2, 3), b.x(3, 2, name="y"), equation="ij,jk->ik"))
    check(g, "portable")
    assert ops_of(g) == ["Einsum"]


def test_sizes_that_are_not_known():
    b = Builder()
    q, k = b.x("N", 2, "S", 4), b.x("N", 2, "T", 4, name="k")
    g = b.out(ops.Einsum(q, k, equation="bhqd,bhkd->bhqk"))
    check(g, "portable", sizes={"N": 2, "S": 3, "T": 5})
    assert "Einsum" not in ops_of(g)
    b = Builder()
    g = b.out(ops.Einsum(b.x("N", "S", 4), b.x(4, 2, name="w"), equation="bsd,dk->bsk"))
    check(g, "portable", sizes={"N": 2, "S": 3})


def test_the_output_may_be_an_input():
    b = Builder()
    x = b.x(3)
    y = ops.Einsum(x, equation="i->i")
    g = b.out(y, ops.Tanh(y))
    check(g, "portable")
