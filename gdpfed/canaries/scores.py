"""Scores of canaries: the higher, the likelier is it that the canary was present.

Each function sees what one kind of observer sees, up to a round, and returns one number a canary, nan for a
canary that says nothing to this observer. Any function of what is revealed gives a valid bound; these give
tight ones. In a stream of sums whose noise is correlated over rounds, for who knows every turn, with y a
canary's projections of all sums, x what its turns move them by and K the covariance of their noise, y tells
x^T K^-1 (y - x / 2) for presence against absence: the best test there is (Neyman, Pearson).
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular
from scipy.special import logsumexp
from scipy.stats import binom

from gdpfed.canaries.bounds import Scores
from gdpfed.canaries.canary import Vectors, parts_of
from gdpfed.canaries.transcript import RevealedSum, Transcript
from gdpfed.privacy.group_plan import RoundRange
from gdpfed.privacy.mechanisms.record_sums import records_of

# Differences of sums are compared on so many canaries, to find the two that are most alike.
MOST_COMPARED = 64
LEAST_NOISE = 1e-9


def likelihood_ratio(transcript: Transcript, rounds: int) -> Scores:
    """Of all sums, for who does not know the cohorts: the sum over them of the log likelihood ratio.

    With x the projection over C_m and s = sigma_m, a sum tells log(1 - q + q exp((2 x - 1) / (2 s^2))) for
    presence against absence. It is the best test where nothing else moves the projection (Neyman, Pearson).
    Sums that do not concern a group are left out.
    """
    canaries = transcript.canaries
    total = np.zeros(len(canaries.clients))
    for revealed in _up_to(transcript, rounds):
        for group in revealed.groups:
            round_range = transcript.plan.groups[group].at(revealed.round_index)
            ours = canaries.groups == group
            total[ours] += _log_ratio(revealed, round_range, ours, canaries.adjacency == "replace_one")
    return total


def _log_ratio(
    revealed: RevealedSum, round_range: RoundRange, ours: npt.NDArray[np.bool_], opposed: bool
) -> Scores:
    x = revealed.projections[ours] / round_range.clipping_norm
    variance = (np.maximum(revealed.noise_stddev[ours], LEAST_NOISE) / round_range.clipping_norm) ** 2
    rate = np.float64(round_range.sampling_rate)
    with np.errstate(divide="ignore"):
        drawn, missed = np.log(rate), np.log1p(-rate)
    present = np.logaddexp(missed, drawn + (2 * x - 1) / (2 * variance))
    opposite = np.logaddexp(missed, drawn + (-2 * x - 1) / (2 * variance)) if opposed else 0.0
    return np.asarray(present - opposite)


def batch_ratio(transcript: Transcript, rounds: int) -> Scores:
    """Of sums of steps on records, or of every update of some: the same, for who knows no batch.

    k of tau steps have drawn a record with probability Bin(k; tau, q). With x the projection over C and v the
    variance of its noise over C^2, that tells log sum_k Bin(k; tau, q) exp((2 k x - k^2) / (2 v)). Of one
    who is at p clients the steps are p tau.
    """
    canaries = transcript.canaries
    total = np.zeros(len(canaries.clients))
    for revealed in _up_to(transcript, rounds):
        for number, part in enumerate(parts_of(transcript.plan)):
            group, records = transcript.plan.groups[part.group], records_of(transcript.plan)[part.group]
            tau = group.at(revealed.round_index).record_steps
            ours = revealed.asked & (canaries.groups == number)
            if not tau or not ours.any():
                continue
            x = (revealed.projections[ours] / records.clipping_norm)[:, None]
            noise = np.maximum(revealed.noise_stddev[ours], LEAST_NOISE) / records.clipping_norm
            tries = tau * canaries.parts[ours]
            times = np.arange(tries.max() + 1)
            drawn = binom.logpmf(times, tries[:, None], records.batch_rates[part.record_group])
            ratios = (2 * times * x - times**2) / (2 * noise[:, None] ** 2)
            total[ours] += logsumexp(drawn + ratios, axis=1)
    return total


def most_alike(transcript: Transcript, rounds: int) -> Scores:
    """Of two sums, in units of their noise: how far apart they are in a canary's direction.

    The two are those that lie closest together over all canaries. Noise that was drawn twice from one seed
    cancels there, and leaves the canaries that are in one of the two.
    """
    sums = [each for each in _up_to(transcript, rounds) if (each.noise_stddev > 0).all()]
    if len(sums) < 2:
        return np.full(len(transcript.canaries.clients), np.nan)
    scaled = np.stack([each.projections / each.noise_stddev for each in sums])
    compared = scaled[:, :MOST_COMPARED]
    first, second = np.triu_indices(len(sums), k=1)
    gaps = np.median(np.abs(compared[first] - compared[second]), axis=1)
    best = int(np.argmin(gaps))
    return np.asarray(np.abs(scaled[first[best]] - scaled[second[best]]))


def known_cohorts(transcript: Transcript, rounds: int, participations: int) -> Scores:
    """Of the sums that a canary is in, for who knows the cohorts: projections over C_m sigma_m^2, added.

    Of a canary the first ``participations`` rounds count in which it was asked, so that the same figure is
    stated for all; nan for canaries that were asked in fewer.
    """
    canaries = transcript.canaries
    total, taken = np.zeros(len(canaries.clients)), np.zeros(len(canaries.clients), dtype=np.int64)
    for index in range(rounds):
        sums = [each for each in transcript.sums if each.round_index == index]
        asked = np.zeros(len(taken), dtype=bool)
        for revealed in sums:
            counted = revealed.asked & (taken < participations)
            for group in np.unique(canaries.groups[counted]).tolist():
                round_range = transcript.plan.groups[group].at(index)
                ours = counted & (canaries.groups == group)
                weight = round_range.clipping_norm / np.maximum(revealed.noise_stddev[ours], LEAST_NOISE) ** 2
                total[ours] += weight * revealed.projections[ours]
            asked |= revealed.asked
        taken += asked
    return np.where(taken >= participations, total, np.nan)


def released_model(transcript: Transcript, rounds: int) -> Scores:
    """Of the released model alone: how far it went in a canary's direction.

    For random unit vectors this is the cosine of Andrew et al., arXiv:2302.03098, up to the model's length.
    """
    if rounds > len(transcript.models):
        return np.full(len(transcript.canaries.clients), np.nan)
    return transcript.models[rounds - 1]


def participations_of(transcript: Transcript, rounds: int) -> npt.NDArray[np.int64]:
    """In how many rounds each canary was asked in a sum that came out, shape (m,)."""
    asked = np.zeros((rounds, len(transcript.canaries.clients)), dtype=bool)
    for revealed in _up_to(transcript, rounds):
        asked[revealed.round_index] |= revealed.asked
    return np.asarray(asked.sum(axis=0))


def _up_to(transcript: Transcript, rounds: int) -> list[RevealedSum]:
    return [each for each in transcript.sums if each.round_index < rounds]


# Of every so many canaries one tells its coin, to measure the noise by.
TOLD_OF = 3
# So many of them a round make a covariance.
LEAST_TOLD = 4
LEAST_STREAM_NOISE = 1e-6


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
        least = LEAST_STREAM_NOISE * transcript.plan.groups[group].noise_stddev
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
