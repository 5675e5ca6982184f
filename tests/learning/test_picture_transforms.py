"""Tests of the transforms that pictures.yaml lists, against torchvision's transforms of the same files."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image

from conf.load import load
from gdpfed.clients.configured import task_of
from gdpfed.errors import LearningError
from gdpfed.learning.data import DataSource, load_dataset
from gdpfed.learning.data.dataset import ExampleForm
from gdpfed.learning.data.own import own_split
from gdpfed.learning.data.own_files import read_own
from gdpfed.learning.data.picture_form import PictureForm, read_picture_form
from gdpfed.learning.data.picture_transforms import Scale, Transform, transformed
from gdpfed.learning.model_folder import ModelDescription
from gdpfed.learning.models import build_model
from gdpfed.learning.prediction import LoadedModel

DECLARED = "classes: [benign, malignant]\nimage_size: 8\nchannels: 3\n"
TRANSFORMS = """transforms:
  - resize: 12
  - center_crop: 8
  - normalize: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}
"""


def folder(root, more=TRANSFORMS, count=5):
    rng = np.random.default_rng(0)
    for name in ("benign", "malignant"):
        (root / name).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(rng.integers(0, 256, (20, 31, 3), dtype=np.uint8)).save(
                root / name / f"{number}.png"
            )
    (root / "pictures.yaml").write_text(DECLARED + more)
    return root


def run_form(root):
    words = ["dataset=image_folder", f"dataset.path={root}", "dataset.num_clients=2", "dataset.model=linear"]
    return task_of(load(words)).described().form


def by_torchvision(root):
    from torchvision import transforms

    chain = transforms.Compose(
        [
            transforms.Resize(12),
            transforms.CenterCrop(8),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    return torch.stack([chain(Image.open(path)) for path in sorted(root.glob("*/*.png"))]).numpy()


def test_they_are_those_of_torchvision_in_a_simulation_and_at_a_node(tmp_path):
    root = folder(tmp_path)
    x = np.asarray(read_own(root)[0])
    np.testing.assert_allclose(x, by_torchvision(root), atol=1e-6)
    form = run_form(root)
    np.testing.assert_array_equal(own_split(root, form).x, x)
    data = load_dataset(DataSource("image_folder", str(root)))
    every = np.concatenate([part.take(np.arange(len(part))).x for part in (data.train, data.test)])
    assert sorted(map(bytes, every)) == sorted(map(bytes, x))


@pytest.mark.parametrize("size", [(20, 31), (31, 20), (5, 9), (8, 8), (7, 7), (3, 100)])
def test_shapes_are_those_of_torchvision(size):
    from torchvision.transforms import functional

    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8))
    for name, of_torchvision, numbers in (
        ("resize", functional.resize, ([6], [13], [4, 9])),
        ("center_crop", functional.center_crop, ([6], [7], [21])),
        ("pad", functional.pad, ([3],)),
    ):
        for pixels in numbers:
            found = transformed(picture, [Transform(name, tuple(pixels))])
            np.testing.assert_array_equal(np.asarray(found), np.asarray(of_torchvision(picture, pixels)))


def test_a_padded_picture_is_black_around(tmp_path):
    root = folder(tmp_path, "transforms: [{resize: [4, 4]}, {pad: 2}]\n", 1)
    x = np.asarray(read_own(root)[0])
    assert x.shape == (2, 3, 8, 8)
    assert (x[:, :, [0, 1, 6, 7]] == -1).all()
    assert (x[:, :, 2:6, 2:6] > -1).any()


def test_another_scale_or_crop_is_another_declaration(tmp_path):
    root = folder(tmp_path / "a")
    form = read_picture_form(root)
    plain = PictureForm(form.classes, form.image_size, form.channels)
    assert form.scale is not None
    others = [
        form,
        plain,
        replace(form, transforms=form.transforms[:1]),
        replace(form, scale=replace(form.scale, means=(0.0, 0.0, 0.0))),
    ]
    assert len({each.digest for each in others}) == 4
    data = load_dataset(DataSource("image_folder", str(root)))
    other = load_dataset(
        DataSource("image_folder", str(folder(tmp_path / "b", TRANSFORMS.replace("0.485", "0.5"))))
    )
    assert data.fingerprints[0] != other.fingerprints[0]
    with pytest.raises(
        LearningError, match=r"dataset.features=hog takes pictures from -1 to 1: leave normalize"
    ):
        load_dataset(DataSource("image_folder", str(root), features="hog"))


def test_predictions_scale_bytes_as_training_did(tmp_path):
    data = load_dataset(DataSource("image_folder", str(folder(tmp_path))))
    scale = Scale((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    said = ModelDescription("linear", (), ExampleForm.of(data), ("a", "b"), (), True, scale)
    again = ModelDescription.from_json(said.to_json())
    assert again == said
    assert '"version": 3' in said.to_json()
    assert '"version": 2' in replace(said, scale=None).to_json()
    model = LoadedModel(said, None, build_model("linear", data.input_shape, 2, seed=0))
    pixels = np.random.default_rng(1).integers(0, 256, (4, 3, 8, 8))
    with torch.no_grad():
        outputs = model.module(torch.from_numpy(scale.of(pixels.astype(np.uint8)))).softmax(1)
    np.testing.assert_allclose(np.asarray(model.predict(pixels).probabilities), outputs, atol=1e-6)
    with pytest.raises(
        LearningError, match=r"normalizes the bytes of pictures as declared: give them, from 0"
    ):
        model.predict(pixels / 255)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("[{random_horizontal_flip: 0.5}, {resize: [8, 8]}]", "must be a transform without random choices"),
        ("[{color_jitter: 1}]", "it must be a transform without random choices"),
        ("[{gaussian_blur: 3}]", "it must be one of resize, center_crop, pad, normalize"),
        ("[{resize: 8}]", "it must be transforms that end in 8 x 8 pixels, as image_size says"),
        ("[{resize: [8, 9]}]", "it must be transforms that end in 8 x 8 pixels"),
        ("[{center_crop: 8}, {pad: 1}]", "it must be transforms that end in 8 x 8 pixels"),
        ("[{center_crop: 8.5}]", "transforms.center_crop is '8.5'; it must be a whole number of pixels"),
        ("[{center_crop: [8, 8]}]", "it must be a whole number of pixels from 1 to 4096$"),
        ("[{resize: [1, 2, 3]}]", "it must be a whole number of pixels from 1 to 4096, or two"),
        ("[resize]", "it must be one transform with its numbers"),
        ("[{normalize: {mean: [0.5], std: [0.5]}}]", "it must be a list of 3 numbers, one for each channel"),
        ("[{normalize: {mean: [0, 0, 0], std: [1, 0, 1]}}]", "std is .* it must be numbers above 0"),
        ("[{normalize: {mean: [0, 0, 0]}}]", "lacks the key 'transforms.normalize.std'"),
        ("[{normalize: {mean: [0, 0, 0], std: [1, 1, 1]}}, {pad: 1}]", "it must be before normalize"),
    ],
)
def test_what_is_not_in_the_list_is_named(tmp_path, said, words):
    root = folder(tmp_path, f"transforms: {said}\n", 1)
    with pytest.raises(LearningError, match=words):
        read_own(root)


def test_a_shape_and_a_spacing_exclude_each_other(tmp_path):
    root = folder(tmp_path, "window: [0, 255]\nspacing: [1, 1]\ntransforms: [{center_crop: 8}]\n", 1)
    with pytest.raises(LearningError, match=r"it must be without a shape: spacing says how a scan"):
        read_own(root)


@pytest.mark.parametrize(
    ("size", "transforms"),
    [
        ((100, 1), "transforms: [{resize: 12}, {center_crop: 8}]\n"),
        ((1, 900), "transforms: [{resize: [8, 8]}]\n"),
        ((200, 1), "transforms: [{center_crop: 32}, {resize: 8}]\n"),
        ((1, 900), "transforms: [{pad: 10}, {center_crop: 8}]\n"),
        ((1, 900), ""),
    ],
)
def test_a_thin_picture_that_a_transform_makes_huge_is_one_line(tmp_path, size, transforms):
    """A file of some hundred bytes would take gigabytes; here the limit is 4,000 pixels."""
    root = folder(tmp_path, transforms, count=1)
    Image.new("RGB", size).save(root / "benign" / "thin.png")
    with (
        patch("gdpfed.learning.data.picture_files.MOST_PIXELS", 4000),
        pytest.raises(LearningError, match=r"thin.png cannot be read as a picture: it would be made of"),
    ):
        read_own(root)
