"""Tests of Shamir's secret sharing: recovery inverts splitting, and t - 1 shares tell nothing."""

import os
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.crypto.shamir import PRIME, elements_of, interpolate, random_elements, recover, split


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_recover_inverts_split(data: st.DataObject) -> None:
    secret = data.draw(st.binary(min_size=1, max_size=40))
    holders = data.draw(st.integers(1, 40))
    threshold = data.draw(st.integers(1, holders))
    shares = split(secret, holders, threshold, os.urandom)
    chosen = data.draw(st.permutations(range(1, holders + 1)))[:threshold]
    assert recover({x: shares[x - 1] for x in chosen}, len(secret)) == secret


def test_every_set_of_holders_recovers() -> None:
    secret = bytes(range(32))
    shares = split(secret, 6, 4, os.urandom)
    for chosen in combinations(range(1, 7), 4):
        assert recover({x: shares[x - 1] for x in chosen}, 32) == secret


@pytest.mark.parametrize(("holders", "threshold"), [(120, 80), (2500, 2200)])
def test_arithmetic_is_exact_at_the_extremes(holders: int, threshold: int) -> None:
    """Shares of the largest secret with the largest coefficients equal those by Python's integers."""
    ones = b"\xfe\xff\xff\x7f"
    shares = split(b"\xff" * 32, holders, threshold, lambda n: ones * (n // 4))
    for x in (1, 2, holders // 2, holders):
        limbs = [2**30 - 1] * 8 + [2**16 - 1]
        tail = sum((PRIME - 1) * pow(x, e, PRIME) for e in range(1, threshold))
        assert elements_of(shares[x - 1]).tolist() == [(limb + tail) % PRIME for limb in limbs]
    last = range(holders - threshold + 1, holders + 1)
    assert recover({x: shares[x - 1] for x in last}, 32) == b"\xff" * 32


def test_interpolation_predicts_the_other_shares() -> None:
    shares = split(bytes(32), 9, 5, os.urandom)
    known = {x: shares[x - 1] for x in (2, 3, 5, 8, 9)}
    for x in range(1, 10):
        assert np.array_equal(interpolate(known, x, 32), elements_of(shares[x - 1]))


def test_one_share_short_or_one_wrong_does_not_recover() -> None:
    secret = os.urandom(32)
    shares = split(secret, 9, 5, os.urandom)
    assert recover({x: shares[x - 1] for x in range(1, 5)}, 32) != secret
    wrong = {x: shares[x - 1] for x in range(1, 6)} | {3: shares[7]}
    assert recover(wrong, 32) != secret


def test_shares_below_the_threshold_fit_every_secret() -> None:
    """For t - 1 shares and any other secret there is a polynomial through all of them."""
    shares = split(b"\x01" * 3, 5, 3, os.urandom)
    for other in (b"\x00" * 3, b"\xff" * 3):
        zero = np.array([int.from_bytes(other, "little")], dtype="<u4").tobytes()
        known = {0: zero, 1: shares[0], 2: shares[1]}
        third = interpolate(known, 3, 3).astype("<u4").tobytes()
        assert recover({1: shares[0], 2: shares[1], 3: third}, 3) == other


def test_random_elements_reject_the_one_value_too_many() -> None:
    drawn = iter([b"\xff\xff\xff\x7f" + b"\x05\0\0\0", b"\xff\xff\xff\xff", b"\x06\0\0\x80"])
    assert random_elements(2, lambda _: next(drawn)).tolist() == [5, 6]


@pytest.mark.parametrize(("holders", "threshold"), [(3, 0), (3, 4), (0, 0)])
def test_impossible_thresholds(holders: int, threshold: int) -> None:
    with pytest.raises(ValueError, match="threshold"):
        split(bytes(32), holders, threshold, os.urandom)
