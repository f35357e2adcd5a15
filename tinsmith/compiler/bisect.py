"""Finds the pass or node that makes a compiled model's results wrong, for `verify`.

Passes are tried first, by running references on the graph after each. Then the placed graph is cut
after one node at a time, and its generated code is compared with references: so fusion, kernels and
layouts are as in the whole model.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tinsmith.codegen.cache import open_cache
from tinsmith.codegen.target import host
from tinsmith.compiler.build import Compilation
from tinsmith.compiler.compare import ROUNDING, Difference, compare
from tinsmith.compiler.options import Options
from tinsmith.compiler.quanta import ALLOWED, cut, given, rounded, unlike
from tinsmith.compiler.verify_sizes import Freed, Shapes
from tinsmith.compiler.winners import Winners
from tinsmith.errors import ModelFileError, NoKernel, TinsmithError
from tinsmith.formats.npz import write_npz
from tinsmith.graph import Array, Graph, Holder, Node, Value
from tinsmith.graph.copy import shaped_types
from tinsmith.kernels.select import REFERENCE
from tinsmith.ops.interpret import run_graph
from tinsmith.passes.choice import COURSE, list_passes
from tinsmith.passes.manager import run_passes
from tinsmith.passes.regions import body_of
from tinsmith.records import dataclass
from tinsmith.runtime.program import Program

PASS, KERNEL, PLAN, MODEL, INPUTS = "pass", "kernel", "plan", "model", "inputs"


@dataclass(frozen=True)
class Culprit:
    """The pass or node that makes results differ.

    kind     "pass": a pass changed what the graph computes
             "kernel": the node alone gives wrong results, on the reference's inputs
             "plan": the node alone is right, but wrong in its place in the program
             "inputs": the node is right for its inputs, which differ from the reference's by
             rounding, within the tolerance; it enlarges that, as e^x of large x does
             "model": importer or reference, where another engine gives other results
    name     of the pass or node; for a node also its operator, kernel, and origin in the model
    difference  of the first output, of the pass's graph or the node, that is wrong
    replay   path of a .tin file with the node alone; its inputs are in an .npz beside it. "" if
             none was wanted or could be written
    options  of the command `tinsmith verify` that runs the replay
    note     why there is no replay, where one was wanted
    """

    kind: str
    name: str
    op: str = ""
    kernel: str = ""
    origin: str = ""
    difference: Difference | None = None
    replay: str = ""
    options: tuple[str, ...] = ()
    note: str = ""

    def __str__(self) -> str:
        lines = [self._what()]
        if self.origin:
            lines.append(f"  origin  {self.origin}")
        if self.difference is not None:
            lines.append(f"  differs {self.difference}")
        if self.replay:
            data = str(Path(self.replay).with_suffix(".npz"))
            words = ["tinsmith", "verify", self.replay, data, *self.options]
            lines.append(f"  replay  {shlex.join(words)}")
        if self.note:
            lines.append(f"  replay  {self.note}")
        return "\n".join(lines)

    def _what(self) -> str:
        if self.difference is not None and self.difference.is_rounding:
            first = f"the pass {self.name}" if self.kind == PASS else f"{self.name}: {self.op}"
            by = f" with {self.kernel}" if self.kernel else ""
            return (
                f"{first}{by} is the first to differ, but by no more than float32 rounds where "
                f"sums are in another order, which a tolerance of {ROUNDING:g} admits"
            )
        return {
            PASS: f"the pass {self.name} changes what the model computes",
            KERNEL: f"{self.name}: the kernel {self.kernel} of {self.op} is wrong",
            PLAN: f"{self.name}: {self.op} with {self.kernel} is right alone, but wrong in its "
            "place: a layout, or memory that is shared",
            INPUTS: f"{self.name}: {self.op} with {self.kernel} is right for what it reads, which "
            "is rounded otherwise than in the reference: the node makes a small difference large",
            MODEL: f"{self.name}: {self.op} is computed otherwise here, in numpy too",
        }[self.kind]


class Bisection:
    """Searches one compiled model, on one set of inputs (by name), for the pass or node that makes
    outputs differ by more than the tolerance. `made_for`: the input shapes of the program that
    differs, if it is one for free sizes (see `Freed`)."""

    def __init__(
        self,
        compilation: Compilation,
        inputs: Mapping[str, Array],
        tolerance: float,
        made_for: Shapes | None = None,
    ) -> None:
        self.compilation, self.tolerance = compilation, tolerance
        self.inputs = dict(inputs)
        self.signature = tuple(
            None if isinstance(v.type, Holder) else inputs[v.name].shape
            for v in compilation.imported.inputs
        )
        self.freed = None if made_for is None else Freed(compilation, made_for, self.signature)
        self.shapes = self.signature if self.freed is None else self.freed.shapes
        cache = open_cache() if compilation.cache else None
        self.known = Winners(cache, compilation.target).read()
        self.kernels: dict[str, str] = {}
        self.rounded = rounded(compilation.imported)

    def allowed(self, got: Mapping[str, Array]) -> str:
        """Return a text on why the outputs `got`, by name, may be wrong in a quantised model: each
        rounded result and each output is what references compute from the rounded results before
        it, as generated code gave them (docs/numerics.md). "" if that is not so."""
        whole = self.compilation.place(self.shapes).clone()
        found = [v for n in whole.nodes for v in n.outputs if v.name in self.rounded]
        if not found:
            return ""
        whole.outputs = dict.fromkeys([*whole.outputs, *found])
        names = [v.name for v in whole.outputs]
        values = dict(zip(names, self._run(whole, self.inputs)[0], strict=True))
        if any(not compare(n, a, values[n], self.tolerance).ok for n, a in got.items()):
            return ""  # it shows only where memory is shared
        if unlike(self.compilation.imported, self.inputs, values, self.tolerance) is not None:
            return ""
        return ALLOWED.format(count=len(found))

    def _cut(self, want: Mapping[str, Array]) -> dict[str, Array]:
        """Prepare the search in a quantised model, whose graphs are cut at rounded results
        (`quanta.cut`): add the reference's values of these to `inputs`. Return what is then wanted,
        by name: `want` and these values. For a program for free sizes nothing is cut; `rounded` is
        emptied."""
        if self.freed is not None:  # its sizes are those of the model's inputs
            self.rounded = {}
        if not self.rounded:
            return dict(want)
        values = self._reference(self.compilation.imported)
        self.inputs |= given(values, self.rounded)
        return {n: values[n] for n in self.rounded} | dict(want)

    def find(self, want: Mapping[str, Array], save: Path | None = None) -> Culprit | None:
        """Return the first pass or node that makes results wrong. `want`: the expected outputs by
        name; `save`: a folder for the files of a replay. None where no pass is wrong, nor any node
        with the graph cut after it."""
        want = self._cut(want)
        placed = cut(self.compilation.place(self.shapes), self.rounded)
        if (culprit := self._pass(placed, want)) is not None:
            return culprit
        values = self._reference(placed)
        built = self.compilation.compile(placed, self.known).built
        self.kernels = {s.name: s.kernel for s in built.placed if s.kind == "native"}
        node = self._first(placed, values)
        if node is None:
            return None
        by = {s.name: s.kernel for s in built.placed}.get(node.name, REFERENCE)
        difference = self._differs(placed, node, values)
        alone = _alone(placed, node)
        feeds = {v.name: values[v.name] for v in alone.inputs}
        own, forced = self._run(alone, feeds, node)
        kind = PLAN
        for v, a in zip(alone.outputs, own, strict=True):
            found = self._compare(v, a, values)
            if not found.ok:
                kind, difference = KERNEL, found
        if kind == PLAN and self._makes_more(placed, node, alone, values):
            kind = INPUTS
        replay = note = ""
        if save is not None:
            try:
                replay = _store(save, self._numbered(alone), feeds)
            except ModelFileError as error:  # what was found is worth more than its files
                note = str(error)
        return Culprit(
            kind, node.name, _op(node), by, str(node.origin), difference,
            replay, self._options(forced) if replay else (), note,
        )  # fmt: skip

    def _options(self, forced: Mapping[str, str]) -> tuple[str, ...]:
        """Return the options with which `tinsmith verify` compiles and compares as this search did.
        `forced`: node -> kernel."""
        options, isa = self.compilation.options, self.compilation.target.isa
        values = {
            "tolerance": self.tolerance,
            "kernels": ",".join(f"{node}={kernel}" for node, kernel in forced.items()),
            "backend": "" if options.backend == Options.backend else options.backend,
            "target": "" if isa == host().isa else isa,
            "threads": "" if options.threads == Options.threads else options.threads,
            "passes": options.passes,
            "precision": "" if options.precision == Options.precision else options.precision,
        }
        flags = [f"--{name}={value}" for name, value in values.items() if value != ""]
        return (*flags, *["--small-memory"] * (options.memory == "small"))

    # ---- passes

    def _pass(self, placed: Graph, want: Mapping[str, Array]) -> Culprit | None:
        """Return the first pass after which references give other outputs than `want` (by name);
        None if the placed graph gives `want`. Runs ever more passes on the imported graph. If none
        of these graphs is wrong, the culprit is named "(all passes together)"."""
        if (found := self._wrong(placed, want)) is None:
            return None
        spec, column = self.compilation.passes, self.compilation.column
        imported = self.compilation.imported
        types = shaped_types(self.compilation.canonical, self.shapes)
        for i, stage in enumerate(COURSE):
            for entry in list_passes(stage, column, spec):
                graph = imported.clone(types)
                stop = f"{spec},stop-after={entry.name}".lstrip(",")
                for before in COURSE[:i]:
                    run_passes(graph, before, column, spec)
                run_passes(graph, stage, column, stop, byte_rate=self.compilation.byte_rate)
                wrong = self._wrong(cut(graph, self.rounded), want)
                if wrong is not None:
                    return Culprit(PASS, entry.name, difference=wrong)
        return Culprit(PASS, "(all passes together)", difference=found)

    def _wrong(self, graph: Graph, want: Mapping[str, Array]) -> Difference | None:
        """Compute a graph's outputs by references: return the first difference from `want`, or
        None."""
        return self._difference(graph, run_graph(self._numbered(graph), self._fed(graph)), want)

    def _fed(self, graph: Graph) -> list[Array]:
        return [self.inputs[v.name] for v in graph.inputs]

    def _compare(self, v: Value, got: Array, want: Mapping[str, Array]) -> Difference:
        return compare(v.name, got, want[v.name], self.tolerance, self.rounded.get(v.name))

    def _numbered(self, graph: Graph) -> Graph:
        return graph if self.freed is None else self.freed.numbered(graph)

    def _difference(
        self, graph: Graph, got: list[Array], want: Mapping[str, Array]
    ) -> Difference | None:
        """The first difference beyond the tolerance of outputs of a graph, `got` in order, from
        `want` by name; None if all agree."""
        for v, a in zip(graph.outputs, got, strict=True):
            found = self._compare(v, a, want)
            if not found.ok:
                return found
        return None

    # ---- nodes

    def _reference(self, graph: Graph) -> dict[str, Array]:
        """Return name -> array for a graph's inputs and the results of its nodes, by references."""
        whole = self._numbered(graph.clone())
        whole.outputs = [v for n in whole.nodes for v in n.outputs]
        names = [v.name for n in graph.nodes for v in n.outputs]
        values = dict(zip(names, run_graph(whole, self._fed(whole)), strict=True))
        return values | {v.name: self.inputs[v.name] for v in graph.inputs}

    def _first(self, placed: Graph, values: Mapping[str, Array]) -> Node | None:
        """Return a node that differs while those it reads from agree; None if none differs. Halves
        the list of nodes, then goes back along inputs. `values`: the reference's, by name."""
        nodes = placed.nodes
        low, high = 0, len(nodes) - 1
        while low < high:
            middle = (low + high) // 2
            if self._differs(placed, nodes[middle], values) is not None:
                high = middle
            else:
                low = middle + 1
        node = nodes[low] if nodes else None
        if node is None or self._differs(placed, node, values) is None:
            # Halving was misled by a branch of the graph that is right: try all nodes in order.
            return next((n for n in nodes if self._differs(placed, n, values) is not None), None)
        while True:
            producers = dict.fromkeys(
                v.producer for v in node.inputs if v is not None and v.producer is not None
            )
            wrong = next((p for p in producers if self._differs(placed, p, values)), None)
            if wrong is None:
                return node
            node = wrong

    def _differs(self, placed: Graph, node: Node, values: Mapping[str, Array]) -> Difference | None:
        """Compute a node's outputs in generated code, with the graph cut after it: return the first
        difference from `values` (by name), or None if they agree."""
        end, got = self._ending(placed, node, {v.name for v in node.outputs})
        return self._difference(end, got, values)

    def _ending(self, placed: Graph, node: Node, names: set[str]) -> tuple[Graph, list[Array]]:
        """Return (end, arrays): a copy of the graph whose outputs are the results `names` of nodes,
        and these as computed by generated code. `node` keeps its kernel."""
        end = placed.clone()
        end.outputs = [v for n in end.nodes for v in n.outputs if v.name in names]
        end.sweep()
        return end, self._run(end, self.inputs, node)[0]

    def _makes_more(
        self, placed: Graph, node: Node, alone: Graph, values: Mapping[str, Array]
    ) -> bool:
        """Whether the node only enlarges rounding of its inputs: its reference, on the inputs that
        generated code computes, agrees with generated code but not with `values`."""
        read = {v.name for v in alone.inputs}
        end, got = self._ending(placed, node, read | {v.name for v in node.outputs})
        seen = dict(values) | {v.name: a for v, a in zip(end.outputs, got, strict=True)}
        own = run_graph(self._numbered(alone), [seen[v.name] for v in alone.inputs])
        made = {v.name: a for v, a in zip(alone.outputs, own, strict=True)}
        agrees = self._difference(alone, [seen[name] for name in made], made) is None
        return agrees and self._difference(alone, own, values) is not None

    def _run(
        self, graph: Graph, inputs: Mapping[str, Array], node: Node | None = None
    ) -> tuple[list[Array], dict[str, str]]:
        """Run a placed graph as generated code, and return (outputs, forced). `node` gets the
        kernel that it has in the whole model, and `forced` is {node name: kernel}, or {} if that
        kernel does not take the node here."""
        wanted = {n: k for n, k in self.kernels.items() if node is not None and n == node.name}

        def compiled(graph: Graph) -> tuple[Program, dict[str, str]]:
            try:
                return self.compilation.compile(graph, self.known, wanted).program, wanted
            except NoKernel:  # it was chosen for a layout that a cut graph does not have
                return self.compilation.compile(graph, self.known).program, {}

        program, forced = compiled(graph)
        if self.freed is not None:
            sized = self.freed.sized(program)
            if sized is None:  # alone it would be made otherwise
                program, forced = compiled(self.freed.numbered(graph))
            else:
                program = sized
        fed = [inputs[v.name] for v in graph.inputs]
        fed = [np.ascontiguousarray(a) if isinstance(a, np.ndarray) and a.ndim else a for a in fed]
        return program.session().run(fed), forced


def _op(node: Node) -> str:
    """Return the operator of a node, or those of a fused one: "Conv+Relu"."""
    if "region" not in node.op.traits:
        return node.op.name
    return "+".join(map(_op, node.attrs["body"].nodes))


def _alone(graph: Graph, node: Node) -> Graph:
    """Return a graph of one node, with the node's name: computed values that it reads become
    inputs, constants stay constants."""
    new = body_of(graph, [node], node.name)[0]
    new.outputs = list(new.nodes[0].outputs)
    return new


def _store(folder: Path, graph: Graph, feeds: Mapping[str, Array]) -> str:
    """Write a replay, graph (.tin) and inputs (.npz), to a folder. Return the path of the graph, ""
    if it cannot be written as text. Raises ModelFileError."""
    from tinsmith.compiler.compile import save

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelFileError(f"{str(folder)!r} cannot be made: {error.strerror}") from error
    stem = "".join(c if c.isalnum() or c in "-_." else "_" for c in graph.name)[:80] or "node"
    file = folder / f"{stem}.tin"
    write_npz(file.with_suffix(".npz"), feeds)
    try:
        save(graph, file)
    except TinsmithError:
        return ""
    return str(file)
