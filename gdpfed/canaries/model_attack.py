"""What a finished model and its predictions tell: whose record was trained on, and from which party one is.

Membership is guessed by two scores, each larger for records that the model has seen: minus the loss of a
record, for which its prediction is enough (Yeom et al., arXiv:1709.01604), and minus the norm of its
gradient, for which the model is. Members are the training records, and the null are those of the test split,
which must have been kept out without regard to their content. How well both are told apart is compared with a
null in which nothing is told, and with what so few records could have shown at all.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats
from torch import nn

from gdpfed.audit.accounting import charges_of, epsilon_after
from gdpfed.canaries.bounds import (
    NUM_SHARES,
    Guesses,
    Scores,
    at_least,
    best_of,
    guesses_of,
    one_run_epsilon,
    one_run_p_value,
)
from gdpfed.clients.configured import task_of
from gdpfed.clients.record_work import gradients_of
from gdpfed.errors import ReportError
from gdpfed.learning.data import Dataset, Split
from gdpfed.learning.data.persons import NO_ROW, persons_held_out
from gdpfed.learning.model_folder import read_model
from gdpfed.learning.models import flatten
from gdpfed.learning.task import Task
from gdpfed.learning.training.evaluate import model_outputs
from gdpfed.learning.training.person_losses import PersonModel
from gdpfed.methods import make_method
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.runs.resume import load_run

SEEN = ("predictions", "model")
AT_ONCE = 256


@dataclass(frozen=True)
class MembershipGuess:
    """How well members are told from others by one score.

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


@dataclass(frozen=True)
class SiteGuess:
    """How well the party of a test record is guessed from the model's prediction and the record's label.

    Attributes:
        records: that were guessed.
        right, low: the share guessed rightly, and the least that is not ruled out.
        base: the share of the largest party, which is what guessing it always reaches.
    """

    parties: int
    records: int
    right: float
    low: float
    base: float


@dataclass(frozen=True)
class ModelAttack:
    """All guesses about one run.

    Attributes:
        stated: epsilon of one record at delta, the largest of the plan; None where no record is promised one.
    """

    stated: float | None
    delta: float
    confidence: float
    membership: Sequence[MembershipGuess]
    site: SiteGuess | None

    @property
    def passed(self) -> bool:
        """Whether no more was found than is stated."""
        return self.stated is None or all(each.epsilon <= self.stated for each in self.membership)


def attack_run(directory: Path, confidence: float = 0.95) -> ModelAttack:
    """Attack the finished model of a run, with the data that it was trained on.

    Raises:
        RunError, LearningError, ReportError: no finished run, or its data are not there.
    """
    config = load_run([f"run.resume={directory}"])
    task, plan = task_of(config), make_method(config).plan
    data = task.load()
    if not isinstance(data.train, Split) or not isinstance(data.test, Split) or data.num_classes < 2:
        raise ReportError(f"{directory}: only records with classes and a test split can be told apart")
    _, _, model = read_model(directory)
    trained = np.sort(np.concatenate([task.client_indices(client) for client in range(task.num_clients)]))
    members, others, others_of = data.train.take(trained), data.test, data.test_owners
    if task.by_person:
        others, others_of = persons_held_out(others, others_of)
    found = []
    significance = (1 - confidence) / (len(SEEN) * (1 + len(_names(data))))
    for seen in SEEN:
        inside, outside = (_scores(seen, task, model, each) for each in (members, others))
        found.append(_guess(seen, "all", inside, outside, plan.delta, significance))
        for at, name in enumerate(_names(data)):
            own, kept_out = inside[np.asarray(data.owners)[trained] == at], outside[others_of == at]
            if min(len(own), len(kept_out)) > 1:
                found.append(_guess(seen, name, own, kept_out, plan.delta, significance))
    outputs, _ = model_outputs(model, flatten(model), data.test, task.make_loss(), torch.device("cpu"))
    site = None if data.test_owners is None else _site(outputs, data.test.y, data.test_owners, 1 - confidence)
    return ModelAttack(_stated(plan), plan.delta, confidence, found, site)


def _names(data: Dataset) -> Sequence[str]:
    """What the parties are called whose records are both trained and tested on; none where nobody says."""
    if data.owners is None or data.test_owners is None:
        return ()
    return data.owner_names or [f"party {at}" for at in range(int(data.owners.max(initial=-1)) + 1)]


def _stated(plan: PrivacyPlan) -> float | None:
    """The largest epsilon of one record, computed by the audit's formulas from the plan's charges."""
    if not plan.private or plan.unit != "record":
        return None
    return max(
        epsilon_after(
            charges_of([each.to_dict() for each in (*plan.voted, *plan.charges(m, None, number))]), plan.delta
        )
        for m in range(len(plan.groups))
        for number in range(len(plan.mechanism.record_groups(m)))
    )


def _scores(seen: str, task: Task, model: nn.Module, records: Split) -> Scores:
    """Minus the loss of every record, or minus its gradient's norm; of a person over its number of rows."""
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


def _guess(
    seen: str, whose: str, inside: Scores, outside: Scores, delta: float, significance: float
) -> MembershipGuess:
    """Tell apart by one score; as many of both are guessed about, drawn without regard to their scores."""
    n, m = len(inside), len(outside)
    auc = float(stats.mannwhitneyu(inside, outside).statistic) / (n * m)
    z = float(stats.norm.isf(significance / 2))
    # Hanley and McNeil, Radiology 143, 1982.
    first, second = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    spread = auc * (1 - auc) + (n - 1) * (first - auc**2) + (m - 1) * (second - auc**2)
    off, null = z * math.sqrt(max(spread, 0.0) / (n * m)), z * math.sqrt((n + m + 1) / (12 * n * m))
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
    """The least epsilon at which the best attack would rule out that nothing is told; inf for none.

    Under pure epsilon the best attack guesses each of the records rightly with probability
    e^epsilon / (1 + e^epsilon). It is the epsilon at which the right guesses that it expects are enough.
    """
    enough = range(num_records // 2, num_records + 1)
    for correct in enough:
        if one_run_p_value(Guesses(num_records, num_records, correct), 0.0, delta) <= significance:
            return math.log(correct / (num_records - correct)) if correct < num_records else math.inf
    return math.inf


def _site(
    outputs: npt.NDArray[np.float64],
    labels: npt.NDArray[np.generic],
    owners: npt.NDArray[np.int64],
    alpha: float,
) -> SiteGuess | None:
    """Guess the party of half of the test records by what the others show; None with a single party."""
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(owners)) < 2:
        return None
    told = np.concatenate([outputs, np.eye(outputs.shape[1])[labels.astype(np.int64)]], axis=1)
    order = np.random.default_rng(0).permutation(len(owners))
    shown, guessed = order[: len(order) // 2], order[len(order) // 2 :]
    if len(np.unique(owners[shown])) < 2:
        return None
    answers = LogisticRegression(max_iter=1000).fit(told[shown], owners[shown]).predict(told[guessed])
    right = int((answers == owners[guessed]).sum())
    count = len(guessed)
    base = float(np.bincount(owners[guessed]).max()) / count
    return SiteGuess(len(np.unique(owners)), count, right / count, at_least(right, count, alpha), base)
