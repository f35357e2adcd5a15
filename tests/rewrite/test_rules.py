"""Every registered rule, on graphs made from its own pattern: it fires, and nothing changes."""

import numpy as np
import pytest

from tinsmith.errors import DataError, TypeRuleError
from tinsmith.graph.verify import verify
from tinsmith.ops import OPS
from tinsmith.ops.interpret import run_graph
from tinsmith.passes.choice import PASSES
from tinsmith.passes.manager import RunRules
from tinsmith.rewrite import rewrite
from tinsmith.rewrite.sample import sample_graphs

SETS = {
    e.name: e.make().rules
    for e in PASSES.rows()
    if e.options == {} and isinstance(e.make(), RunRules)
}
RULES = {r.name: (name, r) for name, rules in SETS.items() for r in rules}
EXACT = {"float32": 3e-6, "float64": 1e-12}


def test_rule_names_are_unique():
    assert len(RULES) == sum(len(s) for s in SETS.values())


@pytest.mark.parametrize("name", RULES)
def test_pattern_names_exist(name):
    rule = RULES[name][1]
    traits = {t for o in OPS.rows() for t in o.traits}
    for call in rule.pattern.calls():
        assert call.head in (traits if call.is_trait else OPS), call.head
        if not call.is_trait:
            assert set(call.attrs) <= set(OPS[call.head].attrs)
    bound = {c.name for c in rule.pattern.calls()} | set(rule.sample) | {"root", "graph"}
    assert set(rule.wants) <= bound, f"{name} wants names that its pattern does not bind"
    assert rule.formula.endswith(".") and "->" in rule.formula, "the docstring is the algebra"


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("name", RULES)
def test_rule_keeps_the_result(name, dtype):
    rule = RULES[name][1]
    fired = 0
    for graph, feeds in sample_graphs(rule, 7, dtype):
        before = run_graph(graph, feeds)
        text = str(graph)
        verify(graph)
        done = rewrite(graph, [rule], limit=20)
        verify(graph)
        after = run_graph(graph, feeds)
        tolerance = EXACT[dtype] + (
            rule.tolerance if dtype == "float32" else 1e-7 * (rule.tolerance > 0)
        )
        for a, b in zip(before, after, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            scale = max(1.0, float(np.max(np.abs(a[np.isfinite(a)]), initial=0)))
            np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance * scale, err_msg=text)
        if dtype == "float32":
            assert done.counts[name], f"did not fire on\n{text}\n{done.refusals}"
        fired += done.counts[name]
    assert fired or dtype != "float32"


@pytest.mark.parametrize("name", RULES)
@pytest.mark.filterwarnings("ignore:invalid value")  # infinity as an integer
def test_rule_keeps_integers(name):
    rule = RULES[name][1]
    try:
        for graph, feeds in sample_graphs(rule, 7, "int32", most=4):
            feeds = [f * 9 if f.dtype == np.int32 else f for f in feeds]
            before = run_graph(graph, feeds)
            rewrite(graph, [rule], limit=20)
            for a, b in zip(before, run_graph(graph, feeds), strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4)
    except (TypeRuleError, DataError):
        pass  # the pattern takes no integers


@pytest.mark.parametrize("name", RULES)
def test_rule_set_takes_each_rules_own_graph(name):
    """Overlap check: on a rule's own graph, rules of its set before it may only lead further."""
    set_name, rule = RULES[name]
    for graph, feeds in sample_graphs(rule, 3, most=4):
        before = run_graph(graph, feeds)
        done = rewrite(graph, SETS[set_name], limit=50)
        assert done.changes, f"no rule of {set_name} took {name}'s own graph"
        for a, b in zip(before, run_graph(graph, feeds), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4)
