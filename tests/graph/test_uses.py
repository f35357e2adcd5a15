"""Readers of values and outputs of graphs behave as the lists that they stand for."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinsmith import ops
from tinsmith.graph import Graph, Type
from tinsmith.graph.uses import Outputs, Uses
from tinsmith.graph.verify import verify


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from(["append", "remove", "pop"]), st.integers(0, 4))))
def test_uses_count_as_a_list_does(steps: list[tuple[str, int]]) -> None:
    g = Graph()
    x = g.input("x", Type("float32", (2,)))
    nodes = [g.add(ops.Relu, x) for _ in range(5)]
    uses, known = Uses(), []
    for verb, which in steps:
        node = nodes[which]
        if verb == "append":
            uses.append(node)
            known.append(node)
        elif node not in known:
            with pytest.raises(KeyError):
                getattr(uses, verb)(node)
        elif verb == "remove":
            uses.remove(node)
            known.remove(node)
        else:
            assert uses.pop(node) == known.count(node)
            known = [n for n in known if n is not node]
        assert Counter(uses) == Counter(known)
        assert len(uses) == len(known) and bool(uses) == bool(known)
        assert all((n in uses) == (n in known) for n in nodes)
        assert not known or [uses[i] for i in range(len(uses))] == list(uses)


def test_outputs_know_what_is_in_them_after_every_change() -> None:
    g = Graph()
    a, b, c = (g.input(n, Type("float32", (2,))) for n in "abc")
    outs = Outputs([a, b])
    assert a in outs and c not in outs and outs == [a, b]
    outs.append(c)
    assert c in outs
    outs[0] = b
    assert a not in outs and outs == [b, b, c]
    outs.replace(b, a)
    assert b not in outs and outs == [a, a, c] and outs[1:] == [a, c]
    outs.replace(c, a)
    outs.replace(a, b)
    assert outs == [b, b, b] and a not in outs
    del outs[:2]
    assert outs == Outputs([b]) and b in outs


def test_a_node_that_reads_a_value_twice_reads_the_new_one_twice() -> None:
    g = Graph()
    x, y, z = (g.input(n, Type("float32", (2,))) for n in "xyz")
    joined = ops.Concat(x, y, x, z, x, axis=0)
    g.outputs = [joined]
    assert len(x.uses) == 3
    g.replace(x, z)
    assert joined.producer is not None and joined.producer.inputs == (z, y, z, z, z)
    assert not x.uses and len(z.uses) == 4
    verify(g)
