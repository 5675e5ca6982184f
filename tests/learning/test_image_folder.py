"""Tests of folders of users' pictures: layouts, sizes and colours, and one-line errors."""

import json
import os
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gdpfed.errors import LearningError
from gdpfed.learning.data import DataSource, load_dataset
from gdpfed.learning.data.dataset import Pictures
from gdpfed.learning.data.picture_files import read_picture
from gdpfed.learning.data_warnings import data_warnings
from gdpfed.learning.model_folder import save_model
from gdpfed.learning.prediction import load_model
from gdpfed.learning.task import Task
from gdpfed.report.model_card import base_rate
from testing.project import SHARED_DATA

CIFAR_JPEG = SHARED_DATA / "cifar10-images.tar.gz"


def draw(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values, dtype=np.uint8)).save(path)


def folder(root, classes=("cat", "dog"), pictures=10, size=(6, 8), seed=0):
    """Write random PNG files into one folder for each class; return the pixels by class."""
    rng = np.random.default_rng(seed)
    drawn = {name: rng.integers(0, 256, (pictures, *size, 3)) for name in classes}
    for name, values in drawn.items():
        for number, picture in enumerate(values):
            draw(root / name / f"{number:02}.png", picture)
    return drawn


def source(root, **settings):
    return DataSource("image_folder", str(root), **settings)


def pictures_of(data):
    """Return the pixels of the training split and of the test split."""
    assert isinstance(data.train, Pictures)
    assert isinstance(data.test, Pictures)
    return data.train.pixels, data.test.pixels


def counts(labels):
    return np.unique(labels, return_counts=True)[1].tolist()


def test_two_splits_are_taken_as_they_are(tmp_path):
    drawn = {part: folder(tmp_path / part, seed=seed) for seed, part in enumerate(("train", "test"))}
    data = load_dataset(source(tmp_path))
    assert (data.input_shape, data.num_classes) == ((3, 6, 8), 2)
    for part, examples in (("train", data.train), ("test", data.test)):
        taken = examples.take(np.arange(len(examples)))
        pixels = np.concatenate([drawn[part]["cat"], drawn[part]["dog"]]).transpose(0, 3, 1, 2)
        np.testing.assert_allclose(taken.x, pixels / 127.5 - 1, atol=1e-6)
        np.testing.assert_array_equal(taken.y, [0] * 10 + [1] * 10)


def test_class_folders_alone_are_split_by_class_and_share_nothing(tmp_path):
    folder(tmp_path, pictures=20)
    data = load_dataset(source(tmp_path, test_fraction=0.25))
    assert counts(data.train.y) == [15, 15]
    assert counts(data.test.y) == [5, 5]
    train_pixels, test_pixels = pictures_of(data)
    trained_on = {picture.tobytes() for picture in train_pixels}
    held_out = {picture.tobytes() for picture in test_pixels}
    assert len(trained_on | held_out) == 40
    load_dataset.cache_clear()
    again = load_dataset(source(tmp_path, test_fraction=0.25))
    np.testing.assert_array_equal(pictures_of(again)[1], test_pixels)


def test_pictures_are_resized_and_made_grey(tmp_path):
    folder(tmp_path, size=(6, 8))
    draw(tmp_path / "cat" / "wide.png", np.full((20, 50, 3), 90))
    draw(tmp_path / "dog" / "grey.jpg", np.full((40, 30), 200))
    data = load_dataset(source(tmp_path, image_size=16, channels=1))
    assert data.input_shape == (1, 16, 16)
    pixels = np.concatenate(pictures_of(data))
    means = pixels.reshape(len(pixels), -1).mean(axis=1).round()
    assert {90, 200} <= set(means)
    assert load_dataset(source(tmp_path, image_size=16)).input_shape == (3, 16, 16)


def two_sizes(root):
    folder(root)
    draw(root / "cat" / "99.png", np.zeros((9, 9, 3)))


def no_picture(root):
    folder(root)
    (root / "cat" / "99.png").write_text("not a picture")


def cut_short(root):
    folder(root)
    path = root / "dog" / "03.png"
    path.write_bytes(path.read_bytes()[:100])


def a_program(root):
    """Add a PostScript program named .png, which Pillow would run in another program."""
    folder(root)
    (root / "cat" / "99.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n"
    )


def far_too_large(root):
    """Add a picture of 9,000 by 9,000 pixels, whose file has a few kilobytes."""
    folder(root)
    Image.new("1", (9000, 9000)).save(root / "cat" / "99.png")


def deep_grey(root):
    folder(root)
    Image.fromarray(np.full((6, 8), 40_000, dtype=np.uint16)).save(root / "dog" / "03.png")


def deep_colour(root):
    """Add a colour PNG with 16 bits per channel, of which Pillow would read the upper 8 bits only."""
    folder(root)
    rows = np.random.default_rng(0).integers(0, 4096, (6, 8, 3)).astype(">u2")
    header = struct.pack(">IIBBBBB", 8, 6, 16, 2, 0, 0, 0)
    lines = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    chunks = [(b"IHDR", header), (b"IDAT", lines), (b"IEND", b"")]
    said = [struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in chunks]
    (root / "dog" / "03.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(said))


def deep_tiff(root):
    folder(root)
    Image.fromarray(np.full((6, 8), 0.5, dtype=np.float32)).save(root / "dog" / "03.tif")


def deep_ppm(root):
    folder(root)
    rows = np.full((6, 8, 3), 4000, dtype=">u2").tobytes()
    (root / "dog" / "03.ppm").write_bytes(b"P6\n# a comment\n8 6\n4095\n" + rows)


def frames(count):
    return [Image.fromarray(np.full((6, 8, 3), 6 * k, np.uint8)) for k in range(count)]


def many_pages(root, name="a.tif", count=40):
    folder(root)
    first, *others = frames(count)
    first.save(root / "cat" / name, save_all=True, append_images=others)


def moving_png(root):
    many_pages(root, "a.png", 3)


def moving_webp(root):
    many_pages(root, "a.webp", 3)


def one_level_off(root):
    for site in ("bonn", "ulm"):
        folder(root / site, ("benign", "malignant"))


def one_level_off_with_a_class_missing(root):
    folder(root / "bonn", ("benign", "malignant"))
    folder(root / "ulm", ("benign",))


def one_level_off_in_splits(root):
    for split in ("train", "test"):
        one_level_off(root / split)


def one_folder_too_many(root):
    folder(root / "images")


def capitals(root):
    folder(root / "Train")
    folder(root / "Test")


def not_printable(root):
    folder(root)
    folder(root, ("e\nmu",))


def other_classes(root):
    folder(root / "train")
    folder(root / "test", classes=("cat", "cow"))


def no_test(root):
    folder(root / "train")


def empty_class(root):
    folder(root)
    (root / "emu").mkdir()


def one_of_a_class(root):
    folder(root, pictures=1)


def a_pipe(root):
    folder(root)
    os.mkfifo(root / "cat" / "99.png")


def a_loop(root):
    folder(root)
    (root / "cat" / "sub").symlink_to("..")


def one_folder_twice(root):
    folder(root)
    (root / "emu").symlink_to("cat")


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (two_sizes, {}, r"8x6 pixels and .*99.png 9x9: make them one size with dataset.image_size=6"),
        (no_picture, {}, r"cat/99.png cannot be read as a picture"),
        (a_pipe, {}, r"cat/99.png is a pipe or a device: save the picture as a file in its place$"),
        (a_loop, {}, r"cat/sub/cat and .*/cat are one folder, to which a link leads, .*: take the link out$"),
        (one_folder_twice, {}, r"/emu and .*/cat are one folder, to which a link leads, and each picture"),
        (cut_short, {}, r"dog/03.png cannot be read as a picture"),
        (a_program, {}, r"cat/99.png cannot be read as a picture"),
        (far_too_large, {}, r"cat/99.png has 9000 x 9000 pixels, more than 67108864: scale it down"),
        (
            deep_grey,
            {},
            r"^[^ ]*dog/03.png has 16 bits a channel: scale it to 8 bits, or declare the window",
        ),
        (
            deep_colour,
            {},
            r"^[^ ]*dog/03.png has 16 bits a channel: scale it to 8 bits, or declare the window",
        ),
        (deep_tiff, {}, r"^[^ ]*dog/03.tif has 32 bits a channel: scale it to 8 bits$"),
        (deep_ppm, {}, r"^[^ ]*dog/03.ppm has 12 bits a channel: scale it to 8 bits, or declare"),
        (many_pages, {}, r"^[^ ]*cat/a.tif holds 40 pages, and a picture is one: split it$"),
        (moving_png, {}, r"^[^ ]*cat/a.png holds 3 pages, and a picture is one: split it$"),
        (moving_webp, {}, r"^[^ ]*cat/a.webp holds 3 pages, and a picture is one: split it$"),
        (
            one_level_off,
            {},
            "bonn holds no pictures but the folders benign, malignant, as ulm does: are these the",
        ),
        (
            one_level_off_with_a_class_missing,
            {},
            "bonn holds no pictures but the folders benign, malignant, and ulm some of them: are these",
        ),
        (
            one_level_off_in_splits,
            {},
            "train: bonn holds no pictures but the folders benign, malignant, as ulm",
        ),
        (
            one_folder_too_many,
            {},
            "images holds no pictures but the folders cat, dog: if these are the classes, set",
        ),
        (capitals, {}, "holds Test, Train: call them train and test, if they are the splits and not classes"),
        (not_printable, {}, r"the class folder 'e\\nmu' has characters that cannot be shown: rename it"),
        (other_classes, {}, "train and test have different classes, cow is in one of them only"),
        (no_test, {}, "test must hold one folder of pictures for each class"),
        (empty_class, {}, "must hold one folder of pictures for each class: .*emu"),
        (one_of_a_class, {}, "too few pictures to hold out"),
        (Path.exists, {}, "must hold one folder of pictures for each class: it holds none"),
        (
            folder,
            {"sequence_length": 80},
            "dataset.sequence_length=80 has no meaning for data set 'image_folder'",
        ),
        (Path.rmdir, {}, "is not a directory: name the one with the class folders"),
    ],
)
def test_folders_that_cannot_be_used_are_named_in_one_line(tmp_path, make, settings, words):
    make(tmp_path)
    with pytest.raises(LearningError, match=words) as raised:
        load_dataset(source(tmp_path, **settings))
    assert "\n" not in str(raised.value)


def test_a_picture_stands_as_its_camera_held_it(tmp_path):
    """A picture is rotated as the orientation in its EXIF data says."""
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:, :16] = 255
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=turned)
    found = read_picture(str(tmp_path / "a.png"), 1, None)
    assert found.shape == (1, 32, 16)
    assert (found[0, :16] == 255).all()
    assert (found[0, 16:] == 0).all()


def test_grey_with_alpha_and_a_picture_with_previews_are_read(tmp_path):
    Image.fromarray(np.stack([np.full((6, 8), 200), np.full((6, 8), 255)], 2).astype(np.uint8), "LA").save(
        tmp_path / "a.png"
    )
    assert (read_picture(str(tmp_path / "a.png"), 3, None) == 200).all()
    first, *others = frames(2)
    first.save(tmp_path / "b.jpg", format="MPO", save_all=True, append_images=others)
    assert read_picture(str(tmp_path / "b.jpg"), 3, None).max() < 5


@pytest.mark.parametrize("kind", ["png", "webp", "tiff", "palette", "key"])
def test_ink_on_transparency_lies_on_white(tmp_path, kind):
    """Transparent pixels are read as white."""
    ink = np.zeros((6, 8), np.uint8)
    ink[:, 2:4] = 255
    drawn = Image.fromarray(np.stack([0 * ink, 0 * ink, 0 * ink, ink], 2), "RGBA")
    name, options = f"a.{kind}", dict[str, Any](lossless=True) if kind == "webp" else {}
    if kind in ("palette", "key"):
        drawn = Image.fromarray(255 - ink, "L").convert("P" if kind == "palette" else "RGB")
        options = {"transparency": 255 if kind == "palette" else (255, 255, 255)}
        name = "a.png"
    drawn.save(tmp_path / name, **options)
    for channels in (1, 3):
        found = read_picture(str(tmp_path / name), channels, None)
        assert (found == np.where(ink, 0, 255)).all()


def test_folders_of_patients_in_those_of_classes_are_read(tmp_path):
    for name, patients in (("cat", ("p1", "p2")), ("dog", ("p3", "p4", "p1"))):
        folder(tmp_path / name, patients)
    data = load_dataset(source(tmp_path))
    assert (data.class_names, len(data.train) + len(data.test)) == (("cat", "dog"), 50)


def test_what_systems_put_beside_is_no_class_and_what_is_not_read_is_counted(tmp_path):
    drawn = folder(tmp_path)
    folder(tmp_path, (".ipynb_checkpoints", "__MACOSX"))
    folder(tmp_path / "cat", ("@eaDir",))
    (tmp_path / "cat" / "._00.png").write_text("resource fork")
    (tmp_path / "dog" / "Thumbs.db").write_text("thumbnails")
    frames(1)[0].save(tmp_path / "dog" / "z.gif")
    (tmp_path / "read.me").write_text("words")
    data = load_dataset(source(tmp_path))
    assert data.class_names == tuple(drawn)
    assert len(data.train) + len(data.test) == 20
    files, system = data.notes
    assert "2 of 22 files are not read: .gif 1, .me 1; pictures end in .jpg, " in files
    assert system.endswith(
        "5 hidden files and folders are passed over: ._00.png, .ipynb_checkpoints, @eaDir, Thumbs.db, "
        "__MACOSX"
    )


def test_a_third_split_is_not_read_and_said(tmp_path):
    for part in ("train", "val", "test"):
        folder(tmp_path / part)
    data = load_dataset(source(tmp_path))
    assert data.notes == (f"{tmp_path}: val/ beside train/ and test/ is not read: 20 pictures",)
    task = Task(source(tmp_path), "linear", "iid", 3, 0)
    assert next(data_warnings(task)) == data.notes[0]


def test_names_of_folders_are_those_of_outputs_in_the_model_and_in_words(tmp_path):
    """Classes are named after their folders and sorted as text: output 2 of a model belongs to folder 10."""
    for number in range(11):
        for each in range(10):
            draw(tmp_path / "p" / str(number) / f"{each}.png", np.full((4, 4, 3), 20 * number + each))
    task = Task(source(tmp_path / "p"), "linear", "iid", 3, 0)
    names = ("0", "1", "10", *map(str, range(2, 10)))
    assert task.load().named_classes == names
    assert base_rate(task) == ("0", 2 / 22)
    theta = np.zeros(task.dimension, np.float32)
    save_model(tmp_path, task, theta)
    model = load_model(tmp_path)
    assert model.description.classes == names
    assert json.loads((tmp_path / "model" / "model.json").read_text())["classes"] == list(names)


@pytest.mark.parametrize("features", [None, "hog"])
def test_predict_scales_pictures_as_training_does(tmp_path, features):
    folder(tmp_path / "p", size=(8, 8))
    task = Task(source(tmp_path / "p", features=features), "linear", "iid", 3, 0)
    theta = np.random.default_rng(0).normal(size=task.dimension).astype(np.float32)
    save_model(tmp_path, task, theta)
    model = load_model(tmp_path)
    pixels = np.stack([read_picture(str(tmp_path / "p" / "cat" / f"{k:02}.png"), 3, None) for k in range(10)])
    found = model.predict(pixels)
    scaled = model.predict(pixels.astype(np.float32) / np.float32(127.5) - 1)
    np.testing.assert_array_equal(found.probabilities, scaled.probabilities)
    np.testing.assert_array_equal(found.probabilities, model.predict(pixels.astype(np.int64)).probabilities)
    assert set(found.labels.tolist()) <= {"cat", "dog"}
    with pytest.raises(LearningError, match="numbers beyond -1 and 1, .*: give their bytes as whole numbers"):
        model.predict(pixels.astype(np.float32))
    with pytest.raises(
        LearningError, match="whole numbers from 0 to 4095: bytes of pictures are from 0 to 255"
    ):
        model.predict(np.linspace(0, 4095, pixels.size).astype(np.int64).reshape(pixels.shape))


def test_a_fraction_has_no_meaning_beside_a_test_folder(tmp_path):
    for part in ("train", "test"):
        folder(tmp_path / part)
    with pytest.raises(LearningError, match=r"test_fraction=0.5: .* has a test split, leave it out"):
        load_dataset(source(tmp_path, test_fraction=0.5))


@pytest.mark.skipif(not CIFAR_JPEG.is_file(), reason=f"{CIFAR_JPEG} is not there")
def test_cifar10_as_jpeg(tmp_path):
    with tarfile.open(CIFAR_JPEG) as archive:
        kept = [m for m in archive if m.isfile() and int(m.name[-6:-4]) == 0]
        archive.extractall(tmp_path, kept, filter="data")
    data = load_dataset(source(tmp_path))
    assert (data.input_shape, data.num_classes) == ((3, 32, 32), 10)
    assert counts(data.train.y) == [50] * 10
    assert counts(data.test.y) == [10] * 10
    assert 0.2 < data.train.take(np.arange(500)).x.std() < 0.8
