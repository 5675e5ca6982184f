"""The user's own pictures: two layouts, sizes and colours, and one line for what cannot be used."""

import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gdpfed.errors import LearningError
from gdpfed.learning.data import DataSource, load_dataset
from gdpfed.learning.data.dataset import Pictures

SHARED = Path(__file__).parents[3] / "shared" / "data"
CIFAR_JPEG = SHARED / "cifar10-images.tar.gz"


def draw(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values, dtype=np.uint8)).save(path)


def folder(root, classes=("cat", "dog"), pictures=10, size=(6, 8), seed=0):
    """PNG files, which keep every pixel, by class."""
    rng = np.random.default_rng(seed)
    drawn = {name: rng.integers(0, 256, (pictures, *size, 3)) for name in classes}
    for name, values in drawn.items():
        for number, picture in enumerate(values):
            draw(root / name / f"{number:02}.png", picture)
    return drawn


def source(root, **settings):
    return DataSource("image_folder", str(root), **settings)


def pictures_of(data):
    """The pixels of both splits."""
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
    """PostScript, which Pillow would have another program carry out."""
    folder(root)
    (root / "cat" / "99.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n"
    )


def far_too_large(root):
    """A few kilobytes, of which the header alone is read."""
    folder(root)
    Image.new("1", (9000, 9000)).save(root / "cat" / "99.png")


def deep_grey(root):
    folder(root)
    Image.fromarray(np.full((6, 8), 40_000, dtype=np.uint16)).save(root / "dog" / "03.png")


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


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (two_sizes, {}, r"8x6 pixels and .*99.png 9x9: make them one size with dataset.image_size=6"),
        (no_picture, {}, r"cat/99.png cannot be read as a picture"),
        (cut_short, {}, r"dog/03.png cannot be read as a picture"),
        (a_program, {}, r"cat/99.png cannot be read as a picture"),
        (far_too_large, {}, r"cat/99.png has 9000 x 9000 pixels, more than 67108864: scale it down"),
        (deep_grey, {}, r"^[^ ]*dog/03.png has more than 8 bits a pixel \(mode I;16\): scale it to 8 bits$"),
        (other_classes, {}, "train and test have different classes, cow is in one of them only"),
        (no_test, {}, "test must hold one folder of pictures for each class"),
        (empty_class, {}, "must hold one folder of pictures for each class: .*emu"),
        (one_of_a_class, {}, "too few pictures to hold out"),
        (Path.exists, {}, "must hold one folder of pictures for each class"),
        (
            folder,
            {"sequence_length": 80},
            "dataset.sequence_length=80 has no meaning for data set 'image_folder'",
        ),
        (Path.rmdir, {}, "is no directory: name the one with the class folders"),
    ],
)
def test_folders_that_cannot_be_used_are_named_in_one_line(tmp_path, make, settings, words):
    make(tmp_path)
    with pytest.raises(LearningError, match=words) as raised:
        load_dataset(source(tmp_path, **settings))
    assert "\n" not in str(raised.value)


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
