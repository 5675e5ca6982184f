"""Tests of recovering secrets with wrong shares: how many are found, and that blame needs proof."""

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import RemoteProtocolError, Stage, ThresholdNotMet
from secagg.crypto.recovery import ShareRecovery, wrong_shares
from secagg.crypto.shamir import PRIME, elements_of, interpolate, share_bytes, split
from secagg.protocol.sum_messages import UnmaskReply
from secagg.sum_errors import Cause
from testing.secagg_sums import Joined, make_parameters

SECRET = bytes(range(32))
DEALER = 7


def wrong_by_search(shares: dict[int, bytes], threshold: int, num_bytes: int) -> frozenset[int] | None:
    """Return the fewest shares without which all others lie on one polynomial; None if they are too many."""
    for count in range((len(shares) - threshold) // 2 + 1):
        for left_out in combinations(shares, count):
            kept = {x: share for x, share in shares.items() if x not in left_out}
            known = dict(list(kept.items())[:threshold])
            if all(
                np.array_equal(interpolate(known, x, num_bytes), elements_of(share))
                for x, share in kept.items()
            ):
                return frozenset(left_out)
    return None


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_wrong_shares_are_those_that_a_search_finds(data: st.DataObject) -> None:
    """Of any mix of right and false shares, `wrong_shares` finds those that an exhaustive search finds."""
    num_bytes = data.draw(st.integers(1, 12))
    holders = data.draw(st.integers(1, 9))
    threshold = data.draw(st.integers(1, holders))
    dealt = split(os.urandom(num_bytes), holders, threshold, os.urandom)
    other = split(os.urandom(num_bytes), holders, threshold, os.urandom)
    present = data.draw(st.sets(st.integers(1, holders), min_size=threshold))
    shares = {x: dealt[x - 1] for x in present}
    for x in data.draw(st.sets(st.sampled_from(sorted(present)))):
        limb = 4 * data.draw(st.integers(0, share_bytes(num_bytes) // 4 - 1))
        changed = int.from_bytes(shares[x][limb : limb + 4], "little") + data.draw(st.integers(1, PRIME - 1))
        one_limb = shares[x][:limb] + (changed % PRIME).to_bytes(4, "little") + shares[x][limb + 4 :]
        shares[x] = data.draw(st.sampled_from([os.urandom(len(shares[x])), other[x - 1], one_limb]))
    assert wrong_shares(shares, threshold, num_bytes) == wrong_by_search(shares, threshold, num_bytes)


def test_errors_that_cancel_in_a_combination_of_limbs() -> None:
    """Wrong shares are found even if the errors in the field elements of each share add up to zero."""
    shares = dict(enumerate(split(SECRET, 13, 5, os.urandom), start=1))
    liars = (2, 3, 5, 13)
    for limb, x in enumerate(liars):
        values = elements_of(shares[x])
        values[[limb, limb + 1]] += [12345, PRIME - 12345]
        shares[x] = (values % PRIME).astype("<u4").tobytes()
    assert wrong_shares(shares, 5, 32) == frozenset(liars)


def test_too_few_shares_are_refused() -> None:
    with pytest.raises(ValueError, match="2 shares cannot recover a secret: give at least 3"):
        wrong_shares({1: bytes(36), 2: bytes(36)}, 3, 32)


def fitting(secret: bytes) -> Callable[[bytes], bool]:
    return lambda found: found == secret


def recovered(
    num_lying: int = 0, num_dealt_wrong: int = 0, *, holders: int = 119, threshold: int = 80
) -> tuple[ShareRecovery, set[int]]:
    """Recover a secret from true and false shares; return the recovery and the members that it blames."""
    dealt = dict(enumerate(split(SECRET, holders, threshold, os.urandom), start=1))
    false = split(bytes(32), holders, threshold, os.urandom)
    numbers = {100 + x: x for x in dealt}
    for x in range(num_lying + 1, num_lying + num_dealt_wrong + 1):
        dealt[x] = false[x - 1]
    given = {100 + x: false[x - 1] if x <= num_lying else share for x, share in dealt.items()}
    blamed: set[int] = set()
    recovery = ShareRecovery(threshold, blamed)
    try:
        found = recovery.secret(
            DEALER, given, numbers, fitting(SECRET), lambda holder, share: share == dealt[numbers[holder]]
        )
        assert found == SECRET
    except RemoteProtocolError as error:
        assert blamed >= {DEALER}
        raise error
    return recovery, blamed


@pytest.mark.parametrize("num_wrong", [0, 1, 8, 19])
def test_shares_of_119_that_were_dealt_wrong_are_named(num_wrong: int) -> None:
    recovery, blamed = recovered(num_dealt_wrong=num_wrong)
    assert recovery.bad_shares == [(DEALER, 100 + x) for x in range(1, num_wrong + 1)]
    assert blamed == ({DEALER} if num_wrong else set())


def test_twenty_of_119_are_refused_in_one_line() -> None:
    with pytest.raises(RemoteProtocolError, match="the 119 shares that it dealt") as caught:
        recovered(num_dealt_wrong=20)
    assert "\n" not in str(caught.value)
    assert (caught.value.sender, caught.value.cause) == (DEALER, Cause.SHARES)


@pytest.mark.parametrize(("num_lying", "num_dealt_wrong"), [(8, 0), (39, 0), (8, 15), (37, 1)])
def test_liars_are_blamed_and_their_dealer_only_for_its_own(num_lying: int, num_dealt_wrong: int) -> None:
    """Holders of shares are blamed for false answers, and the maker of the shares only for false shares."""
    recovery, blamed = recovered(num_lying, num_dealt_wrong)
    wrong = range(1, num_lying + num_dealt_wrong + 1)
    assert recovery.bad_shares == [(DEALER, 100 + x) for x in wrong]
    assert blamed == {100 + x for x in range(1, num_lying + 1)} | ({DEALER} if num_dealt_wrong else set())


def test_too_many_liars_leave_their_dealer_blameless() -> None:
    shares = dict(enumerate(split(SECRET, 9, 5, os.urandom), start=1))
    lies = shares | dict.fromkeys(range(1, 6), bytes(36))
    blamed: set[int] = set()
    recovery = ShareRecovery(5, blamed)
    with pytest.raises(ThresholdNotMet):
        recovery.secret(
            DEALER, lies, {x: x for x in shares}, fitting(SECRET), lambda x, share: share == shares[x]
        )
    assert blamed == set(range(1, 6))


def test_a_false_commitment_is_its_dealers() -> None:
    shares = dict(enumerate(split(SECRET, 9, 5, os.urandom), start=1))
    blamed: set[int] = set()
    recovery = ShareRecovery(5, blamed)
    with pytest.raises(RemoteProtocolError, match="recover") as caught:
        recovery.secret(DEALER, shares, {x: x for x in shares}, fitting(bytes(32)), lambda x, share: True)
    assert caught.value.sender == DEALER
    assert blamed == {DEALER}


def test_who_misled_once_is_asked_last() -> None:
    recovery, holders = ShareRecovery(3, set()), range(1, 8)
    for dealer in (10, 11):
        shares = dict(zip(holders, split(SECRET, 7, 3, os.urandom), strict=True)) | {1: bytes(36)}
        recovery.secret(
            dealer, shares, {x: x for x in holders}, fitting(SECRET), lambda x, share: share != bytes(36)
        )
    assert recovery.bad_shares == [(10, 1)]


def test_too_few_holders() -> None:
    with pytest.raises(ThresholdNotMet):
        ShareRecovery(3, set()).secret(DEALER, {1: bytes(36)}, {1: 1}, fitting(SECRET), lambda x, share: True)


def test_liars_about_every_secret_do_not_lose_the_sum() -> None:
    """A sum is exact although 5 of 40 holders give wrong shares of every secret; 30 right shares suffice."""
    joined = Joined(make_parameters(44, threshold=30, dropout_tolerance=4, dimension=20))
    everyone = sorted(joined.clients)
    liars = everyone[:5]
    joined.exchange()
    joined.exchange()
    joined.exchange(silent=everyone[-4:])

    def alter(client_id: int, reply: bytes) -> bytes:
        if client_id not in liars:
            return reply
        told = UnmaskReply.decode(reply)
        seeds = {j: share[::-1] for j, share in told.seed_shares.items()}
        keys = {j: share[::-1] for j, share in told.key_shares.items()}
        return replace(told, seed_shares=seeds, key_shares=keys).encode()

    assert joined.server.stage is Stage.UNMASK
    joined.exchange(alter=alter)
    result = joined.server.result()
    assert np.array_equal(result.total, joined.expected(result.survivors))
    assert {holder for _, holder in result.bad_shares} == set(liars)
