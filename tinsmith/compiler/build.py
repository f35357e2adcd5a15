"""The compilation of one model: passes, plan and code for each signature of input shapes.

Imported only when a program has to be built: a start from stored programs does without.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from tinsmith.backends import DEFAULT, Job, backends_of
from tinsmith.backends.cpu import HOST, Compiled, Heap, Room
from tinsmith.backends.part import Running
from tinsmith.codegen.cache import open_cache
from tinsmith.codegen.products import product_of
from tinsmith.codegen.target import Target
from tinsmith.compiler.cut import cut
from tinsmith.compiler.explain import explain_steps
from tinsmith.compiler.free import check_held
from tinsmith.compiler.later import Parts, later_of
from tinsmith.compiler.options import Options
from tinsmith.compiler.sections import Told
from tinsmith.compiler.slow import slow_notes
from tinsmith.compiler.winners import Winners
from tinsmith.formats.mapped import check_unchanged, mappings, release
from tinsmith.graph import Array, Graph
from tinsmith.graph.copy import Copier, shaped_types
from tinsmith.graph.infer import check_types
from tinsmith.graph.text import weights_in
from tinsmith.kernels.select import check_overrides, idle, parse_overrides
from tinsmith.ops.control import Part
from tinsmith.passes.manager import find_matches, has_work, run_passes
from tinsmith.passes.report import Matches, Report
from tinsmith.plan.pick import Preferences
from tinsmith.plan.planner import Built
from tinsmith.plan.shared_weights import SharedWeights
from tinsmith.records import NamedTuple
from tinsmith.runtime.inputs import Signature
from tinsmith.runtime.program import Program


class Made(NamedTuple):
    """A program, and `told`, a function from names to texts about it: "placed" (the graph),
    "explain" (JSON), "tuned", "idle" and "slow" (notes, "" if there are none)."""

    program: Program
    told: Told


class Compilation:
    """A model with its options, after the portable passes; `build` compiles it for one signature.
    Not thread-safe.

    imported, canonical  the graph before and after the portable passes
    reports              what passes did, for all signatures, then for the one placed last
    later                the parts that are compiled when their sizes are known (`later.py`); shared
                         with `around`, the compilation of which this one is a part
    """

    def __init__(
        self, graph: Graph, target: Target, options: Options, cache: bool,
        around: Compilation | None = None,
    ) -> None:  # fmt: skip
        self.imported, self.target, self.options, self.cache = graph, target, options, cache
        self.backends, self.column = backends_of(options.backend), HOST.column
        self.passes = passes = options.passes
        self.canonical = graph.clone()
        self.reports: list[Report] = [run_passes(self.canonical, "portable", self.column, passes)]
        self._precise = self._in_precision()
        self._shared = len(self.reports)
        self._copier = Copier(self._precise)
        self.overrides = parse_overrides(options.kernels)
        if around is None:
            names = {n.name for n in (*graph.nodes, *self._precise.nodes)}
            check_overrides(self.overrides, names)
        self.later = Parts([]) if around is None else around.later
        self.is_part = around is not None
        self.kept: dict[int, int] = {}
        """Number of an output -> number of the input whose memory it is kept in (states)."""

    def inner(self, graph: Graph) -> Compilation:
        """Return the compilation of a part of the model, with the same options."""
        return Compilation(graph, self.target, self.options, self.cache, self)

    def _in_precision(self) -> Graph:
        """Return the canonical graph in the element types in which the machine computes. If these
        are not the file's, it is a copy, on which the portable passes have run again."""
        if not has_work(self.canonical, "precision", self.column, self.passes):
            return self.canonical
        graph = self.canonical.clone()
        report = run_passes(graph, "precision", self.column, self.passes)
        if not any(report.changes.values()):
            return self.canonical
        self.reports[0].refusals.clear()  # rules that still decline say so again
        self.reports += [report, run_passes(graph, "portable", self.column, self.passes)]
        return graph

    def copy(self, signature: Signature) -> Graph:
        """Return a copy of the canonical graph, in the machine's element types, with the input
        shapes of a signature. Raises TypeRuleError where sizes do not fit."""
        return self._copier.copy(shaped_types(self.canonical, signature))

    def sized(self, signature: Signature) -> tuple[Graph, Matches | None]:
        """Return (graph, matches): a copy of the graph for a signature, before the machine passes.
        If the signature fixes sizes that the model leaves free, the portable passes run on it
        again, and `matches` is the property of that name; else None. Drops `reports` of earlier
        signatures. Raises TypeRuleError where sizes do not fit."""
        types = shaped_types(self.canonical, signature)
        graph = self._copier.copy(types)
        matches = self.matches if types else None
        self.reports = self.reports[: self._shared]
        if matches is not None:
            self.reports.append(matches.report)
            self.reports.append(
                run_passes(graph, "portable", self.column, self.passes, matches=matches)
            )
            # Types of other nodes were inferred when the graph was copied.
            check_types(n for n in dict.fromkeys(graph.edited or ()) if n in graph)
        return graph, matches

    def canonical_for(self, signature: Signature) -> Graph:
        """Return a canonical graph for a signature, in the element types of the file."""
        graph = self.canonical.clone(shaped_types(self.canonical, signature))
        run_passes(graph, "portable", self.column, self.passes)
        return graph

    def place(self, signature: Signature) -> Graph:
        """Return a new placed graph for a signature, after all passes; `reports` then says what
        they did."""
        placed, matches = self.sized(signature)
        if self.is_split:
            from tinsmith.compiler.split import split

            self.reports.append(split(placed, self.backends))
        cut(placed)
        report = run_passes(
            placed, "machine", self.column, self.passes, matches=matches, byte_rate=self.byte_rate
        )
        self.reports.append(report)
        return placed

    @property
    def byte_rate(self) -> float:
        """How many multiply-adds of bytes the machine's vectors do in the time of one of
        float32."""
        return product_of(self.target, "uint8", "int8").rate

    @property
    def is_split(self) -> bool:
        """Whether nodes may go to other backends than `HOST`."""
        return list(self.backends.values()) != [HOST]

    @cached_property
    def matches(self) -> Matches:
        """The nodes at which rules' patterns match, found once: as patterns see no shapes, they are
        the same in the copies for all signatures."""
        return find_matches(self._precise, self.column, self.passes)

    def compile(
        self, placed: Graph, preferences: Preferences | None = None,
        forced: Mapping[str, str] | None = None, room: Room | None = None, **fields: Any,
    ) -> Compiled:  # fmt: skip
        """Compile a placed graph to a program. `preferences`: measured choices. `forced`: node ->
        kernel, besides the caller's overrides; raises NoKernel if one declines. Packed weights go
        to `room` (None: memory of this process). `fields`: other fields of the `Job`."""
        made = Job(
            self.options.threads, self.options.precision, target=self.target, cache=self.cache
        )
        job = replace(
            made, overrides={**self.overrides, **(forced or {})}, preferences=preferences,
            small=self.options.memory == "small", room=_LettingGo(room or Heap(), self._constants),
            kept=self.kept, **fields,
        )  # fmt: skip
        compiled = HOST.compile(placed, job)
        # A model's file may change: only bodies of loops may still read it, which are checked.
        program, nodes = compiled.program, compiled.built.nodes
        program.constants |= {n: np.array(a) for n, a in program.constants.items() if mappings([a])}
        for name, (op, attrs) in program.nodes.items():
            if op is Part:
                node = nodes[name]
                if node.attrs["backend"] == DEFAULT:
                    program.nodes[name] = later_of(node, self), {}
                    continue
                running: Any = Running(node, made)
                program.nodes[name] = running, attrs
            if arrays := [a for a in weights_in(nodes[name].graphs.values()) if mappings([a])]:
                program.checks[name] = partial(check_unchanged, arrays)
        return compiled

    def build(
        self, signature: Signature, measure: bool = False, room: Room | None = None,
        shared_weights: SharedWeights | None = None,
    ) -> Made:  # fmt: skip
        """Run the passes, plan and compile for a signature. With `measure`, kernels are chosen by
        timing (`tune`). `room` is as in `compile`, `shared_weights` as in `Job`; both are used only
        without `measure`. Raises HeldSizes if the passes need the number of a free size
        (`check_held`)."""
        check_unchanged(self._constants)
        with HOST.compiler(self.target, self.options.threads, self.cache) as compiler:
            placed = self.place(signature)
            check_held(signature)
            known = Winners(open_cache() if self.cache else None, self.target)
            texts: dict[str, str] = {}

            def tell(built: Built) -> None:
                texts.update(self._told(placed, built))

            if measure:
                from tinsmith.compiler.tune import tune

                compiled, tuning = tune(partial(self.compile, placed), known.read())
                known.add(tuning.winners)
                texts["tuned"] = str(tuning)
                tell(compiled.built)
            else:
                compiled = self.compile(
                    placed, known.read(), room=room, shared_weights=shared_weights,
                    compiler=compiler, planned=tell,
                )  # fmt: skip
        return Made(compiled.program, lambda name: texts.get(name, ""))

    def _told(self, placed: Graph, built: Built) -> dict[str, str]:
        """The texts about a program of a placed graph, by name, but for that of `tune`."""
        return {
            "placed": str(placed),
            "explain": json.dumps([e.to_json() for e in explain_steps(built, self.reports)]),
            "idle": self._idle(placed),
            "slow": "\n".join(slow_notes(built, self.overrides)),
        }

    def _idle(self, placed: Graph) -> str:
        """Return lines about options that had no effect (a precision, kernels, backends); "" if
        there are none, and for parts, which the surrounding model counts as its own."""
        if self.is_part:
            return ""
        said = []
        if self.options.precision == "bfloat16" and not self.target.has_half_products:
            said.append(
                f"precision: 'bfloat16' had no effect: {self.target.isa} has no products of it, and"
                " computes in float32"
            )
        if names := ", ".join(map(repr, idle(self.overrides, placed))):
            said.append(
                f"kernels: {names} had no effect: other nodes compute this now, after all passes;"
                " net.explain() names them"
            )
        if self.is_split:
            from tinsmith.compiler.split import idle as unused

            if names := ", ".join(map(repr, unused(placed, self.backends))):
                said.append(f"backend: {names} had no effect: the others take all nodes")
        return "\n".join(said)

    @cached_property
    def _constants(self) -> list[Array]:
        return weights_in([self.imported])


class _LettingGo:
    """Passes packed weights on to another `cpu.Room`, with a lower peak of memory: before `finish`
    joins them there, the system gets back the memory of `weights`, the model's arrays that are
    mapped from files. If they are used again, they are read again."""

    def __init__(self, room: Room, weights: list[Array]) -> None:
        self.put, self._room, self._weights = room.put, room, weights

    def finish(self, nbytes: int) -> Array:
        release(self._weights)
        return self._room.finish(nbytes)
