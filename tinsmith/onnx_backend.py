"""Tinsmith behind ONNX's own backend interface, which its conformance suite drives.

    import onnx.backend.test, tinsmith.onnx_backend
    onnx.backend.test.BackendTest(tinsmith.onnx_backend, __name__)

`prepare` takes every option of `tinsmith.compile` as a keyword; `backend="numpy"` runs the
reference of every operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, defs, helper, numpy_helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from tinsmith.compiler.compile import compile as compile_model
from tinsmith.compiler.compile import load
from tinsmith.errors import InputNameError, TargetError, TinsmithError
from tinsmith.runtime.net import Net

__all__ = [
    "TinsmithBackend", "TinsmithRep", "is_compatible", "prepare", "run", "run_model", "run_node",
    "supports_device",
]  # fmt: skip

DEVICE = "CPU"


class TinsmithRep(BackendRep):
    """A compiled model. `run` may be called from several threads."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self._result = namedtupledict("Outputs", net.output_names)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the outputs as a named tuple. `inputs` is a list of arrays in order, a dict by
        name, or a single array. Raises InputError if they do not fit the model, or for `kwargs`."""
        if kwargs:
            raise InputNameError(
                f"a prepared model runs without options, not with {', '.join(sorted(kwargs))}; "
                "give them to prepare"
            )
        if isinstance(inputs, Mapping):
            given: Any = {k: _array(a) for k, a in inputs.items()}
        else:
            given = [_array(a) for a in _listed(inputs)]
        return self._result(*self.net.run(given))


class TinsmithBackend(Backend):
    """ONNX's backend interface, for `onnx.backend.test.BackendTest`; the one device is "CPU"."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = DEVICE, **kwargs: Any) -> bool:
        """Whether the model can be imported and the device exists."""
        if not cls.supports_device(device):
            return False
        try:
            load(model)
        except TinsmithError:
            return False
        return True

    @classmethod
    def prepare(cls, model: ModelProto, device: str = DEVICE, **kwargs: Any) -> TinsmithRep:
        """Compile a model; `kwargs` are options of `tinsmith.compile`; `precision` is "strict" by
        default, since users compare results with a reference.

        Raises ImportFailed for a model that is not understood, TargetError for another device.
        """
        if not cls.supports_device(device):
            raise TargetError(
                f"there is no device {device!r} here; Tinsmith computes on {DEVICE!r}"
            )
        return TinsmithRep(compile_model(load(model), **{"precision": "strict", **kwargs}))

    @classmethod
    def run_model(
        cls, model: ModelProto, inputs: Any, device: str = DEVICE, **kwargs: Any
    ) -> tuple[Any, ...]:
        """The outputs of a model, compiled by `prepare` and run once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: NodeProto, inputs: Any, device: str = DEVICE,
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None, **kwargs: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Return the outputs of one node. `inputs`: as for `TinsmithRep.run`, without absent ones.
        `kwargs`: those of `prepare`, and the `opset_version` of ONNX's own domain (by default the
        newest). `outputs_info` is ignored."""
        opset = int(kwargs.pop("opset_version", defs.onnx_opset_version()))
        given = _named(node, inputs)
        return cls.run_model(_model_of(node, given, opset), given, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether the device is "CPU" or "CPU:0"."""
        return str(device).upper() in (DEVICE, f"{DEVICE}:0")


def _array(data: Any) -> Any:
    if isinstance(data, TensorProto):
        return numpy_helper.to_array(data)
    if data is None or isinstance(data, int | float | bool):
        return data
    if isinstance(data, list):
        return [_array(item) for item in data]
    return np.asarray(data)


def _listed(inputs: Any) -> Sequence[Any]:
    return inputs if isinstance(inputs, list | tuple) else [inputs]


def _named(node: NodeProto, inputs: Any) -> dict[str, Any]:
    """Return name -> array for the inputs of a node. Given are a list, one array, or a dict, whose
    other names are ignored. Raises InputNameError if these are not as many as the node reads."""
    present = [n for n in node.input if n]
    if isinstance(inputs, Mapping):
        inputs = [inputs[n] for n in present if n in inputs]
    arrays = _listed(inputs)
    if len(arrays) != len(present):
        raise InputNameError(
            f"{node.op_type} reads {', '.join(present) or 'nothing'}; "
            f"{len(arrays)} arrays are given"
        )
    return dict(zip(present, arrays, strict=True))


def _model_of(node: NodeProto, inputs: Mapping[str, Any], opset: int) -> ModelProto:
    """Make a model of one node. Its inputs have the types of the given arrays."""
    types = {}
    for name, given in inputs.items():
        array = np.asarray(_array(given))
        kind = TensorProto.STRING if array.dtype.kind in "OUST" else None
        kind = kind if kind is not None else helper.np_dtype_to_tensor_dtype(array.dtype)
        types[name] = helper.make_tensor_value_info(name, kind, array.shape)
    outputs = [helper.make_value_info(n, TypeProto()) for n in node.output if n]
    graph = helper.make_graph([node], node.op_type, list(types.values()), outputs)
    domains = {"": opset, node.domain: 1} if node.domain else {"": opset}
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid(d, v) for d, v in domains.items()]
    )


is_compatible = TinsmithBackend.is_compatible
prepare = TinsmithBackend.prepare
run = TinsmithBackend.run_model
run_model = TinsmithBackend.run_model
run_node = TinsmithBackend.run_node
supports_device = TinsmithBackend.supports_device
