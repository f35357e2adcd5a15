"""Reads file formats: bytes -> records. One module for each format; none knows graphs or
operators."""

from __future__ import annotations

import re
from functools import cache
from pathlib import PurePath

__all__ = ["FOREIGN", "HEAD", "PNNX", "describe", "pairs_of"]

HEAD = 4096
"""Bytes at the beginning of a file that are enough to recognise any format."""

_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG", "a PNG image"), (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"GIF8", "a GIF image"), (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"\x28\xb5\x2f\xfd", "a zstd archive"), (257, b"ustar", "a tar archive"),
    (0, b"\x93NUMPY", "a numpy array"), (0, b"\x7fELF", "an ELF binary"),
    (0, b"%PDF", "a PDF document"),
    (0, b"version https://git-lfs", "a Git LFS pointer (the file itself was not downloaded)"),
    (0, b"<!DOCTYPE", "an HTML page (a failed download?)"),
    (0, b"<html", "an HTML page (a failed download?)"),
)  # fmt: skip
_PACKED = (
    (0, b"PK\x03\x04", "a zip archive (a PyTorch .pt file, or a model still packed?)"),
    (0, b"\x89HDF", "an HDF5 file (a Keras model?)"),
    (0, b"\x80\x02", "a Python pickle (a PyTorch model?)"),
    (0, b"\x80\x04", "a Python pickle (a PyTorch model?)"),
)
"""Archives in which models of several formats are packed: the suffix of the name goes before."""

PNNX, NCNN = "a pnnx model", "an ncnn model"
"""The words of `describe` for these. Both begin with the same number; PNNX's types have dots."""
_ARRAYS = "an archive of numpy arrays"

_MODELS = (
    (rb"7767517\s+\d+\s+\d+\s+\w+(\.|::)", PNNX), (rb"7767517\s|\xdd\x85\x76\x00", NCNN),
    (rb'"\d+ \d+ \d+ 42066247\d\d ,"|\x04\x00\xbc\xfa', "a TNN model"),
    (rb"\x08\x01\x12[\x80-\xff]*[^\x80-\xff]\n", "a TensorFlow SavedModel"),
    (rb"(?s)PK\x03\x04.{26}[^\0]{1,200}?\.npy", _ARRAYS),
    (rb"(?s:....)TFL3", "a TensorFlow Lite model"), (rb"GGUF", "a GGUF model"),
)  # fmt: skip
_NAMED = {
    ".caffemodel": "a Caffe model", ".h5": "a Keras model", ".keras": "a Keras model",
    ".mlmodel": "a Core ML model", ".mnn": "an MNN model", ".pb": "a TensorFlow model",
    ".pdmodel": "a PaddlePaddle model", ".prototxt": "a Caffe model", ".pt": "a PyTorch model",
    ".pth": "a PyTorch model", ".tflite": "a TensorFlow Lite model",
    ".tmfile": "a Tengine model", ".tnnproto": "a TNN model",
}  # fmt: skip
FOREIGN = frozenset([name for _, name in _MODELS] + list(_NAMED.values())) - {PNNX, NCNN, _ARRAYS}
"""The words of `describe` for models of formats that cannot be read."""


def describe(head: bytes, path: str = "") -> str:
    """Return in words what a file seems to be: "a PNG image". `head` is its first bytes; where
    these do not tell, the suffix of `path` is used."""
    if not head:
        return "an empty file"
    if name := _magic(head, _MAGIC):
        return name
    for begins, name in _MODELS:
        if re.match(begins, head):
            return name
    if not any(head):
        return "nothing but zero bytes"
    return _NAMED.get(PurePath(path).suffix.lower()) or _magic(head, _PACKED) or _content(head)


def _magic(head: bytes, table: tuple[tuple[int, bytes, str], ...]) -> str:
    for offset, magic, name in table:
        if head[offset : offset + len(magic)].lower() == magic.lower():
            return name
    return ""


def _content(head: bytes) -> str:
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 32:
        return "a safetensors file"
    try:
        text = head[: len(head) - 4 if len(head) > 64 else len(head)].decode("utf-8")
    except UnicodeDecodeError:
        return f"binary data of an unknown kind (it starts with {head[:8].hex(' ')})"
    if all(c.isprintable() or c in "\r\n\t" for c in text):
        first = text.strip().splitlines()[0] if text.strip() else ""
        return "JSON text" if first[:1] in "{[" and first else f"text that starts {first[:40]!r}"
    return f"binary data of an unknown kind (it starts with {head[:8].hex(' ')})"


@cache
def pairs_of(attributes: str) -> tuple[tuple[str, str], ...]:
    """(the format's name, ours) of each of some attributes, which a table that importer and writer
    share has as text: "axis epsilon=eps"."""
    parts = (name.partition("=") for name in attributes.split())
    return tuple((theirs, ours or theirs) for theirs, _, ours in parts)
