"""Reads one picture from a file, with fixed rules for bit depth, rotation, transparency and pages.

A picture stands as every viewer shows it, by the orientation that its camera wrote down, and is alone in its
file. It has 8 bits a channel; one with 16 is read by a declared window, from black to white.
What is transparent lies on white, as on paper: of ink on transparency the colours alone may be all black.
Colour profiles and gamma are not applied.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError, words_of
from gdpfed.late_import import late_import
from gdpfed.learning.data.deep_pictures import deep_inks
from gdpfed.learning.data.pipes import refuse_pipe

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
PIPE_REMEDY = "save the picture as a file in its place"
HEAD_BYTES = 512
PNG_DEPTH = 24
TIFF_DEPTHS, TIFF_WHITE, ORIENTATION = 258, 262, 274
WITH_ALPHA = (2, 4)
"""Channels of a picture that has transparency."""
DEEP, DEEPEST = 8, 16
"""Bits a channel: of more a window is needed, and of more than the second nothing is read."""
PPM_HEAD = re.compile(rb"P[2356](?:\s+|\s*#[^\n]*\n)+\d+(?:\s+|\s*#[^\n]*\n)+\d+(?:\s+|\s*#[^\n]*\n)+(\d+)\s")


def read_picture(
    path: str,
    channels: int,
    image_size: int | None,
    window: tuple[float, float] | None = None,
    shaped: Callable[[Image.Image], Image.Image] | None = None,
) -> npt.NDArray[np.uint8]:
    """Read a picture, shape (channels, height, width).

    Args:
        path: of its file.
        channels: 1 for grey, 3 for colour.
        image_size: the edge of the square that it is resized to; None leaves it as it is.
        window: a value v of a channel becomes 255 (v - low) / (high - low), from 0 to 255; None for 8 bits as
            they are.
        shaped: what is done to the picture in place of that resize.

    Raises LearningError: a file that is not a picture, holds several, or one that is too large or too deep.
    """
    try:
        refuse_pipe(Path(path), path, PIPE_REMEDY)
        # Not by its name: then Pillow 13 maps a turned TIFF into memory with its sides exchanged.
        with Path(path).open("rb") as opened, Image.open(opened, formats=FORMATS) as file:
            bits = _checked_depth(path, file, window)
            upright = (
                ImageOps.exif_transpose(file) if window is None else _in_window(path, file, bits, window)
            )
            if upright.has_transparency_data:
                ink = upright.convert("RGBA")
                white = Image.new("RGBA", ink.size, "white")
                upright = Image.alpha_composite(white, ink).convert("RGB")
            picture = upright.convert(MODES[channels])
            if shaped is not None:
                picture = shaped(picture)
            elif image_size is not None:
                picture = resized(picture, (image_size, image_size))
    except (OSError, ValueError, SyntaxError, RuntimeError, Image.DecompressionBombError) as error:
        if isinstance(error, LearningError):
            raise
        raise LearningError(f"{path} cannot be read as a picture: {words_of(error)}; save it again") from None
    values = np.asarray(picture, dtype=np.uint8)
    return values.reshape(*values.shape[:2], -1).transpose(2, 0, 1)


def resized(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Resize a picture that has another width and height; raise ValueError if it would be too large."""
    if picture.size == size:
        return picture
    # Pillow resizes rows first, and then columns.
    refuse_large(size[0], max(size[1], picture.height))
    return picture.resize(size, Image.Resampling.BILINEAR)


def refuse_large(width: float, height: float) -> None:
    """Raise ValueError if a picture to be made has more pixels than any may have."""
    if not width * height <= MOST_PIXELS:
        raise ValueError(f"it would be made of {width:.0f} x {height:.0f} pixels, more than {MOST_PIXELS}")


def _in_window(path: str, file: Image.Image, bits: int, window: tuple[float, float]) -> Image.Image:
    """Scale a declared range of pixel values (window) to 8 bits a channel, 0 to 255; keep transparency."""
    if bits > DEEP:
        # Other forms would lose some bits, or count from white.
        if file.format not in ("PNG", "TIFF"):
            raise LearningError(
                f"{path} has {DEEPEST} bits a value, which are read from PNG and TIFF only: save it as one "
                "of these, or with 8 bits"
            )
        if file.format == "TIFF" and file.getexif().get(TIFF_WHITE) == 0:
            raise LearningError(f"{path} stores white as 0: write it with 0 as black")
        values: npt.NDArray[np.generic]
        if file.mode.startswith("I"):
            file.load()
            values = np.asarray(file)
        else:
            values = deep_inks(path, file)
        shown = bytes_in(window, values)
        if values.ndim == 3 and values.shape[2] in WITH_ALPHA:
            # It says how much of the ink is there, and no window is of that.
            shown[..., -1] = values[..., -1] // (2**DEEP + 1)
        picture = Image.fromarray(shown)
        if turned := file.getexif().get(ORIENTATION):
            picture.getexif()[ORIENTATION] = turned
        return ImageOps.exif_transpose(picture)
    upright = ImageOps.exif_transpose(file)
    mode = "RGBA" if upright.has_transparency_data else "L" if upright.mode in ("1", "L") else "RGB"
    values = np.array(upright.convert(mode))
    inks = values[..., : len("RGB")] if mode == "RGBA" else values
    inks[...] = bytes_in(window, inks)
    return Image.fromarray(values)


def bytes_in(window: tuple[float, float], values: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """Scale values v to 255 (v - low) / (high - low), limited to 0 to 255; NaN becomes 0."""
    low, high = window
    shares = np.clip((values.astype(np.float64) - low) / (high - low), 0, 1)
    return np.rint(255 * np.nan_to_num(shares)).astype(np.uint8)


def _checked_depth(path: str, file: Image.Image, window: tuple[float, float] | None) -> int:
    """Return a picture's bits per channel; raise LearningError if it would not be read correctly."""
    if file.width * file.height > MOST_PIXELS:
        raise LearningError(
            f"{path} has {file.width} x {file.height} pixels, more than {MOST_PIXELS}: scale it down"
        )
    pages = 1 if file.format == WITH_PREVIEWS else getattr(file, "n_frames", 1)
    if pages > 1:
        raise LearningError(f"{path} holds {pages} pages, and a picture is one: split it")

    # Pillow does not say how many bits a channel of colour has.
    bits = 16 if file.mode.startswith("I") else 32 if file.mode.startswith("F") else 8
    if file.format == "TIFF":
        bits = int(np.max(file.getexif().get(TIFF_DEPTHS, bits)))
    elif file.format in ("PNG", "PPM"):
        with Path(path).open("rb") as opened:
            head = opened.read(HEAD_BYTES)
        if file.format == "PNG":
            bits = head[PNG_DEPTH]
        elif largest := PPM_HEAD.match(head):
            bits = int(largest[1]).bit_length()

    if bits > (DEEP if window is None else DEEPEST):
        # Pillow drops the lower half of such values, or cuts them off: the picture turns black or white.
        remedy = "" if bits > DEEPEST else ", or declare the window of its values in pictures.yaml"
        raise LearningError(f"{path} has {bits} bits a channel: scale it to 8 bits{remedy}")
    if window is not None and bits <= DEEP and window[1] > 2**DEEP - 1:
        raise LearningError(
            f"{path} has {bits} bits a channel, and the window {window[0]:g} to {window[1]:g} is for "
            "more: the picture would be almost black; save it with as many bits as the others"
        )
    return bits
