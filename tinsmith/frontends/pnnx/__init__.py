"""PNNX -> Graph: `.pnnx.param` with `.pnnx.bin`, as pnnx writes them for models of PyTorch.

An importer function has the inputs and parameters of its operator as its own parameters
(`node.operator`). `rows` is the table of operators that are one to one.
"""

from __future__ import annotations

from typing import Any

from tinsmith.formats import pnnx as files
from tinsmith.frontends import FRONTENDS, Frontend
from tinsmith.graph import Graph


def load(source: Any, **options: Any) -> Graph:
    """The graph of a `.param` file with a `.bin` beside it, or of a pair of both. `options` are
    those of `import_model`."""
    from tinsmith.frontends.pnnx.model import import_model

    return import_model(files.read(source), **options)


ENDS = (".pnnx.param", ".param")
OPTIONS = ("random_weights", "batch", "input_shapes")
FRONTENDS.register("pnnx", Frontend("PNNX", ENDS, files.sniff, load, options=OPTIONS, pairs=True))
