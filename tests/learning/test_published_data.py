"""Tests of FMNIST, SVHN and CIFAR-10 in the publishers' formats; missing or damaged files are named."""

import socket

import numpy as np
import pytest
import torchvision.datasets as published

from gdpfed.errors import LearningError
from gdpfed.learning.data import DataSource, load_dataset
from tests.learning import drawn_data

FIRST_FILE = {
    "fmnist": "FashionMNIST/raw/train-images-idx3-ubyte",
    "svhn": "train_32x32.mat",
    "cifar10": "cifar-10-batches-py/data_batch_1",
}


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_):
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def assert_holds(data, input_shape, train, test):
    """Check a data set's shapes and labels, and that pixels from 0 to 255 become float32 from -1 to 1."""
    assert (data.input_shape, data.num_classes) == (input_shape, 10)
    for examples, (x, y) in ((data.train, train), (data.test, test)):
        taken = examples.take(np.arange(len(examples)))
        assert taken.x.dtype == np.float32
        np.testing.assert_allclose(taken.x, (x - 127.5) / 127.5, atol=1e-6)
        np.testing.assert_array_equal(taken.y, y)
        some = examples.take(np.array([3, 1]))
        np.testing.assert_array_equal(some.x, taken.x[[3, 1]])


def test_fmnist_from_the_publishers_archives(tmp_path, rng, monkeypatch, no_network):
    (train, test), resources = drawn_data.write_fmnist(tmp_path, rng)
    monkeypatch.setattr(published.FashionMNIST, "resources", resources)
    assert_holds(load_dataset(DataSource("fmnist", str(tmp_path))), (1, 28, 28), train, test)


def test_svhn_counts_the_digit_0_as_class_0(tmp_path, rng, monkeypatch, no_network):
    (train, test), table = drawn_data.write_svhn(tmp_path, rng)
    monkeypatch.setattr(published.SVHN, "split_list", table)
    assert_holds(load_dataset(DataSource("svhn", str(tmp_path))), (3, 32, 32), train, test)


def test_cifar10_joins_its_five_batches(tmp_path, rng, monkeypatch, no_network):
    pictures, checksums, meta = drawn_data.write_cifar10(tmp_path, rng)
    monkeypatch.setattr(published.CIFAR10, "train_list", checksums[:5])
    monkeypatch.setattr(published.CIFAR10, "test_list", checksums[5:])
    monkeypatch.setattr(published.CIFAR10, "meta", published.CIFAR10.meta | {"md5": meta})
    data = load_dataset(DataSource("cifar10", str(tmp_path)))
    x, y = (np.concatenate(parts) for parts in zip(*pictures[:5], strict=True))
    assert_holds(data, (3, 32, 32), (x, y), pictures[5])


@pytest.mark.parametrize("name", FIRST_FILE)
def test_missing_files_are_named_in_one_line(tmp_path, name, no_network, capfd):
    with pytest.raises(LearningError) as raised:
        load_dataset(DataSource(name, str(tmp_path / "new")))
    message = str(raised.value)
    assert message.startswith(f"data set '{name}' lacks {tmp_path / 'new' / FIRST_FILE[name]}")
    assert "no network in this test" in message
    assert "dataset.path" in message
    assert "\n" not in message
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


def test_files_are_looked_for_below_the_working_directory(tmp_path, monkeypatch, no_network):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LearningError, match=f"lacks {tmp_path}/data/train_32x32.mat"):
        load_dataset(DataSource("svhn"))


def test_half_a_file_is_not_taken_for_a_whole_one(tmp_path, rng, monkeypatch, no_network):
    _, table = drawn_data.write_svhn(tmp_path, rng)
    monkeypatch.setattr(published.SVHN, "split_list", table)
    path = tmp_path / "test_32x32.mat"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(LearningError, match=r"'svhn' has a damaged file among .*test_32x32.mat"):
        load_dataset(DataSource("svhn", str(tmp_path)))


def test_an_interrupted_extraction_is_noticed(tmp_path, rng, monkeypatch, no_network):
    _, resources = drawn_data.write_fmnist(tmp_path, rng)
    monkeypatch.setattr(published.FashionMNIST, "resources", resources)
    load_dataset(DataSource("fmnist", str(tmp_path)))
    load_dataset.cache_clear()
    path = tmp_path / "FashionMNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(LearningError, match=r"'fmnist' has a damaged file among .*train-images"):
        load_dataset(DataSource("fmnist", str(tmp_path)))
