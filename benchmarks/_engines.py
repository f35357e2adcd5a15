"""How each engine is loaded and called. Run by the engine's own Python, with numpy at hand.

An engine is a function `(files, threads) -> (call, version)`, where `call(inputs)` takes the
model's inputs by name and returns its outputs in order, all of them numpy arrays in plain layout.
MNN is given models of one input and one output only, ncnn such ones, or its own files
(FILES.param, FILES.bin). All compute in float32, but for those that are named after bfloat16. Ours
takes options of `tinsmith.compile`, too.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._arrays import beside

Call = Callable[[dict[str, Any]], list[Any]]


class Unsupported(Exception):
    """The engine, or its converter, cannot take the model."""


def _tinsmith(base: Path, threads: int, **options: Any) -> tuple[Call, str]:
    import tinsmith

    own = beside(base, ".param")
    path = own if own.exists() else beside(base, ".onnx")
    net = tinsmith.compile(str(path), threads=threads, **options)

    def call(inputs: dict[str, Any]) -> list[Any]:
        if own.exists():
            return net.run(list(inputs.values()))
        found = net(**inputs)
        return list(found.values()) if isinstance(found, dict) else [found]

    return call, str(getattr(tinsmith, "__version__", "?"))


def _tinsmith_float(base: Path, threads: int, **options: Any) -> tuple[Call, str]:
    """The float model that a quantised one, BASE.KIND, was made of."""
    return _tinsmith(base.with_name(base.name.split(".")[0]), threads, **options)


def _onnxruntime(base: Path, threads: int) -> tuple[Call, str]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = ort.InferenceSession(
        str(beside(base, ".onnx")), options, providers=["CPUExecutionProvider"]
    )
    return lambda inputs: session.run(None, inputs), ort.__version__


def _openvino(base: Path, threads: int, precision: str = "f32") -> tuple[Call, str]:
    import openvino as ov

    settings: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,
    }
    model = ov.Core().compile_model(str(beside(base, ".onnx")), "CPU", settings)
    request = model.create_infer_request()

    def call(inputs: dict[str, Any]) -> list[Any]:
        request.infer(inputs, share_inputs=True)
        return [tensor.data for tensor in request.output_tensors]

    return call, ov.__version__.split("-")[0]


def _ncnn(base: Path, threads: int) -> tuple[Call, str]:
    import ncnn
    import numpy as np

    from benchmarks._convert import to_ncnn

    own = beside(base, ".param")
    param, weights = (own, beside(base, ".bin")) if own.exists() else to_ncnn(base)
    net = ncnn.Net()
    net.opt.num_threads = threads
    for name in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
        setattr(net.opt, f"use_{name}", False)
    if net.load_param(str(param)) or net.load_model(str(weights)):
        raise Unsupported(f"ncnn cannot load {param}")
    names = (
        (list(net.input_names()), list(net.output_names())) if own.exists() else (["in0"], ["out0"])
    )

    def call(inputs: dict[str, Any]) -> list[Any]:
        with net.create_extractor() as run:
            for name, x in zip(names[0], inputs.values(), strict=True):
                run.input(name, ncnn.Mat(x[0]))
            found: list[Any] = []
            for name in names[1]:
                status, out = run.extract(name)
                if status:
                    raise Unsupported(f"ncnn stops with status {status}")
                found.append(np.zeros(0) if out.empty() else np.array(out)[None])
            return found

    return call, ncnn.__version__


def _mnn(base: Path, threads: int) -> tuple[Call, str]:
    import MNN

    from benchmarks._convert import to_mnn

    expr, nn = importlib.import_module("MNN.expr"), importlib.import_module("MNN.nn")
    config = {"backend": "CPU", "numThread": threads, "precision": "high"}
    manager = nn.create_runtime_manager((config,))
    net = nn.load_module_from_file(str(to_mnn(base)), ["x"], ["y"], runtime_manager=manager)

    def call(inputs: dict[str, Any]) -> list[Any]:
        x = inputs["x"]
        fed = expr.const(x, list(x.shape), expr.NCHW, expr.float)
        out = net.forward([fed])[0]
        # Read without this, a blocked (NC4HW4) output comes with its padding.
        return [expr.convert(out, expr.NCHW).read()]

    return call, MNN.version()


ENGINES: dict[str, tuple[str, Callable[..., tuple[Call, str]]]] = {
    "tinsmith": ("tinsmith", _tinsmith),
    "tinsmith float32": ("tinsmith", _tinsmith_float),
    "tinsmith bfloat16": ("tinsmith", partial(_tinsmith, precision="bfloat16")),
    "ncnn": ("ncnn", _ncnn),
    "mnn": ("MNN", _mnn),
    "onnxruntime": ("onnxruntime", _onnxruntime),
    "openvino": ("openvino", _openvino),
    "openvino bfloat16": ("openvino", partial(_openvino, precision="bf16")),
}
"""Name -> (module to import, loader)."""
