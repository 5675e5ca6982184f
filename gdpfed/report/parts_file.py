"""Evaluates a run's final model on the test examples of each party and of each budget; saves the metrics."""

from math import isinf

import numpy as np
import numpy.typing as npt

from gdpfed.files import save_whole
from gdpfed.learning.data import Split
from gdpfed.learning.data.client_partition import client_of_owner
from gdpfed.learning.models import predicts_nothing
from gdpfed.learning.training.evaluate import central_evaluation
from gdpfed.privacy.mechanism_options import record_groups
from gdpfed.report.parts import Part, Parts
from gdpfed.rounds.observers import Observer, RunConcluded
from gdpfed.rounds.run import PreparedRun
from gdpfed.runs.file_formats import PARTS_FILE


class PartsFile(Observer):
    """Saves the final model's metrics for each party and budget, if each test example has a known party."""

    def __init__(self, run: PreparedRun) -> None:
        self._run = run

    def concluded(self, run: RunConcluded) -> None:
        parts = evaluate_parts(self._run, run)
        if parts is not None:
            save_whole(self._run.path / PARTS_FILE, parts.to_json().encode())


def evaluate_parts(run: PreparedRun, concluded: RunConcluded) -> Parts | None:
    """Evaluate the released model on each party's and each budget's test examples; None if not possible.

    None where test examples have no owners, where only their clients test on them, or where the model
    predicts nothing.
    """
    data = run.task.load()
    owners = data.test_owners
    if owners is None or data.owners is None or run.config.run.evaluation == "nodes":
        return None
    if predicts_nothing(run.task.build_model()):
        return None
    names = data.owner_names or tuple(f"party {owner}" for owner in range(int(data.owners.max()) + 1))
    chosen = {name: np.flatnonzero(owners == owner) for owner, name in enumerate(names)}
    budgets = _budget_parts(run)
    evaluation = central_evaluation(run.task, run.config.run.device, run.config.dataset.metrics)
    positions = [*chosen.values(), *budgets.values()]
    metrics = evaluation.of_parts(concluded.released.astype(np.float32), positions)
    found = [
        Part(name, len(part), each.metrics, each.intervals)
        for name, part, each in zip([*chosen, *budgets], positions, metrics, strict=True)
    ]
    return Parts(found[: len(chosen)], found[len(chosen) :])


def _budget_parts(run: PreparedRun) -> dict[str, npt.NDArray[np.int64]]:
    """Map each privacy budget's name to the positions of the test examples to which the budget applies.

    Budgets are those of groups of records, where test examples say their group, or of clients; there are none
    where groups of records have budgets and test examples do not say theirs.
    """
    data, plan = run.task.load(), run.method.plan
    if not plan.private:
        return {}
    own = [each for m in range(len(plan.groups)) if (each := record_groups(plan.mechanism, m))]
    groups = data.test.groups if isinstance(data.test, Split) else None
    if len(own) == 1 and len(own[0]) > 1 and groups is not None:
        return {
            f"budget {each.epsilon:g} (records of group {number})": np.flatnonzero(groups == number)
            for number, each in enumerate(own[0])
        }
    several = any(len(each) > 1 for each in own)
    if several or run.task.partition != "natural" or data.test_owners is None:
        return {}
    clients = client_of_owner(data, run.task.num_clients)[data.test_owners]
    return {
        f"budget {group.epsilon:g} (group {index})": np.flatnonzero(np.isin(clients, list(group.clients)))
        for index, group in enumerate(plan.groups)
        if not isinf(group.epsilon)
    }
