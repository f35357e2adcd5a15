"""The state of a placement: where values lie so far, in which layouts, and the steps added so far.

`place` decides, and records its decisions here; its helpers read them from here.

Nodes whose results follow from free sizes alone are computed once for each set of sizes, but mostly
not those with kernels (`once_nodes`): calls with new sizes then cost no more than others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

from tinsmith.codegen.target import Target
from tinsmith.graph import Graph, Node, Origin, Type, Value
from tinsmith.graph.types import name_of
from tinsmith.kernels._kernel import Choice, Site, Skip, elem, kernels_for
from tinsmith.kernels.layout import PLAIN, Layout, to_layout
from tinsmith.kernels.relayout import RELAYOUT, relayout
from tinsmith.kernels.trace import make_site
from tinsmith.ops.cast import NIBBLES
from tinsmith.plan.equivalence import Answers
from tinsmith.plan.gate import Gate, is_native
from tinsmith.plan.options import PlanOptions
from tinsmith.plan.placed import Placed
from tinsmith.plan.tensors import Tensor
from tinsmith.sizes import as_numbers, has_sizes, same

READS_SIZES = frozenset({"Range"})
"""Operators whose kernels take sizes for numbers that they read."""


def once_nodes(graph: Graph, is_native: Callable[[Value], bool]) -> set[Node]:
    """The nodes of a graph that are computed by their references, once for each set of free sizes
    instead of in each run. They read only free sizes, constants and each other's results. One that
    a kernel can compute is among them only if another of them reads its result. `is_native`
    tells whether a value can lie in memory."""
    made: set[Value] = set()
    found: list[Node] = []
    for node in graph.nodes:
        if _depends_on_sizes(node, made) and all(map(is_native, node.outputs)):
            made.update(node.outputs)
            found.append(node)
    once: set[Node] = set()
    for node in reversed(found):
        readers = {use for v in node.outputs for use in v.uses}
        if not _has_kernel(node) or readers & once:
            once.add(node)
    return once


def _depends_on_sizes(node: Node, made: set[Value]) -> bool:
    """Whether a node's result follows from free sizes alone: at least one input is a constant with
    sizes or a value of `made` (values that such nodes make), and all others are constants. False
    for nodes that are impure, check or control."""
    if node.op.traits & {"impure", "check", "control"}:
        return False
    values = [v for v in node.inputs if v is not None]
    sized = [v in made or _is_sized(v) for v in values]
    return any(sized) and all(s or v.const is not None for s, v in zip(sized, values, strict=True))


def _is_sized(value: Value) -> bool:
    return value.const is not None and has_sizes(value.const)


def _has_kernel(node: Node) -> bool:
    """Whether generated code may compute the node: if it reads constants with sizes, only one of
    READS_SIZES, or a view of a value without sizes; any other, if it is a view, a move or
    elementwise, or a kernel is registered for its operator."""
    name, traits = node.op.name, node.op.traits
    if any(v is not None and _is_sized(v) for v in node.inputs):
        return name in READS_SIZES or (
            "view" in traits and node.inputs[0] is not None and not _is_sized(node.inputs[0])
        )
    return bool(traits & {"view", "move", "elementwise"}) or bool(kernels_for(name))


class Placement:
    """The placement of one static graph on one target, while it is being made. Used once.

    homes        the tensor in which each value was first put
    by_channels  values of which threads shared the channels when they computed them
    answers      what kernels answered, by equivalence class
    gate         tells whether the sizes of a node are proven
    """

    def __init__(self, target: Target, options: PlanOptions, gate: Gate | None = None) -> None:
        self.options, self.gate = options, gate or Gate()
        self.overrides, self.precision = options.overrides or {}, options.precision
        self.preferences, self.small = options.preferences or {}, options.small
        self._machine = target
        self.share(options.threads)
        self.steps: list[Placed] = []
        self.outputs: list[Tensor] = []
        self.homes: dict[Value, Tensor] = {}
        self._copies: defaultdict[Value, dict[tuple[tuple[int, ...], int], Tensor]]
        self._copies = defaultdict(dict)
        self._layouts: dict[Value, Layout] = {}
        self.by_channels: set[Value] = set()
        self.answers = Answers()
        self.once: set[Value] = set()
        """Values that are computed once for each set of sizes, by `once_nodes`."""
        self.once_nodes: set[Node] = set()

    def again(self, threads: int) -> Placement:
        """An empty placement with the same options, for another number of threads."""
        return Placement(self._machine, replace(self.options, threads=threads), self.gate)

    def share(self, threads: int) -> None:
        """From now on, plan nodes for so many threads: sets `threads` and `target`."""
        self.threads = threads
        self.target = self._machine if threads > 1 else replace(self._machine, wait=0.0)

    def begin(self, graph: Graph) -> None:
        """Give the graph's inputs their tensors, and find the nodes that are computed once. Called
        first."""
        self.once_nodes = once_nodes(graph, is_native)
        for i, v in enumerate(graph.inputs):
            space = "input" if is_native(v) else "python"
            self.homes[v] = Tensor(v.name, v.dtype, dims_of(v), space=space, index=i)

    def site(self, node: Node) -> Site:
        """What kernels see of a node, with layouts and threads as they are now. Raises Skip and
        CodegenError as `check` does."""
        self.check(node)
        site = make_site(node, self.target, self.precision)
        site.layouts, site.threads = self._layouts, self.threads
        site.by_channels = self.by_channels
        return site

    def check(self, node: Node) -> None:
        """Raise Skip unless a kernel can compute a node: all its sizes are known before the run,
        and no tensor is empty (inputs of nodes that only move elements may be empty in some calls,
        where their sizes are free). Raises CodegenError for an element type that is not native."""
        moves = "move" in node.op.traits
        for v in (*node.inputs, *node.outputs):
            if v is None:
                continue
            if not v.type.is_static:
                raise Skip(
                    f"the shape of {v.name} ({v.type}) is known only when it has been computed"
                )
            if v.const is None and v in self.homes and not self.homes[v].is_static:
                raise Skip(f"{v.name} is computed by the reference with a shape known only then")
            if v.const is None or name_of(v.dtype) not in NIBBLES:  # these are packed
                elem(v)
            size = v.type.size
            if same(size, 0) if moves and v in node.inputs else size == 0:
                raise Skip(f"{v.name} is empty")

    def total(self, site: Site, choice: Choice, results: set[Value]) -> float:
        """Estimated seconds of a choice, with those of the conversions of layouts that it needs:
        of operands that do not lie as it reads them, and of blocked outputs that are in `results`,
        the values that leave the program. Conversions that exist already cost nothing."""
        total = choice.cost
        for value, layout in zip(site.operands, choice.reads, strict=True):
            if value is None or layout is None or value.const is not None:
                continue
            home = self.homes[value]
            if not home.covers(layout) and (value.dims, layout.block) not in self._copies[value]:
                total += self._conversion_cost(value)
        for value, layout in zip(site.outputs, choice.writes, strict=True):
            if value in results and layout.block:
                total += self._conversion_cost(value)
        return total

    def _conversion_cost(self, value: Value) -> float:
        return 0.5e-6 + 1.3 * self.target.time(0, 2 * value.type.nbytes)

    # ---- values

    def layout(self, value: Value | None) -> Layout:
        """The layout in which a value was first put, without halo; plain where nothing is known."""
        return self._layouts.get(value, PLAIN) if value is not None else PLAIN

    def rename(self, names: Mapping[Value, Value | None]) -> None:
        """For each (new, old) of `names`: let the value `new` lie where `old` lies, its copies in
        other layouts included. Nothing is done for None, and for an `old` that has no tensor."""
        for new, old in names.items():
            if old in self.homes:
                self.homes[new] = self.homes[old]
                self._layouts[new] = self.layout(old)
            if old in self._copies:
                self._copies[new] |= self._copies[old]

    def tensors(self, value: Value) -> list[Tensor]:
        """The tensor in which a value was first put, and its copies in other layouts."""
        return [self.homes[value], *self._copies[value].values()]

    def set(self, value: Value, tensor: Tensor) -> None:
        """Make `tensor` the home of a value: the tensor in which it is first put."""
        self.homes[value] = tensor
        self._layouts[value] = Layout(tensor.block)

    def read(self, value: Value, layout: Layout, dims: tuple[int, ...]) -> Tensor:
        """The tensor from which a step reads a value in `layout`, with the shape `dims`: the
        value's own, its halo widened if need be; another shape of the same memory; or a copy, made
        by a conversion that is added (`copy`). A constant becomes an array in that layout. A tensor
        in Python, as a reference may give, is returned as it is."""
        if value.const is not None:
            key = (dims, layout.block)
            found = self._copies[value].get(key)
            if found is None or not Layout(found.block, found.halo).covers(layout):
                array = to_layout(as_numbers(value.const, value.dtype).reshape(dims), layout)
                found = Tensor(
                    value.name, value.dtype, dims, layout.block, "weights", array=array,
                    halo=layout.halo,
                )  # fmt: skip
                self._copies[value][key] = found
            return found
        home = self.homes[value]
        if not home.is_static:
            return home
        if home.covers(layout) and (home.dims == dims or not layout.block):
            home.widen(layout)
            if home.dims == dims:
                return home
            return Tensor(home.name, home.dtype, dims, parent=home, space=home.space)
        return self.copy(value, dims, layout)

    def copy(self, value: Value, dims: tuple[int, ...], layout: Layout) -> Tensor:
        """A copy of a value in `layout`, under `dims`, which all readers that want the same dims
        and block share. The first call adds the conversion; later ones may widen its halo."""
        key = (dims, layout.block)
        copy = self._copies[value].get(key)
        if copy is None or not copy.covers(layout):
            copy = Tensor(f"{value.name}.{Layout(layout.block)}", value.dtype, dims, layout.block)
            source = self.homes[value]
            if source.dims != dims:
                if source.block:
                    source = self.copy(value, value.dims, PLAIN)
                source = Tensor(source.name, source.dtype, dims, parent=source, space=source.space)
            self.convert(value, source, copy)
            self._copies[value][key] = copy
        copy.widen(layout)
        return copy

    def convert(self, value: Value, source: Tensor, dest: Tensor) -> None:
        """Add a step that copies `source`, where `value` lies, to `dest`, which has the same dims
        and perhaps another layout."""
        shaped = Value(value.graph, Type(value.dtype, dest.dims), dest.name)
        node = Node(value.graph, RELAYOUT, (shaped,), {}, dest.name, Origin(name=dest.name), 0.0)
        site = Site(node, node, (shaped,), (), (shaped,), None, self.target)
        choice = relayout(site, Layout(source.block), Layout(dest.block))
        self.steps.append(
            Placed(dest.name, "Relayout", "native", "relayout", "", None, site, choice,
                   [source], [dest])
        )  # fmt: skip

    def deliver(self, value: Value, index: int) -> Tensor:
        """The tensor of the program's output number `index`, which is `value`. If the value lies
        plain in a tensor of its own, that becomes the output, so that the producer writes it;
        else a conversion is added that copies it there. An array in Python (`Tensor.space`) if a
        reference gives the value so, or if it is a constant that is not native."""
        if value.const is not None and not is_native(value):
            return Tensor(
                value.name,
                value.dtype,
                dims_of(value),
                space="python",
                array=as_numbers(value.const, value.dtype),
            )
        home = self.homes.get(value)
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
        source = self.read(value, PLAIN, value.dims) if home is None else home
        self.convert(value, source, result)
        return result


def dims_of(value: Value) -> tuple[int, ...]:
    return value.dims if value.type.is_static else ()
