"""Decoding images: needs the optional package Pillow."""

from __future__ import annotations

import io

import numpy as np

from tinsmith.errors import DataError, MissingPackage
from tinsmith.graph import Type
from tinsmith.ops._dims import fresh
from tinsmith.ops._op import need_one_of, op
from tinsmith.ops._rules import need_dtype, need_rank

FORMATS = {"RGB": 3, "BGR": 3, "Grayscale": 1}


@op()
def ImageDecoder(data, *, pixel_format="RGB"):
    """y[h, w, c] = the pixels of an encoded image: JPEG, PNG, BMP, TIFF, WebP, PNM, JPEG 2000

    data: the bytes of the file, uint8 [n]; pixel_format: "RGB", "BGR" or "Grayscale". y is uint8.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingPackage("ImageDecoder needs Pillow: pip install pillow") from error
    try:
        with Image.open(io.BytesIO(data.tobytes())) as image:
            pixels = np.array(image.convert("L" if pixel_format == "Grayscale" else "RGB"))
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(
            f"these {data.size} bytes are no image that can be read: {error}"
        ) from error
    if pixel_format == "BGR":
        return np.ascontiguousarray(pixels[..., ::-1])
    return pixels[..., None] if pixel_format == "Grayscale" else pixels


@ImageDecoder.type
def _(data, *, pixel_format):
    need_one_of(FORMATS, pixel_format=pixel_format)
    need_dtype(data, {"uint8"}, "the encoded image")
    need_rank(data, 1, "the encoded image")
    return Type(np.dtype(np.uint8), (fresh(), fresh(), FORMATS[pixel_format]))
