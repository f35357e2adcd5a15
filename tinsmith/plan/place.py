"""Kernel and layout for every node, and the conversions between them.

Greedy in topological order: each node takes the choice of the best tier whose cost, with the
conversions that its operands need, is least. Views, and concat and split where parts can lie in
the whole, cost nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import prod

from tinsmith.codegen.target import Target
from tinsmith.errors import TinsmithError
from tinsmith.graph import Graph, Node, Origin, Type, Value
from tinsmith.kernels._kernel import Choice, Site, Skip, elem
from tinsmith.kernels.counted import with_room
from tinsmith.kernels.layout import PLAIN, Layout, to_layout
from tinsmith.kernels.relayout import RELAYOUT, relayout
from tinsmith.kernels.select import REFERENCE, Candidate, forced
from tinsmith.kernels.trace import make_site
from tinsmith.plan.alike import Alike
from tinsmith.plan.blocks import place_block
from tinsmith.plan.offers import best_of, offer_of, rivals_of
from tinsmith.plan.parts import free_concat, free_split
from tinsmith.plan.pick import Preferences
from tinsmith.plan.placed import Placed
from tinsmith.plan.settle import Settling
from tinsmith.plan.tensors import Tensor
from tinsmith.plan.turns import Turn, place_turns
from tinsmith.progress import tell


class Placer:
    """Places the nodes of one static graph on one target. Use once: `Placer(...).place(graph)`."""

    def __init__(
        self,
        target: Target,
        overrides: Mapping[str, str],
        precision: str,
        threads: int = 1,
        preferences: Preferences | None = None,
        small: bool = False,
    ) -> None:
        self.overrides, self.precision = overrides, precision
        self.preferences, self.small = preferences or {}, small
        self._machine = target
        self.share(threads)
        self.steps: list[Placed] = []
        self.outputs: list[Tensor] = []
        self._home: dict[Value, Tensor] = {}
        self._copies: defaultdict[Value, dict[tuple[tuple[int, ...], int], Tensor]]
        self._copies = defaultdict(dict)
        self._layouts: dict[Value, Layout] = {}
        self.by_channels: set[Value] = set()
        self._alike = Alike()

    def again(self, threads: int) -> Placer:
        """Another one, which has placed nothing, for so many threads."""
        return Placer(
            self._machine, self.overrides, self.precision, threads, self.preferences, self.small
        )

    def place(
        self, graph: Graph, turns: Iterable[Turn], settled: Callable[[Placed], None]
    ) -> list[Placed]:
        """The steps of a graph, in which some runs of nodes compute the batch in turns; `settled`
        is called with each as soon as its layouts are."""
        self.begin(graph)
        results = set(graph.outputs)
        starts = {turn.nodes[0]: turn for turn in turns}
        done: set[Node] = set()
        settling = Settling(self, graph, settled)
        for number, node in enumerate(graph.nodes):
            tell(number, len(graph), "steps")
            if node in done:
                continue
            nodes = [node]
            if node in starts:
                nodes = starts[node].nodes
                place_turns(self, starts[node], results)
                done.update(nodes)
            else:
                self.place_node(node, results)
            settling.after(nodes)
        for i, v in enumerate(graph.outputs):
            self.outputs.append(self._deliver(v, i))
        settling.finish()
        return self.steps

    def share(self, threads: int) -> None:
        """Let so many threads share the nodes that are placed from now on."""
        self.threads = threads
        self.target = self._machine if threads > 1 else replace(self._machine, wait=0.0)

    def begin(self, graph: Graph) -> None:
        """Give the inputs their places."""
        for i, v in enumerate(graph.inputs):
            space = "input" if _is_native(v) else "python"
            self._home[v] = Tensor(v.name, v.dtype, _dims(v), space=space, index=i)

    # ---- nodes

    def _place_view(self, node: Node) -> bool:
        """A node that moves no data where its input lies without gaps."""
        if "view" not in node.op.traits or len(node.outputs) != 1:
            return False
        x, y = node.inputs[0], node.output
        if x is None or x.const is not None or not (_is_native(x) and _is_native(y)):
            return False
        if forced(node.name, node.op.name, self.overrides):
            return False
        home = self._home[x]
        if not home.is_static:
            return False
        if home.block:
            whole = home.dims[1] % home.block == 0 or home.dims[0] == 1
            gapless = whole and prod(home.dims[2:]) == 1
            home = home if gapless and not home.has_halo else self._copy(x, x.dims, PLAIN)
            home.pin()
        self.set(y, Tensor(y.name, y.dtype, y.dims, parent=home, space=home.space))
        self.steps.append(Placed(node.name, node.op.name, "view", "view", str(node.origin), node))
        return True

    def _place_parts(self, node: Node) -> bool:
        """Concat and Split (or Slice) whose parts lie inside the whole."""
        if node.op.name not in ("Concat", "Split", "Slice"):
            return False
        if forced(node.name, node.op.name, self.overrides) or not all(
            v is None or _is_native(v) for v in (*node.inputs, *node.outputs)
        ):
            return False
        parts = free_split(node, self._home) or free_concat(node, self._home)
        if parts is None:
            return False
        for value, tensor in parts.aliases:
            self.set(value, tensor)
        if node.op.name == "Concat":
            self.set(node.output, parts.whole)
        for value, start in parts.pending:
            whole = parts.whole
            dest = Tensor(
                f"{value.name}.part", value.dtype, value.dims, whole.block, parent=whole, part=start
            )
            source = self._read(value, Layout(whole.block), value.dims)
            self.convert(value, source, dest)
        self.steps.append(
            Placed(node.name, node.op.name, "view", "in place", str(node.origin), node)
        )
        return True

    def place_node(self, node: Node, results: set[Value]) -> None:
        """Add the steps of one node; `results` are the values that leave the program."""
        if node.op.name == "Block":
            place_block(self, node, results)
        elif not (self._place_view(node) or self._place_parts(node)):
            self.place_native(node, results)

    def place_native(self, node: Node, results: set[Value]) -> None:
        """Add a step that computes one node by a kernel, or else by its reference."""
        force = forced(node.name, node.op.name, self.overrides)
        room = with_room(node)
        offered = room.node if room else node
        site, found, reason, computed, arrays = offer_of(self, self._alike, offered, force)
        rivals = rivals_of(self, site, found, results) if site is not None else []
        best, measured = best_of(self, site, rivals) if site is not None else (None, None)
        if best is None or best.choice is None or site is None:
            self._place_reference(node, found, reason)
            return
        choice = best.choice
        reads: list[Tensor | None] = []
        for i, (value, layout) in enumerate(zip(site.operands, choice.reads, strict=True)):
            if value is None or layout is None:
                reads.append(None)
                continue
            dims = value.dims
            if i >= len(site.inputs):
                dims = (1,) * (len(site.out.dims) - len(dims)) + dims
            reads.append(self._read(value, layout, dims))
        writes = []
        for value, layout in zip(site.outputs, choice.writes, strict=True):
            tensor = Tensor(value.name, value.dtype, value.dims, layout.block)
            self.set(value, tensor)
            writes.append(tensor)
        if choice.by_channels:
            self.by_channels.update(site.outputs)
        self.steps.append(
            Placed(
                node.name,
                node.op.name,
                "native",
                best.kernel,
                str(node.origin),
                node,
                site,
                choice,
                reads,
                writes,
                found,
                rivals=rivals,
                measured=measured,
                computed=computed,
                counted=room is not None,
                stated=room.stated if room else -1,
                arrays=arrays,
            )
        )
        for value, tensor in zip(node.outputs, writes, strict=False) if room else ():
            self._take(value, tensor)

    def _take(self, value: Value, room: Tensor) -> None:
        """Where what was counted is: at the beginning of `room`, to be copied from there if the
        model states how much it is."""
        if not value.type.is_static:
            self.set(value, Tensor(value.name, value.dtype, (), space="python"))
            return
        tensor = Tensor(value.name, value.dtype, value.dims)
        self.convert(value, Tensor(room.name, value.dtype, value.dims, parent=room), tensor)
        self.set(value, tensor)

    def site(self, node: Node) -> Site:
        """What kernels see of a node. Raises Skip where it is not static and native."""
        self.check(node)
        site = make_site(node, self.target, self.precision)
        site.layouts, site.threads = self._layouts, self.threads
        site.by_channels = self.by_channels
        return site

    def check(self, node: Node) -> None:
        """Raise Skip where a node is not static and native."""
        for v in (*node.inputs, *node.outputs):
            if v is None:
                continue
            if not v.type.is_static:
                raise Skip(
                    f"the shape of {v.name} ({v.type}) is known only when it has been computed"
                )
            if v.const is None and v in self._home and not self._home[v].is_static:
                raise Skip(f"{v.name} is computed by the reference with a shape known only then")
            elem(v)
            if v.type.size == 0:
                raise Skip(f"{v.name} is empty")

    def total(self, site: Site, choice: Choice, results: set[Value]) -> float:
        """The choice's cost with the conversions that it would need."""
        total = choice.cost
        for value, layout in zip(site.operands, choice.reads, strict=True):
            if value is None or layout is None or value.const is not None:
                continue
            home = self._home[value]
            if not home.covers(layout) and (value.dims, layout.block) not in self._copies[value]:
                total += self._conversion_cost(value)
        for value, layout in zip(site.outputs, choice.writes, strict=True):
            if value in results and layout.block:
                total += self._conversion_cost(value)
        return total

    def _conversion_cost(self, value: Value) -> float:
        return 0.5e-6 + 1.3 * self.target.time(0, 2 * value.type.nbytes)

    def _place_reference(self, node: Node, found: list[Candidate], reason: str) -> None:
        reads: list[Tensor | None] = []
        for v in node.inputs:
            if v is None:
                reads.append(None)
            elif v.const is not None and not _is_native(v):
                reads.append(Tensor(v.name, v.dtype, _dims(v), space="python", array=v.const))
            else:
                reads.append(self._read(v, PLAIN, _dims(v)))
        writes = []
        for v in node.outputs:
            native = _is_native(v) and v.type.size > 0
            tensor = Tensor(v.name, v.dtype, _dims(v), space="arena" if native else "python")
            self.set(v, tensor)
            writes.append(tensor)
        if not reason:
            reason = (
                "; ".join(f"{c.kernel}: {c.reason}" for c in found if c.reason)
                or "no kernel is registered"
            )
        self.steps.append(
            Placed(node.name, node.op.name, "reference", REFERENCE, str(node.origin), node,
                   reads=reads, writes=writes, candidates=found, reason=reason)
        )  # fmt: skip

    # ---- values

    def layout(self, value: Value | None) -> Layout:
        """The layout in which a value lies now."""
        return self._layouts.get(value, PLAIN) if value is not None else PLAIN

    def rename(self, names: Mapping[Value, Value | None]) -> None:
        """Let each key lie where its value lies."""
        for new, old in names.items():
            if old in self._home:
                self._home[new] = self._home[old]
                self._layouts[new] = self.layout(old)
            if old in self._copies:
                self._copies[new] |= self._copies[old]

    def home(self, value: Value) -> Tensor:
        """Where a value has been put."""
        return self._home[value]

    def tensors(self, value: Value) -> list[Tensor]:
        """Where a value has been put, and its copies in other layouts."""
        return [self._home[value], *self._copies[value].values()]

    def set(self, value: Value, tensor: Tensor) -> None:
        """Put a value."""
        self._home[value] = tensor
        self._layouts[value] = Layout(tensor.block)

    def _read(self, value: Value, layout: Layout, dims: tuple[int, ...]) -> Tensor:
        """The tensor from which a step reads a value in a layout; adds a conversion if need be."""
        if value.const is not None:
            key = (dims, layout.block)
            found = self._copies[value].get(key)
            if found is None or not Layout(found.block, found.halo).covers(layout):
                array = to_layout(value.const.reshape(dims), layout)
                found = Tensor(
                    value.name, value.dtype, dims, layout.block, "weights", array=array,
                    halo=layout.halo,
                )  # fmt: skip
                self._copies[value][key] = found
            return found
        home = self._home[value]
        if not home.is_static:
            return home
        if home.covers(layout) and (home.dims == dims or not layout.block):
            home.widen(layout)
            if home.dims == dims:
                return home
            return Tensor(home.name, home.dtype, dims, parent=home, space=home.space)
        return self._copy(value, dims, layout)

    def _copy(self, value: Value, dims: tuple[int, ...], layout: Layout) -> Tensor:
        """A conversion of a value, shared by all readers of the same block."""
        key = (dims, layout.block)
        copy = self._copies[value].get(key)
        if copy is None or not copy.covers(layout):
            copy = Tensor(f"{value.name}.{Layout(layout.block)}", value.dtype, dims, layout.block)
            source = self._home[value]
            if source.dims != dims:
                if source.block:
                    source = self._copy(value, value.dims, PLAIN)
                source = Tensor(source.name, source.dtype, dims, parent=source, space=source.space)
            self.convert(value, source, copy)
            self._copies[value][key] = copy
        copy.widen(layout)
        return copy

    def convert(self, value: Value, source: Tensor, dest: Tensor) -> None:
        """Add a step that copies `source` into `dest`, which has the same dims."""
        shaped = Value(value.graph, Type(value.dtype, dest.dims), dest.name)
        node = Node(value.graph, RELAYOUT, (shaped,), {}, dest.name, Origin(name=dest.name), 0.0)
        site = Site(node, node, (shaped,), (), (shaped,), None, self.target)
        choice = relayout(site, Layout(source.block), Layout(dest.block))
        self.steps.append(
            Placed(dest.name, "Relayout", "native", "relayout", "", None, site, choice,
                   [source], [dest])
        )  # fmt: skip

    def _deliver(self, value: Value, index: int) -> Tensor:
        """Where output `index` is: written there directly where its producer can."""
        if value.const is not None and not _is_native(value):
            return Tensor(value.name, value.dtype, _dims(value), space="python", array=value.const)
        home = self._home.get(value)
        if home is not None and not home.is_static:
            return home
        if home is not None and not home.block:
            whole = home
            while whole.parent is not None and whole.part is None:
                whole = whole.parent
            if whole.parent is None and whole.space == "arena" and not whole.block:
                whole.space, whole.index = "output", index
                return home
        result = Tensor(value.name, value.dtype, value.dims, space="output", index=index)
        source = self._read(value, PLAIN, value.dims) if home is None else home
        self.convert(value, source, result)
        return result


def _is_native(value: Value) -> bool:
    """Whether a value can lie in the arena: static, not empty, of a plain dtype."""
    if not value.type.is_static or value.type.size == 0:
        return False
    try:
        elem(value)
    except TinsmithError:
        return False
    return True


def _dims(value: Value) -> tuple[int, ...]:
    return value.dims if value.type.is_static else ()
