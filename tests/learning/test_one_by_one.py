"""Tests that a record's features are the same to the last bit, whatever other rows a file has."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from torchvision.models import resnet18

from gdpfed.learning.data import random_prior as prior
from gdpfed.learning.data.dataset import ExampleForm
from gdpfed.learning.data.encoded import FILE, PICTURES, Encoder
from gdpfed.learning.data.features import FEATURES
from gdpfed.learning.data.own import _transformed
from tests.learning.test_transformers import written

SIZES = (2, 3, 17)
NUM_RECORDS = 18


@pytest.fixture(scope="module", autouse=True)
def few_pictures():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prior, "NUM_PICTURES", 50)
        prior._learned.cache_clear()
        yield
    prior._learned.cache_clear()


def form_of(features, encoder=None):
    return cast("ExampleForm", SimpleNamespace(features=features, encoder=encoder))


def assert_bits_are_a_records_own(transform, records):
    alone = [transform(records[place : place + 1])[0] for place in range(len(records))]
    for size in SIZES:
        for first in (0, len(records) - size):
            found = transform(records[first : first + size])
            np.testing.assert_array_equal(found, alone[first : first + size])


@pytest.mark.parametrize("name", FEATURES)
def test_no_row_of_a_file_changes_the_features_of_another(name):
    pictures = np.random.default_rng(3).uniform(-1, 1, (NUM_RECORDS, 1, 9, 8)).astype(np.float32)
    assert_bits_are_a_records_own(lambda x: _transformed(x, form_of(name)), pictures)


def test_no_row_of_a_file_changes_what_an_encoder_says_of_another(tmp_path):
    torch.manual_seed(3)
    network, draw = resnet18(weights=None), np.random.default_rng(3)
    pictures = Encoder((("architecture", PICTURES),), written(tmp_path / "pictures", network.state_dict()))
    records = draw.uniform(-1, 1, (NUM_RECORDS, 1, 8, 8)).astype(np.float32)
    assert_bits_are_a_records_own(lambda x: _transformed(x, form_of(FILE, pictures)), records)
