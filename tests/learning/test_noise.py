"""Tests of noise from secure random bits: it is normal, and depends on these bits alone."""

import os
from functools import partial
from operator import mul

import numpy as np
import pytest
import torch
from scipy import stats

from gdpfed.learning.training.secret_draws import gaussian_noise
from gdpfed.privacy.accountants.longest_draw import LONGEST_DRAW
from secagg import keystream

CPU = torch.device("cpu")
SAMPLES = 400_001


def test_law_is_normal():
    noise = gaussian_noise(SAMPLES, 3.0, keystream(bytes(32)), device=CPU).numpy()
    assert noise.shape == (SAMPLES,)
    # Kolmogorov-Smirnov at 4e5 samples from a fixed key; a wrong scale by 1 % gives p < 1e-6.
    assert stats.kstest(noise / 3.0, "norm").pvalue > 1e-3
    assert noise.var() == pytest.approx(9.0, rel=5 * np.sqrt(2 / SAMPLES))
    half = SAMPLES // 2
    correlation = np.corrcoef(noise[:half], noise[half : 2 * half])[0, 1]
    assert abs(correlation) < 5 / np.sqrt(half)


def test_depends_on_the_bits_alone():
    torch.manual_seed(0)
    first = gaussian_noise(999, 1.0, keystream(b"a" * 32), device=CPU)
    torch.manual_seed(1)
    again = gaussian_noise(999, 1.0, keystream(b"a" * 32), device=CPU)
    other = gaussian_noise(999, 1.0, keystream(b"b" * 32), device=CPU)
    assert torch.equal(first, again)
    assert not (first == other).any()


def test_the_tail_ends_where_75_bits_end():
    # Bits of zeros are the smallest number, 2^-75: with 53 bits the largest value would be 8.57 deviations.
    largest, at_angle_zero = gaussian_noise(2, 1.0, bytes, device=CPU).tolist()
    assert largest == pytest.approx(LONGEST_DRAW, rel=1e-12)
    assert np.sqrt(2 * 75 * np.log(2)) == LONGEST_DRAW
    assert at_angle_zero == 0
    # The last of the 53 bits counts, in the radius and in the angle.
    one_more = (1 << 11).to_bytes(8, "little")
    turned = gaussian_noise(2, 1.0, lambda size: bytes(8) + one_more, device=CPU)[1].item()
    assert turned == pytest.approx(largest * 2 * np.pi * 2.0**-53, rel=1e-9)


@pytest.mark.parametrize(
    ("first", "second", "bits"),
    [
        (1, 0, 2.0**-64 + 2.0**-75),
        (0, 1, 2.0**-74),
        (2047, 2047, 2.0**-53),
        (1 << 11, 0, 2.0**-53 + 2.0**-75),
        (1 << 31, 2047, (2**20 + 1) * 2.0**-53),
    ],
)
def test_the_bits_that_words_have_left_make_long_radii_finer(first, second, bits):
    """The radius is sqrt(-2 log u); u has 53 bits, and 22 more where it is below 2^-33."""
    words = first.to_bytes(8, "little") + second.to_bytes(8, "little")
    radius = gaussian_noise(2, 1.0, lambda size: words, device=CPU).norm().item()
    assert radius == pytest.approx(np.sqrt(-2 * np.log(bits)), rel=1e-12)


def test_extreme_bits_give_finite_values():
    for byte in (0, 255):
        noise = gaussian_noise(10, 1.0, partial(mul, bytes([byte])), device=CPU)
        assert torch.isfinite(noise).all()
        assert float(noise.abs().max()) < 10.2


def test_without_noise_no_bits_are_drawn():
    def none_left(count):
        raise AssertionError(count)

    assert not gaussian_noise(5, 0.0, none_left, device=CPU).any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_the_same_values():
    key = os.urandom(32)
    here = gaussian_noise(10_001, 1.0, keystream(key), device=CPU)
    there = gaussian_noise(10_001, 1.0, keystream(key), device=torch.device("cuda")).cpu()
    torch.testing.assert_close(here, there, atol=1e-12, rtol=1e-12)
