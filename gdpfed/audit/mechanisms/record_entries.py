"""Computes what the runs in a node's ledger cost each group of the node's records, from DP-SGD steps."""

import json
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dp_accounting as dp

from gdpfed.audit.accounting import Charges, charges_of, composed_epsilon, first_rounds, parties_in
from gdpfed.audit.node_audit import NodeEntry, NodeRunAudit

BOUNDS = {"convex_steps": "convex", "window_steps": "window"}
"""Which bound charges the windows of a client computation; every step of the others is charged by itself."""


class RecordEntry(NodeEntry):
    """A run in a client's ledger that protects records; each group of records has its own budget."""

    protects = "record"
    has_records = True

    @property
    def records(self) -> Mapping[str, Any]:
        """What the conditions of the run (terms) state about records."""
        return records_in(self)

    @property
    def num_rounds(self) -> int:
        return int(self.records["num_rounds"])

    def updates_in(self, round_index: int) -> int:
        return int(self.records["sums_per_round"])

    @property
    def private_by_itself(self) -> bool:
        return bool(self.records["work"] == "dp_sgd")

    @property
    @abstractmethod
    def most_steps(self) -> int:
        """The largest number of steps that may use the client's records since the client joined the run."""

    @abstractmethod
    def check_charges(self) -> Iterator[str]:
        """Check that the run's privacy costs follow from its batch sampling rates."""

    def audits(self, alike: Sequence[NodeEntry]) -> Iterator[NodeRunAudit]:
        saved, groups = self.saved, len(self.records["batch_rates"])
        budgets, delta = saved["epsilons"], saved["delta"]
        for group in range(groups):
            runs = [[*each.paid_first, *each.planned(self, group)] for each in alike]
            taken = [[*each.first_sent, *each.taken(self, group)] for each in alike]
            counts = [each.held_out for each in alike]
            sent = [own if each.saved.get("counted") else [] for each, own in zip(alike, counts, strict=True)]
            apart = all(counts) and len({each.terms.get("held_out_by", "") for each in alike}) == 1
            # One number is for all groups; records that are all alike keep the least.
            budget = budgets[group] if len(budgets) == groups else min(budgets)
            yield NodeRunAudit(
                name=self.terms["run"],
                unit=self.protects,
                protects=plural(str(self.terms.get("record_is", "")) or self.protects),
                budget=budget,
                delta=delta,
                epsilon=_of_either(runs, counts, delta, budget, apart=apart),
                num_updates=self.most_updates,
                sent=len(saved["rounds"]),
                against_server=self.server_epsilon(alike, _of_either(taken, sent, delta, 0.0, apart=apart)),
                record_group=group,
                steps=sum(saved["steps"]),
                num_steps=self.most_steps,
            )

    def check(self) -> Iterator[str]:
        """Check that each round with an update took a DP-SGD step, and that all steps were paid for."""
        yield from super().check()
        yield from self.check_charges()
        name, steps, rounds = self.terms["run"], self.saved["steps"], self.saved["rounds"]
        if len(steps) != len(rounds) or any(type(step) is not int or step < 1 for step in steps):
            yield f"run {name} has steps {steps} for {len(rounds)} rounds with an update"
        if self.held_out and parties_in(self.charges[0]["event"]) > 1:
            yield f"run {name} counts held-out persons, who may be trained on at another party"
        if self.saved.get("counted") and not self.held_out:
            yield f"run {name} sent counts that its terms do not charge"
        if sum(steps) > self.most_steps:
            yield f"run {name} took {sum(steps)} steps, and {self.most_steps} were charged"


class StepEntry(RecordEntry):
    """A run of DP-SGD in a client's ledger; every release (step or window of steps) has the same noise."""

    kinds = frozenset({"dp_sgd_steps"})

    @property
    def most_steps(self) -> int:
        left = first_rounds(self.charges, len(self.rounds))
        return sum(count * sums.window_steps for sums, count in left) // parties_in(self.charges[0]["event"])

    def planned(self, last: NodeEntry, group: int) -> Charges:
        return self._steps(last, group, self.most_steps)

    def taken(self, last: NodeEntry, group: int) -> Charges:
        steps = self.saved["steps"]
        return self._steps(last, group, sum(steps)) if steps else []

    def _steps(self, last: NodeEntry, group: int, steps: int) -> Charges:
        """Return the cost of `steps` DP-SGD steps of this run for a record in `group` of the run ``last``.

        Where this run makes other groups, they may have been those that are drawn most often.
        """
        own, alike = self.records, self._groups_as(last)
        rate = own["batch_rates"][group] if alike else max(own["batch_rates"])
        event = {**self.charges[0]["event"], "batch_rate": rate, "num_steps": steps}
        return charges_of([{"event": event, "count": 1}])

    def _groups_as(self, last: NodeEntry) -> bool:
        """Whether the ledger says that this run and the run ``last`` divide records into the same groups."""
        if self.terms["run"] == last.terms["run"]:
            return True
        mine, its = (
            (each.terms.get("dealt_by", ""), records_in(each)["shares"], records_in(each)["seed"])
            for each in (self, last)
        )
        return mine == its and mine[0] != ""

    def check_charges(self) -> Iterator[str]:
        events = [charge["event"] for charge in self.charges]
        alike = {(event["batch_rate"], event["noise_multiplier"], parties_in(event)) for event in events}
        if len(alike) > 1 or (events[0]["batch_rate"] != self.records["batch_rates"][0]):
            yield f"the charges of run {self.terms['run']} are not those of one noise and its batch rates"
        work = self.records["work"]
        if any(event.get("bound") != BOUNDS.get(work) for event in events):
            yield f"the charges of run {self.terms['run']} are not those of its clients' work, {work}"


def plural(word: str) -> str:
    """Return the plural of a privacy unit's name: "records", or "persons at up to 3 parties"."""
    first, *rest = word.split()
    return " ".join([f"{first}s", *rest])


def records_in(entry: NodeEntry) -> Mapping[str, Any]:
    """Return what a run's conditions (terms) in a node's ledger state about records."""
    records: Mapping[str, Any] = json.loads(entry.terms["records"])
    return records


def _of_either(
    runs: Sequence[Charges], counts: Sequence[Charges], delta: float, at_most: float, *, apart: bool
) -> float:
    """Return epsilon of training and held-out counts together or, if no record is in both, the larger one."""
    if apart:
        return max(_of_runs(each, delta, at_most) for each in (runs, counts))
    both = [[*run, *own] for run, own in zip(runs, counts, strict=True)]
    return _of_runs(both, delta, at_most)


def _of_runs(runs: Sequence[Charges], delta: float, at_most: float) -> float:
    """Return epsilon of several runs; without sampling, their zCDP costs 1 / (2 sigma^2) are added up."""
    releases = [each for run in runs for each in run]
    if not all(sums.sampling_rate == 1 and not sums.bound for sums, _ in releases):
        return composed_epsilon(runs, delta, at_most=at_most)
    rho = math.fsum(count / (2 * sums.noise_multiplier**2) for sums, count in releases)
    return float(dp.get_epsilon_gaussian(1 / math.sqrt(2 * rho), delta)) if rho else 0.0
