"""Tests of encoding updates as integers: sums do not wrap, and rounding does not raise the sensitivity."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import Contributors, Encoding, EncodingError
from secagg.arithmetic.noise_levels import NAMED_VARIANCES, NOISE_TAIL
from testing.secagg_sums import Joined, make_parameters

COUNTS = ("dropout_tolerance", "corrupt_tolerance", "most_noise_levels")


def make_encoding(**changes: Any) -> Encoding:
    values: dict[str, Any] = {
        "num_contributors": 10,
        "dimension": 100,
        "clipping_norm": 1.0,
        "noise_multiplier": 1.0,
        "dropout_tolerance": 2,
    }
    values |= changes
    counts = {name: values.pop(name) for name in ("num_contributors", *COUNTS) if name in values}
    return Encoding.for_sum(Contributors(counts.pop("num_contributors"), **counts), **values)


def integer_norm_within(encoding: Encoding, steps: np.ndarray) -> bool:
    squared = sum(int(z) ** 2 for z in steps.tolist())
    return squared * Fraction(encoding.grid) ** 2 <= Fraction(encoding.clipping_norm) ** 2


@settings(max_examples=150, deadline=None)
@given(
    dimension=st.integers(1, 60),
    contributors=st.integers(1, 1000),
    clipping_norm=st.floats(1e-6, 1e6),
    noise_multiplier=st.sampled_from([0.0, 0.1, 1.0, 30.0]),
    seed=st.integers(0, 2**32 - 1),
    float32=st.booleans(),
)
def test_sensitivity_is_at_most_the_clipping_norm(
    dimension: int,
    contributors: int,
    clipping_norm: float,
    noise_multiplier: float,
    seed: int,
    float32: bool,
) -> None:
    encoding = make_encoding(
        dimension=dimension,
        num_contributors=contributors,
        clipping_norm=clipping_norm,
        noise_multiplier=noise_multiplier,
        dropout_tolerance=0,
    )
    update = np.random.default_rng(seed).standard_normal(dimension)
    update *= encoding.clip_bound / np.linalg.norm(update)
    steps = encoding.encode(update.astype(np.float32) if float32 else update)
    assert integer_norm_within(encoding, steps)
    assert np.abs(steps * encoding.grid - update).max() <= encoding.grid / 2 + 2e-7 * clipping_norm


def test_worst_rounding_stays_within_the_clipping_norm() -> None:
    """An update whose coordinates lie half a step off the grid keeps to the clipping norm when rounded."""
    dimension = 10_000
    encoding = make_encoding(dimension=dimension, num_contributors=3, noise_multiplier=30.0)
    per_coordinate = encoding.clip_bound / math.sqrt(dimension) / encoding.grid
    update = np.full(dimension, (math.floor(per_coordinate - 0.5) + 0.5) * encoding.grid)
    update[::2] += encoding.grid * 1e-6
    assert integer_norm_within(encoding, encoding.encode(update))


def test_integer_norm_is_checked_by_itself() -> None:
    """The check of integer norms accepts a vector within the limit and refuses one just beyond the limit."""
    encoding = make_encoding()
    limit = math.isqrt(encoding.norm_limit_squared)
    steps = np.zeros(100, dtype=np.int64)
    steps[0] = limit
    encoding._check_integer_norm(steps)
    steps[1] = math.isqrt(encoding.norm_limit_squared - limit**2) + 1
    with pytest.raises(EncodingError, match="squared norm"):
        encoding._check_integer_norm(steps)


def test_update_beyond_the_clip_bound_is_refused() -> None:
    encoding = make_encoding()
    update = np.zeros(100)
    update[3] = encoding.clip_bound * 1.001
    with pytest.raises(EncodingError, match="clip_bound"):
        encoding.encode(update)
    with pytest.raises(EncodingError, match="clip_bound"):
        encoding.encode(np.full(100, 1e30))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_not_finite_is_refused(bad: float) -> None:
    for encoding in (make_encoding(), unclipped()):
        values = np.zeros(100)
        values[42] = bad
        with pytest.raises(EncodingError, match="coordinate 42"):
            encoding.encode(values)
        with pytest.raises(EncodingError, match="coordinate 42"):
            encoding.encode_noise(values)


@pytest.mark.parametrize("contributors", [1, 3, 30, 300, 1000, 5000])
@pytest.mark.parametrize("noise_multiplier", [0.5, 1.0, 5.0])
def test_the_largest_noise_that_fits_is_chosen(contributors: int, noise_multiplier: float) -> None:
    encoding = make_encoding(
        num_contributors=contributors,
        noise_multiplier=noise_multiplier,
        dropout_tolerance=contributors // 5,
        dimension=10,
    )

    def largest_magnitude(stddev: float) -> float:
        grid = 1.0 * noise_multiplier / math.sqrt(contributors - contributors // 5) / stddev
        signal = contributors * (1.0 / grid + 0.5)
        return signal + NOISE_TAIL * stddev * math.sqrt(contributors)

    assert largest_magnitude(encoding.integer_noise_stddev) < 2**31
    stddevs = [math.sqrt(variance) for variance in NAMED_VARIANCES.values()]
    coarser = [s for s in stddevs if s > encoding.integer_noise_stddev]
    assert all(largest_magnitude(s) >= 2**31 for s in coarser)
    parameters_stddev = noise_multiplier / math.sqrt(contributors - contributors // 5)
    assert encoding.client_noise_stddev == pytest.approx(parameters_stddev, rel=1e-12)


def test_a_thousand_contributors_take_the_second_grid() -> None:
    small, large = (make_encoding(num_contributors=n, dropout_tolerance=0) for n in (300, 1000))
    assert small.integer_noise_stddev == pytest.approx(81921.6, rel=1e-8)
    assert large.integer_noise_stddev == pytest.approx(20486.399, rel=1e-8)


def test_nothing_fits() -> None:
    with pytest.raises(EncodingError, match="32 bits"):
        make_encoding(num_contributors=60_000, noise_multiplier=1e-3, dropout_tolerance=0)


def test_rounding_would_use_up_the_clipping_norm() -> None:
    with pytest.raises(EncodingError, match="coordinates"):
        make_encoding(num_contributors=3, noise_multiplier=1000.0, dimension=10**8)


@pytest.mark.parametrize("contributors", [1, 2, 7, 1000])
def test_extreme_sum_does_not_wrap(contributors: int) -> None:
    """A sum of equal updates of the largest norm, without noise, does not wrap around."""
    encoding = make_encoding(
        num_contributors=contributors, noise_multiplier=0.0, dropout_tolerance=0, dimension=3
    )
    for sign in (1, -1):
        update = np.array([sign * encoding.clip_bound, 0.0, 0.0])
        residues = encoding.to_residues(encoding.encode(update))
        total = residues * np.uint32(contributors)
        error = np.abs(encoding.decode(total) - contributors * update).max()
        assert error <= contributors * encoding.grid / 2 * (1 + 1e-6)


def unclipped() -> Encoding:
    return make_encoding(clipping_norm=math.inf, noise_multiplier=0.0)


def test_without_clipping_a_coordinate_that_could_wrap_is_refused() -> None:
    encoding = unclipped()
    limit = (2**31 - 1) // 10 * 2.0**-20
    update = np.zeros(100)
    update[7] = -limit
    total = encoding.to_residues(encoding.encode(update)) * np.uint32(10)
    assert encoding.decode(total)[7] == pytest.approx(-10 * limit, rel=1e-9)
    update[7] = -limit - 2.0**-20
    with pytest.raises(EncodingError, match=r"coordinate 7 is -204.*\+-204"):
        encoding.encode(update)


def test_noise_in_another_unit_is_refused() -> None:
    encoding = make_encoding()
    noise = np.random.default_rng(0).standard_normal(100)
    encoding.encode_noise(noise * encoding.client_noise_stddev)
    with pytest.raises(EncodingError, match="outside"):
        encoding.encode_noise(noise / encoding.grid)
    with pytest.raises(EncodingError, match="outside"):
        make_encoding(noise_multiplier=0.0).encode_noise(noise)


def test_encoded_noise_keeps_its_variance() -> None:
    """The encoded noise of 200,000 draws has the planned variance within 2 %."""
    encoding = make_encoding(dimension=200_000, noise_multiplier=3.0)
    noise = np.random.default_rng(5).normal(0, encoding.client_noise_stddev, 200_000)
    steps = encoding.encode_noise(noise)
    assert steps.var() / encoding.integer_noise_stddev**2 == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_contributors": 2},
        {"dimension": 0},
        {"clipping_norm": 0.0},
        {"clipping_norm": math.nan},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": math.nan},
        {"clipping_norm": math.inf},
    ],
)
def test_impossible_numbers(changes: dict[str, Any]) -> None:
    with pytest.raises(EncodingError):
        make_encoding(**changes)


def test_wrong_arrays() -> None:
    encoding = make_encoding()
    with pytest.raises(EncodingError, match="int64"):
        encoding.encode(np.zeros(100, dtype=np.int64))
    with pytest.raises(EncodingError, match="99"):
        encoding.encode(np.zeros(99))
    with pytest.raises(EncodingError, match="int64"):
        encoding.to_residues(np.zeros(100))  # type: ignore[arg-type]
    with pytest.raises(EncodingError, match="uint32"):
        encoding.decode(np.zeros(100, dtype=np.int64))


@pytest.mark.parametrize("clipping_norm", [1.0, math.inf])
def test_masked_sum_decodes_to_the_plain_sum(clipping_norm: float) -> None:
    """A whole round without noise gives the plain sum, up to half an encoding step for each contributor."""
    parameters = make_parameters(clipping_norm=clipping_norm, noise_multiplier=0.0, dimension=40)
    joined = Joined(parameters)
    encoding = parameters.encoding(6)
    generator = np.random.default_rng(3)
    updates = {}
    for client_id in joined.clients:
        update = generator.standard_normal(40)
        updates[client_id] = update / np.linalg.norm(update) * min(encoding.clip_bound, 1.0)
        joined.vectors[client_id] = encoding.encode(updates[client_id])
    total = encoding.decode(joined.run().total)
    assert np.abs(total - sum(updates.values())).max() <= 6 * encoding.grid / 2 * (1 + 1e-6)


@pytest.mark.parametrize("clipping_norm", [1.0, np.inf])
def test_an_update_in_clear_is_known_by_its_norm(clipping_norm: float) -> None:
    encoding = Encoding.for_sum(
        Contributors(4), dimension=40, clipping_norm=clipping_norm, noise_multiplier=0.0
    )
    update = np.random.default_rng(5).standard_normal(40)
    update *= min(encoding.clip_bound, 1.0) / np.linalg.norm(update)
    steps = encoding.encode(update)
    assert encoding.is_encoded(encoding.to_residues(steps))
    assert encoding.is_encoded(encoding.to_residues(-steps))
    steps[3] += encoding.coordinate_limit + 1
    assert not encoding.is_encoded(encoding.to_residues(steps))
    twice = encoding.is_encoded(encoding.to_residues(2 * encoding.encode(update)))
    assert twice == (clipping_norm == np.inf)
    assert not encoding.is_encoded(np.full(40, 2**31, dtype=np.uint32))
