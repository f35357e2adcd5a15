"""The attention kernel over shapes, strides of its rows, terms and instruction sets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.harness import check, levels, one_node, prepare
from tests.kernels.matrix_registers import can_run
from tinsmith.codegen.products import PRODUCTS
from tinsmith.codegen.target import host, level
from tinsmith.kernels._kernel import KERNELS, Skip
from tinsmith.kernels.attention.tables import Book, row_map
from tinsmith.kernels.trace import make_site
from tinsmith.ops import OPS

SHAPES = [  # batch, heads, queries, keys, width, value width
    (1, 1, 1, 1, 1, 1),
    (1, 3, 197, 197, 64, 64),
    (3, 2, 49, 49, 32, 32),
    (2, 1, 5, 7, 3, 17),
    (1, 2, 16, 33, 20, 40),
    (2, 1, 1, 70, 16, 8),
    (1, 17, 9, 31, 24, 100),
]


WIDE = [shape for shape in SHAPES if min(shape[4:]) >= 16] + [
    (1, 1, 1, 1, 16, 16),
    (2, 3, 50, 16, 32, 48),
    (1, 2, 47, 65, 40, 17),
]
AMX = pytest.param("amx", marks=[] if can_run() else pytest.mark.skip("no vectors here"))


def _rng(*key):
    return np.random.default_rng(abs(hash(key)) % 2**32)


def operands(batch, heads, queries, keys, width, value_width, order=None):
    """q [B,N,H,E], k and v in one array [B,M,H,E + F], and the tables; y [B,N,H,F]."""
    rng = _rng(batch, heads, queries, keys)
    q = rng.standard_normal((batch, queries, heads, width), np.float32)
    kv = rng.standard_normal((batch, keys, heads, width + value_width), np.float32)
    order = np.arange(queries) if order is None else order

    def table(rows, inner, place, first=0):
        n, h = rows.size, heads
        b, g, r = np.ix_(range(batch), range(h), range(n))
        return (((b * n + place[r]) * h + g) * inner + first).reshape(batch * h, n).astype(np.int32)

    straight = np.arange(keys)
    both = width + value_width
    tables = [
        table(order, width, order),
        table(straight, both, straight),
        table(straight, both, straight, width),
        table(order, value_width, order),
    ]
    attrs = {
        "width": width,
        "value_width": value_width,
        "shape": (batch, queries, heads, value_width),
        "scale": width**-0.5,
    }
    return [q, kv, kv, *tables], attrs


def run(arrays, attrs, target, consts=(), **options):
    """By the kernel of a level."""
    on_registers = target == "amx"
    options.setdefault("rtol", 3e-5 if on_registers else 1e-5)
    return check(
        "RowAttention",
        arrays,
        attrs,
        kernel="attention_amx" if on_registers else "attention_rows",
        target=target,
        consts=(3, 4, 5, 6, *consts),
        **options,
    )


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape, target):
    run(*operands(*shape), target)


@pytest.mark.parametrize("target", [AMX])
@pytest.mark.parametrize("shape", WIDE, ids=str)
def test_shapes_on_matrix_registers(shape, target):
    run(*operands(*shape), target)


@pytest.mark.parametrize("target", [AMX])
@pytest.mark.parametrize("threads", [2, 3])
def test_several_parts_of_an_item_on_matrix_registers(threads, target):
    choice = run(*operands(1, 2, 197, 130, 64, 64), target, threads=threads)
    assert choice.phases[0].tiles > 2


@pytest.mark.parametrize("target", [AMX])
def test_split_precision_of_three_parts(target, monkeypatch):
    """A row of the table of products that is exact enough for strict precision."""
    terms = ((0, 2), (2, 0), (1, 1), (0, 1), (1, 0), (0, 0))
    row = replace(PRODUCTS["split"], name="three", terms=terms, error=2.0**-22)
    monkeypatch.setitem(PRODUCTS, "three", row)
    run(*operands(1, 2, 50, 70, 40, 48), target, precision="strict", rtol=1e-6)


@pytest.mark.parametrize("width, precision", [(15, "default"), (64, "strict")])
def test_matrix_registers_decline(width, precision):
    arrays, attrs = operands(1, 2, 50, 50, width, 64)
    node = one_node("RowAttention", arrays, attrs, (3, 4, 5, 6))
    with pytest.raises(Skip, match=r"rows of 15|strict"):
        KERNELS["attention_amx"].offer(make_site(node, level("amx"), precision))


@pytest.mark.parametrize("target", [*levels(), AMX])
@pytest.mark.parametrize("queries, keys", [(5, 7), (49, 49)])
@pytest.mark.parametrize("wide", [(1, 1), (1, 0), (0, 1), (0, 0)])
@pytest.mark.parametrize("constant", [True, False])
def test_terms(queries, keys, wide, constant, target):
    batch, heads = 3, 2
    arrays, attrs = operands(batch, heads, queries, keys, 16, 16)
    rng = _rng(queries, *wide)
    dims = (queries if wide[0] else 1, keys if wide[1] else 1)
    bias = rng.standard_normal((heads, *dims)).astype(np.float32)
    mask = np.where(rng.random((batch, queries, keys)) < 0.3, np.float32(-100), np.float32(0))
    arrays += [bias, np.tile(np.arange(heads, dtype=np.int32), batch)]
    arrays += [mask, np.repeat(np.arange(batch, dtype=np.int32), heads)]
    run(arrays, attrs, target, (7, 8, 9, 10) if constant else (8, 10))


CHANGES = {
    "cap": {"softcap": 2.0},
    "causal": {"high": 0},
    "causal after a past": {"high": 13},
    "window": {"low": -3, "high": 2},
    "from": {"low": 1},
    "unseen by all": {"low": 200},
    "all": {"softcap": 0.7, "low": -9, "high": 9},
}


@pytest.mark.parametrize("target", [*levels(), AMX])
@pytest.mark.parametrize("queries, keys", [(1, 20), (5, 7), (50, 70)])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("masked", [False, True])
def test_changes(queries, keys, change, masked, target):
    arrays, attrs = operands(2, 2, queries, keys, 16, 20)
    if masked:
        mask = _rng(queries, keys).random((2, queries, keys)) < 0.6
        mask[0, 0] = False
        arrays += [mask, np.repeat(np.arange(2, dtype=np.int32), 2)]
    run(arrays, attrs | CHANGES[change] | {"zeros": True}, target, (8,) if masked else ())


@pytest.mark.parametrize("target", [*levels(), AMX])
@pytest.mark.parametrize("rows, keys", [(9, 37), (1, 37), (9, 1)])
@pytest.mark.parametrize("constant", [True, False])
def test_masks_of_truth_values(rows, keys, constant, target):
    arrays, attrs = operands(2, 1, 9, 37, 16, 16)
    bias = _rng(rows, keys).standard_normal((1, 9, 37)).astype(np.float32)
    mask = _rng(keys, rows).random((2, rows, keys)) < 0.7
    arrays += [bias, np.zeros(2, np.int32), mask, np.arange(2, dtype=np.int32)]
    run(arrays, attrs | {"zeros": True}, target, (8, 9, 10) if constant else (8, 10))


@pytest.mark.parametrize("target", [*levels(), AMX])
@pytest.mark.parametrize("zeros", [True, False])
def test_queries_that_see_nothing(zeros, target):
    arrays, attrs = operands(1, 2, 9, 20, 16, 16)
    mask = np.zeros((1, 9, 20), np.float32)
    mask[:, 4] = -np.inf
    arrays += [mask, np.zeros(2, np.int32)]
    run(arrays, attrs | {"zeros": zeros}, target, (8,))
    with np.errstate(invalid="ignore"):
        found = OPS["RowAttention"](*arrays, **attrs, zeros=zeros)[:, 4]
    assert (found == 0).all() if zeros else np.isnan(found).all()


@pytest.mark.parametrize("target", [*levels(), AMX])
@pytest.mark.parametrize("queries, keys", [(9, 20), (2, 33), (50, 70)])
@pytest.mark.parametrize("how", ["nans", "zeros", None])
def test_scores_that_are_not_numbers(how, queries, keys, target):
    """NaN and infinities in queries, keys, values and a mask: weights that are NaN are kept, or are
    0 (`nans`)."""
    arrays, attrs = operands(1, 3, queries, keys, 16, 16)
    arrays[0][0, 0, 0, 3] = np.nan  # a query of the first head
    arrays[1][0, 4, 1, 2] = np.nan  # a key of the second: all its queries
    arrays[1][0, 5, 2, 16] = np.nan  # a value of the third
    mask = np.zeros((1, queries, keys), np.float32)
    mask[:, 1, keys - 1] = np.inf
    mask[:, queries - 1] = -np.inf
    if queries > 2:
        mask[:, 2, 0], mask[:, 3, keys - 2] = -np.inf, np.nan
    arrays += [mask, np.zeros(3, np.int32)]
    with np.errstate(invalid="ignore"):
        run(arrays, attrs | ({how: True} if how else {}), target, (8,))


@pytest.mark.parametrize("target", [*levels(), AMX])
def test_powers_that_would_be_denormal_are_zero(target):
    arrays, attrs = operands(1, 1, 9, 20, 16, 16)
    arrays[0][:] = 0
    arrays[1][..., 16:] = np.where(np.arange(20) < 3, 0, 1e30)[:, None, None]
    mask = np.where(np.arange(20) < 3, 0, -100).astype(np.float32).reshape(1, 1, 20)
    arrays += [mask, np.zeros(1, np.int32)]  # e^-100 is a denormal number
    node = one_node("RowAttention", arrays, attrs, (3, 4, 5, 6, 8))
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    kernel = "attention_amx" if target == "amx" else "attention_rows"
    bench = prepare(node, feeds, kernel, target)
    bench.run()
    assert not bench.outputs[0][0].any()


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("queries", [1, 3, 4, 7, 27])
@pytest.mark.parametrize("value_width", [5, 100])
def test_few_queries(queries, value_width, threads, target):
    """Wide tiles, and values that are read where they lie: no lane beyond a row's last element."""
    arrays, attrs = operands(1, 2, queries, 35, 24, value_width)
    arrays[2] = np.ascontiguousarray(arrays[1][..., 24:])
    arrays[5] = (arrays[5] - 24) // (24 + value_width) * value_width
    arrays[1] = np.where(np.arange(24 + value_width) < 24, arrays[1], np.nan).astype(np.float32)
    run(arrays, attrs, target, threads=threads)


@pytest.mark.parametrize("target", [*levels(), AMX])
def test_rows_in_any_order(target):
    order = np.random.default_rng(0).permutation(49)
    run(*operands(2, 2, 49, 20, 32, 16, order), target)


@pytest.mark.parametrize("target", [*levels(), AMX])
def test_minus_infinity_attends_nothing(target):
    arrays, attrs = operands(1, 1, 9, 9, 16, 16)
    mask = np.triu(np.full((1, 9, 9), -np.inf, np.float32), 1)
    run([*arrays, mask, np.zeros(1, np.int32)], attrs, target, (7, 8))


@pytest.mark.parametrize("target", [*levels(), AMX])
@pytest.mark.parametrize("constant", [True, False])
def test_rows_that_are_masked_by_the_least_number_are_attended_evenly(constant, target):
    arrays, attrs = operands(1, 1, 9, 20, 16, 16)
    mask = np.zeros((1, 9, 20), np.float32)
    mask[0, 4] = mask[0, 5, 3:] = mask[0, 6, 1] = np.finfo(np.float32).min
    mask[0, 7, 2] = np.finfo(np.float32).max
    run([*arrays, mask, np.zeros(1, np.int32)], attrs, target, (7, 8) if constant else (8,))


@pytest.mark.parametrize("target", [*levels(), AMX])
def test_large_scores_do_not_overflow(target):
    arrays, attrs = operands(1, 2, 20, 37, 16, 16)
    arrays[0] = arrays[0] * np.float32(1000)
    run(arrays, attrs, target, rtol=2e-2 if target == "amx" else 1e-4)  # scores of thousands


@pytest.mark.parametrize("target", [AMX])
@pytest.mark.parametrize("where", ["query", "key", "value"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays_in_its_rows(value, where, target):
    arrays, attrs = operands(1, 2, 20, 37, 32, 16)
    if where == "query":
        arrays[0][0, 7, 1, 3] = value
    else:
        arrays[1][0, 5, 0, 3 if where == "key" else 32 + 2] = value
    choice = run(arrays, attrs, target)
    assert choice.detail == "2 items of 20 x 37"


def test_equal_slabs_are_kept_once():
    batch = 6
    arrays, attrs = operands(batch, 1, 4, 4, 16, 16)
    mask = np.zeros((batch, 4, 4), np.float32)
    mask[3:] = -100
    arrays += [mask, np.arange(batch, dtype=np.int32)]
    choice = run(arrays, attrs, host(), (7, 8))
    assert choice.packed[1].make().shape == (2, 4, 4)


def test_few_items_are_cut_into_blocks_of_rows():
    choice = run(*operands(1, 2, 197, 197, 64, 64), level("avx2"))
    assert choice.phases[0].tiles >= 8


@pytest.mark.parametrize(
    "table, stride, shared",
    [
        ([[0, 5, 10], [100, 105, 110]], 5, True),
        ([[7], [9]], 0, True),
        ([[0, 1, 7, 8], [20, 21, 27, 28]], None, True),
        ([[0, 1, 7], [20, 22, 27], [40, 41, 47]], None, False),
    ],
)
def test_tables_are_taken_apart(table, stride, shared):
    book = Book()
    found = row_map(book, np.array(table))
    assert (found.stride, found.which is None) == (stride, shared)
    array = book.packed().make()
    for item, row in enumerate(table):
        first = array[found.first + item]
        which = 0 if shared else array[found.which + item]
        for n, want in enumerate(row):
            start = found.patterns + which * found.rows
            have = n * stride if stride is not None else array[start + n]
            assert first + have == want


def test_the_reference_is_attention():
    arrays, attrs = operands(2, 3, 5, 7, 4, 6)
    q, kv = arrays[0].transpose(0, 2, 1, 3), arrays[1].transpose(0, 2, 1, 3)
    want = OPS["Attention"](q, kv[..., :4], kv[..., 4:])
    got = OPS["RowAttention"](*arrays, **attrs)
    np.testing.assert_allclose(got, want.transpose(0, 2, 1, 3), rtol=1e-5, atol=1e-6)
