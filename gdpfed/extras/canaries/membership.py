"""Membership inference by scores: how well a score separates members, and which epsilon it rules out."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import nn

from gdpfed.clients.record_forms import gradients_of
from gdpfed.extras.canaries.bounds import (
    NUM_SHARES,
    Guesses,
    Scores,
    at_least,
    best_of,
    guesses_of,
    one_run_epsilon,
    one_run_p_value,
)
from gdpfed.learning.data import Split
from gdpfed.learning.data.persons import NO_ROW
from gdpfed.learning.labels.classes import auc_error
from gdpfed.learning.models import flatten
from gdpfed.learning.task import Task
from gdpfed.learning.training.record_losses import PersonModel

SEEN = ("predictions", "model")
AT_ONCE = 256


@dataclass(frozen=True)
class MembershipGuess:
    """How well one score separates training records from other records.

    Attributes:
        seen: one of `SEEN`.
        whose: all records, or those of a party by its name.
        members, others: how many of each were scored.
        auc, auc_low, auc_high: the chance that a member scores higher, with an interval.
        null_low, null_high: where it lies where nothing is told, so often as the confidence says.
        tpr, tpr_low: true positives at 1 % false positives, and the least that is not ruled out.
        epsilon: the largest that the guesses rule out; 0 for none.
        detectable: the least epsilon that the best attack of all could have ruled out zero by.
    """

    seen: str
    whose: str
    members: int
    others: int
    auc: float
    auc_low: float
    auc_high: float
    null_low: float
    null_high: float
    tpr: float
    tpr_low: float
    epsilon: float
    detectable: float


def record_scores(seen: str, task: Task, model: nn.Module, records: Split) -> Scores:
    """Score each record by minus its loss, or by minus its gradient norm if the attacker sees the model."""
    gradients = gradients_of(task, torch.device("cpu"))
    rows = (records.y != NO_ROW).sum(axis=1) if task.by_person else np.ones(len(records))
    found, start = [], torch.from_numpy(flatten(model))[None]
    answers = PersonModel(model) if task.by_person else model
    for begin in range(0, len(records), AT_ONCE):
        part = records.take(np.arange(begin, min(begin + AT_ONCE, len(records))))
        x, y = torch.from_numpy(part.x), torch.from_numpy(part.y)
        if seen == "model":
            found.append(-gradients.rows(start, x[None], y[None])[0].double().norm(dim=1))
        else:
            with torch.no_grad():
                losses = gradients.loss(answers(x), y)
            found.append(-losses.double())
    return np.asarray(torch.cat(found).numpy() / rows)


def tell_apart(
    seen: str, whose: str, inside: Scores, outside: Scores, delta: float, significance: float
) -> MembershipGuess:
    """Test how well a score separates members from others: AUC, rates, and a bound on epsilon."""
    n, m = len(inside), len(outside)
    auc = float(stats.mannwhitneyu(inside, outside).statistic) / (n * m)
    z = float(stats.norm.isf(significance / 2))
    off, null = z * auc_error(auc, n, m), z * math.sqrt((n + m + 1) / (12 * n * m))
    limit = np.sort(outside)[::-1][max(0, math.ceil(0.01 * m) - 1)]
    hits = int((inside > limit).sum())
    even, rng = min(n, m), np.random.default_rng(0)
    drawn = [each[rng.permutation(len(each))[:even]] for each in (inside, outside)]
    order = rng.permutation(2 * even)
    guesses = guesses_of(np.concatenate(drawn)[order], (np.arange(2 * even) < even)[order])
    share = significance / NUM_SHARES
    return MembershipGuess(
        seen=seen,
        whose=whose,
        members=n,
        others=m,
        auc=auc,
        auc_low=max(0.0, auc - off),
        auc_high=min(1.0, auc + off),
        null_low=max(0.0, 0.5 - null),
        null_high=min(1.0, 0.5 + null),
        tpr=hits / n,
        tpr_low=at_least(hits, n, significance),
        epsilon=best_of(lambda each: one_run_epsilon(each, delta, share), guesses),
        detectable=detectable_epsilon(2 * even, delta, share),
    )


def detectable_epsilon(num_records: int, delta: float, significance: float) -> float:
    """Return the smallest epsilon at which the best attack could show a leak with this many records.

    Under pure epsilon the best attack guesses each of the records rightly with probability
    e^epsilon / (1 + e^epsilon). It is the epsilon at which the right guesses that it expects are enough.
    """
    enough = range(num_records // 2, num_records + 1)
    for correct in enough:
        if one_run_p_value(Guesses(num_records, num_records, correct), 0.0, delta) <= significance:
            return math.log(correct / (num_records - correct)) if correct < num_records else math.inf
    return math.inf
