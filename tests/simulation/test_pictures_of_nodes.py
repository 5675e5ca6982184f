"""Tests of runs on a folder of pieces of two photographs, which are saved in many file formats."""

import shutil

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from gdpfed.cli import main
from gdpfed.learning.data import DataSource, load_dataset
from gdpfed.runs.round_log import read_rounds

FORMS = (("RGB", "jpg"), ("RGB", "png"), ("L", "png"), ("RGBA", "png"), ("P", "bmp"), ("CMYK", "jpg"))
CROPS = 60


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Save crops of two photographs in class folders, of odd sizes and in several image formats."""
    root, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for name, photograph in zip(("temple", "flower"), load_sample_images().images, strict=True):
        (root / name).mkdir()
        (root / name / "notes.txt").write_text("no picture, and not named as one")
        for number in range(CROPS):
            size = rng.integers(61, 160, size=2)
            top, left = rng.integers(0, np.array(photograph.shape[:2]) - size)
            mode, suffix = FORMS[number % len(FORMS)]
            crop = photograph[top : top + size[0], left : left + size[1]]
            Image.fromarray(crop).convert(mode).save(root / name / f"{number:02}.{suffix}")
    return root


def simulate(pictures, directory):
    setting = [
        "dataset=image_folder",
        f"dataset.path={pictures}",
        "dataset.image_size=16",
        "dataset.num_clients=6",
        "dataset.learning_rate=0.3",
        "method=fedavg",
        "secagg=off",
        "privacy.sampling_rate=1",
        "run.num_rounds=8",
        "simulation.workers=1",
        f"run.directory={directory}",
    ]
    return main(["simulate", *setting])


def test_photographs_in_many_forms_are_learnt(tmp_path, pictures):
    assert simulate(pictures, tmp_path / "run") == 0
    # 24 crops are held out: guessing gets 20 of them right with a probability below 1e-3.
    assert read_rounds(tmp_path / "run")[-1].shown[1] >= 20 / 24


def test_they_are_learnt_from_in_colour_or_in_grey(pictures):
    for channels in (1, 3):
        dataset = load_dataset(DataSource("image_folder", str(pictures), image_size=16, channels=channels))
        assert dataset.input_shape == (channels, 16, 16)
        assert len(dataset.train) == 2 * CROPS * 4 // 5
        x = dataset.test.take(np.arange(len(dataset.test))).x
        assert x.std() > 0.1


def test_a_broken_picture_among_them_is_one_line_before_anything_is_written(tmp_path, pictures, capsys):
    broken = shutil.copytree(pictures, tmp_path / "copy") / "flower" / "00.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    assert simulate(tmp_path / "copy", tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"gdpfed: {broken} cannot be read as a picture: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
