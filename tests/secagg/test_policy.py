"""Tests of a client's own limits on the parameters of a sum, checked before it draws a secret."""

from dataclasses import replace
from typing import Any

import pytest

from secagg import (
    Cause,
    ClientPolicy,
    ClientSession,
    RemoteProtocolError,
    Stage,
    SumParameters,
    threshold_for,
)
from secagg.protocol.sum_messages import AdvertiseRequest
from testing.secagg_sums import IDENTITIES, IDS, ROSTER, Joined, make_parameters

VICTIM = IDS[0]
BASE = ClientPolicy(minimum_cohort=2, maximum_dropout_fraction=0.5)


def refusal(policy: ClientPolicy, parameters: SumParameters) -> RemoteProtocolError:
    """Return the error with which a client of this policy refuses parameters, before it draws a secret."""

    def draw(count: int) -> bytes:
        raise AssertionError(f"{count} secret bytes were drawn before the limits were checked")

    client = ClientSession(VICTIM, policy, draw, IDENTITIES[VICTIM], ROSTER)
    with pytest.raises(RemoteProtocolError) as caught:
        client.advertise(AdvertiseRequest(parameters, VICTIM).encode())
    assert caught.value.cause is Cause.POLICY
    return caught.value


@pytest.mark.parametrize(
    ("limits", "match"),
    [
        ({"minimum_cohort": 7}, "num_clients 6 is below 7"),
        ({"minimum_survivors": 6}, "fewest_in_sum 4 is below 6"),
        ({"maximum_dropout_fraction": 0.1}, "dropout_tolerance 1 is above 0.6"),
        ({"minimum_noise_multiplier": 1.1}, "noise_multiplier 1 is below 1.1"),
        ({"minimum_own_noise": 0.51}, "0.5 clipping norms, is below 0.51"),
        ({"maximum_clients": 5}, "num_clients 6 is above 5"),
        ({"maximum_neighbours": 4}, "degree 5 is above 4"),
        ({"maximum_dimension": 49}, "dimension 50 is above 49"),
        ({"maximum_clipping_norm": 0.5}, "clipping_norm 1 is above 0.5"),
        ({"mode": "active"}, "mode curious is less than active"),
        ({"corrupt_fraction": 0.5}, "threshold 3 is not above 3 corrupt"),
        ({"corrupt_fraction": 0.2}, "sized against 1 corrupt members, and this client assumes 2"),
    ],
)
def test_each_limit(limits: dict[str, Any], match: str) -> None:
    parameters = make_parameters(threshold=3)
    assert match in str(refusal(replace(BASE, **limits), parameters))
    ClientSession(VICTIM, BASE).advertise(AdvertiseRequest(parameters, VICTIM).encode())


def test_sums_without_noise_need_more_members() -> None:
    """A policy may demand four members for a sum without noise, and accept three for one with noise."""
    wary, three = replace(BASE, minimum_bare_survivors=4), {"dropout_tolerance": 0, "threshold": 2}
    bare = make_parameters(3, noise_multiplier=0.0, **three)
    assert "fewest_in_sum 3 without noise is below 4" in str(refusal(wary, bare))
    wary.check(make_parameters(3, noise_multiplier=1.0, **three))
    wary.check(make_parameters(4, noise_multiplier=0.0, dropout_tolerance=0, threshold=3))


def test_invented_members_cannot_dilute_the_own_noise() -> None:
    """A client refuses a sum of 8,000 members, in which its own noise would be too small to protect it."""
    many = make_parameters(8000, dimension=5, dropout_tolerance=0)
    assert many.client_noise_multiplier(8000) < 0.012
    policy = replace(BASE, minimum_own_noise=0.1, maximum_neighbours=8000)
    assert "one client's noise" in str(refusal(policy, many))


@pytest.mark.parametrize("mode", ["curious", "active"])
def test_colluders_that_the_client_fears(mode: str) -> None:
    """A client refuses a threshold that is too low for the number of corrupt members it assumes."""
    lax = make_parameters(12, mode=mode, threshold=7, dropout_tolerance=0)
    fears = {"active": 4 / 12, "curious": 7 / 12}[mode]
    policy = replace(BASE, corrupt_fraction=fears)
    expected = {"active": "two quorums", "curious": "threshold 7 is not above 7 corrupt"}[mode]
    assert expected in str(refusal(policy, lax))
    needed = threshold_for(12, 0.5, corrupt=policy.own_corrupt(lax), mode=mode)
    policy.check(replace(lax, threshold=needed, corrupt_tolerance=policy.own_corrupt(lax)))


def test_two_quorums_need_more_than_half_of_members_and_corrupt() -> None:
    """In the mode `active`, a threshold of 7 of 12 members suffices if one is corrupt, not if two are."""
    parameters = make_parameters(12, mode="active", threshold=7, dropout_tolerance=0)
    one, two = (replace(BASE, corrupt_fraction=corrupt / 12) for corrupt in (1, 2))
    assert [policy.own_corrupt(parameters) for policy in (one, two)] == [1, 2]
    one.check(parameters)
    assert "two quorums" in str(refusal(two, parameters))
    two.check(replace(parameters, mode="curious", corrupt_tolerance=2))
    # Every member knows its own share: that of one counts for nothing in all sums, so nobody asks for it.
    assert parameters.corrupt_tolerance == 0
    assert "this client assumes 2" in str(refusal(two, replace(parameters, mode="curious")))


def test_a_graph_carries_the_corrupt_that_it_was_made_for() -> None:
    """A neighbour graph for 60 corrupt members of 300 is refused by a client that assumes 75 corrupt ones."""
    parameters = make_parameters(
        300, num_neighbours=74, threshold=41, dropout_tolerance=60, graph_corrupt=60, dimension=5
    )
    assert parameters.fewest_members == 284
    assert parameters.fewest_members_against(0) == 240
    assert BASE.own_corrupt(parameters) == 60
    assert replace(BASE, corrupt_fraction=0.25).own_corrupt(parameters) == 75
    assert "num_neighbours 74" in str(refusal(replace(BASE, corrupt_fraction=0.25), parameters))


def test_a_client_counts_the_members_against_its_own_corrupt() -> None:
    """A client that assumes 60 corrupt of 300 members demands 284 members, whatever the graph assumes."""
    parameters = make_parameters(
        300,
        num_neighbours=74,
        threshold=41,
        dropout_tolerance=60,
        graph_corrupt=30,
        dimension=5,
        noise_multiplier=0.0,
    )
    wary = replace(BASE, corrupt_fraction=0.2)
    fewest = parameters.fewest_members_against(wary.own_corrupt(parameters))
    assert (parameters.fewest_members, fewest) == (240, 284)
    joined = Joined(parameters)
    joined.clients[VICTIM] = ClientSession(VICTIM, wary)
    away = [i for i in joined.clients if i != VICTIM][: 300 - fewest + 1]
    joined.exchange(silent=away)
    assert joined.server.stage is Stage.SHARE
    with pytest.raises(RemoteProtocolError, match="from 284 to 300") as caught:
        joined.answer(VICTIM, joined.server.requests()[VICTIM])
    assert caught.value.cause is Cause.TOO_FEW


@pytest.mark.parametrize(
    "values",
    [
        {"minimum_cohort": 1},
        {"minimum_survivors": 1},
        {"minimum_bare_survivors": 1},
        {"maximum_clients": 1},
        {"maximum_neighbours": 0},
        {"maximum_dimension": 0},
        {"maximum_clipping_norm": float("nan")},
        {"maximum_dropout_fraction": 1.0},
        {"corrupt_fraction": float("nan")},
        {"minimum_noise_multiplier": -1.0},
        {"minimum_own_noise": float("nan")},
        {"mode": "trusting"},
    ],
)
def test_impossible_limits(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="use"):
        replace(BASE, **values)
