"""PNNX -> Graph: `.pnnx.param` with `.pnnx.bin`, as the program pnnx writes them for PyTorch's
operators.

An importer is a function whose signature is the row of the operator (`node.operator`). `rows` is
the table of those that are one to one.
"""

from __future__ import annotations

from typing import Any

from tinsmith.formats import pnnx as files
from tinsmith.frontends import FRONTENDS, Frontend
from tinsmith.graph import Graph


def load(source: Any, **options: Any) -> Graph:
    """The graph of a `.param` file, with the `.bin` beside it, or of a pair of both. Options: see
    `import_model`."""
    from tinsmith.frontends.pnnx.model import import_model

    return import_model(files.read(source), **options)


FRONTENDS.register(
    "pnnx",
    Frontend(
        "PNNX",
        (".pnnx.param", ".param"),
        files.sniff,
        load,
        options=("random_weights", "batch", "input_shapes"),
        pairs=True,
    ),
)
