"""Tests that parameters of a sum which cannot work are refused when they are made."""

import math
from dataclasses import replace
from typing import Any

import pytest

from secagg import ClientPolicy, DecodeError, SumParameters, threshold_for
from testing.secagg_sums import make_parameters


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_clients": 1}, "num_clients is 1"),
        ({"num_clients": 2**16, "threshold": 2**15 + 1}, "num_clients"),
        ({"threshold": 1}, "threshold 1 of 5"),
        ({"num_clients": 7, "threshold": 3}, "threshold 3 of 6"),
        ({"threshold": 6}, "threshold 6 of 5"),
        ({"threshold": 3.0}, "int"),
        ({"dropout_tolerance": -1}, "dropout_tolerance is -1"),
        ({"dropout_tolerance": 3}, "after 3 dropouts 2 neighbours"),
        ({"corrupt_tolerance": 5}, "leave none"),
        ({"dimension": 0}, "dimension is 0"),
        ({"dimension": 2**31}, "dimension"),
        ({"clipping_norm": 0.0}, "clipping_norm is 0"),
        ({"clipping_norm": math.nan}, "clipping_norm is nan"),
        ({"clipping_norm": 3.6e-319}, "clipping_norm is 3.6e-319: use 1e-100 or more"),
        ({"clipping_norm": math.inf}, "finite clipping_norm"),
        ({"noise_multiplier": -0.1}, "noise_multiplier is -0.1"),
        ({"noise_multiplier": math.inf}, "noise_multiplier is inf"),
        ({"suite": "rot13"}, "rot13"),
        ({"label": "x" * 256}, "256 bytes"),
    ],
)
def test_impossible_values_name_themselves(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        replace(make_parameters(), **changes)


def test_bytes_are_canonical() -> None:
    parameters = make_parameters(label="rünge/1", suite="chacha20", corrupt_tolerance=2)
    assert SumParameters.from_bytes(parameters.to_bytes()) == parameters
    zero, minus_zero = (make_parameters(noise_multiplier=value) for value in (0.0, -0.0))
    assert zero.to_bytes() == minus_zero.to_bytes()
    unclipped = replace(zero, clipping_norm=math.inf)
    assert SumParameters.from_bytes(unclipped.to_bytes()) == unclipped
    with pytest.raises(DecodeError):
        SumParameters.from_bytes(parameters.to_bytes() + b"\0")


@pytest.mark.parametrize(
    ("num_clients", "fraction", "threshold"),
    [(2, 0.5, 1), (3, 0.5, 2), (4, 0.0, 2), (120, 2 / 3, 80), (120, 0.5, 60), (10, 1.0, 9)],
)
def test_threshold_for(num_clients: int, fraction: float, threshold: int) -> None:
    assert threshold_for(num_clients, fraction) == threshold


def test_threshold_for_is_always_accepted() -> None:
    for num_clients in range(2, 60):
        for fraction in (0.0, 0.3, 0.5, 0.6, 0.9, 1.0):
            threshold = threshold_for(num_clients, fraction)
            spare = num_clients - 1 - threshold
            make_parameters(num_clients, threshold=threshold, dropout_tolerance=spare)
            with pytest.raises(ValueError, match="dropouts"):
                make_parameters(num_clients, threshold=threshold, dropout_tolerance=spare + 1)


@pytest.mark.parametrize(("num_clients", "fraction"), [(1, 0.5), (5, -0.1), (5, 1.1)])
def test_threshold_for_refuses(num_clients: int, fraction: float) -> None:
    with pytest.raises(ValueError, match="clients"):
        threshold_for(num_clients, fraction)


def test_noise_share_of_a_client() -> None:
    parameters = make_parameters(
        10, clipping_norm=2.0, noise_multiplier=3.0, dropout_tolerance=2, corrupt_tolerance=1
    )
    assert parameters.client_noise_stddev(10) == pytest.approx(6.0 / math.sqrt(7))
    assert parameters.encoding(10).client_noise_stddev == pytest.approx(6.0 / math.sqrt(7))
    with pytest.raises(ValueError, match="3 contributors"):
        parameters.client_noise_stddev(3)
    silent = make_parameters(clipping_norm=math.inf, noise_multiplier=0.0)
    assert silent.client_noise_stddev(6) == 0.0


@pytest.mark.parametrize(
    "values",
    [
        {"minimum_cohort": 1, "maximum_dropout_fraction": 0.1},
        {"minimum_cohort": 2, "maximum_dropout_fraction": 1.0},
        {"minimum_cohort": 2, "maximum_dropout_fraction": 0.1, "minimum_noise_multiplier": -1.0},
    ],
)
def test_policy_refuses_impossible_limits(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="use"):
        ClientPolicy(**values)
