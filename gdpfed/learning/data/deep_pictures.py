"""Reads colour pictures with 16 bits a channel, which the library Pillow would reduce to 8 bits.

They are read by imagecodecs and tifffile, of the extra ``imaging``: every value as the file has it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.late_import import late_import, packages_needed

if TYPE_CHECKING:
    from PIL import Image
imagecodecs, tifffile = late_import("imagecodecs"), late_import("tifffile")

GREY, COLOUR = 1, 2
"""How a TIFF file calls pictures whose values count from black."""
ALONE = 2
"""What a TIFF file calls transparency that the colours are not multiplied by."""


def deep_inks(path: str, file: Image.Image) -> npt.NDArray[np.uint16]:
    """Read the 16-bit values of a PNG or TIFF picture, shape (height, width, channels); alpha is last.

    `file`: the same, opened by Pillow, for its header.

    Raises:
        LearningError: other colours, or another form of transparency.
        InputError: a package of the extra ``imaging`` is not installed.
    """
    values: npt.NDArray[np.uint16]
    with packages_needed():
        if file.format == "PNG":
            if "transparency" in file.info:
                raise LearningError(f"{path} marks transparency by a colour: write it with an alpha channel")
            values = imagecodecs.png_decode(Path(path).read_bytes())
        else:
            with tifffile.TiffFile(path) as tiff:
                page = tiff.pages[0]
                inks = {COLOUR: 3, GREY: 1}.get(int(page.photometric))
                if inks is None or tuple(page.extrasamples) not in ((), (ALONE,)):
                    raise LearningError(
                        f"{path} has 16 bits and no plain colours (RGB) or transparency: write it so, or in "
                        "8 bits"
                    )
                values = page.asarray()
                # Some files hold one channel after the other.
                values = np.moveaxis(values, 0, -1) if page.axes.startswith("S") else values
    if values.dtype != np.uint16 or values.shape[:2] != (file.height, file.width) or values.ndim != 3:
        raise LearningError(f"{path} has values in a form that is not read: write it in 8 bits")
    return values
