"""Tests of extra noise against dropouts: any excess is removed, and variance never falls below the plan."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from secagg import ClientSession, EncodingError, LocalProtocolError, Stage, ThresholdNotMet
from secagg.arithmetic.noise_levels import NAMED_VARIANCES, Contributors, noise_levels
from secagg.crypto.keys import noise_seeds
from secagg.protocol.client_keys import add_drawn_noise
from secagg.protocol.sum_messages import ShareReply, UnmaskReply
from testing.secagg_sums import IDS, POLICY, Joined, make_parameters

LEVELS: dict[str, Any] = {
    "dropout_tolerance": 3,
    "noise_levels": 2,
    "threshold": 5,
    "dimension": 40,
}


@pytest.mark.parametrize("num_clients", [30, 60, 120, 300])
@pytest.mark.parametrize("dropout_fraction", [0.1, 0.2])
@pytest.mark.parametrize("corrupt", [0, 5])
def test_variance_is_the_plans_and_at_most_six_percent_more(
    num_clients: int, dropout_fraction: float, corrupt: int
) -> None:
    """With four levels of removable noise, tolerated dropouts leave 1 to 1.06 times the plan's variance."""
    tolerance = int(dropout_fraction * num_clients)
    for contributors in (num_clients, num_clients - 2):
        noisy = contributors - corrupt
        levels = noise_levels(81921.6, noisy, tolerance, min(4, tolerance))
        plan = NAMED_VARIANCES[81921.6] * noisy
        for dropped in range(tolerance + 1):
            summed = levels.variance(levels.level_of(dropped)) * (noisy - dropped)
            assert 1 <= Fraction(summed, plan) <= Fraction(106, 100)
        assert levels.variance(0) * noisy == plan


def test_six_percent_is_out_of_reach_beyond_a_fifth() -> None:
    """If a third of clients may drop out, excess noise is about 10 % with four levels, 6 % with seven."""
    excess = {}
    for most in (4, 7):
        levels = noise_levels(81921.6, 120, 40, most)
        excess[most] = max(
            levels.variance(levels.level_of(dropped)) * (120 - dropped) / levels.variance(0) / 120 - 1
            for dropped in range(41)
        )
    assert 0.09 < excess[4] < 0.11
    assert excess[7] <= 0.06


@pytest.mark.parametrize(
    ("num_clients", "corrupt", "excess", "fewest"),
    [
        (120, 0, 5.2, 4),
        (300, 0, 5.7, 4),
        (1000, 0, 6.6, 5),
        (120, 12, 6.0, 5),
        (300, 30, 6.4, 5),
        (1000, 100, 7.5, 5),
    ],
)
def test_excess_with_four_levels_and_the_fewest_that_keep_six_percent(
    num_clients: int, corrupt: int, excess: float, fewest: int
) -> None:
    """At 20 % dropouts, excess noise and the number of noise levels that keep it at 6 % are as documented."""
    noisy, tolerance = num_clients - corrupt, num_clients // 5
    by_levels = {
        most: Contributors(num_clients, tolerance, corrupt, most).fitting_levels(1.0, 2**31)
        for most in (4, fewest - 1, fewest)
    }
    largest = {most: 100 * float(levels.largest_excess(noisy)) for most, levels in by_levels.items()}
    levels = by_levels[4]
    kept = [levels.variance(levels.level_of(dropped)) for dropped in range(tolerance + 1)]
    assert largest[4] == pytest.approx(
        max(100 * (v * (noisy - k) / kept[0] / noisy - 1) for k, v in enumerate(kept))
    )
    assert largest[4] == pytest.approx(excess, abs=0.06)
    assert largest[fewest] <= 6 < largest[fewest - 1]


def test_the_sum_has_the_plans_variance_in_its_own_unit() -> None:
    parameters = make_parameters(10, clipping_norm=2.0, noise_multiplier=1.5, **LEVELS)
    for contributors in (8, 10):
        encoding = parameters.encoding(contributors)
        assert encoding.levels is not None
        for dropped in range(4):
            level = encoding.levels.level_of(dropped)
            variance = (contributors - dropped) * encoding.levels.variance(level) * encoding.grid**2
            assert variance >= (2.0 * 1.5) ** 2 * (1 - 1e-12)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_excess_is_removed_to_the_last_integer(lost: int, sparse: bool) -> None:
    graph = {"num_neighbours": 8, "threshold": 5} if sparse else {}
    joined = Joined(make_parameters(12 if sparse else 10, **(LEVELS | graph)), serialise=True)
    result = joined.run({Stage.MASK: IDS[2 : 2 + lost]})
    levels = joined.parameters.encoding(result.num_contributors).levels
    assert levels is not None
    assert result.noise_level == levels.level_of(lost)
    assert np.array_equal(result.total, joined.expected(result.survivors, result.noise_level))


def test_one_dropout_too_many_is_discarded_before_unmasking() -> None:
    joined = Joined(make_parameters(10, **LEVELS))
    with pytest.raises(ThresholdNotMet) as caught:
        joined.run({Stage.MASK: IDS[:4]})
    assert caught.value.stage == "mask"
    assert not joined.server._state.unmask_replies


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_noise_of_the_released_sum(lost: int) -> None:
    """The noise left in a released sum has the planned variance and mean zero, over 40,000 coordinates.

    What is compared with the plan is what is left for a member that knows its own share, 1 of 10 - lost. A
    sample variance has a relative standard deviation of sqrt(2 / 40,000) = 0.7 %; the bounds are 5 of them
    below the plan and above 1.06 of it. The mean is within 5 / sqrt(40,000) standard deviations.
    """
    joined = Joined(make_parameters(10, **(LEVELS | {"dimension": 40_000, "noise_levels": 3})), seed=3)
    joined.vectors = {i: np.zeros(40_000, dtype=np.int64) for i in joined.vectors}
    result = joined.run({Stage.MASK: IDS[:lost]})
    noise = joined.parameters.encoding(result.num_contributors).decode(result.total)
    assert 0.965 < noise.var() * (9 - lost) / (10 - lost) < 1.06 * 1.035
    assert abs(noise.mean()) < 5 / 200 * noise.std()


def test_a_seed_gives_the_seeds_of_later_parts() -> None:
    """Each seed of a noise part gives the seeds of the later parts by hashing, and all seeds differ."""
    seeds = noise_seeds(b"a" * 32, 4)
    assert len(set(seeds)) == 4
    assert noise_seeds(seeds[2], 2) == seeds[2:]
    assert noise_seeds(b"a" * 32, 0) == []


def test_no_seed_is_revealed_that_is_needed() -> None:
    joined = Joined(make_parameters(10, **LEVELS))
    joined.exchange_until(Stage.MASK)
    joined.exchange(silent=IDS[:3])
    holder = IDS[5]
    reply = UnmaskReply.decode(joined.answer(holder, joined.server.requests()[holder]))
    assert reply.noise_shares == {}


def test_wrong_noise_shares_are_done_without() -> None:
    joined = Joined(make_parameters(10, **LEVELS))
    joined.exchange_until(Stage.UNMASK)

    def alter(client_id: int, data: bytes) -> bytes:
        reply = UnmaskReply.decode(data)
        wrong = {j: share[::-1] for j, share in reply.noise_shares.items()}
        return replace(reply, noise_shares=wrong).encode() if client_id == IDS[0] else data

    joined.exchange(alter=alter)
    result = joined.server.result()
    assert np.array_equal(result.total, joined.expected(result.survivors))
    assert {holder for _, holder in result.bad_shares} == {IDS[0]}


def test_a_false_commitment_leaves_the_noise_of_its_dealer_in_the_sum() -> None:
    """A client with a false noise commitment is blamed, and its removable noise stays in the sum."""
    joined = Joined(make_parameters(10, **LEVELS))
    joined.exchange()

    def alter(client_id: int, data: bytes) -> bytes:
        reply = ShareReply.decode(data, 2)
        return replace(reply, noise_commitment=bytes(32)).encode() if client_id == IDS[0] else data

    joined.exchange(alter=alter)
    joined.exchange()
    joined.exchange()
    result = joined.server.result()
    more = sum(part.astype(np.uint32) for part in joined.noise_parts[IDS[0]][1:])
    bits = np.uint32(2**joined.parameters.modulus_bits - 1)
    assert np.array_equal(result.total, (joined.expected(result.survivors) + more) & bits)
    assert joined.server.blamed == {IDS[0]}


def test_a_caller_cannot_forget_the_noise() -> None:
    """A session refuses a caller's noise if it is too small, or if the sum takes no noise from callers."""
    joined = Joined(make_parameters(6, dimension=2000))
    joined.exchange_until(Stage.MASK)
    client = joined.clients[IDS[0]]
    client.accept_shares(joined.server.requests()[IDS[0]])
    rested = client.to_bytes()
    zero = np.zeros(2000, dtype=np.int64)
    drawn = add_drawn_noise(client._state, zero)
    stddev = joined.parameters.encoding(6).integer_noise_stddev
    assert drawn.std() == pytest.approx(stddev, rel=0.1)
    assert np.array_equal(add_drawn_noise(client._state, zero + 7), drawn + 7)
    ClientSession.from_bytes(rested, POLICY).mask(zero, noise=drawn)
    for small in (zero, (0.8 * drawn).astype(np.int64)):
        with pytest.raises(LocalProtocolError, match="the noise has a standard deviation"):
            ClientSession.from_bytes(rested, POLICY).mask(zero, noise=small)
    for changes in ({"noise_multiplier": 0.0}, {"noise_levels": 1}):
        other = Joined(make_parameters(6, dimension=2000, **changes))
        other.exchange_until(Stage.MASK)
        other.clients[IDS[0]].accept_shares(other.server.requests()[IDS[0]])
        drawn_now = add_drawn_noise(other.clients[IDS[0]]._state, zero)
        assert drawn_now.any() == bool(other.parameters.noise_multiplier)
        with pytest.raises(LocalProtocolError, match="give none"):
            other.clients[IDS[0]].mask(zero, noise=drawn)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"noise_levels": 2}, "use 0 to 1"),
        ({"noise_levels": 1, "noise_multiplier": 0.0}, "noise_levels is 1"),
        ({"modulus_bits": 7}, "modulus_bits is 7"),
        ({"modulus_bits": 33}, "modulus_bits is 33"),
        ({"mode": "trusting"}, "trusting"),
    ],
)
def test_impossible_parameters(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make_parameters(**changes)


def test_levels_on_the_finest_noise_are_refused() -> None:
    parameters = make_parameters(10, **LEVELS, modulus_bits=20)
    with pytest.raises(EncodingError, match="20 bits"):
        parameters.encoding(10)
    with pytest.raises(ValueError, match="no finer part"):
        noise_levels(481.7, 10, 3, 2)
