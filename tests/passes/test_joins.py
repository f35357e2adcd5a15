"""NestConcats: joins that go on where another ended."""

import pytest

from tests.passes.build import Builder, check, ops_of
from tinsmith import ops

ONLY = "-fuse-elementwise,-gather-channels"


@pytest.mark.parametrize("axis", [1, -3])
def test_a_dense_block(axis):
    b = Builder()
    parts = [b.x(1, 4, 3, 3)]
    for _ in range(4):
        joined = ops.Concat(*parts, axis=axis) if len(parts) > 1 else parts[0]
        parts.append(ops.Conv(joined, b.w(5, joined.shape[1], 1, 1)))
    g = b.out(ops.Concat(*parts, axis=1))
    check(g, spec=ONLY)
    joins = [n for n in g.nodes if n.op.name == "Concat"]
    assert [len(n.inputs) for n in joins] == [2, 2, 2, 2]


def test_only_what_is_the_same_from_the_start():
    b = Builder()
    x, y, z = b.x(1, 4), b.x(1, 2, name="y"), b.x(1, 3, name="z")
    g = b.out(
        ops.Concat(x, y, axis=1),
        ops.Concat(y, x, z, axis=1),
        ops.Tanh(ops.Concat(x, x, axis=0)),
        ops.Concat(x, x, y, axis=1),
    )
    check(g, spec=ONLY)
    assert [len(n.inputs) for n in g.nodes if n.op.name == "Concat"] == [2, 3, 2, 3]


def test_the_longest_start_is_taken():
    b = Builder()
    a = [ops.Tanh(b.x(1, k + 1, name=f"x{k}")) for k in range(4)]
    g = b.out(*(ops.Relu(ops.Concat(*a[:k], axis=1)) for k in (2, 4, 3)))
    check(g, spec=ONLY)
    assert "Concat" in ops_of(g)
    assert sorted(len(n.inputs) for n in g.nodes if n.op.name == "Concat") == [2, 2, 3]
