"""Checks samples of clients that depend on released values, by drawing every sample a second time.

The draws are public: from the seed and the number of the round. Fed-CBS follows from class counts that were
released once, DELTA from how far released gradients were from the mean of their round.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from gdpfed.audit.run_files import RunFiles

Floats = npt.NDArray[np.float64]
Sample = Callable[[int], set[int]]

RULES = ("fed_cbs", "delta")
# An honest run's counts differ so little, or so much, from the numbers of records once in a million runs.
UNLIKELY = 1e-6
LEAST_QCID = 1e-12
LEAST_OF_MEAN = 0.1


def check_draws(files: RunFiles, own: Mapping[str, Any]) -> Iterator[str]:
    """Check the sampling rule, class counts and samples of a run; yield a line for each contradiction."""
    method = files.config["method"]
    asked = method["client_sampling"] if method["client_sampling"] in RULES else None
    if own.get("rule") != asked:
        yield f"plan.json draws samples by {own.get('rule')}, the configuration by {asked}"
        return
    if asked is None:
        return
    if own["counts_rho"] != (method["counts_rho"] or 0.0):
        yield (
            f"plan.json has class counts at {own['counts_rho']} zCDP, the configuration "
            f"{method['counts_rho']}"
        )
    if asked == "fed_cbs":
        findings = list(_check_counts(files, own))
        yield from findings
        if findings or files.counts is None:
            return
        yield from _check_samples(files, own, _fed_cbs_sample(files, own, np.maximum(files.counts, 0.0)))
    else:
        yield from _check_distances(files)
        yield from _check_samples(files, own, _delta_sample(files, own))


def _check_counts(files: RunFiles, own: Mapping[str, Any]) -> Iterator[str]:
    """Check the ledger's cost of class counts, and that the noise in the saved counts fits this cost."""
    rho, charged = own["counts_rho"], files.ledger["counts_rho"]
    needed = files.ledger["charged_rounds"] > 0 or files.counts is not None
    if charged not in (0.0, rho) or (needed and charged != rho):
        yield f"the ledger charges class counts at {charged} zCDP, the plan {rho}"
    if files.counts is None:
        if needed:
            yield "class_counts.json is not there, and samples follow from it"
        return
    counts, held = files.counts, np.asarray(files.plan["game"]["record_counts"], dtype=np.float64)
    if counts.ndim != 2 or len(counts) != len(held) or counts.shape[1] < 2 or not np.isfinite(counts).all():
        yield f"class_counts.json has shape {counts.shape}, for {len(held)} clients"
        return
    # A row adds up to D_i and the noise of all its counts, each of variance 1 / rho.
    far = float(((counts.sum(axis=1) - held) ** 2).sum() * rho / counts.shape[1])
    if stats.chi2.cdf(far, len(held)) < UNLIKELY:
        yield f"class_counts.json carries less noise than {rho:g} zCDP call for"
    elif stats.chi2.sf(far, len(held)) < UNLIKELY:
        yield f"class_counts.json is further from the numbers of records than noise at {rho:g} zCDP makes it"


def _check_distances(files: RunFiles) -> Iterator[str]:
    """Yield an error if a recorded gradient distance is negative or of a client that did not take part."""
    for record in files.rounds:
        index = record["round"] - 1
        for client, distance in record.get("noted", {}).items():
            if index not in files.ledger["taken"].get(client, ()) or not distance >= 0:
                yield f"round {record['round']} notes {distance} of client {client}, which released no such"
                return


def _check_samples(files: RunFiles, own: Mapping[str, Any], sample: Sample) -> Iterator[str]:
    """Check that each round in the ledger asked exactly the clients whom the sampling rule draws.

    Nobody is asked where they are too few for a sum, unless the server reads each alone.
    """
    taken = {int(client): rounds for client, rounds in files.ledger["taken"].items()}
    counted = dict.fromkeys(range(files.plan["groups"][0]["clients"]), 0)
    for index in range(files.ledger["charged_rounds"]):
        expected = {client for client in sample(index) if counted[client] < own["most_rounds"]}
        found = {client for client, rounds in taken.items() if index in rounds}
        if not found and own["rule"] != "delta":
            secagg = files.config["secagg"]
            corrupt = math.ceil(secagg["corrupt_tolerance"] * len(expected))
            if len(expected) < secagg["minimum_cohort"] or 2 * corrupt >= len(expected):
                continue
        for client in sorted(expected ^ found)[:1]:
            what = "was not asked, and is" if client in expected else "was asked, and is not"
            yield f"round {index + 1}: client {client} {what} in the sample that {own['rule']} draws"
            return
        for client in found:
            counted[client] += 1


def _fed_cbs_sample(files: RunFiles, own: Mapping[str, Any], counts: Floats) -> Sample:
    """Return a function that draws Fed-CBS's sample of a round again."""
    samples: list[list[int]] = []
    often = np.zeros(len(counts))

    def sample(index: int) -> set[int]:
        while len(samples) <= index:
            k = len(samples) + 1
            rng = np.random.default_rng([files.config["run"]["seed"], k - 1])
            bonus = 10 * np.sqrt(1.5 * np.log(k) / np.maximum(often, 1))
            likely = 1 / np.maximum(_qcid(counts), LEAST_QCID) + bonus
            members = [int(rng.choice(len(counts), p=likely / likely.sum()))]
            while len(members) < own["cohort_sizes"][k - 1]:
                others = np.setdiff1d(np.arange(len(counts)), members)
                qcid = np.maximum(_qcid(counts[members].sum(axis=0) + counts[others]), LEAST_QCID)
                likely = (qcid.min() / qcid) ** (len(members) + 1)
                members.append(int(rng.choice(others, p=likely / likely.sum())))
            often[members] += 1
            samples.append(members)
        return set(samples[index])

    return sample


def _qcid(counts: Floats) -> Floats:
    """Return each client's class imbalance: B times the variance of the shares of B classes.

    Where nothing is counted all shares are 0, each 1 / B from even.
    """
    classes, totals = counts.shape[1], counts.sum(axis=1, keepdims=True)
    shares = counts / np.where(totals > 0, totals, 1.0)
    return np.asarray(np.where(totals[:, 0] > 0, classes * shares.var(axis=1), 1 / classes))


def _delta_sample(files: RunFiles, own: Mapping[str, Any]) -> Sample:
    """Return a function that repeats a round's client sample by the rule DELTA, from logged distances."""
    held = np.asarray(files.plan["game"]["record_counts"], dtype=np.float64)
    noted = {record["round"] - 1: record.get("noted", {}) for record in files.rounds}

    def sample(index: int) -> set[int]:
        last: dict[int, float] = {}
        for earlier in range(index):
            last |= {int(client): distance for client, distance in noted.get(earlier, {}).items()}
        mean = sum(last.values()) / len(last) if last else 0.0
        apart = np.array([max(last.get(i, mean), LEAST_OF_MEAN * mean) for i in range(len(held))])
        chances = _capped_chances(held * apart if mean else held, own["cohort_sizes"][index])
        rng = np.random.default_rng([files.config["run"]["seed"], index])
        return set(np.flatnonzero(rng.random(len(held)) < chances).tolist())

    return sample


def _capped_chances(weights: Floats, size: int) -> Floats:
    """Return probabilities min(1, k w) for weights w, where k makes the probabilities add up to `size`."""
    low, high = 0.0, 1 / float(weights.min())
    if size >= len(weights):
        return np.ones(len(weights))
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(1, middle * weights).sum() < size else (low, middle)
    return np.minimum(1, high * weights)
