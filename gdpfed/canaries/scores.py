"""Scores of canaries: the higher, the likelier is it that the canary was present.

Each function sees what one kind of observer sees, up to a round, and returns one number a canary, nan for a
canary that says nothing to this observer. Any function of what is revealed gives a valid bound; these give
tight ones.
"""

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp
from scipy.stats import binom

from gdpfed.canaries.bounds import Scores
from gdpfed.canaries.canary import parts_of
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
