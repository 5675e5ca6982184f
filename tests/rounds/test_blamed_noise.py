"""Tests of sums that keep removable noise of blamed members: they pass, but fail if nobody is blamed."""

from dataclasses import replace

import numpy as np
import pytest

from gdpfed.rounds.pairwise import RunningSum
from gdpfed.rounds.prepared import PreparedSum
from secagg import Stage
from secagg.protocol.sum_messages import ShareReply
from testing.secagg_sums import IDS, ROSTER, Joined, make_parameters
from tests.simulation.small_cohorts import order_of, theta_of

LEVELS, DIMENSION, SIGMA = 2, 20_000, 100.0
PUSH = 0.41
"""Of the noise's norm: the sum's is then 1.08 times it, as with the whole noise of two members of six."""


def outcome(num_liars, push):
    """Return the outcome of a sum of zeros over six members, some with wrong commitments to their noise."""
    parameters = make_parameters(
        6, dimension=DIMENSION, noise_multiplier=SIGMA, dropout_tolerance=2, threshold=3, noise_levels=LEVELS
    )
    order = order_of()
    running = RunningSum(PreparedSum("sum", parameters, IDS[:6], order, theta_of(order), {}), ROSTER)
    joined = Joined(parameters)
    joined.server = running._session
    joined.vectors = {i: np.zeros(DIMENSION, dtype=np.int64) for i in joined.clients}
    joined.vectors[IDS[5]] += round(push * SIGMA / parameters.encoding(6).grid)
    while running.running:
        stage, requests = joined.server.stage, running.asks().requests
        answers = {i: joined.answer(i, request) for i, request in requests.items()}
        if stage is Stage.SHARE:
            for liar in IDS[:num_liars]:
                reply = ShareReply.decode(answers[liar], LEVELS)
                answers[liar] = replace(reply, noise_commitment=bytes(32)).encode()
        running.take(answers)
    assert running.blamed == set(IDS[:num_liars])
    return running.outcome()


@pytest.mark.parametrize("num_liars", [0, 2])
def test_a_sum_with_the_noise_of_blamed_members_is_no_failed_sum(num_liars):
    found = outcome(num_liars, push=0.0)
    assert (found.failure, found.survivors) == (None, 6)
    assert np.linalg.norm(found.total) > 0.98 * SIGMA * np.sqrt(DIMENSION)


def test_as_much_without_a_blamed_member_fails_the_sum():
    found = outcome(0, push=PUSH)
    assert found.failure is not None
    assert found.total is None
    assert outcome(2, push=PUSH).failure is None
