"""The declaration of how pictures are read (size, channels, ...), in a public file that all clients share.

It says everything by which a picture becomes numbers, so nothing is computed from pictures, and a folder at a
node is read as the run's.
"""

from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.late_import import late_import
from gdpfed.learning.data.dataset import Pictures
from gdpfed.learning.data.picture_files import resized
from gdpfed.learning.data.picture_transforms import (
    MOST_PIXELS_AN_EDGE,
    NormalizedPictures,
    Scale,
    Transform,
    declared_transforms,
    transformed,
)
from gdpfed.learning.data.yaml_parts import read_parts

if TYPE_CHECKING:
    from PIL import Image
else:
    Image = late_import("PIL.Image")

PICTURES_FILE = "pictures.yaml"
LATER = ("transforms", "scale")
"""What is in no digest of a declaration without it."""
CHANNELS = {"1": 1, "3": 3}


@dataclass(frozen=True)
class PictureForm:
    """How pictures are read, as declared: classes, size, channels, range of values (window) and transforms.

    Attributes:
        classes: the names of the classes, in the order of their numbers.
        image_size: the edge of the square that a picture is resized to; None leaves it as it is.
        channels: 1 for grey, 3 for colour.
        window: the values of a channel that become black and white; None for pictures of 8 bits as they are.
        spacing: of scans, millimetres from row to row and from column to column; None as they are.
        slice: of scans with several slices, which one is read, from 0 for the first to 1 for the last.
        transforms: of the shape, in order, in place of a resize to the square; empty for that.
        scale: how bytes become numbers; None for -1 to 1.
    """

    classes: tuple[str, ...]
    image_size: int | None
    channels: int
    window: tuple[float, float] | None = None
    spacing: tuple[float, float] | None = None
    slice: float | None = None
    transforms: tuple[Transform, ...] = ()
    scale: Scale | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of the declaration, in hexadecimal; nodes with equal hashes read pictures identically."""
        said = [(key, each) for key, each in sorted(asdict(self).items()) if key not in LATER or each]
        return sha256(repr(said).encode()).hexdigest()

    def shaped(self, picture: "Image.Image") -> "Image.Image":
        """Apply the declared transforms to a picture; if there are none, resize it to the declared square.

        Raises ValueError: one that is too small for a transform, or would be too large after it.
        """
        if self.transforms:
            return transformed(picture, self.transforms)
        edge = self.image_size
        return picture if edge is None else resized(picture, (edge, edge))

    def pictures(self, pixels: npt.NDArray[np.uint8], y: npt.NDArray[np.int64]) -> Pictures:
        """Make a data set's examples from pixels (N, channels, height, width) and classes, shape (N,)."""
        return Pictures(pixels, y) if self.scale is None else NormalizedPictures(pixels, y, self.scale)


def read_picture_form(folder: Path) -> PictureForm:
    """Read ``pictures.yaml``, the declaration in a folder of pictures.

    Raises LearningError: no such file, no YAML, or no declaration; one line that names what is wrong.
    """
    found = read_parts(folder / PICTURES_FILE, "declare the pictures").mapping(
        required=("classes", "image_size", "channels"), allowed=("window", "spacing", "slice", "transforms")
    )
    classes = found["classes"].values_once()
    if len(classes) < 2:
        raise found["classes"].wrong("two classes or more")
    size = found["image_size"].number()
    if size % 1 or not 1 <= size <= MOST_PIXELS_AN_EDGE:
        raise found["image_size"].wrong(f"a whole number from 1 to {MOST_PIXELS_AN_EDGE}")
    window = found["window"].range() if "window" in found else None
    spacing = None
    if "spacing" in found:
        numbers = [each.number() for each in found["spacing"].list()]
        if len(numbers) != 2 or not all(0 < each < float("inf") for each in numbers):
            raise found["spacing"].wrong(
                "two millimetres above 0, from row to row and from column to column, as in [1, 1]"
            )
        spacing = numbers[0], numbers[1]
    place = found["slice"].number() if "slice" in found else None
    if place is not None and not 0 <= place <= 1:
        raise found["slice"].wrong("a number from 0, the first slice, to 1, the last one")
    if window is None and (spacing, place) != (None, None):
        raise LearningError(f"{folder / PICTURES_FILE}: spacing and slice are of scans: declare window, too")
    if found["channels"].values not in CHANNELS:
        raise found["channels"].wrong("1 (grey) or 3 (colour)")
    channels = CHANNELS[found["channels"].values]
    said = found.get("transforms")
    shapes, scale = ((), None) if said is None else declared_transforms(said, int(size), channels)
    if shapes and spacing is not None:
        raise found["transforms"].wrong("without a shape: spacing says how a scan becomes a square")
    return PictureForm(classes, int(size), channels, window, spacing, place, shapes, scale)


def refuse_other(form: PictureForm, folder: Path, image_size: int | None, channels: int | None) -> None:
    """Raise LearningError if settings of a run contradict ``pictures.yaml`` in the folder."""
    for key, said, declared in (
        ("image_size", image_size, form.image_size),
        ("channels", channels, form.channels),
    ):
        if said not in (None, declared):
            raise LearningError(
                f"dataset.{key}={said}: {folder / PICTURES_FILE} declares {key}: {declared}, leave one out"
            )
