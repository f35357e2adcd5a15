"""Makes test graphs from a rule's own pattern and sample, so that its test need not be written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tinsmith.errors import TinsmithError
from tinsmith.graph import Graph, Type, Value
from tinsmith.ops import OPS
from tinsmith.rewrite.pattern import Call, Flat, Literal, Or, Pattern, Var
from tinsmith.rewrite.rule import Rule


class Sampler:
    """Builds one graph that a rule's pattern matches, from the shapes and arrays of its sample.

    A pattern leaves questions open: which of its alternatives to build, whether an optional input
    is there, which operator stands for a trait, in which order a product is written. `choose` asks
    each once; its answers are numbered from 0. Other `choices` build the other graphs.

    choices  the answers, in the order of the questions; beyond them 0
    asked    of each question so far, how many answers it has
    env      values built so far, by name of a variable; nodes, by `Call.key`, which all patterns of
             one node share
    """

    def __init__(self, rule: Rule, choices: tuple[int, ...], seed: int, dtype: str) -> None:
        self.rule, self.choices, self.asked = rule, choices, []  # type: ignore[var-annotated]
        self.rng = np.random.default_rng(seed)
        self.dtype = np.dtype(dtype)
        self.graph = Graph(rule.name)
        self.env: dict[Any, Any] = {}
        self.alternative = 0

    def choose(self, count: int) -> int:
        i = len(self.asked)
        self.asked.append(count)
        return self.choices[i] if i < len(self.choices) else 0

    def array(self, sample: Any) -> np.ndarray[Any, Any]:
        if isinstance(sample, tuple | list):
            return self.rng.standard_normal(tuple(sample)).astype(self.dtype)
        array = np.asarray(sample)
        return array.astype(self.dtype) if array.dtype == np.float32 else array

    def feed(self, v: Value) -> np.ndarray[Any, Any]:
        made = self.env.get(("feed", v.name))
        return self.rng.standard_normal(v.dims).astype(v.dtype) if made is None else made

    def build(self, pattern: Pattern) -> Value | None:
        if isinstance(pattern, Or):
            options = pattern.alternatives()
            i = self.choose(len(options))
            if pattern is self.rule.pattern:
                self.alternative = i
            return self.build(options[i])
        if isinstance(pattern, Literal):
            return self.graph.const(np.asarray(pattern.number, self.dtype))
        if isinstance(pattern, Var):
            return self.variable(pattern)
        if isinstance(pattern, Flat):
            values = [self.build(a) for a in pattern.args]
            if self.choose(2):
                values.reverse()
            total = values[0]
            for v in values[1:]:
                total = OPS[pattern.head](total, v)
            return total
        assert isinstance(pattern, Call)
        return self.call(pattern)

    def variable(self, var: Var) -> Value | None:
        if var.name in self.env:
            return self.env[var.name]
        if var.name not in self.rule.sample:
            raise TinsmithError(f"rule {self.rule.name} has no sample for {var.name!r}")
        sample: Any = self.rule.sample[var.name]
        value: Value | None
        if callable(sample):
            make: Any = sample
            value = make(self.graph, self.dtype)
        elif var.optional and self.choose(2):
            value = None
        elif var.const or (isinstance(sample, np.ndarray) and sample.dtype.kind in "iu"):
            value = self.graph.const(self.array(sample), var.name)
        else:
            array = self.array(sample)
            self.env["feed", var.name] = array
            value = self.graph.input(var.name, Type(array.dtype, array.shape))
        self.env[var.name] = value
        return value

    def call(self, call: Call) -> Value:
        if call.key not in self.env:
            sample: Any = self.rule.sample.get(call.name, {})
            if isinstance(sample, tuple):
                sample = sample[self.alternative]
                if sample is None:
                    raise Unsampled
            op: Any = OPS[call.head] if not call.is_trait else self.of_trait(call.head, sample)
            sample = sample.get(op.name, sample)
            args: list[Any] = [self.build(a) for a in call.args]
            for key, value in sample.items():
                if key.startswith("#"):
                    args += [None] * (int(key[1:]) + 1 - len(args))
                    args[int(key[1:])] = value
            own = {k: v for k, v in sample.items() if k in op.attrs}
            self.env[call.key] = self.graph.add(op, *args, **{**own, **call.attrs})
        return self.env[call.key].outputs[call.out]

    def of_trait(self, trait: str, named: Any) -> Any:
        """An operator with the trait, by the next `choose`: of those that are keys of `named`, the
        node's sample; if none is, of all."""
        ops = [o for o in OPS.rows() if trait in o.traits]
        ops = [o for o in ops if o.name in named] or ops
        return ops[self.choose(len(ops))]


class Unsampled(Exception):
    """Raised by `build` for an alternative of the pattern for which the sample has None."""


def sample_graphs(
    rule: Rule, seed: int = 0, dtype: str = "float32", most: int = 24
) -> Iterator[tuple[Graph, list[np.ndarray[Any, Any]]]]:
    """Graphs in which a rule's pattern matches, each with arrays for its inputs: one for each way
    to choose among alternatives, optional inputs and operators of a trait, but at most `most`.
    `seed` and `dtype` are those of the random numbers. Raises TinsmithError if the sample lacks a
    variable."""
    pending: list[tuple[int, ...]] = [()]
    for _ in range(most):
        if not pending:
            return
        choices = pending.pop(0)
        sampler = Sampler(rule, choices, seed, dtype)
        try:
            out = sampler.build(rule.pattern)
        except Unsampled:
            out = None
        for i in range(len(choices), len(sampler.asked)):
            zeros = (0,) * (i - len(choices))
            pending += [(*choices, *zeros, k) for k in range(1, sampler.asked[i])]
        if out is None:
            continue
        graph = sampler.graph
        producer = out.producer
        assert producer is not None
        # behind a node that no rule looks at, so that an input may take the root's place
        after = {"f": "Asinh", "V": "Asinh", "i": "BitwiseNot", "u": "BitwiseNot"}
        graph.outputs.append(OPS[after.get(out.dtype.kind, "Shape")](out))
        yield graph, [sampler.feed(v) for v in graph.inputs]
