"""Registering, ordering, choosing, running and reporting passes."""

from dataclasses import dataclass

import numpy as np
import pytest

from tests.passes.build import Builder, check, ops_of, refused
from tinsmith import ops
from tinsmith.errors import (
    DuplicateName,
    PassChoiceError,
    PassError,
    ReferenceFailed,
    TypeRuleError,
    UnknownName,
)
from tinsmith.ops import Op
from tinsmith.passes import PASSES, list_passes, register, run_passes
from tinsmith.passes.pipelines import MACHINE, PORTABLE
from tinsmith.rewrite import RuleSet, Skip, p, rewrite


@pytest.fixture
def own():
    """A user's pass and rule set, removed again afterwards."""

    @register("portable", priority=5, devices=("cpu",))
    @dataclass(frozen=True)
    class CountNodes:
        """Counts nodes into the graph's metadata."""

        times: int = 1
        flag: bool = False
        only: tuple[str, ...] = ()

        def run(self, graph, context):
            graph.meta["count"] = len(graph) * self.times
            graph.meta["options"] = (self.flag, self.only)
            return 0

    rules = RuleSet("tan-to-sin", "A rule set of the user's.")

    @rules.rule(p.Tan("x"), x=(2,))
    def tan_to_sin(x):
        """tan(x) -> sin(x)."""
        return ops.Sin(x)

    register("portable", priority=500, default=False)(rules)
    yield
    PASSES.remove("count-nodes")
    PASSES.remove("tan-to-sin")


def graph():
    b = Builder()
    return b.out(ops.Tan(ops.Identity(ops.Neg(b.x(2)))))


def test_the_lists_are_the_registered_passes():
    builtin = [e.name for e in list_passes("portable")], [e.name for e in list_passes("machine")]
    assert builtin == (list(PORTABLE), list(MACHINE))
    assert all(e.summary for e in PASSES.rows())


def test_a_users_pass(own):
    g = graph()
    run_passes(g, "portable")
    assert g.meta["count"] == 2, "the last round sees what is left"
    names = [e.name for e in list_passes("portable")]
    assert names[0] == "count-nodes" and names[-1] == "tan-to-sin"
    assert "count-nodes" not in [e.name for e in list_passes("portable", device="opencl")]
    assert ops_of(g) == ["Neg", "Tan"], "default=False is off"


def test_choosing(own):
    g = graph()
    spec = "+tan-to-sin,count-nodes{times=10,flag=yes,only=a|b},fold-constants@1"
    spec = f"-canonicalise,-canonicalise-shapes,{spec}"
    report = run_passes(g, "portable", spec=spec)
    assert ops_of(g) == ["Neg", "Identity", "Sin"]
    assert g.meta["count"] == 30 and g.meta["options"] == (True, ("a", "b"))
    assert next(iter(report))[0] == "fold-constants"
    assert report.changes["tan-to-sin"] == 1 and report.counts["tan_to_sin"] == 1
    assert "tan-to-sin" in str(report)


def test_stop_after():
    g = graph()
    report = run_passes(g, "portable", spec="stop-after=propagate-shapes")
    assert {name for name, _, _ in report} == {"propagate-shapes"}  # there is no If to take
    assert len(g) == 3


def test_passes_after_the_stop_are_not_listed():
    every = [e.name for e in list_passes("portable", spec="")]
    at = every.index("propagate-shapes")
    later = [e.name for s in ("precision", "machine", "files") for e in list_passes(s, spec="")]
    listed = [e.name for e in list_passes(spec="stop-after=propagate-shapes")]
    assert listed == every[: at + 1] + later
    moved = [
        e.name for e in list_passes(spec="propagate-shapes@999999,stop-after=propagate-shapes")
    ]
    assert moved == [*every[:at], *every[at + 1 :], "propagate-shapes", *later]
    assert [e.name for e in list_passes("machine", spec="stop-after=propagate-shapes")] == later[
        1:-1
    ]


def test_summaries_are_whole_sentences():
    assert [e.name for e in PASSES.rows() if not e.summary.endswith(".")] == []


@pytest.mark.parametrize(
    ("spec", "error", "says"),
    [
        ("-canonicalize", UnknownName, "canonicalise"),
        ("fold-constants{max-grow=1}", UnknownName, "max_growth"),
        ("fold-constants{max-growth=lots}", PassChoiceError, "cannot be 'lots'"),
        ("fold constants", PassChoiceError, "not understood"),
        ("fold-constants@1.2.3", PassChoiceError, "not understood"),
        ("fold-constants@.", PassChoiceError, "not understood"),
        ("stop-after=nothing", UnknownName, "nothing"),
    ],
)
def test_a_spec_that_is_wrong(spec, error, says):
    with pytest.raises(error, match=says):
        run_passes(graph(), "portable", spec=spec)


@pytest.mark.parametrize(
    ("options", "says"),
    [("kind=int3", "not 'int3'"), ("block=7", "not 7"), ("kind=int4,block=-8", "not -8")],
)
def test_weights_of_no_such_kind(options, says):
    """Refused though the graph has none that are large enough."""
    with pytest.raises(PassChoiceError, match=f"small-weights takes .*{says}"):
        run_passes(graph(), "precision", spec=f"+small-weights{{{options}}}")


def test_registering_wrongly(own):
    with pytest.raises(DuplicateName):
        register("portable", priority=1)(RuleSet("tan-to-sin"))
    with pytest.raises(PassError, match="needs a priority"):
        register("portable")(RuleSet("another"))
    with pytest.raises(PassError, match="no stage"):
        register("early", priority=1)(RuleSet("another"))
    with pytest.raises(PassError, match="frozen dataclass"):
        register("portable", priority=1)(len)
    with pytest.raises(PassError, match="no stage"):
        run_passes(graph(), "early")


def test_errors_name_pass_rule_and_node():
    rules = RuleSet("breaking")

    @rules.rule(p.Tan("x").named("t"), x=(2,))
    def breaks(x, t):
        """tan(x) -> nothing."""
        raise ZeroDivisionError("no")

    register("portable", priority=1)(rules)
    try:
        with pytest.raises(PassError, match=r"pass breaking.*rule breaks.*Tan 'tan'.*ZeroDivision"):
            run_passes(graph(), "portable")
    finally:
        PASSES.remove("breaking")


def test_a_constant_that_cannot_be_computed_names_the_node():
    def Fails(x):
        """y = x, or rather not"""
        raise ValueError("it cannot")

    op = Op(Fails, ())
    op.type(lambda x: x.type)
    b = Builder()
    g = b.out(ops.Add(b.x(60, 60), op(b.w(60, 60), name="bad")))
    with pytest.raises(ReferenceFailed, match=r"'bad'.*it cannot"):
        run_passes(g, "portable")


def test_verify_between_passes_names_the_pass():
    @register("portable", priority=1)
    @dataclass(frozen=True)
    class Spoil:
        """Leaves a use list wrong."""

        def run(self, graph, context):
            value = graph.nodes[0].output
            value.uses.pop(value.uses[0])
            return 1

    try:
        with pytest.raises(PassError, match=r"pass spoil.*uses"):
            run_passes(graph(), "portable", verify=True)
    finally:
        PASSES.remove("spoil")


def test_nodes_that_a_pass_makes_wrongly_name_it():
    @register("portable", priority=1)
    @dataclass(frozen=True)
    class Mistype:
        """Makes a node whose inputs do not fit it."""

        def run(self, graph, context):
            ops.MatMul(graph.inputs[0], graph.const(np.ones((3, 3), np.float32)))
            return 1

    try:
        with pytest.raises(TypeRuleError, match=r"MatMul.*wants 3") as caught:
            run_passes(graph(), "portable")
        assert caught.value.__notes__ == ["in pass mistype"]
    finally:
        PASSES.remove("mistype")


def test_rules_are_tried_again_only_near_changes():
    """The second round looks at nodes that the first has changed, and at those near them."""
    tried = []
    rules = RuleSet("watching", "Watches.")

    @rules.rule(p.Sin("x").named("y"), x=(2,))
    def watch(x, y):
        """sin(x) -> sin(x)."""
        tried.append(y.name)
        raise Skip("nothing to do")

    register("portable", priority=1)(rules)
    try:
        b = Builder()
        far = near = b.x(2)
        for _ in range(5):
            far, near = ops.Sin(far), ops.Cos(near)
        near = ops.Sin(ops.Mul(ops.Tan(near), np.float32(1)), name="near")
        run_passes(b.out(far, near), "portable")
    finally:
        PASSES.remove("watching")
    assert tried.count("near") == 2 and len(tried) == 7


def test_rules_that_look_through_moves_are_tried_again_below_them():
    """A function of a rule, beyond its pattern, sees a constant behind moves only at last."""
    rules = RuleSet("looking", "Looks.", backwards=True)

    @rules.rule(p.Neg("x"), x=(1, 2))
    def look(x):
        """-x -> the negated constant behind moves."""
        while x.producer is not None and x.producer.op.name in ("Squeeze", "Unsqueeze"):
            x = x.producer.inputs[0]
        if x.const is None:
            raise Skip("it is no constant")
        return -x.const

    @rules.rule(p.Add(p.Mul("x", p.Relu("y")), "z"), x=(2,), y=(2,), z=(2,))
    def deep(x, y, z):
        """x relu(y) + z stays; patterns of this set reach three nodes."""
        raise Skip("nothing to do")

    @rules.rule(p.Cos("x").named("y"), x=(1, 2))
    def settle(x, y):
        """cos(x) -> 0, after what is below it was tried."""
        return np.zeros((1, 2), np.float32)

    b = Builder()
    moved = ops.Cos(b.x(1, 2))
    moved = ops.Unsqueeze(ops.Squeeze(moved, np.array([0])), np.array([0]))
    graph = b.out(ops.Tan(ops.Neg(moved)))
    assert rewrite(graph, rules).counts == {"settle": 1, "look": 1}


def test_nested_graphs_are_rewritten_and_not_shared():
    b = Builder()
    x = b.x(2)
    branches = []
    for op in (ops.Neg, ops.Tan):
        inner = Builder()
        branches.append(inner.out(op(ops.Identity(ops.Abs(inner.x(2))))))
    cond = ops.Less(ops.Reduce(x, kind="sum", keepdims=False), b.c(0.0))
    g = b.out(ops.If(cond, x, then_branch=branches[0], else_branch=branches[1]))
    copy = g.clone()
    check(g)
    assert ops_of(g.nodes[-1].then_branch) == ["Fused"]
    assert ops_of(copy.nodes[-1].then_branch) == ["Abs", "Identity", "Neg"]


def test_a_skip_is_spelled_when_it_is_read():
    spelled = []

    class Shown:
        def __str__(self):
            spelled.append(1)
            return "{braces}"

    skip = Skip("{} stays {}", Shown(), "here")
    assert not spelled and str(skip) == "{braces} stays here" and spelled
    assert str(Skip("one {text}")) == "one {text}" and skip.reason[0] == "{} stays {}"


def test_constants_that_become_one_are_no_edit():
    b = Builder()
    first, second = b.c(1.0), b.c(1.0)
    out = ops.Add(ops.Mul(b.x(2), first), second)
    graph = b.out(out)
    graph.edited = []
    graph.merge(second, first)
    assert out.producer.inputs[1] is first and not second.uses and graph.edited == []
    graph.replace(first, b.c(2.0))
    assert len(graph.edited) == 2


def test_a_skip_is_reported_for_the_node():
    rules = RuleSet("shy")

    @rules.rule(p.Neg("x"), x=(2,))
    def never(x):
        """-x -> x, never."""
        raise Skip("it never does")

    register("portable", priority=1)(rules)
    try:
        report = run_passes(graph(), "portable")
        assert [str(r) for r in refused(report.refusals, "neg")] == [
            "never at 'neg': it never does"
        ]
    finally:
        PASSES.remove("shy")
