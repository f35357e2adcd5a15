"""Pictures as model inputs. Needs Pillow."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import click
import numpy as np

from tinsmith.errors import InputShapeError, InputTypeError, MissingPackage, ModelFileError, warn
from tinsmith.formats.mapped import open_file
from tinsmith.graph import Dim, Type
from tinsmith.records import dataclass

SUFFIXES = frozenset(
    (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
)
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
SCALES = ("unit", "signed", "imagenet", "bytes")
PICTURES = (
    click.option(
        "--scale",
        type=click.Choice(SCALES),
        default="unit",
        show_default=True,
        help="What pixels become: 0..1, -1..1, ImageNet's mean and deviation, 0..255.",
    ),
    click.option(
        "--fit",
        type=click.Choice(["crop", "stretch"]),
        default="crop",
        show_default=True,
        help="How a picture gets the input's shape.",
    ),
)
"""The options of `Picture`."""
IMAGENET = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], np.float32)


@dataclass(frozen=True)
class Picture:
    """How a picture becomes an array.

    scale   range of pixels. unit: 0..1, signed: -1..1, bytes: 0..255, imagenet: (0..1 - mean) /
            deviation of ImageNet's channels. An integer input always gets bytes.
    fit     crop: resized to cover the input's size, and the middle cut out; stretch: both sides are
            resized
    """

    scale: str = "unit"
    fit: str = "crop"

    def read(self, path: Path, type_: Type, name: str) -> np.ndarray[Any, Any]:
        """Read a picture as an array for an input [N,C,H,W] or [N,H,W,C], with N = 1, or for either
        without N. Raises InputError, ModelFileError, MissingPackage."""
        channels, height, width, last = layout(type_, name)
        pixels = self.decode(path, channels, height, width)
        if not last:
            pixels = pixels.transpose(2, 0, 1)
        if type_.rank == 4:
            pixels = pixels[None]
        return np.ascontiguousarray(self.scaled(pixels, type_, last))

    def decode(self, path: Path, channels: int, height: Dim, width: Dim) -> np.ndarray[Any, Any]:
        """Read a picture as uint8 [height, width, channels]; free sizes are the picture's own."""
        try:
            from PIL import Image, ImageOps, UnidentifiedImageError
        except ImportError:
            raise MissingPackage(
                f"reading {path.name} needs Pillow, which is not installed; "
                "try: python -m pip install pillow"
            ) from None
        try:
            with (
                warnings.catch_warnings(record=True) as odd,
                open_file(path) as file,
                Image.open(file) as opened,
            ):
                image = ImageOps.exif_transpose(opened)
                if image.mode == "P":  # Pillow wants transparent palettes to go by way of RGBA
                    image = image.convert("RGBA")
                image = image.convert(MODES[channels])
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            unknown = isinstance(error, UnidentifiedImageError)  # it names an object of Python
            why = "its content is that of no picture that Pillow knows" if unknown else error
            raise ModelFileError(f"{path} cannot be read as a picture: {why}") from error
        for said in dict.fromkeys(str(w.message) for w in odd):
            warn(f"{path}: {said}")
        wanted = (
            width if isinstance(width, int) else image.width,
            height if isinstance(height, int) else image.height,
        )
        resize = ImageOps.fit if self.fit == "crop" else Image.Image.resize
        try:
            image = resize(image, wanted, Image.Resampling.BILINEAR)
        except (ValueError, MemoryError) as error:
            raise InputShapeError(
                f"{path} cannot be made {wanted[1]} high and {wanted[0]} wide: "
                f"{str(error) or 'it does not fit into memory'}"
            ) from error
        array = np.asarray(image)
        return array[:, :, None] if array.ndim == 2 else array

    def scaled(self, pixels: np.ndarray[Any, Any], type_: Type, last: bool) -> Any:
        """Scale pixels 0..255 as `scale` says, and convert them to the input's dtype; `last`:
        whether channels are last."""
        if type_.dtype.kind in "iu" or self.scale == "bytes":
            return pixels.astype(type_.dtype)
        x = pixels.astype(np.float32) / 255
        if self.scale == "signed":
            x = 2 * x - 1
        elif self.scale == "imagenet":
            channels = x.shape[-1 if last else -3]
            if channels != 3:
                raise InputTypeError(
                    f"--scale imagenet is for 3 channels, the input has {channels}"
                )
            mean, deviation = IMAGENET if last else IMAGENET[:, :, None, None]
            x = (x - mean) / deviation
        return x.astype(type_.dtype)


def layout(type_: Type, name: str) -> tuple[int, Dim, Dim, bool]:
    """(channels, height, width, whether channels are last) of an input of pictures. Raises
    InputTypeError for an input of another shape."""
    shape = type_.shape or ()
    if len(shape) in (3, 4):
        for at, last in ((-3, False), (-1, True)):
            channels = shape[at]
            if isinstance(channels, int) and channels in MODES:
                first = len(shape) - (3 if last else 2)
                return channels, shape[first], shape[first + 1], last
    raise InputTypeError(
        f"the input {name!r} is {type_}; a picture fits [N,C,H,W] or [N,H,W,C] with 1, 3 or 4 "
        "channels only; give an array instead"
    )
