"""Scores of canaries in a stream of sums whose noise is correlated over rounds, for who knows every turn.

With y a canary's projections of all sums, x what its turns move them by and K the covariance of their noise,
y tells x^T K^-1 (y - x / 2) for presence against absence: the best test there is (Neyman, Pearson).
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular

from gdpfed.canaries.bounds import Scores
from gdpfed.canaries.canary import Vectors
from gdpfed.canaries.transcript import Transcript

# Of every so many canaries one tells its coin, to measure the noise by.
TOLD_OF = 3
# So many of them a round make a covariance.
LEAST_TOLD = 4
LEAST_NOISE = 1e-6


def under_planned_noise(transcript: Transcript, rounds: int) -> Scores:
    """The log likelihood ratio under the noise that the plan says: K = s^2 (I - N)(I - N)^T."""
    plan, scores = transcript.plan, np.full(len(transcript.canaries.clients), np.nan)
    for group, ours, there, y, x in _streams(transcript, rounds):
        taken_back = np.eye(plan.num_rounds)
        for lag, tap in enumerate(plan.mechanism.taps_of(group), start=1):
            taken_back -= tap * np.eye(plan.num_rounds, k=-lag)
        # What a sum that was thrown away carried is taken back nowhere.
        root = plan.groups[group].noise_stddev * taken_back[np.ix_(there, there)]
        scores[ours] = _told(transcript, root, y, x)
    return scores


def under_measured_noise(transcript: Transcript, rounds: int) -> Scores:
    """The same under the noise that is really there: its K is measured on one canary in three.

    These tell their coins, and have no score; the others' scores do not depend on each other then. All say
    nothing where they are too few. Noise that is correlated otherwise than planned is seen here.
    """
    canaries, scores = transcript.canaries, np.full(len(transcript.canaries.clients), np.nan)
    for group, ours, there, y, x in _streams(transcript, rounds):
        told = np.arange(len(ours)) % TOLD_OF == 0
        if told.sum() < LEAST_TOLD * len(there):
            continue
        noise = y[:, told] - canaries.signs[ours[told]] * x[:, told]
        least = LEAST_NOISE * transcript.plan.groups[group].noise_stddev
        covariance = noise @ noise.T / told.sum() + least**2 * np.eye(len(there))
        scores[ours[~told]] = _told(transcript, np.linalg.cholesky(covariance), y[:, ~told], x[:, ~told])
    return scores


def _streams(
    transcript: Transcript, rounds: int
) -> Iterator[tuple[int, npt.NDArray[np.int64], list[int], Vectors, Vectors]]:
    """Of each group its canaries, the rounds with a sum, and by round and canary projections and moves."""
    for group, planned in enumerate(transcript.plan.groups):
        ours = np.flatnonzero(transcript.canaries.groups == group)
        sums = [each for each in transcript.sums if each.round_index < rounds and group in each.groups]
        there = sorted({each.round_index for each in sums})
        if not there or not len(ours):
            continue
        y, x = np.zeros((2, len(there), len(ours)))
        for row, index in enumerate(there):
            of_round = [each for each in sums if each.round_index == index]
            y[row] = np.mean([each.projections[ours] for each in of_round], axis=0)
            x[row] = np.any([each.asked[ours] for each in of_round], axis=0) * planned.clipping_norm
        yield group, ours, there, y, x


def _told(transcript: Transcript, root: Vectors, y: Vectors, x: Vectors) -> Scores:
    """The log likelihood ratio of every column, under noise of covariance root root^T."""
    seen, moved = (solve_triangular(root, each, lower=True) for each in (y, x))
    if transcript.canaries.adjacency == "replace_one":
        return np.asarray(2 * np.sum(moved * seen, axis=0))
    return np.asarray(np.sum(moved * (seen - moved / 2), axis=0))
