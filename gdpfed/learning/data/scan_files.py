"""Medical scans as pictures: one slice of each DICOM or NIfTI file; needs the extra ``imaging``.

Of a header nothing is taken but what the pixels are written by, of NIfTI which way its axes run, and where a
spacing is declared, the spacing: no name, no date and no number of a patient. Window, spacing and slice are
declared, so a scan becomes the same numbers whatever its own header recommends.
"""

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError, words_of
from gdpfed.late_import import late_import, packages_needed
from gdpfed.learning.data.picture_files import MODES, MOST_PIXELS, PIPE_REMEDY, bytes_in, resized
from gdpfed.learning.data.picture_form import PictureForm
from gdpfed.learning.data.pipes import refuse_pipe

if TYPE_CHECKING:
    from PIL import Image
else:
    Image = late_import("PIL.Image")
pydicom, nibabel = late_import("pydicom"), late_import("nibabel")

DICOM, NIFTI = (".dcm",), (".nii", ".nii.gz")
SCANS = (*DICOM, *NIFTI)
PIXELS = (
    *("Rows", "Columns", "SamplesPerPixel", "PhotometricInterpretation", "NumberOfFrames", "PixelData"),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "RescaleSlope", "RescaleIntercept"),
)
"""What the pixels of a DICOM file are written by."""
SPACING = "PixelSpacing"
WHITE_IS_LOW = "MONOCHROME1"
DEFLATED = "1.2.840.10008.1.2.1.99"
MOST_VALUES = 4 * MOST_PIXELS
"""Of one file, all slices together."""


@dataclass(frozen=True)
class _Slice:
    """One slice of a scan: values, shape (height, width), and the millimetres between pixels.

    `inverted`: whether low values are white.
    """

    values: npt.NDArray[np.generic]
    spacing: tuple[float, float] | None
    inverted: bool = False


def read_scan(path: str, form: PictureForm) -> npt.NDArray[np.uint8]:
    """Read one slice of a scan as a picture, (channels, height, width), in the way that `form` declares.

    Raises:
        LearningError: a file that cannot be read, with several slices of which none is declared, or without a
            spacing where one is.
        InputError: the package pydicom or nibabel is not installed.
    """
    with packages_needed():
        try:
            refuse_pipe(Path(path), path, PIPE_REMEDY)
            return _read_scan(path, form)
        except (LearningError, ModuleNotFoundError):
            raise
        except Exception as error:  # Of a damaged file the packages raise what their parsers do.
            raise LearningError(
                f"{path} cannot be read as a scan: {words_of(error)}; save it again"
            ) from None


def _read_scan(path: str, form: PictureForm) -> npt.NDArray[np.uint8]:
    found = (_slice_of_dicom if path.lower().endswith(DICOM) else _slice_of_nifti)(path, form)
    if form.window is None:
        raise LearningError(f"{path} is a scan: declare the window of its values in pictures.yaml")
    shown = bytes_in(form.window, found.values)
    picture = Image.fromarray(255 - shown if found.inverted else shown)
    if form.spacing is None:
        picture = form.shaped(picture)
    else:
        # To the declared millimetres per pixel, in the middle of a black square.
        own = found.spacing
        if own is None or not all(0 < each < inf for each in own):
            raise LearningError(
                f"{path} has no spacing of its pixels, and pictures.yaml declares one: leave it out there"
            )
        rows, columns = (each / wanted for each, wanted in zip(own, form.spacing, strict=True))
        wide, high = max(1.0, picture.width * columns), max(1.0, picture.height * rows)
        square = form.image_size or max(wide, high)
        if not max(wide * max(high, picture.height), square**2) <= MOST_PIXELS:
            raise LearningError(
                f"{path} has {wide:.0f} x {high:.0f} pixels at the declared spacing: declare a wider spacing"
            )
        size = (round(wide), round(high))
        scaled, edge = resized(picture, size), form.image_size or max(size)
        picture = Image.new("L", (edge, edge))
        picture.paste(scaled, ((edge - size[0]) // 2, (edge - size[1]) // 2))
    values = np.asarray(picture.convert(MODES[form.channels]), dtype=np.uint8)
    return values.reshape(*values.shape[:2], -1).transpose(2, 0, 1)


def _chosen(path: str, count: int, form: PictureForm) -> int:
    """Return the index, from 0, of the scan's slice that is read as the picture.

    Raises LearningError: there are several, and nobody declares one.
    """
    if count > 1 and form.slice is None:
        raise LearningError(
            f"{path} holds {count} slices, and a picture is one: declare slice in pictures.yaml, 0.5 for the "
            "middle"
        )
    return round((form.slice or 0) * (count - 1))


def _slice_of_dicom(path: str, form: PictureForm) -> _Slice:
    if pydicom.filereader.read_file_meta_info(path).get("TransferSyntaxUID") == DEFLATED:
        # Unpacked whole, however large it becomes.
        raise LearningError(f"{path} is deflated as a whole: write it without that compression")
    tags = [*PIXELS, *([SPACING] if form.spacing is not None else [])]
    read = pydicom.dcmread(path, specific_tags=tags)
    rows, columns, frames = int(read.Rows), int(read.Columns), int(read.get("NumberOfFrames") or 1)
    _refuse_large(path, rows * columns * frames)
    if int(read.get("SamplesPerPixel", 1)) != 1:
        raise LearningError(
            f"{path} is in colour, and a window is of one value: write it as a picture of 8 bits"
        )
    values = np.asarray(read.pixel_array).reshape(frames, rows, columns)[_chosen(path, frames, form)]
    values = values * float(read.get("RescaleSlope", 1) or 1) + float(read.get("RescaleIntercept", 0) or 0)
    own = read.get(SPACING) if form.spacing is not None else None
    spacing = None if own is None else (float(own[0]), float(own[1]))
    return _Slice(values, spacing, str(read.get("PhotometricInterpretation", "")) == WHITE_IS_LOW)


def _slice_of_nifti(path: str, form: PictureForm) -> _Slice:
    volume = nibabel.load(Path(path))
    shape = tuple(volume.shape)
    _refuse_large(path, int(np.prod(shape)))
    if len([each for each in shape if each > 1]) > 3 or len(shape) < 2:
        raise LearningError(f"{path} has the shape {shape}: a scan has two or three axes; save one volume")
    # Turned to the patient without its values, of which one slice is read.
    empty = type(volume)(np.broadcast_to(np.uint8(0), shape), volume.affine, volume.header)
    across, along = (float(each) for each in nibabel.as_closest_canonical(empty).header.get_zooms()[:2])
    if len(shape) > 2:
        turns = nibabel.io_orientation(volume.affine)
        axis = int(np.flatnonzero(turns[:, 0] == 2)[0])
        at = _chosen(path, shape[axis], form)
        at = at if turns[axis, 1] > 0 else shape[axis] - 1 - at
        one = tuple(slice(at, at + 1) if each == axis else slice(None) for each in range(3))
        values = nibabel.apply_orientation(volume.dataobj[one], turns)
    else:
        values = np.asarray(volume.dataobj)
    values = values.reshape((*values.shape, 1)[:3])[:, :, 0]
    # From left to right and from front to back, as a slice is shown.
    return _Slice(values[:, ::-1].T, (along, across))


def _refuse_large(path: str, values: int) -> None:
    if values > MOST_VALUES:
        raise LearningError(f"{path} has {values} values, more than {MOST_VALUES}: scale it down")
