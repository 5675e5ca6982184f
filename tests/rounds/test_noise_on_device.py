"""Tests of the noise of unmasked sums: a GPU draws it, unless a later sum subtracts the noise again."""

import numpy as np
import pytest
import torch

from gdpfed.clients.device import choice
from gdpfed.rounds import plain
from gdpfed.rounds.noise_streams import SumNoise
from testing.device_stand_in import masks_on_cpu
from tests.federation.node.test_contribution import ORDER, parameters

GPU = torch.device("cuda")


@pytest.fixture
def there(monkeypatch):
    """Replace a GPU's random bits by a CPU's, and return the list of keys from which bits are drawn."""
    masks, keys = masks_on_cpu(), []

    def keystream(key, num_words):
        keys.append(key)
        return type(masks).keystream(masks, key, num_words)

    monkeypatch.setattr(masks, "keystream", keystream)
    monkeypatch.setattr(choice, "tried_masks", lambda device: masks)
    monkeypatch.setattr(plain, "choose_device", lambda name: GPU)
    return keys


def test_each_sum_has_noise_of_its_own_of_the_size_that_is_charged(there):
    asked = parameters(dimension=20_001, noise_multiplier=1.5)
    first, second = (plain.sum_noise_steps(ORDER, asked) for _ in range(2))
    grid = asked.encoding(asked.num_clients).grid
    for steps in (first, second):
        assert steps.dtype == np.int64
        assert steps.std() * grid == pytest.approx(asked.clipping_norm * asked.noise_multiplier, rel=0.03)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05
    assert len(set(there)) == 2
    assert all(len(key) == 32 for key in there)


def test_noise_that_a_later_sum_takes_back_is_drawn_from_its_key_by_a_cpu(there, monkeypatch):
    monkeypatch.setattr(plain, "choose_device", lambda name: torch.device("cpu"))
    stream = SumNoise(bytes(range(32)))
    one, other = (plain.sum_noise_steps(ORDER, parameters(noise_multiplier=1.5), stream) for _ in range(2))
    assert np.array_equal(one, other)
    assert there == []


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_where_a_device_draws_no_bits_a_cpu_does(monkeypatch, device):
    monkeypatch.setattr(choice, "tried_masks", lambda device: "no Triton")
    assert choice.device_bits(torch.device(device)) is None
