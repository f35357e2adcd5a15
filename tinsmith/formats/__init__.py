"""Bytes -> records. Knows no graph and no operator: one module a file format."""

from __future__ import annotations

__all__ = ["HEAD", "describe"]

HEAD = 4096
"""How many bytes of a file are enough to recognise any format."""

_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"GIF8", "a GIF image"),
    (0, b"PK\x03\x04", "a zip archive (a PyTorch .pt file, or a model still packed?)"),
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (257, b"ustar", "a tar archive"),
    (0, b"\x89HDF", "an HDF5 file (a Keras model?)"),
    (0, b"\x80\x02", "a Python pickle"),
    (0, b"\x80\x04", "a Python pickle"),
    (0, b"\x93NUMPY", "a numpy array"),
    (0, b"\x7fELF", "an ELF binary"),
    (0, b"%PDF", "a PDF document"),
    (0, b"GGUF", "a GGUF model"),
    (4, b"TFL3", "a TensorFlow Lite model"),
    (0, b"7767517", "an ncnn param file"),
    (0, b"\x85\xdd\x76\x00", "an ncnn binary param file"),
    (0, b"version https://git-lfs", "a Git LFS pointer (the file itself was not downloaded)"),
    (0, b"<!DOCTYPE", "an HTML page (a failed download?)"),
    (0, b"<html", "an HTML page (a failed download?)"),
)


def describe(head: bytes) -> str:
    """What a file seems to be, from its first bytes, for a message: "a PNG image"."""
    if not head:
        return "an empty file"
    for offset, magic, name in _MAGIC:
        if head[offset : offset + len(magic)].lower() == magic.lower():
            return name
    if not any(head):
        return "nothing but zero bytes"
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
