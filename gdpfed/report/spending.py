"""Adds up the epsilon that each data owner (party) has spent in several runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from gdpfed.report.finished_run import FinishedRun
from gdpfed.report.metric_display import dataset_label
from gdpfed.report.run_clients import RunClients

MOST_PARTIES = 20
ADDED_UP = (
    "Runs stand in the order in which they were named. A budget holds for one run; what several runs on the "
    "same data cost adds up, and so does delta. The sum is the most that it can be: a node's own ledger "
    "counts less, and gdpfed node status LEDGER --output FILE.png draws it."
)


@dataclass(frozen=True)
class Step:
    """One party's total epsilon before and after a run, and the total if the run spent its whole budget."""

    before: float
    after: float
    limit: float


@dataclass(frozen=True)
class Spending:
    """The epsilon that one party has spent in each of its runs, in order."""

    party: str
    steps: Sequence[Step]


def spending_of(runs: Sequence[FinishedRun]) -> list[Spending]:
    """Return the epsilon that each party has spent, added up over those runs that use the same data set.

    Each client of a few is a party; of many clients all whose budget is the same are one.

    Raises ReportError: a run whose assignment of clients is damaged.
    """
    found: dict[str, list[Step]] = {}
    for run in runs:
        data = run.settings["dataset"]
        label = dataset_label(data["name"], data.get("path"))
        clients, spent = RunClients.of(run), run.records[-1].spent_epsilon
        few = sum(map(len, clients.groups)) <= MOST_PARTIES
        for members, group, epsilon in zip(clients.groups, run.plan["groups"], spent, strict=True):
            if epsilon is None or not group["epsilon"]:
                continue
            many = [f"{len(members)} clients, budget {group['epsilon']:g}"]
            for name in [clients.called(member) for member in members] if few else many:
                steps = found.setdefault(f"{label}: {name}", [])
                before = steps[-1].after if steps else 0.0
                steps.append(Step(before, before + epsilon, before + group["epsilon"]))
    return [Spending(party, steps) for party, steps in found.items()]
