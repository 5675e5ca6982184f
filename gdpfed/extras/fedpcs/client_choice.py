"""Client sampling of AOCS (by update norms), Fed-CBS (class counts) and DELTA (distances of updates).

Sources: Chen, Horvath, Richtarik, "Optimal Client Sampling for Federated Learning", TMLR 2022, and its code,
SamuelHorvath/FL-optimal-client-sampling; Zhang et al., "Fed-CBS", ICML 2023; Wang et al., "DELTA: Diverse
Client Sampling for Fasting Federated Learning", NeurIPS 2023, and its code, L3030/DELTA_FL.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gdpfed.extras.fedpcs.weighted_draws import capped_probabilities

Floats = npt.NDArray[np.float64]
Positions = npt.NDArray[np.int64]

RESCALINGS = 4
EXPLORATION = 10.0
LEAST_IMBALANCE = 1e-12
LEAST_DISTANCE = 0.1
"""Of the mean: no client counts as nearer than this, as who is never asked never releases anything again."""


def aocs_chances(lengths: Floats, cohort_size: int, rescalings: int = RESCALINGS) -> Floats:
    """Return AOCS's sampling probabilities, proportional to update lengths and capped at 1, shape (n,).

    p = min(1, K u / sum u); then up to four times p <- min(1, c p), c = (K - n + #{p < 1}) / sum_{p < 1} p,
    which is never below 1: a client that reaches 1 leaves K - #{p = 1} to those who are below it, and their
    sum is at most that. With no limit on the rescalings it is the optimum, min(1, k u) with sum K. `lengths`:
    u_i, at least 0. `cohort_size`: K. `rescalings`: how many at most.
    """
    if not lengths.any():
        return np.full(len(lengths), cohort_size / len(lengths))
    chances = np.minimum(1, cohort_size * lengths / lengths.sum())
    for _ in range(rescalings):
        below = chances < 1
        left = float(chances[below].sum())
        if not left:
            break
        factor = (cohort_size - np.count_nonzero(~below)) / left
        chances = np.minimum(1, np.where(below, factor * chances, 1.0))
        if factor <= 1:
            break
    return np.asarray(chances)


def delta_chances(updates: Floats, shares: Floats, cohort_size: int) -> Floats:
    """Return the method DELTA's sampling probabilities, by share of data and distance to the mean update.

    The paper's chances have the variance of a client's own gradients beside the distance, which its public
    code does not measure either. `updates`: Delta_i, shape (n, d). `shares`: theta_i. `cohort_size`: K.
    """
    distances = shares * np.linalg.norm(updates - updates.mean(axis=0), axis=1)
    if not distances.any():
        distances = shares
    # A client at the very mean still has a chance, which a weight divides by.
    chances = np.maximum(distances, 1e-9 * distances.max())
    return capped_probabilities(chances / chances.sum(), cohort_size)


def noised_distances(gradients: Floats, noise_stddevs: Floats) -> Floats:
    """Return each gradient's distance from the mean, corrected for the noise, at least 0, shape (k,).

    With k gradients under noise of sigma_i in each of d coordinates, that is d ((1 - 2 / k) sigma_i^2 + sum_j
    sigma_j^2 / k^2), which tends to d sigma_i^2 as k grows. `gradients`: as they were released, shape (k, d).
    `noise_stddevs`: sigma_i, shape (k,).
    """
    count, dimension = gradients.shape
    squares = ((gradients - gradients.mean(axis=0)) ** 2).sum(axis=1)
    variances = noise_stddevs**2
    added = dimension * ((1 - 2 / count) * variances + variances.sum() / count**2)
    return np.asarray(np.sqrt(np.maximum(squares - added, 0.0)))


def released_delta_chances(distances: Floats, shares: Floats, cohort_size: int) -> Floats:
    """Return clients' chances in DELTA sampling: proportional to (share of records) * (released distance).

    A client that has released nothing yet has the mean of those that have; where none is apart from the
    others, and in the beginning, chances go with theta_i. `distances`: zeta_i of the last participation; NaN
    where there was none. `shares`: theta_i. `cohort_size`: K.
    """
    known = np.isfinite(distances)
    mean = float(distances[known].mean()) if known.any() else 0.0
    apart = np.where(known, np.maximum(distances, LEAST_DISTANCE * mean), mean)
    chances = shares * apart if mean else shares
    return capped_probabilities(chances / chances.sum(), cohort_size)


def public_draws(seed: int, round_index: int) -> np.random.Generator:
    """Return the random generator for a round's public random choices, which need no secrecy."""
    return np.random.default_rng([seed, round_index])


def class_imbalance(counts: Floats) -> Floats:
    """Return the class imbalance of sets of records: sum_b (share of class b - 1 / B)^2.

    Where nothing is counted, as noised counts may come to, no class has a share.
    """
    totals = counts.sum(axis=-1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
    return np.asarray(((shares - 1 / counts.shape[-1]) ** 2).sum(axis=-1))


def balanced_sample(
    counts: Floats, cohort_size: int, taken: Positions, round_number: int, rng: np.random.Generator
) -> Positions:
    """Draw Fed-CBS's sample of K clients whose records together have nearly even class shares.

    The first with chance ~ 1 / QCID + 10 sqrt(3 ln k / (2 T_i)), member m ~ 1 / QCID(S_m)^m.

    Args:
        counts: records of every client by class, shape (n, B).
        cohort_size: K.
        taken: T_i, how often each was sampled; as once, where never.
        round_number: k, from 1.
        rng: of the draws.
    """
    explored = EXPLORATION * np.sqrt(3 * np.log(round_number) / (2 * np.maximum(taken, 1)))
    chances = 1 / np.maximum(class_imbalance(counts), LEAST_IMBALANCE) + explored
    left = np.arange(len(counts))
    sample: list[int] = []
    for member in range(1, cohort_size + 1):
        if member > 1:
            together = counts[sample].sum(axis=0) + counts[left]
            logarithms = -member * np.log(np.maximum(class_imbalance(together), LEAST_IMBALANCE))
            chances = np.exp(logarithms - logarithms.max())
        chosen = int(rng.choice(left, p=chances / chances.sum()))
        sample.append(chosen)
        left = left[left != chosen]
    return np.sort(np.asarray(sample, dtype=np.int64))


class BalancedSamples:
    """Draws the clients of each round as in Fed-CBS, from class counts, a seed and the earlier draws.

    `counts`: records of every client by class, at least 0, shape (n, B). `cohort_sizes`: K of every round.
    `seed`: of the draws.
    """

    def __init__(self, counts: Floats, cohort_sizes: Sequence[int], seed: int) -> None:
        self._counts, self._sizes, self._seed = counts, cohort_sizes, seed
        self._samples: list[Positions] = []

    def sample(self, round_index: int) -> Positions:
        """Return the clients of a round's sample, in ascending order."""
        while len(self._samples) <= round_index:
            index = len(self._samples)
            earlier = np.concatenate([*self._samples, np.zeros(0, np.int64)])
            taken = np.bincount(earlier, minlength=len(self._counts))
            rng = public_draws(self._seed, index)
            drawn = balanced_sample(self._counts, self._sizes[index], taken, index + 1, rng)
            self._samples.append(drawn)
        return self._samples[round_index]
