"""The rewrite engine: patterns, rules, and the driver that applies them. Knows no rule."""

from tinsmith.rewrite.driver import Rewritten, Start, matching, replace_outputs, rewrite
from tinsmith.rewrite.pattern import Call, Pattern, const, is_number, opt, p
from tinsmith.rewrite.rule import Refusal, Rule, RuleSet, Skip, copy_with, like, meet, rule, with_

__all__ = [
    "Call", "Pattern", "Refusal", "Rewritten", "Rule", "RuleSet", "Skip", "Start", "const",
    "copy_with", "is_number", "like", "matching", "meet", "opt", "p", "replace_outputs", "rewrite",
    "rule", "with_",
]  # fmt: skip
