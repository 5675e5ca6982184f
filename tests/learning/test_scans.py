"""Tests of DICOM and NIfTI scans: pixels are read as declared, and fields about the patient are not read."""

import os
import sys
import tracemalloc
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from gdpfed.errors import InputError, LearningError
from gdpfed.late_import import late_import
from gdpfed.learning.data import scan_files
from gdpfed.learning.data.own_files import read_own
from gdpfed.learning.data.picture_form import PictureForm, read_picture_form
from gdpfed.learning.data.scan_files import _Slice, read_scan

VALUES = np.arange(-500, 460, 20, dtype=np.int16).reshape(6, 8)
FORM = PictureForm(("a", "b"), None, 1, (-500, 440))


def shown(values, low=-500.0, high=440.0):
    return np.rint(255 * np.clip((np.asarray(values, float) - low) / (high - low), 0, 1)).astype(np.uint8)


def dicom(path, values=VALUES, **fields):
    """Write a DICOM file that names a patient, and stores each value plus 1024 in 16 bits."""
    pydicom = pytest.importorskip("pydicom")
    meta = pydicom.dataset.FileMetaDataset()
    meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = meta.MediaStorageSOPInstanceUID = "1.2.3"
    made: Any = pydicom.dataset.FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    made.PatientName, made.PatientID = "Ada^Example", "4711"
    stored = (np.asarray(values) + 1024).astype(np.uint16)
    made.Rows, made.Columns = stored.shape[-2:]
    if stored.ndim == 3:
        made.NumberOfFrames = len(stored)
    made.SamplesPerPixel, made.PhotometricInterpretation = 1, "MONOCHROME2"
    made.BitsAllocated = made.BitsStored = 16
    made.HighBit, made.PixelRepresentation = 15, 0
    made.RescaleSlope, made.RescaleIntercept, made.PixelSpacing = 1, -1024, [2.0, 0.5]
    made.WindowCenter, made.WindowWidth = 40, 80
    made.PixelData = stored.tobytes()
    for name, value in fields.items():
        if value is None:
            delattr(made, name)
        else:
            setattr(made, name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save_as(path, enforce_file_format=True)
    return path


def nifti(path, values=VALUES, zooms=(0.5, 2.0, 3.0), flip=False):
    """Write a NIfTI volume with its axes in NIfTI's order: x from left to right, y from back to front."""
    nibabel = pytest.importorskip("nibabel")
    volume = np.asarray(values) if np.ndim(values) == 3 else np.asarray(values)[None]
    data = volume.transpose(2, 1, 0)[:, ::-1]
    affine = np.diag([*zooms, 1.0])
    if flip:
        data, affine[0, 0] = data[::-1], -zooms[0]
    nibabel.save(nibabel.Nifti1Image(data.astype(np.int16), affine), path)
    return path


@pytest.mark.parametrize("make", [dicom, nifti])
def test_a_scan_is_what_its_window_shows(tmp_path, make):
    path = make(tmp_path / ("a.dcm" if make is dicom else "a.nii.gz"))
    np.testing.assert_array_equal(read_scan(str(path), FORM), [shown(VALUES)])
    narrow = PictureForm(("a", "b"), None, 3, (0, 100))
    np.testing.assert_array_equal(read_scan(str(path), narrow), [shown(VALUES, 0, 100)] * 3)


def test_the_axes_of_a_volume_are_those_of_the_patient(tmp_path):
    one, other = (read_scan(str(nifti(tmp_path / f"{flip}.nii", flip=flip)), FORM) for flip in (False, True))
    np.testing.assert_array_equal(one, other)


def test_low_values_may_be_white(tmp_path):
    found = read_scan(str(dicom(tmp_path / "a.dcm", PhotometricInterpretation="MONOCHROME1")), FORM)
    np.testing.assert_array_equal(found, [255 - shown(VALUES)])


@pytest.mark.parametrize("make", [dicom, nifti])
def test_one_declared_slice_of_a_volume_is_read(tmp_path, make):
    volume = np.stack([VALUES + 10 * at for at in range(5)])
    path = str(make(tmp_path / ("a.dcm" if make is dicom else "a.nii"), volume))
    with pytest.raises(
        LearningError, match=r"holds 5 slices, and a picture is one: declare slice in pictures.yaml"
    ):
        read_scan(path, FORM)
    for place, at in ((0.0, 0), (0.5, 2), (1.0, 4)):
        form = PictureForm(FORM.classes, None, 1, FORM.window, None, place)
        np.testing.assert_array_equal(read_scan(path, form), [shown(volume[at])])


@pytest.mark.parametrize("make", [dicom, nifti])
def test_a_declared_spacing_makes_scans_of_one_scale(tmp_path, make):
    """Scans are scaled to the declared 1 mm a pixel: 6 rows of 2 mm and 8 columns of 0.5 mm give 12 by 4."""
    path = make(tmp_path / ("a.dcm" if make is dicom else "a.nii"), np.full((6, 8), 440))
    found = read_scan(str(path), PictureForm(FORM.classes, 16, 1, FORM.window, (1.0, 1.0)))[0]
    expected = np.zeros((16, 16))
    expected[2:14, 6:10] = 255
    np.testing.assert_array_equal(found, expected)


def test_a_folder_of_scans_is_read_at_a_node_where_a_window_is_declared(tmp_path):
    declared = "classes: [a, b]\nimage_size: 8\nchannels: 1\n"
    for at in range(4):
        dicom(tmp_path / "ab"[at % 2] / f"{at}.DCM", VALUES + at)
    (tmp_path / "pictures.yaml").write_text(declared)
    with pytest.raises(LearningError, match="holds no picture"):
        read_own(tmp_path)
    (tmp_path / "pictures.yaml").write_text(declared + "window: [-500, 440]\n")
    x, y = (np.asarray(each) for each in read_own(tmp_path)[:2])
    assert (x.shape, y.tolist()) == ((4, 1, 8, 8), [0, 0, 1, 1])


@pytest.mark.parametrize(
    ("fields", "form", "words"),
    [
        (
            {"PixelSpacing": None},
            PictureForm(("a", "b"), 8, 1, (0, 1), (1, 1)),
            "has no spacing of its pixels",
        ),
        ({"PixelData": None}, FORM, "cannot be read as a scan"),
        ({}, PictureForm(("a", "b"), 8, 1), "is a scan: declare the window of its values in pictures.yaml"),
        ({"SamplesPerPixel": 3}, FORM, "is in colour, and a window is of one value"),
    ],
)
def test_a_scan_that_cannot_be_read_is_one_line(tmp_path, fields, form, words):
    with pytest.raises(LearningError, match=words) as raised:
        read_scan(str(dicom(tmp_path / "a.dcm", **fields)), form)
    assert "Ada" not in str(raised.value)
    (tmp_path / "b.dcm").write_bytes(b"no scan")
    with pytest.raises(LearningError, match=r"b.dcm cannot be read as a scan"):
        read_scan(str(tmp_path / "b.dcm"), FORM)


@pytest.mark.parametrize("spacing", [[np.nan, 1.0], [1.0, np.inf], [1e300, 1e300]])
def test_no_spacing_of_a_scan_is_another_kind_of_error(tmp_path, spacing):
    form = PictureForm(("a", "b"), 8, 1, (0, 1), (1, 1))
    path = dicom(tmp_path / "a.dcm")
    with patch.object(scan_files, "_slice_of_dicom", lambda *given: _Slice(VALUES, tuple(spacing))):
        with pytest.raises(LearningError, match="has no spacing of its pixels|at the declared spacing"):
            read_scan(str(path), form)
        # Thin as well as wide: the square around it counts.
        square = PictureForm(("a", "b"), None, 1, (0, 1), (1e-300, 1))
        with pytest.raises(LearningError, match="has no spacing of its pixels|at the declared spacing"):
            read_scan(str(path), square)


def test_a_volume_in_colour_is_one_line(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    colours = np.zeros((8, 8, 1), [(name, "u1") for name in "RGB"])
    nibabel.save(nibabel.Nifti1Image(colours, np.eye(4)), tmp_path / "a.nii")
    with pytest.raises(LearningError, match=r"a.nii cannot be read as a scan: "):
        read_scan(str(tmp_path / "a.nii"), FORM)


def test_no_scan_is_unpacked_whole_for_one_slice(tmp_path):
    """A file of a few kilobytes may hold gigabytes."""
    pydicom, nibabel = (pytest.importorskip(name) for name in ("pydicom", "nibabel"))
    read = pydicom.dcmread(dicom(tmp_path / "a.dcm"))
    read.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    read.save_as(tmp_path / "b.dcm", enforce_file_format=True)
    with pytest.raises(LearningError, match="b.dcm is deflated as a whole: write it without"):
        read_scan(str(tmp_path / "b.dcm"), FORM)
    volume = np.zeros((128, 128, 400), np.uint8)
    nibabel.save(nibabel.Nifti1Image(volume, np.diag([1, -1, 1, 1])), tmp_path / "a.nii.gz")
    tracemalloc.start()
    read_scan(str(tmp_path / "a.nii.gz"), PictureForm(("a", "b"), None, 1, (0, 1), None, 0.5))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < volume.nbytes / 4
    with (
        patch.object(scan_files, "MOST_VALUES", volume.size - 1),
        pytest.raises(LearningError, match="has 6553600 values, more than"),
    ):
        read_scan(str(tmp_path / "a.nii.gz"), FORM)


def test_no_field_of_the_patient_is_taken(tmp_path, monkeypatch):
    pydicom = pytest.importorskip("pydicom")
    taken, read = list[Any](), pydicom.dcmread

    def noted(*given, **options):
        taken.append(read(*given, **options))
        return taken[-1]

    monkeypatch.setattr(pydicom, "dcmread", noted)
    read_scan(str(dicom(tmp_path / "a.dcm")), FORM)
    names = {each.keyword for each in taken[0]}
    assert names <= {*scan_files.PIXELS}
    assert "PixelData" in names


def test_a_pipe_in_place_of_a_scan_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.dcm")
    with pytest.raises(LearningError, match="a.dcm is a pipe or a device: save the picture as a file in its"):
        read_scan(str(tmp_path / "a.dcm"), FORM)


def test_a_missing_package_and_declarations_of_scans_alone_are_named(tmp_path, monkeypatch):
    (tmp_path / "a.dcm").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pydicom", None)
    monkeypatch.setattr(scan_files, "pydicom", late_import("pydicom"))
    with pytest.raises(
        InputError,
        match=r"needs the package pydicom, .* install 'imagecodecs>=2025' 'nibabel>=5.3' 'pydicom>=3'",
    ):
        read_scan(str(tmp_path / "a.dcm"), FORM)
    said = "classes: [a, b]\nimage_size: 8\nchannels: 1\n"
    for more, words in (
        ("slice: 0.5\n", "spacing and slice are of scans: declare window, too"),
        ("window: [0, 1]\nslice: 2\n", "slice is '2'; it must be a number from 0, the first slice, to 1"),
        ("window: [0, 1]\nspacing: [1, 0]\n", "spacing is .* two millimetres above 0"),
    ):
        Path(tmp_path / "pictures.yaml").write_text(said + more)
        with pytest.raises(LearningError, match=words):
            read_picture_form(tmp_path)
