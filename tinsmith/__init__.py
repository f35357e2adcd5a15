"""Tinsmith: a neural-network inference engine that writes machine code for exactly your model.

import tinsmith as ts
net = ts.compile("model.onnx")
y = net(x)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinsmith.version import __version__ as __version__

if TYPE_CHECKING:
    from tinsmith.compiler.compile import compile as compile
    from tinsmith.compiler.compile import load as load
    from tinsmith.compiler.compile import save as save
    from tinsmith.compiler.memory import memory_report as memory_report
    from tinsmith.compiler.verify import verify as verify
    from tinsmith.compiler.write import optimize as optimize
    from tinsmith.compiler.write import write as write
    from tinsmith.graph import Graph as Graph
    from tinsmith.graph import Type as Type
    from tinsmith.quantizer.quantize import quantize as quantize
    from tinsmith.runtime.net import Net as Net

_HOMES = {
    "load": "tinsmith.compiler.compile",
    "compile": "tinsmith.compiler.compile",
    "save": "tinsmith.compiler.compile",
    "optimize": "tinsmith.compiler.write",
    "write": "tinsmith.compiler.write",
    "verify": "tinsmith.compiler.verify",
    "memory_report": "tinsmith.compiler.memory",
    "quantize": "tinsmith.quantizer.quantize",
    "Net": "tinsmith.runtime.net",
    "Graph": "tinsmith.graph",
    "Type": "tinsmith.graph",
}

__all__ = [
    "Graph", "Net", "Type", "compile", "load", "memory_report", "optimize", "quantize", "save",
    "verify", "write",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import tinsmith` stays fast."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tinsmith' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES} - {"Any", "TYPE_CHECKING", "annotations"})
