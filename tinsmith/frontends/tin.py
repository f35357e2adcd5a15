"""The frontend for Tinsmith's own files (.tin)."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from tinsmith.errors import ModelFileError
from tinsmith.formats.container import MAGIC
from tinsmith.formats.tin import read_graph
from tinsmith.frontends import FRONTENDS, Frontend
from tinsmith.graph import Graph


def load(source: Any) -> Graph:
    """The graph in a .tin file, given by its path or as bytes. A program in it is not read."""
    if isinstance(source, str | os.PathLike):
        return read_graph(Path(source))
    with tempfile.TemporaryDirectory(prefix="tinsmith-") as folder:
        path = Path(folder) / "model.tin"
        path.write_bytes(source)
        try:
            return read_graph(path)
        except ModelFileError as error:  # of a file that nobody knows
            raise ModelFileError(str(error).replace(str(path), "the model")) from None


FRONTENDS.register(
    "tin", Frontend("Tinsmith", (".tin",), lambda head, _: head.startswith(MAGIC), load)
)
