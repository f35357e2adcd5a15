"""A rule of one's own, as an optimizer: in the portable stage, for every device."""

from tinsmith import ops
from tinsmith.passes import register
from tinsmith.passes.pipelines import place
from tinsmith.rewrite import RuleSet, p

differences = RuleSet("add-negatives", "Differences of negatives become sums.")


@differences.rule(p.Sub("x", p.Neg("y")), x=(2, 3), y=(2, 3))
def add_negative(x, y):
    """x - (-y) -> x + y."""
    return ops.Add(x, y)


register("portable", priority=place("portable", "canonicalise") + 5)(differences)
