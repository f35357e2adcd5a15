"""Decoding images, through Pillow."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest

from tinsmith.errors import DataError, MissingPackage, TypeRuleError
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS

DECODE = OPS["ImageDecoder"]
PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)


def encoded(kind="PNG", **options):
    image = pytest.importorskip("PIL.Image").fromarray(PIXELS)
    file = io.BytesIO()
    image.save(file, kind, **options)
    return np.frombuffer(file.getvalue(), np.uint8)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_formats_without_loss(kind):
    np.testing.assert_array_equal(DECODE(encoded(kind)), PIXELS)


def test_orders_of_colours():
    np.testing.assert_array_equal(DECODE(encoded(), pixel_format="BGR"), PIXELS[..., ::-1])
    grey = DECODE(encoded(), pixel_format="Grayscale")
    assert grey.shape == (5, 7, 1)
    np.testing.assert_allclose(grey[..., 0], PIXELS @ [0.299, 0.587, 0.114], atol=1)


@pytest.mark.parametrize("data", [b"", b"no image", bytes(range(64))])
def test_what_is_no_image(data):
    pytest.importorskip("PIL")
    with pytest.raises(DataError, match="are no image that can be read"):
        DECODE(np.frombuffer(data, np.uint8))
    with pytest.raises(DataError, match="are no image that can be read"):
        DECODE(encoded()[:60])


def test_without_pillow(monkeypatch):
    data = encoded()
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingPackage, match="pip install pillow"):
        DECODE(data)


def test_types():
    g = Graph("types")
    x = g.input("x", Type("uint8", ("N",)))
    assert DECODE(x, pixel_format="Grayscale").shape[2] == 1
    with pytest.raises(TypeRuleError, match="'CMYK'"):
        DECODE(x, pixel_format="CMYK")
    with pytest.raises(TypeRuleError, match="uint8"):
        DECODE(g.input("y", Type("float32", ("N",))))
