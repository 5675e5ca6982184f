"""Scores of canaries: a higher score means that the canary was more likely present.

Each function sees what one kind of observer sees, up to a round, and returns one number a canary, nan for a
canary that says nothing to this observer. Any function of what is revealed gives a valid bound; these give
tight ones. In a stream of sums whose noise is correlated over rounds, for who knows every turn, with y a
canary's projections of all sums, x what its turns move them by and K the covariance of their noise, y tells
x^T K^-1 (y - x / 2) for presence against absence: the best test there is (Neyman, Pearson).
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular
from scipy.special import logsumexp
from scipy.stats import binom

from gdpfed.extras.canaries.bounds import Scores
from gdpfed.extras.canaries.canary import Vectors, parts_of
from gdpfed.extras.canaries.noise_tests import shrunk_covariance
from gdpfed.extras.canaries.transcript import RevealedSum, Transcript
from gdpfed.privacy.mechanism_options import taps_of
from gdpfed.privacy.mechanisms.records.mechanism import records_of

# Differences of sums are compared on this number of canaries, to find the two that are most alike.
MOST_COMPARED = 64
LEAST_NOISE = 1e-9


def likelihood_ratio(transcript: Transcript, rounds: int) -> Scores:
    """Score canaries by the log likelihood ratio of all sums, for an attacker who does not know the cohorts.

    With x the projection over C_m and s = sigma_m, a sum tells log(1 - q + q exp((2 x - 1) / (2 s^2))) for
    presence against absence. It is the best test where nothing else moves the projection (Neyman, Pearson).
    Sums that do not concern a group are left out.
    """
    canaries = transcript.canaries
    total, opposed = np.zeros(len(canaries.clients)), canaries.adjacency == "replace_one"
    for revealed in _up_to(transcript, rounds):
        for group in revealed.groups:
            round_range = transcript.plan.groups[group].at(revealed.round_index)
            ours = canaries.groups == group
            x = revealed.projections[ours] / round_range.clipping_norm
            noise = np.maximum(revealed.noise_stddev[ours], LEAST_NOISE) / round_range.clipping_norm
            variance, rate = noise**2, np.float64(round_range.sampling_rate)
            with np.errstate(divide="ignore"):
                drawn, missed = np.log(rate), np.log1p(-rate)
            present = np.logaddexp(missed, drawn + (2 * x - 1) / (2 * variance))
            opposite = np.logaddexp(missed, drawn + (-2 * x - 1) / (2 * variance)) if opposed else 0.0
            total[ours] += present - opposite
    return total


def batch_ratio(transcript: Transcript, rounds: int) -> Scores:
    """Score canaries by the log likelihood ratio of DP-SGD sums, for attackers who do not know the batches.

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
    """Score each canary by the difference between the two most similar sums, in which reused noise cancels.

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
    """Score canaries as an attacker does who knows the cohorts: by projections summed over their rounds.

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
    """Score canaries by the projection of the released model's change onto each canary's direction.

    For random unit vectors this is the cosine of Andrew et al., arXiv:2302.03098, up to the model's length.
    """
    if rounds > len(transcript.models):
        return np.full(len(transcript.canaries.clients), np.nan)
    return transcript.models[rounds - 1]


def participations_of(transcript: Transcript, rounds: int) -> npt.NDArray[np.int64]:
    """Return, for each canary, in how many of the first `rounds` it was asked to contribute, shape (m,)."""
    asked = np.zeros((rounds, len(transcript.canaries.clients)), dtype=bool)
    for revealed in _up_to(transcript, rounds):
        asked[revealed.round_index] |= revealed.asked
    return np.asarray(asked.sum(axis=0))


def _up_to(transcript: Transcript, rounds: int) -> list[RevealedSum]:
    return [each for each in transcript.sums if each.round_index < rounds]


# One canary in this number tells its coin, to measure the noise by.
TOLD_OF = 3


def under_planned_noise(transcript: Transcript, rounds: int) -> Scores:
    """Score canaries by the log likelihood ratio of all sums, with the planned covariance of the noise."""
    scores = np.full(len(transcript.canaries.clients), np.nan)
    for each in _streams(transcript, rounds):
        scores[each.ours] = _told(transcript, each.root, each.y, each.x)
    return scores


def under_measured_noise(runs: Sequence[Transcript], rounds: int) -> list[Scores]:
    """Score each run's canaries by the log likelihood ratio of all sums, with the measured noise covariance.

    K is measured on what nobody moves, in all runs and, where groups are in one sum, in all groups: on the
    coordinates without a canary, and on one canary in three. These canaries tell their coins, and have no
    score; the others' scores do not depend on each other then. The fewer there are, the more K is the plan's.
    """
    plan, found = runs[0].plan, defaultdict[int, list[tuple[Sequence[int], Vectors]]](list)
    streams = [list(_streams(transcript, rounds)) for transcript in runs]
    for transcript, of_run in zip(runs, streams, strict=True):
        for each in of_run:
            told = _tells(each)
            noise = each.y[:, told] - transcript.canaries.signs[each.ours[told]] * each.x[:, told]
            if each.group == 0 or not plan.one_sum:
                noise = np.concatenate([noise, each.still], axis=1)
            white = solve_triangular(each.root, noise, lower=True)
            found[0 if plan.one_sum else each.group].append((each.there, white))
    measured = {group: shrunk_covariance(of_group, plan.num_rounds) for group, of_group in found.items()}
    scores = []
    for transcript, of_run in zip(runs, streams, strict=True):
        of_all = np.full(len(transcript.canaries.clients), np.nan)
        for each in of_run:
            others, there = ~_tells(each), np.ix_(each.there, each.there)
            root = each.root @ np.linalg.cholesky(measured[0 if plan.one_sum else each.group][there])
            of_all[each.ours[others]] = _told(transcript, root, each.y[:, others], each.x[:, others])
        scores.append(of_all)
    return scores


class _Stream(NamedTuple):
    """The noised sums of all rounds for the canaries of one group, with the planned noise covariance.

    Attributes:
        group: of the plan.
        ours: its canaries, shape (m,).
        there: the rounds with a sum.
        y, x: projections and moves by round and canary.
        still: the sums where no canary moves anything, by round and coordinate.
        root: root root^T is the planned covariance of the noise.
    """

    group: int
    ours: npt.NDArray[np.int64]
    there: list[int]
    y: Vectors
    x: Vectors
    still: Vectors
    root: Vectors


def _tells(each: _Stream) -> npt.NDArray[np.bool_]:
    return np.asarray(np.arange(len(each.ours)) % TOLD_OF == 0)


def _streams(transcript: Transcript, rounds: int) -> Iterator[_Stream]:
    plan = transcript.plan
    for group, planned in enumerate(plan.groups):
        ours = np.flatnonzero(transcript.canaries.groups == group)
        sums = [each for each in transcript.sums if each.round_index < rounds and group in each.groups]
        there = sorted({each.round_index for each in sums})
        if not there or not len(ours):
            continue
        y, x = np.zeros((2, len(there), len(ours)))
        # A coordinate of an absent canary would tell its coin.
        free = ~np.isin(transcript.watched, transcript.coordinates)
        still = np.zeros((len(there), int(free.sum())))
        for row, index in enumerate(there):
            of_round = [each for each in sums if each.round_index == index]
            y[row] = np.mean([each.projections[ours] for each in of_round], axis=0)
            x[row] = np.any([each.asked[ours] for each in of_round], axis=0) * planned.clipping_norm
            still[row] = np.mean([each.pure_noise[free] for each in of_round], axis=0)
        taken_back = np.eye(plan.num_rounds)
        for lag, tap in enumerate(taps_of(plan.mechanism, group), start=1):
            taken_back -= tap * np.eye(plan.num_rounds, k=-lag)
        # What a sum that was thrown away carried is taken back nowhere.
        root = planned.noise_stddev * taken_back[np.ix_(there, there)]
        yield _Stream(group, ours, there, y, x, still, root)


def _told(transcript: Transcript, root: Vectors, y: Vectors, x: Vectors) -> Scores:
    """Return each canary's log likelihood ratio (present / absent), from sums y and the canary's part x."""
    seen, moved = (solve_triangular(root, each, lower=True) for each in (y, x))
    if transcript.canaries.adjacency == "replace_one":
        return np.asarray(2 * np.sum(moved * seen, axis=0))
    return np.asarray(np.sum(moved * (seen - moved / 2), axis=0))
