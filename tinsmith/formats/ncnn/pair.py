"""Reads the two files of an ncnn model (.param and .bin), found by the name of the first, in a zip,
or given as a pair."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from typing import Any

from tinsmith import budget
from tinsmith.errors import ModelFileError
from tinsmith.formats import describe
from tinsmith.formats.mapped import Files, opened
from tinsmith.formats.ncnn.param import Layer, read_param
from tinsmith.formats.ncnn.weights import draw_weights, read_weights

ZIP = b"PK\x03\x04"
DAMAGED = (
    zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, OSError, ValueError
)  # fmt: skip
"""Errors that reading a damaged zip archive raises, besides those of zlib and lzma."""
_PACKED = re.compile(rb"PK\x03\x04.{26}[^\0]{0,200}?\.(param|param\.bin|bin)", re.S)


def is_param(head: bytes, path: str) -> bool:
    """Whether a file is a .param file of ncnn, or a zip that begins with that or a .bin file."""
    return describe(head, path) == "an ncnn model" or bool(_PACKED.match(head))


def read_pair(source: Any, seed: int | None) -> tuple[str, list[Layer], Files]:
    """Read a model: a .param file by path, its .bin file beside it; the bytes of one without
    weights; a zip of both; or a pair (param, bin) of paths or bytes. Return (file name, "" for
    bytes; layers with their weights; files opened). With a seed, weights are drawn at random
    instead of read. Raises ModelFileError, ImportFailed, BudgetExceeded."""
    param, bin = source if isinstance(source, tuple) else (source, None)
    file, data, files = opened(param)
    weights: memoryview | None = None
    if bin is None and bytes(data[:4]) == ZIP:
        data, weights = _unpacked(data, file)
    elif bin is None and file and seed is None:
        beside = _bin_of(Path(param))
        bin = beside if beside.is_file() else None
    if bin is not None:
        _, weights, more = opened(bin)
        files |= more
    name = file or "the model"
    layers = read_param(data, name)
    if seed is not None:
        draw_weights(layers, seed, name)
    elif weights is not None:
        read_weights(layers, weights, f"the .bin file of {name}")
    else:
        found = (la for la in layers if any(s.count for s in la.schema.slots(la.given, name)))
        first = next(found, None)
        if first is not None:
            raise ModelFileError(
                f"{name} has weights ({first.name!r} is the first layer with some), and there is "
                f"no {_bin_of(Path(file or 'model.param')).name}; put that "
                "beside it, give a pair (param, bin), or random_weights=SEED "
                "(--random-weights SEED)"
            )
    return file, layers, files


def _bin_of(path: Path) -> Path:
    """The path of a .param file's weights: net.bin for net.param and net.param.bin."""
    return path.with_name(path.name.removesuffix(".param.bin").removesuffix(".param") + ".bin")


def _unpacked(data: memoryview, file: str) -> tuple[memoryview, memoryview | None]:
    """The .param and .bin (None if there is none) of a zip archive. Raises ModelFileError if it is
    damaged or holds several, BudgetExceeded."""
    name = file or "the model"
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            entries = packed.infolist()
            budget.check("constants", sum(e.file_size for e in entries), f"what {name} unpacks to")
            read = {e.filename: memoryview(packed.read(e)) for e in entries}
    except Exception as e:  # zlib.error, lzma.LZMAError: of modules that may not be there
        if not isinstance(e, DAMAGED) and type(e).__module__ not in ("zlib", "lzma", "_lzma"):
            raise
        raise ModelFileError(f"{name} is a damaged zip archive: {e}") from e
    params = [n for n in read if n.endswith((".param", ".param.bin"))]
    others = [n for n in read if n.endswith(".bin") and n not in params]
    if len(params) != 1 or len(others) > 1:
        raise ModelFileError(
            f"{name} holds {len(params)} .param files and {len(others)} .bin files"
        )
    return read[params[0]], read[others[0]] if others else None
