"""A whole PNNX model -> Graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinsmith.errors import OptionError
from tinsmith.formats.pnnx import Operator, PnnxModel, Tensor
from tinsmith.frontends import nodes
from tinsmith.frontends.importing import Broken, Import, Importer
from tinsmith.frontends.nodes import SourceNode
from tinsmith.frontends.pnnx import complex, quantised
from tinsmith.frontends.pnnx.node import IMPORTERS, Complex, Grid, PnnxNode
from tinsmith.graph import Graph, Type, Value, dtype_of

TUPLES = ("prim::TupleConstruct", "prim::ListConstruct")
BATCH = "N"
"""The symbol of a batch that is free."""


class Scope(nodes.Scope):
    """The operands of a PNNX model by name: Values, and numbers, lists and Complex, which exist
    only while the model is imported. `seed` is that of random weights (None: the file's); `free`:
    the batch, the first axis of inputs, is free."""

    def __init__(
        self, shared: Import, graph: Graph, model: PnnxModel, seed: int | None, free: bool
    ):
        super().__init__(shared, graph)
        self.model, self.seed, self.free = model, seed, free
        self.counted = set[str]()
        """Operands whose number of elements depends on data (NonZero, ...)."""
        self.grids: dict[str, Grid] = {}
        """Operands that are quantised tensors, and their scales and zero points."""

    def _imported(self, node: PnnxNode) -> Any:
        grids = [self.grids[name] for name in node.input_names if name in self.grids]
        node.quantised, node.grid = bool(grids), grids[0] if grids else None
        results = quantised.placed(node, super()._imported(node))
        counted = node.counted or self.counted & {*node.input_names}
        if counted:
            self.counted.update(node.outputs)
        if node.grid:
            self.grids.update(dict.fromkeys(node.outputs, node.grid))
        if counted or node.grid:
            for name in node.outputs:
                self.declared.pop(name, None)
        return results

    def importer_of(self, node: SourceNode) -> Importer | None:
        function = super().importer_of(node)
        if any(isinstance(v, Complex) for v in node.inputs):
            return complex.importer_of(node.type, function)
        return function

    def output(self, name: str) -> Value | Broken:
        value = self.look_up(name)
        node = PnnxNode(self, Operator("pnnx.Output", name, [], [name]))
        if isinstance(value, Complex):
            self.shared.note(
                f"{name!r} is of complex numbers: an axis of two behind the others has their parts"
            )
            self.env[name] = value = complex.joined(node, value)
        elif isinstance(value, Value) and (grid := self.grids.get(name)):
            self.shared.note(f"{name!r} is quantised: its whole numbers are given")
            value.name = f"{name}/real"
            self.env[name] = whole = quantised.whole(node, value, grid)
            whole.name = name
        elif not isinstance(value, Value | Broken | None):
            self.env[name] = self.shared.attempt(node, lambda node: node.tensor(value))
        return super().output(name)


def import_model(
    model: PnnxModel, *, random_weights: int | None = None, batch: str | None = None,
    input_shapes: Mapping[str, Any] | None = None,
) -> Graph:  # fmt: skip
    """The graph of a model that pnnx has traced. The options are those of `frontends.load`: a seed
    of random weights; batch="free" makes the first axis of all inputs the symbol N; shapes of
    inputs by name. Raises OptionError, and ImportFailed with all problems."""
    if batch not in (None, "free"):
        raise OptionError(
            f'batch can be "free" for PNNX, not {batch!r}: the first axis is then {BATCH!r}, '
            f"and its size that of the arrays (--dim {BATCH}=SIZE for a command)"
        )
    name = model.file.removesuffix(".param").removesuffix(".pnnx")
    graph = Graph(name or "model", model.file)
    graph.meta["format"] = "pnnx"
    shared = Import(IMPORTERS, model.file, model.files, input_shapes)
    scope = Scope(shared, graph, model, random_weights, batch == "free")
    inputs = [op for op in model.operators if op.type == "pnnx.Input"]
    others = [op for op in model.operators if op.type not in ("pnnx.Input", "pnnx.Output")]
    for op in inputs:
        for operand in op.outputs:
            type = shared.typed(operand, _input_type(scope, op, operand))
            value = scope.add_input(operand, type)
            if operand in op.tensors and op.tensors[operand].dtype.startswith("complex"):
                node = PnnxNode(scope, Operator(op.type, op.name, [], [operand]))
                scope.env[operand] = complex.parted(node, value)
    results = _results(model.operators, {o: op for op in others for o in op.outputs})
    if not scope.free:
        for op in others:
            for o in op.outputs:
                if (said := op.tensors.get(o)) and said.shape and _plain(said.dtype):
                    scope.declared[o] = _type(o, said)
    wanted = [op for op in others if op.type not in TUPLES or set(op.outputs) & _read(others)]
    scope.run(wanted, lambda op: PnnxNode(scope, op), results)
    scope.set_outputs(results)
    return shared.finish(graph)


def _read(operators: list[Operator]) -> set[str]:
    return {name for op in operators for name in op.inputs}


def _plain(dtype: str) -> bool:
    return bool(dtype) and not dtype.startswith("complex")


def _results(operators: list[Operator], producer: dict[str, Operator]) -> list[str]:
    """The names of the operands that the model returns, in order; tuples are replaced by their
    elements. `producer`: operand -> the operator that computes it."""
    found: list[str] = []
    waiting = [o for op in reversed(operators) if op.type == "pnnx.Output" for o in op.inputs[::-1]]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        op = producer.get(name)
        if op is None or op.type not in TUPLES or name in seen:
            found.append(name)
        else:
            seen.add(name)
            waiting += op.inputs[::-1]
    return found


def _input_type(scope: Scope, op: Operator, operand: str) -> Type:
    said = op.tensors.get(operand)
    if said is not None and said.dtype.startswith("complex"):
        said = Tensor("float32", (*said.shape, 2))
    if said is None or not _plain(said.dtype):
        scope.shared.fail(op.type, op.name, f"nothing says what type {operand!r} has")
        return Type("float32", None)  # type: ignore[arg-type]
    type = _type(operand, said)
    if scope.free and type.shape:
        return Type(type.dtype, (BATCH, *type.shape[1:]))
    return type


def _type(operand: str, said: Tensor) -> Type:
    """The Type of an operand by `said`, what the file says of it; unknown dims become symbols."""
    dims: list[Any] = [f"d{operand}_{i}" if d is None else d for i, d in enumerate(said.shape)]
    return Type(dtype_of(said.dtype), tuple(dims))
