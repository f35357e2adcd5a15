"""Runs of recurrent steps with random changes: whatever is still stacked gives the same numbers."""

import random

import pytest

from tests.passes.build import check
from tests.passes.recurrent_cells import CELLS, Unrolled
from tinsmith.errors import TypeRuleError


def unrolled(rnd, seed):
    """One or two runs over an input, the second over the input again or over the first run."""
    u = Unrolled(
        rnd.choice([2, 3, 4]),
        batch=rnd.choice([1, 2]),
        inputs=rnd.choice([3, 4]),
        layout=rnd.choice(["tni", "nti", "nit"]),
        reads=rnd.choice(["gather", "slice", "split", "separate"]),
        seed=seed,
    )
    make = CELLS[rnd.choice(list(CELLS))][0]
    start, reverse = rnd.choice(["zeros", "input", "const"]), rnd.random() < 0.3
    hs, c = u.run(make, reverse, start, name="f")
    outs = [u.stack(hs) if rnd.random() < 0.6 else hs[-1]]
    if rnd.random() < 0.4:
        other = rnd.choice([make, CELLS[rnd.choice(list(CELLS))][0]])
        back, _ = u.run(other, True, xs=rnd.choice([u.xs, hs]), name="b")
        outs.append(u.stack(back[::-1]))
    return u.b.out(*outs, *([c] if c is not None and rnd.random() < 0.5 else []))


def rewire(rnd, g):
    """Let one input of one node read another value of the same type that is computed before."""
    nodes = g.nodes
    node = rnd.choice(nodes)
    k = rnd.randrange(len(node.inputs))
    before = [v for n in nodes[: nodes.index(node)] for v in n.outputs]
    old = node.inputs[k]
    pool = [v for v in (*g.inputs, *g.constants(), *before) if v.type == old.type and v is not old]
    if not pool:
        return
    inputs = (*node.inputs[:k], new := rnd.choice(pool), *node.inputs[k + 1 :])
    try:
        same = list(node.op.infer(inputs, node.attrs)) == [v.type for v in node.outputs]
    except TypeRuleError:
        return
    if same:
        g.set_input(node, k, new)


@pytest.mark.parametrize("seed", range(60))
def test_mutants(seed):
    rnd = random.Random(seed)
    g = unrolled(rnd, seed)
    for _ in range(rnd.choice([1, 1, 2, 3])):
        rewire(rnd, g)
    if rnd.random() < 0.3:
        g.outputs.append(rnd.choice([v for n in g.nodes for v in n.outputs if v not in g.outputs]))
    g.sweep()
    check(g, "portable", tolerance=1e-4)
