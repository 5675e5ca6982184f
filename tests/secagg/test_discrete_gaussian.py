"""Tests of the discrete Gaussian sampler: its exact law, and its output against a plain implementation."""

import hashlib
import math
import tracemalloc
from collections import Counter
from decimal import Context, Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from scipy.stats import chi2

from secagg.arithmetic.discrete_gaussian import (
    ALIAS_START,
    Tables,
    _draw_alias,
    sample,
    tables,
)
from secagg.arithmetic.noise_levels import INTEGER_NOISE_STDDEVS, NAMED_VARIANCES
from secagg.crypto.prg import cipher_stream
from testing.noise_law import exact_moments, law_of, total_variation_bound

KEY = bytes(range(32))
PI = "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899"
PARTS = {81921.6: (512, 160, 2**14), 20486.0: (512, 40, 2**14), 481.7: (40, 12, 2**11)}
# A sound test fails once in 10**9 times; keys are fixed, so that it does not fail by chance at all.
SURE = 1e-9
DEVIATIONS = 6.2


def bits_of(key, start, num_bytes):
    return Cipher(algorithms.AES(key), modes.CTR(start)).encryptor().update(bytes(num_bytes))


def assert_fits(observed, expected_probability):
    """Check that counts fit probabilities by Pearson's chi-square; every expected count is above 20."""
    expected = observed.sum() * expected_probability
    assert expected.min() > 20
    statistic = float(((observed - expected) ** 2 / expected).sum())
    degrees = len(observed) - 1
    assert chi2.ppf(SURE, degrees) < statistic < chi2.ppf(1 - SURE, degrees)


def test_the_named_choices_have_their_exact_variances():
    assert tuple(PARTS) == INTEGER_NOISE_STDDEVS
    for name, (sigma, factor, _) in PARTS.items():
        assert NAMED_VARIANCES[name] == sigma**2 * (1 + factor**2)


@pytest.mark.parametrize(("sigma", "cells"), [(512, 2**14), (40, 2**11)])
def test_table_is_within_its_distance_of_the_law_derived_anew(sigma, cells):
    """The sampler's alias table has the discrete Gaussian's law within 2**-136 in total variation.

    The law is p(x) = exp(-x^2 / (2 sigma^2)) / sqrt(2 pi sigma^2), one exponential for each x. The sum of the
    exponentials is sqrt(2 pi sigma^2) (1 + 2 exp(-2 pi^2 sigma^2)) over all integers.
    """
    law = law_of(tables(sigma, cells))
    with localcontext(Context(prec=60)):
        normaliser = (2 * Decimal(PI) * sigma**2).sqrt()
        true = {x: (Decimal(-x * x) / (2 * sigma**2)).exp() / normaliser for x in range(cells // 2 + 50)}
        pairs = ((law.get(x, Fraction(0)), true[abs(x)]) for x in range(-cells // 2 - 49, cells // 2 + 50))
        distance = sum(abs(Decimal(p.numerator) / Decimal(p.denominator) - q) for p, q in pairs) / 2
    assert distance < Decimal(2) ** -136
    assert 2 * distance < Decimal(total_variation_bound({512: 20486.0, 40: 481.7}[sigma]))


@pytest.mark.parametrize(("sigma", "cells"), [(512, 2**14), (40, 2**11)])
def test_table_is_a_symmetric_law_that_cannot_be_written_to(sigma, cells):
    drawn_from = tables(sigma, cells)
    law = law_of(drawn_from)
    assert sum(law.values()) == 1
    assert all(law[-x] == p for x, p in law.items())
    assert max(law) < cells // 2
    # Most draws are settled by 16 bits, and all are by 128 more.
    assert np.mean(drawn_from.direct == -(2**15)) < 0.03
    with pytest.raises(ValueError, match="read-only"):
        drawn_from.direct[0] = 0


@pytest.mark.parametrize("name", INTEGER_NOISE_STDDEVS)
def test_exact_moments_are_the_gaussians(name):
    second, fourth = exact_moments(name)
    assert abs(second / NAMED_VARIANCES[name] - 1) < Fraction(1, 2**130)
    assert abs(fourth / (3 * NAMED_VARIANCES[name] ** 2) - 1) < Fraction(1, 2**130)


@pytest.mark.parametrize("name", INTEGER_NOISE_STDDEVS)
def test_distance_over_a_whole_training_is_negligible(name):
    assert total_variation_bound(name) < 2.0**-135
    num_draws = 300 * 11_200_000 * 50
    assert total_variation_bound(name, num_draws) == num_draws * total_variation_bound(name)
    # Times (1 + e^12): what it takes of delta at the largest budget of the evaluation.
    assert (1 + math.exp(12)) * total_variation_bound(name, num_draws) < 1e-24


def test_sum_of_two_parts_is_one_discrete_gaussian():
    """The sum x + 12 y of discrete Gaussians of deviation 40 is a discrete Gaussian, to float64 rounding."""
    part = np.exp(-(np.arange(-480, 481) ** 2) / (2 * 40**2))
    spread = np.zeros(12 * 960 + 1)
    spread[::12] = part
    joined = np.convolve(part, spread)
    joined /= joined.sum()
    x = np.arange(len(joined)) - len(joined) // 2
    law = np.exp(-(x**2) / (2 * NAMED_VARIANCES[481.7]))
    seen = np.abs(x) < 8 * 481
    assert np.allclose(joined[seen], law[seen] / law.sum(), rtol=1e-11, atol=0)


@pytest.mark.parametrize("name", INTEGER_NOISE_STDDEVS)
def test_matches_a_sampler_of_one_draw_at_a_time(name):
    """The sampler gives the same numbers as a plain loop of single draws, in every version of the project."""
    sigma, factor, cells = PARTS[name]
    law, count = tables(sigma, cells), 2 * 3000
    words = bits_of(KEY, bytes(16), 2 * count)
    more = bits_of(KEY, b"\x80" + bytes(15), 24 * count)
    draws, taken = [], 0
    for i in range(count):
        value = int(law.direct[int.from_bytes(words[2 * i : 2 * i + 2], "little")])
        if value == -(2**15):
            cell, high, low = (
                int.from_bytes(more[taken + 8 * j : taken + 8 * j + 8], "little") for j in range(3)
            )
            cell, taken = cell % cells, taken + 24
            threshold = (int(law.high[cell]) << 64) + int(law.low[cell])
            value = cell - cells // 2 if (high << 64) + low < threshold else int(law.alias[cell])
        draws.append(value)
    assert taken > 0
    expected = [draws[2 * i] + factor * draws[2 * i + 1] for i in range(3000)]
    assert sample(3000, name, KEY).tolist() == expected


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        (81921.6, "7f626e7c95b92d1cc8c29688160e3389c5481029fadecbebbab48a6d58ec93e9"),
        (20486.0, "faa15f2ecae5c781d34541547d41b8379ce1c54a2b26a457732013d1ba89afeb"),
        (481.7, "0a5b0c3b266b89cc09a44eb1f578cc267d29045d3014d7f6e90b01a3afb684ef"),
    ],
)
def test_same_key_same_noise_on_every_machine(name, digest):
    drawn = sample(40_000, name, KEY)
    assert drawn.dtype == np.int64
    assert hashlib.sha256(drawn.astype("<i8").tobytes()).hexdigest() == digest


def test_a_shorter_vector_begins_the_longer_one():
    whole = sample(40_000, 81921.6, KEY)
    for dimension in (1, 2, 16_383, 16_384, 16_385, 39_999):
        assert np.array_equal(sample(dimension, 81921.6, KEY), whole[:dimension])


def test_other_keys_draw_other_noise():
    """Noises of two keys do not correlate, and have only as many equal coordinates as chance gives."""
    first, second = sample(100_000, 481.7, KEY), sample(100_000, 481.7, bytes(32))
    collisions = 1e5 / (2 * math.sqrt(math.pi) * 481.66)
    assert abs((first == second).sum() - collisions) < DEVIATIONS * math.sqrt(collisions)
    assert abs(np.corrcoef(first, second)[0, 1]) < DEVIATIONS / math.sqrt(1e5)


@pytest.mark.parametrize("name", INTEGER_NOISE_STDDEVS)
def test_a_million_draws_have_the_moments(name):
    num = 2**20
    scaled = sample(num, name, KEY) / math.sqrt(NAMED_VARIANCES[name])
    # Standard errors of a Gaussian's first four moments: sqrt(1, 2, 15, 96) / sqrt(n).
    for power, (moment, variance) in enumerate([(0, 1), (1, 2), (0, 15), (3, 96)], start=1):
        error = np.mean(scaled**power) - moment
        assert abs(error) < DEVIATIONS * math.sqrt(variance / num)
    for lag in (1, 2, 16_384):
        assert abs(np.mean(scaled[lag:] * scaled[:-lag])) < DEVIATIONS / math.sqrt(num - lag)


@pytest.mark.parametrize("name", INTEGER_NOISE_STDDEVS)
def test_a_million_draws_fit_the_law(name):
    """A million draws pass chi-square tests: for 302 intervals of values and for uniform remainders."""
    variance, factor = NAMED_VARIANCES[name], PARTS[name][1]
    drawn = sample(2**20, name, KEY)
    edges = (np.linspace(-3, 3, 301) * math.sqrt(variance)).round()
    # Sums of exp(-x^2 / (2 s^2)) over the integers of each interval, (edge, next edge].
    points = np.arange(int(-12 * math.sqrt(variance)), int(12 * math.sqrt(variance)))
    weights = np.exp(-(points**2) / (2 * variance))
    masses = np.bincount(np.searchsorted(edges, points), weights, len(edges) + 1)
    assert_fits(np.bincount(np.searchsorted(edges, drawn), minlength=len(edges) + 1), masses / masses.sum())
    assert_fits(np.bincount(drawn % factor, minlength=factor), np.full(factor, 1 / factor))


def alias_stream() -> CipherContext:
    """Return the stream from which the alias table draws under the tests' key."""
    return cipher_stream("aes256ctr", KEY, ALIAS_START)


@pytest.mark.parametrize(("sigma", "cells"), [(512, 2**14), (40, 2**11)])
def test_the_alias_table_alone_fits_its_law(sigma, cells):
    """2**18 draws by the alias table, which the sampler's rare second step uses, fit the table's law."""
    law = tables(sigma, cells)
    share = Fraction(int((law.direct == -(2**15)).sum()), 2**16)
    direct = Counter(law.direct.tolist())
    rest = {x: (p - Fraction(direct[x], 2**16)) / share for x, p in law_of(law).items()}
    assert min(rest.values()) >= 0
    masses = np.array([float(rest.get(x, 0)) for x in range(-cells // 2, cells // 2)])
    interval = np.minimum(np.cumsum(masses) * 500, 499.999).astype(int)
    _, interval = np.unique(interval, return_inverse=True)
    drawn = _draw_alias(law, alias_stream(), 2**18).astype(int) + cells // 2
    probability = np.bincount(interval, masses)
    observed = np.bincount(interval[drawn], minlength=len(probability))
    assert_fits(observed, probability)


@pytest.mark.parametrize(("beyond", "value"), [(0, 7), (1, None)])
def test_a_tie_in_the_high_word_is_settled_by_the_low_one(beyond, value):
    """If a random number and its threshold agree in the high 64 bits, the low 64 bits are compared."""
    _, high, low = np.frombuffer(bits_of(KEY, b"\x80" + bytes(15), 24), "<u8")
    rigged = Tables(
        direct=np.full(2**16, -(2**15), dtype=np.int16),
        high=np.full(4, high),
        low=np.full(4, low + np.uint64(beyond)),
        alias=np.full(4, 7, dtype=np.int16),
    )
    drawn = _draw_alias(rigged, alias_stream(), 1).tolist()
    cell = bits_of(KEY, b"\x80" + bytes(15), 1)[0] % 4
    assert drawn == [cell - 2 if value is None else value]


def test_memory_beyond_the_result_does_not_grow():
    sample(1, 81921.6, KEY)
    for dimension in (2**20, 2**22):
        tracemalloc.start()
        try:
            drawn = sample(dimension, 81921.6, KEY)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak - drawn.nbytes < 6_000_000


@pytest.mark.parametrize(
    ("dimension", "stddev", "key", "message"),
    [
        (0, 481.7, KEY, "dimension is 0: draw at least 1"),
        (5, 481.66, KEY, "integer_stddev is 481.66: use one of 81921.6, 20486.0, 481.7"),
        (5, 481.7, KEY[:16], "the key has 16 bytes: give 32"),
    ],
)
def test_wrong_arguments_are_named(dimension, stddev, key, message):
    with pytest.raises(ValueError, match=message):
        sample(dimension, stddev, key)


def test_wrong_arguments_of_the_bounds_are_named():
    with pytest.raises(ValueError, match="num_draws is 0: bound at least 1"):
        total_variation_bound(481.7, 0)
    with pytest.raises(ValueError, match="integer_stddev is 1: use one of"):
        exact_moments(1)
