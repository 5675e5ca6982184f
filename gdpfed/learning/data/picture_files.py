"""One picture of a file, by one rule each for what a file says beside its pixels.

A picture stands as every viewer shows it, by the orientation that its camera wrote down. It has 8 bits a
channel, and is alone in its file. What is transparent lies on white, as on paper: of ink on transparency the
colours alone may be all black. Colour profiles and gamma are not applied.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.late_import import late_import

if TYPE_CHECKING:
    from PIL import Image, ImageOps
else:
    Image, ImageOps = late_import("PIL.Image"), late_import("PIL.ImageOps")

MODES = {1: "L", 3: "RGB"}
FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Pillow reads no others here, whatever a file is named: some of them are programs."""
ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
MOST_PIXELS = 2**26
"""Of one picture; its header says how many it has."""
WITH_PREVIEWS = "MPO"
"""What cameras write as JPEG: the picture, and others of it that no viewer shows."""
HEAD_BYTES = 512
PNG_DEPTH = 24
TIFF_DEPTHS = 258
PPM_HEAD = re.compile(rb"P[2356](?:\s+|\s*#[^\n]*\n)+\d+(?:\s+|\s*#[^\n]*\n)+\d+(?:\s+|\s*#[^\n]*\n)+(\d+)\s")


def read_picture(path: str, channels: int, image_size: int | None) -> npt.NDArray[np.uint8]:
    """A picture of shape (channels, height, width).

    `channels`: 1 for grey, 3 for colour. `image_size`: the edge of the square that it is resized to; None
    leaves it as it is.

    Raises LearningError: a file that is no picture, holds several, or one that is too large or too deep.
    """
    try:
        with Image.open(path, formats=FORMATS) as file:
            _check(path, file)
            picture = _on_white(ImageOps.exif_transpose(file)).convert(MODES[channels])
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        if isinstance(error, LearningError):
            raise
        raise LearningError(f"{path} cannot be read as a picture: {' '.join(str(error).split())}") from None
    if image_size is not None and picture.size != (image_size, image_size):
        picture = picture.resize((image_size, image_size), Image.Resampling.BILINEAR)
    values = np.asarray(picture, dtype=np.uint8)
    return values.reshape(*values.shape[:2], -1).transpose(2, 0, 1)


def _on_white(picture: Image.Image) -> Image.Image:
    """The picture as it looks on white paper; one without transparency as it is."""
    if not picture.has_transparency_data:
        return picture
    ink = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", ink.size, "white"), ink).convert("RGB")


def _check(path: str, file: Image.Image) -> None:
    """Refuse, by the header, what would not be read as it is."""
    if file.width * file.height > MOST_PIXELS:
        raise LearningError(
            f"{path} has {file.width} x {file.height} pixels, more than {MOST_PIXELS}: scale it down"
        )
    pages = 1 if file.format == WITH_PREVIEWS else getattr(file, "n_frames", 1)
    if pages > 1:
        raise LearningError(f"{path} holds {pages} pages, and a picture is one: split it")
    if (bits := _depth(path, file)) > 8:
        # Pillow drops the lower half of such values, or cuts them off: the picture turns black or white.
        raise LearningError(f"{path} has {bits} bits a channel: scale it to 8 bits")


def _depth(path: str, file: Image.Image) -> int:
    """Bits a channel in the file itself, since Pillow's mode does not say them of pictures in colour."""
    deep = 16 if file.mode.startswith("I") else 32 if file.mode.startswith("F") else 8
    if file.format == "TIFF":
        return int(np.max(file.getexif().get(TIFF_DEPTHS, deep)))
    if file.format not in ("PNG", "PPM"):
        return deep
    with Path(path).open("rb") as opened:
        head = opened.read(HEAD_BYTES)
    if file.format == "PNG":
        return head[PNG_DEPTH]
    found = PPM_HEAD.match(head)
    return int(found[1]).bit_length() if found else deep
