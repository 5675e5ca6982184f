"""Attacks on a finished model: which records was it trained on, and from which data owner is a record?

Membership is guessed by two scores, each larger for records that the model has seen: minus the loss of a
record, for which its prediction is enough (Yeom et al., arXiv:1709.01604), and minus the norm of its
gradient, for which the model is. Members are the training records, and the null are those of the test split,
which must have been kept out without regard to their content. Whole parties are guessed likewise, by all of
their records together, against parties that were not in the run. How well both are told apart is compared
with a null in which nothing is told, and with what so few records could have shown at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gdpfed.audit.accounting import charges_of, epsilon_after
from gdpfed.clients.configured import task_of
from gdpfed.errors import ReportError
from gdpfed.extras.canaries.bounds import Scores, at_least
from gdpfed.extras.canaries.membership import SEEN, MembershipGuess, record_scores, tell_apart
from gdpfed.learning.data import Dataset, Split
from gdpfed.learning.data.party_files import tables_in
from gdpfed.learning.data.persons import persons_held_out
from gdpfed.learning.data.table_rows import read_rows
from gdpfed.learning.data.text import following
from gdpfed.learning.model_folder import read_model
from gdpfed.learning.models import flatten
from gdpfed.learning.task import Task
from gdpfed.learning.training.evaluate import model_outputs
from gdpfed.methods import make_method
from gdpfed.privacy.mechanism_options import record_groups
from gdpfed.privacy.mechanisms.records.planner import DEFAULT_DELTA
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.runs.known_data import refuse_other_columns
from gdpfed.runs.paths import as_of_run
from gdpfed.runs.resume import load_run


@dataclass(frozen=True, eq=False)
class Parties:
    """Records of several data owners (parties), and the number of each record's owner, from 0."""

    records: Split
    of: npt.NDArray[np.int64]


def party_scores(seen: str, task: Task, model: nn.Module, parties: Parties) -> Scores:
    """Return the mean membership score of each data owner's records, shape (parties,)."""
    scores = record_scores(seen, task, model, parties.records)
    return np.asarray(np.bincount(parties.of, scores) / np.bincount(parties.of))


def dealt_out(others: Split, parties: Parties) -> Parties:
    """Divide records that were not trained on into made-up data owners, to compare with the real ones.

    The clients of an iid partition are random groups of records, and so are these.
    """
    size = max(1, round(len(parties.of) / (parties.of[-1] + 1)))
    order = np.random.default_rng(0).permutation(len(others))[: len(others) // size * size]
    return Parties(others.take(order), np.arange(len(order)) // size)


def outside_parties(path: Path, data: Dataset) -> Parties:
    """Read data owners (parties) that took no part in the run, from a folder of tables or one table.

    Raises:
        LearningError: tables that are not as the run's declaration says.
        ReportError: the run has no declaration.
    """
    columns = data.columns
    if columns is None:
        raise ReportError(
            "--outside names tables, and this run has no columns.yaml to read them by: leave it out"
        )
    found = [read_rows(file, columns, str(file), shared_out=False) for file in tables_in(path)]
    of = np.repeat(np.arange(len(found)), [len(each) for each in found])
    persons = [each.persons for each in found if each.persons is not None]
    records = Split(
        np.concatenate([each.x for each in found]),
        np.concatenate([each.y for each in found]),
        persons=np.concatenate(persons) if persons else None,
    )
    if not data.by_person:
        return Parties(records, of)
    grouped, owners = persons_held_out(records, of, columns)
    return Parties(grouped, of if owners is None else owners)


@dataclass(frozen=True)
class SiteGuess:
    """How well an attacker guesses a test record's data owner from the model's prediction and the label.

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
    """The result of attacking a model: all guesses about who took part in its training.

    Attributes:
        stated: epsilon of one record at delta, the largest of the plan; None where no record is promised one.
        parties: guesses of whole parties; none where there are no others to tell them from.
        stated_of_party: epsilon of one client; None where none is promised one.
    """

    stated: float | None
    delta: float
    confidence: float
    membership: Sequence[MembershipGuess]
    site: SiteGuess | None
    parties: Sequence[MembershipGuess] = ()
    stated_of_party: float | None = None

    @property
    def passed(self) -> bool:
        """Whether no guess shows a larger epsilon than the stated one."""
        told = (self.membership, self.stated), (self.parties, self.stated_of_party)
        return all(stated is None or all(each.epsilon <= stated for each in found) for found, stated in told)


def attack_run(directory: Path, confidence: float = 0.95, outside: Path | None = None) -> ModelAttack:
    """Attack the finished model of a run with the run's own data; return all guesses.

    `outside`: tables of parties that were not in the run, one a party, by the run's declaration; without it
    the test records of an iid partition are dealt out to such parties.

    Raises RunError, LearningError, ReportError: no finished run, or its data are not there.
    """
    config = as_of_run(load_run([f"run.resume={directory}"]), directory)
    task = task_of(config)
    refuse_other_columns(directory, task)
    plan = make_method(config).plan
    # Where nothing is promised there is no delta either.
    delta = plan.delta if plan.private else config.privacy.delta or DEFAULT_DELTA
    data = task.load()
    if not isinstance(data.train, Split) or not isinstance(data.test, Split) or not data.labels.is_one_class:
        raise ReportError(
            f"{directory}: this attack needs records with one class each, and a test split: choose a run "
            "on such data"
        )
    _, _, model = read_model(directory)
    places = [task.client_indices(client) for client in range(task.num_clients)]
    trained = np.concatenate(places)
    own = Parties(data.train.take(trained), np.repeat(np.arange(len(places)), [*map(len, places)]))
    others, others_of = following(data.test) if task.at_every_position else data.test, data.test_owners
    if task.by_person:
        others, others_of = persons_held_out(others, others_of, data.columns)
    absent = dealt_out(others, own) if task.partition == "iid" else None
    if outside is not None:
        absent = outside_parties(outside, data)
    owner_of = None if data.owners is None else np.asarray(data.owners)[trained]
    found, parties = list[MembershipGuess](), list[MembershipGuess]()
    significance = (1 - confidence) / (len(SEEN) * (1 + len(_names(data)) + (absent is not None)))
    for seen in SEEN:
        inside, apart = (record_scores(seen, task, model, each) for each in (own.records, others))
        found.append(tell_apart(seen, "all", inside, apart, delta, significance))
        for at, name in enumerate(_names(data)):
            theirs, kept_out = inside[owner_of == at], apart[others_of == at]
            if min(len(theirs), len(kept_out)) > 1:
                found.append(tell_apart(seen, name, theirs, kept_out, delta, significance))
        if absent is not None:
            present, away = (party_scores(seen, task, model, each) for each in (own, absent))
            parties.append(tell_apart(seen, "parties", present, away, delta, significance))
    outputs, _ = model_outputs(model, flatten(model), data.test, task.make_loss(), torch.device("cpu"))
    site = (
        None
        if data.test_owners is None
        else _guess_owners(outputs, data.test.y, data.test_owners, 1 - confidence)
    )
    stated = max(group.epsilon_accounted for group in plan.groups)
    of_party = stated if plan.private and plan.unit == "client" else None
    return ModelAttack(_epsilon_of_records(plan), delta, confidence, found, site, tuple(parties), of_party)


def _names(data: Dataset) -> Sequence[str]:
    """Return the names of the data owners, or names made of numbers; empty if examples have no owners."""
    if data.owners is None or data.test_owners is None:
        return ()
    return data.owner_names or [f"party {at}" for at in range(int(data.owners.max(initial=-1)) + 1)]


def _epsilon_of_records(plan: PrivacyPlan) -> float | None:
    """Return the largest epsilon of any record, by the audit's formulas; None if records are unprotected."""
    if not plan.private or plan.unit != "record":
        return None
    return max(
        epsilon_after(
            charges_of([each.to_dict() for each in (*plan.paid_first, *plan.charges(m, None, number))]),
            plan.delta,
        )
        for m in range(len(plan.groups))
        for number in range(len(record_groups(plan.mechanism, m)))
    )


def _guess_owners(
    outputs: npt.NDArray[np.float64],
    labels: npt.NDArray[np.generic],
    owners: npt.NDArray[np.int64],
    alpha: float,
) -> SiteGuess | None:
    """Train a classifier of owners on half of the test records, test it on the rest; None for one owner."""
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
