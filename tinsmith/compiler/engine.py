"""ONNX Runtime as the engine that `verify` compares with: runs a file there, and finds the first
node that it computes otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tinsmith.compiler.bisect import MODEL, Culprit
from tinsmith.compiler.quanta import rounded, unlike
from tinsmith.errors import EngineFailed, MissingPackage, ModelFileError
from tinsmith.graph import Array, Graph

EXACT_SUMS = " with exact sums of bytes, as on machines with VNNI"
"""Says of results that `computed` made them with `exact_sums`."""


def _session(model: Any, extra: Sequence[str], exact_sums: bool) -> Any:
    """Open an ONNX model (path, bytes, ModelProto) in ONNX Runtime, with the values `extra` as
    additional outputs; with `exact_sums` so that sums of bytes do not saturate. Raises
    MissingPackage without ONNX Runtime, ModelFileError if `model` is none of these, EngineFailed
    if it cannot be opened."""
    try:
        import onnxruntime as ort  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingPackage(
            "comparing with ONNX Runtime needs it: python -m pip install onnxruntime"
        ) from error
    source: Any = model
    if isinstance(model, str | os.PathLike) and Path(model).is_file():
        source = os.fspath(model)
    elif hasattr(source, "SerializeToString"):
        source = source.SerializeToString()
    elif not isinstance(model, bytes):
        raise ModelFileError("comparing with ONNX Runtime needs an .onnx file, or its bytes")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    with _named("open"):
        if extra:
            import onnx

            proto = _proto(source)
            proto.graph.output.extend(onnx.ValueInfoProto(name=n) for n in extra)
            source = proto.SerializeToString()
        if exact_sums:  # else products of uint8 by int8 saturate on machines without VNNI
            ops = {n.op_type for n in _proto(model, load_external_data=False).graph.node}
            if any("Integer" in op or "QLinear" in op or "DynamicQuantize" in op for op in ops):
                options.add_session_config_entry("session.x64quantprecision", "1")
            else:  # of floats between DequantizeLinear and QuantizeLinear
                options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Let errors of ONNX Runtime be EngineFailed, which says `what` ("open", "run") it cannot."""
    try:
        yield
    except Exception as error:  # its classes share no other base
        import onnxruntime as ort  # pyright: ignore[reportMissingImports]

        raise EngineFailed(
            f"ONNX Runtime {ort.__version__} cannot {what} the model: {str(error).strip()}; "
            "compare with our references instead, which is the default"
        ) from error


def _proto(source: Any, **options: Any) -> Any:
    import onnx

    if isinstance(source, onnx.ModelProto):
        return source
    if isinstance(source, bytes):
        return onnx.load_from_string(source)
    return onnx.load(os.fspath(source), **options)


def computed(
    model: Any, arrays: Mapping[str, Array], names: list[str], exact_sums: bool,
    extra: Sequence[str] = (),
) -> dict[str, Array]:  # fmt: skip
    """Return name -> array of the values `names` as ONNX Runtime computes them from `arrays` (by
    name; those that are no inputs are left out). `extra`: those of `names` that are no outputs of
    the file. `model` and `exact_sums` are as in `_session`. Raises what that does."""
    session = _session(model, extra, exact_sums)
    wanted = {i.name for i in session.get_inputs()}
    with _named("run"):
        results = session.run(names, {n: a for n, a in arrays.items() if n in wanted})
    return dict(zip(names, results, strict=True))


def first_unlike(
    model: Any, graph: Graph, arrays: Mapping[str, Array], tolerance: float
) -> Culprit | None:
    """Return the first node whose result in ONNX Runtime is not what references make of the model's
    inputs `arrays`, and of ONNX Runtime's own rounded values; None if there is none, or if ONNX
    Runtime does not give these results. Values are compared that have one name in the file and in
    `graph`, its import."""
    proto = _proto(model, load_external_data=False)
    outputs = {o.name for o in proto.graph.output}
    known = {n for node in proto.graph.node for n in node.output}
    made = [n for n in graph.nodes if any(v is not None and v.const is None for v in n.inputs)]
    nodes = {v.name: n for n in made for v in n.outputs if v.name in known}
    quantised = bool(rounded(graph))
    if not quantised:  # what is known to differ
        nodes = {name: n for name, n in nodes.items() if name not in outputs}
    if not nodes:
        return None
    extra = [n for n in nodes if n not in outputs]
    try:
        values = computed(model, arrays, [*nodes], quantised, extra)
    except EngineFailed:
        return None
    found = unlike(graph, {v.name: arrays[v.name] for v in graph.inputs}, values, tolerance)
    if found is None:
        return None
    node = nodes[found.name]
    return Culprit(MODEL, node.name, node.op.name, origin=str(node.origin), difference=found)
