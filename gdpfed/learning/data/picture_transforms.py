"""The picture transforms that a declaration may name: torchvision's resize, center_crop, pad and normalize.

They are applied in the order of the declaration when a picture is read, in a simulation as at a node. Each
picture becomes numbers by itself, and the sizes, means and deviations are declared: nothing is computed from
other pictures, so they are a part of the record and cost no budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gdpfed.late_import import late_import
from gdpfed.learning.data.dataset import Pictures, Split
from gdpfed.learning.data.picture_files import refuse_large, resized
from gdpfed.learning.data.yaml_parts import Part

if TYPE_CHECKING:
    from PIL import Image, ImageOps
else:
    Image, ImageOps = late_import("PIL.Image"), late_import("PIL.ImageOps")

RESIZE, CENTER_CROP, PAD, NORMALIZE = "resize", "center_crop", "pad", "normalize"
NAMES = (RESIZE, CENTER_CROP, PAD, NORMALIZE)
MOST_PIXELS_AN_EDGE = 4096
NO_CHANCE = "a transform without random choices, since every party reads a picture once and alike: one of"
DRAWN = ("random", "color_jitter", "auto_augment", "trivial_augment", "aug_mix", "elastic")
"""How the names of torchvision's transforms begin that draw."""
LAST_PIXEL = 255


@dataclass(frozen=True)
class Transform:
    """A declared resize, crop or padding of every picture: its name, and its numbers of pixels."""

    name: str
    pixels: tuple[int, ...]


@dataclass(frozen=True)
class Scale:
    """A declared scaling of pixel values p, by channel: (p / 255 - mean) / deviation."""

    means: tuple[float, ...]
    deviations: tuple[float, ...]

    def of(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Scale pixels of shape (N, channels, height, width) for the model."""
        means, deviations = (
            np.array(each, np.float32)[:, None, None] for each in (self.means, self.deviations)
        )
        scaled: npt.NDArray[np.float32] = (
            pixels.astype(np.float32) / np.float32(LAST_PIXEL) - means
        ) / deviations
        return scaled


@dataclass(frozen=True, eq=False)
class NormalizedPictures(Pictures):
    """Pictures whose bytes are scaled by a declared mean and deviation."""

    scale: Scale

    def take(self, indices: npt.NDArray[np.int64]) -> Split:
        """Return the pictures at these positions, scaled by the declared mean and deviation."""
        return Split(self.scale.of(self.pixels[indices]), self.y[indices])


def declared_transforms(
    part: Part, image_size: int, channels: int
) -> tuple[tuple[Transform, ...], Scale | None]:
    """Read the declared transforms in order, and the declared scaling if there is one.

    `image_size`, `channels`: as declared; the transforms must make pictures of that size.

    Raises LearningError: one that is not in the list, is drawn, or has other numbers than it takes.
    """
    shapes, scale = list[Transform](), None
    for each in part.list():
        if not isinstance(each.values, dict) or len(each.values) != 1:
            raise each.wrong("one transform with its numbers, as in {resize: 64}")
        ((name, said),) = each.items()
        if name.startswith(DRAWN):
            raise each.wrong(f"{NO_CHANCE} {', '.join(NAMES)}")
        if name not in NAMES:
            raise each.wrong(f"one of {', '.join(NAMES)}")
        if scale is not None:
            raise each.wrong("before normalize, which is the last one")
        if name == NORMALIZE:
            scale = _scale(said, channels)
        else:
            most = 2 if name == RESIZE else 1
            parts = said.list() if isinstance(said.values, list) else [said]
            numbers = [one.number() for one in parts]
            if len(numbers) > most or any(one % 1 or not 1 <= one <= MOST_PIXELS_AN_EDGE for one in numbers):
                more = ", or two, height and width" if most > 1 else ""
                raise said.wrong(f"a whole number of pixels from 1 to {MOST_PIXELS_AN_EDGE}{more}")
            shapes.append(Transform(name, tuple(map(int, numbers))))
    if shapes and _final_size(shapes) != (image_size, image_size):
        raise part.wrong(f"transforms that end in {image_size} x {image_size} pixels, as image_size says")
    return tuple(shapes), scale


def transformed(picture: Image.Image, transforms: Sequence[Transform]) -> Image.Image:
    """Apply declared transforms to a picture; the pixels equal those that torchvision computes.

    Raises ValueError: a picture that would be too large after one of them.
    """
    for each in transforms:
        if each.name == RESIZE:
            if len(each.pixels) > 1:
                width, height = each.pixels[1], each.pixels[0]
            else:
                width, height = (int(each.pixels[0] * side / min(picture.size)) for side in picture.size)
            picture = resized(picture, (width, height))
        elif each.name == CENTER_CROP:
            # The central square; a picture that is smaller is padded with black before.
            edge = each.pixels[0]
            lacking = [max(0, edge - side) for side in picture.size]
            first, last = [side // 2 for side in lacking], [(side + 1) // 2 for side in lacking]
            if any(lacking):
                picture = _expanded(picture, (*first, *last))
            left, top = (round((side - edge) / 2) for side in picture.size)
            picture = picture.crop((left, top, left + edge, top + edge))
        else:
            picture = _expanded(picture, each.pixels * 4)
    return picture


def _expanded(picture: Image.Image, more: Sequence[int]) -> Image.Image:
    left, top, right, bottom = more
    refuse_large(picture.width + left + right, picture.height + top + bottom)
    return ImageOps.expand(picture, (left, top, right, bottom), fill=0)


def _final_size(shapes: Sequence[Transform]) -> tuple[int, int] | None:
    """Return the height and width that transforms give to every picture; None if pictures may differ."""
    size: tuple[int, int] | None = None
    for each in shapes:
        first, last = each.pixels[0], each.pixels[-1]
        if each.name == CENTER_CROP:
            size = (first, first)
        elif each.name == PAD:
            size = None if size is None else (size[0] + 2 * first, size[1] + 2 * first)
        elif len(each.pixels) > 1:
            size = (first, last)
        else:
            size = (first, first) if size is not None and size[0] == size[1] else None
    return size


def _scale(part: Part, channels: int) -> Scale:
    said = part.mapping(required=("mean", "std"), allowed=())
    both = []
    for key in ("mean", "std"):
        numbers = tuple(each.number() for each in said[key].list())
        if len(numbers) != channels or not np.isfinite(numbers).all():
            raise said[key].wrong(
                f"a list of {channels} numbers, one for each channel, of pixels from 0 to 1"
            )
        both.append(numbers)
    means, deviations = both
    if min(deviations) <= 0:
        raise said["std"].wrong("numbers above 0")
    return Scale(means, deviations)


def scale_from(values: Any) -> Scale | None:
    """Make a Scale from a dictionary that was read from JSON; for None, return None.

    Raises TypeError, KeyError: they are those of none.
    """
    return None if values is None else Scale(tuple(values["means"]), tuple(values["deviations"]))
