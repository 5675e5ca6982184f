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
            shapes.append(Transform(name, _pixels(said, 2 if name == RESIZE else 1)))
    if shapes and _size(shapes) != (image_size, image_size):
        raise part.wrong(f"transforms that end in {image_size} x {image_size} pixels, as image_size says")
    return tuple(shapes), scale


def transformed(picture: Image.Image, transforms: Sequence[Transform]) -> Image.Image:
    """Apply declared transforms to a picture; the pixels equal those that torchvision computes."""
    for each in transforms:
        if each.name == RESIZE:
            picture = picture.resize(_resized(picture.size, each.pixels), Image.Resampling.BILINEAR)
        elif each.name == CENTER_CROP:
            picture = _cropped(picture, each.pixels[0])
        else:
            picture = ImageOps.expand(picture, each.pixels[0], fill=0)
    return picture


def _resized(size: tuple[int, int], pixels: Sequence[int]) -> tuple[int, int]:
    """Return a picture's width and height after a `resize` transform."""
    if len(pixels) > 1:
        return pixels[1], pixels[0]
    width, height = (int(pixels[0] * edge / min(size)) for edge in size)
    return width, height


def _cropped(picture: Image.Image, edge: int) -> Image.Image:
    """Return the central square of a picture, padded with black if it is smaller."""
    lacking = [max(0, edge - each) for each in picture.size]
    first, last = ([each // 2 for each in lacking], [(each + 1) // 2 for each in lacking])
    if any(lacking):
        picture = ImageOps.expand(picture, (*first, *last), fill=0)
    left, top = (round((each - edge) / 2) for each in picture.size)
    return picture.crop((left, top, left + edge, top + edge))


def _size(shapes: Sequence[Transform]) -> tuple[int, int] | None:
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


def _pixels(part: Part, most: int) -> tuple[int, ...]:
    """Read a transform's number of pixels, or a list of up to `most` such numbers."""
    parts = part.list() if isinstance(part.values, list) else [part]
    numbers = [each.number() for each in parts]
    if len(numbers) > most or any(each % 1 or not 1 <= each <= MOST_PIXELS_AN_EDGE for each in numbers):
        more = ", or two, height and width" if most > 1 else ""
        raise part.wrong(f"a whole number of pixels from 1 to {MOST_PIXELS_AN_EDGE}{more}")
    return tuple(map(int, numbers))


def _scale(part: Part, channels: int) -> Scale:
    said = part.mapping(required=("mean", "std"), allowed=())
    means, deviations = (_numbers(said[key], channels) for key in ("mean", "std"))
    if min(deviations) <= 0:
        raise said["std"].wrong("numbers above 0")
    return Scale(means, deviations)


def _numbers(part: Part, channels: int) -> tuple[float, ...]:
    numbers = tuple(each.number() for each in part.list())
    if len(numbers) != channels or not np.isfinite(numbers).all():
        raise part.wrong(f"a list of {channels} numbers, one for each channel, of pixels from 0 to 1")
    return numbers


def scale_from(values: Any) -> Scale | None:
    """Make a Scale from a dictionary that was read from JSON; for None, return None.

    Raises TypeError, KeyError: they are those of none.
    """
    return None if values is None else Scale(tuple(values["means"]), tuple(values["deviations"]))
