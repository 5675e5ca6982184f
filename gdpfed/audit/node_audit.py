"""Audit of a client's own ledger: did every run that it accepted fit its budget?

Runs about the client and runs about its records are accounted apart, each against a budget of its own unit.
"""

import hashlib
import json
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dp_accounting as dp

from gdpfed.audit.accounting import (
    Charges,
    SampledSums,
    charges_of,
    composed_epsilon,
    epsilon_against_server,
    first_rounds,
)
from gdpfed.audit.run_files import RunFiles
from gdpfed.errors import AuditError


@dataclass(frozen=True)
class NodeRunAudit:
    """One run in a client's ledger, with all of its unit that were begun before it.

    Attributes:
        name: of the run.
        unit: whose presence it protects.
        budget, delta: the client's own when the run began.
        epsilon: of this run and all before it, at delta.
        num_updates: that the client may send at most.
        sent: updates that left the client in this run.
        against_server: epsilon at delta of the updates of this run and all before it; inf where one of them
            was shown to an edge, by the client's own word.
        record_group: which of the client's records the figures are about; None where they are about it.
        steps: that these records have paid for, and `num_steps` that they may; 0 of a client.
    """

    name: str
    unit: str
    budget: float
    delta: float
    epsilon: float
    num_updates: int
    sent: int
    against_server: float
    record_group: int | None = None
    steps: int = 0
    num_steps: int = 0

    @property
    def within_budget(self) -> bool:
        """Whether the epsilons are within the client's budget at the beginning of this run."""
        return self.epsilon <= self.budget


@dataclass(frozen=True)
class NodeAudit:
    """Values by run, and one line for every contradiction."""

    runs: tuple[NodeRunAudit, ...]
    findings: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether there is no contradiction and the budget held."""
        return not self.findings and all(run.within_budget for run in self.runs)

    @property
    def held(self) -> tuple[bool, ...]:
        """Whether the budget held at each run: its figures are within it, and the file is sound."""
        return tuple(not self.findings and run.within_budget for run in self.runs)


def audit_node_ledger(path: Path, client: int | None = None, directories: Sequence[Path] = ()) -> NodeAudit:
    """Audit the ledger file of one node.

    Args:
        path: of the ledger.
        client: the number of the node's client in the runs it is compared with; None without any.
        directories: of these runs, all those that the client may have taken part in.

    Raises:
        AuditError: it is missing, cannot be read, or is no such ledger.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        body = data["ledger"]
        canonical = json.dumps(body, sort_keys=True).encode()
        intact = data["sha256"] == hashlib.sha256(canonical).hexdigest()
        entries = body["runs"]
        runs = tuple(run for end in range(len(entries)) for run in _runs(entries[: end + 1]))
        findings = [] if intact else [f"{path} was changed: its checksum is another one"]
        for entry in entries:
            findings += _check_entry(entry)
        known = {entry["terms"]["run"] for entry in entries}
        findings += [each for directory in directories for each in _lacking(known, client, directory)]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise AuditError(
            f"{path} cannot be read as a node's ledger: {type(error).__name__}: {error}"
        ) from None
    return NodeAudit(runs, tuple(findings))


def _lacking(known: Collection[str], client: int | None, directory: Path) -> Iterator[str]:
    """Name a run that has drawn the client and that its ledger lacks, as one that was put back does."""
    files = RunFiles.read(directory)
    rounds = sum(int(group.get(str(client), 0)) for group in files.ledger["participations"])
    if rounds and files.name not in known:
        yield (
            f"run {files.name} in {directory} has drawn client {client} for {rounds} rounds, and this ledger "
            "lacks it"
        )


def _runs(entries: list[dict[str, Any]]) -> list[NodeRunAudit]:
    """The last of these entries, accounted with those of its unit before it, for each group of records."""
    last = entries[-1]
    unit = _unit(last["terms"])
    alike = [entry for entry in entries if _unit(entry["terms"]) == unit]
    if unit == "client":
        return [_of_client(alike)]
    return [_of_records(alike, group) for group in range(len(_records(last["terms"])["batch_rates"]))]


def _unit(terms: dict[str, Any]) -> str:
    units = {charge["unit"] for charge in _saved_charges(terms)}
    if len(units) > 1:
        raise ValueError(f"a run charged per {' and per '.join(sorted(units))} cannot be added up")
    unit = str(*units)
    if (unit == "record") != ("records" in terms):
        raise ValueError(f"a run charged per {unit} that {'lacks' if unit == 'record' else 'has'} records")
    return unit


def _of_client(entries: list[dict[str, Any]]) -> NodeRunAudit:
    """The most recent run in the client's ledger that protects the client."""
    last = entries[-1]
    runs = [_charges(entry["terms"]) for entry in entries]
    sent = [release for entry in entries for release in _sent(entry)]
    return NodeRunAudit(
        name=last["terms"]["run"],
        unit="client",
        budget=last["epsilons"][0],
        delta=last["delta"],
        epsilon=composed_epsilon(runs, last["delta"], at_most=last["epsilons"][0]),
        num_updates=_most_updates(last["terms"]),
        sent=len(last["rounds"]),
        against_server=math.inf if _shown(entries) else epsilon_against_server(sent, last["delta"]),
    )


def _of_records(entries: list[dict[str, Any]], group: int) -> NodeRunAudit:
    """The most recent run in the client's ledger that protects records, for one group of them."""
    last = entries[-1]
    terms, budgets = last["terms"], last["epsilons"]
    groups = len(_records(terms)["batch_rates"])
    runs = [
        _path(entry)
        if _has_path(entry["terms"])
        else _steps(entry, terms, group, _most_steps(entry["terms"]))
        for entry in entries
    ]
    taken = [
        _path(entry) if _has_path(entry["terms"]) else _steps(entry, terms, group, sum(entry["steps"]))
        for entry in entries
        if entry["steps"]
    ]
    return NodeRunAudit(
        name=terms["run"],
        unit="record",
        # One number is for all groups; records that are all alike keep the least.
        budget=budgets[group] if len(budgets) == groups else min(budgets),
        delta=last["delta"],
        epsilon=_of_runs(runs, last["delta"], min(budgets)),
        num_updates=_most_updates(terms),
        sent=len(last["rounds"]),
        against_server=math.inf if _shown(entries) else _of_runs(taken, last["delta"], 0.0),
        record_group=group,
        steps=sum(last["steps"]),
        num_steps=_most_steps(terms),
    )


def _shown(entries: list[dict[str, Any]]) -> bool:
    """Whether an edge that the client trusts saw single updates."""
    return any(_trusted(entry) and entry["rounds"] for entry in entries)


def _trusted(entry: dict[str, Any]) -> bool:
    return entry["edge_trusted"] is True


def _records(terms: dict[str, Any]) -> dict[str, Any]:
    """The entry of terms about records."""
    records: dict[str, Any] = json.loads(terms["records"])
    return records


def _has_path(terms: dict[str, Any]) -> bool:
    """Whether the client pays for each round that it takes part in by a budget of the round's own."""
    return bool(terms["mechanism"] == "own_spending")


def _path(entry: dict[str, Any]) -> Charges:
    """The cost of the rounds in which a client with a budget schedule took part.

    A record that is replaced moves a sum twice as far as one that is left out: that is half the noise.
    """
    taken = charges_of([{"event": _event(entry["terms"], index), "count": 1} for index in entry["rounds"]])
    return [
        (replace(sums, adjacency="zero_out", noise_multiplier=sums.noise_multiplier / sums.distance), count)
        for sums, count in taken
    ]


def _of_runs(runs: list[Charges], delta: float, at_most: float) -> float:
    """Epsilon of runs; without sampling that of one Gaussian of all their zCDP, 1 / (2 sigma^2) each."""
    releases = [each for run in runs for each in run]
    if not all(sums.sampling_rate == 1 and not sums.bound for sums, _ in releases):
        return composed_epsilon([run for run in runs if run], delta, at_most=at_most)
    rho = math.fsum(count / (2 * sums.noise_multiplier**2) for sums, count in releases)
    return float(dp.get_epsilon_gaussian(1 / math.sqrt(2 * rho), delta)) if rho else 0.0


def _most_steps(terms: dict[str, Any]) -> int:
    """The steps that the records may pay for in the rounds that are left when the client comes."""
    if _has_path(terms):
        return min(int(terms["most_rounds"]), len(_rounds(terms)))
    left = first_rounds(_saved_charges(terms), len(_rounds(terms)))
    return sum(count * sums.window_steps for sums, count in left)


def _steps(entry: dict[str, Any], terms: dict[str, Any], group: int, steps: int) -> Charges:
    """The cost of a number of steps of a run for a record group of other terms.

    Where it makes other groups, they may have been those that are drawn most often.
    """
    own, others = _records(entry["terms"]), _records(terms)
    alike = (own["shares"], own["seed"]) == (others["shares"], others["seed"])
    rate = own["batch_rates"][group] if alike else max(own["batch_rates"])
    (event, *_) = (charge["event"] for charge in _saved_charges(entry["terms"]))
    return charges_of([{"event": {**event, "batch_rate": rate, "num_steps": steps}, "count": 1}])


def _saved_charges(terms: dict[str, Any]) -> list[dict[str, Any]]:
    """The charges of all rounds."""
    charges: list[dict[str, Any]] = json.loads(terms["charges"])
    return charges


def _rounds(terms: dict[str, Any]) -> range:
    """The rounds that a client may be sampled in."""
    if "records" in terms:
        return range(terms["first_round"], _records(terms)["num_rounds"])
    num_rounds = sum(charge["count"] for charge in _saved_charges(terms))
    return range(terms["first_round"], num_rounds)


def _charges(terms: dict[str, Any]) -> list[tuple[SampledSums, int]]:
    """The cost of the rounds in which a client may be sampled."""
    kept, position = [], 0
    for charge in _saved_charges(terms):
        start = max(position, terms["first_round"])
        position += charge["count"]
        if start < position:
            kept.append({**charge, "count": position - start})
    return charges_of(kept)


def _event(terms: dict[str, Any], round_index: int) -> dict[str, Any]:
    """The event of a round; that of the last one for a round that the terms do not have."""
    event: dict[str, Any] = {}
    position = 0
    for charge in _saved_charges(terms):
        event, position = charge["event"], position + charge["count"]
        if round_index < position:
            break
    return event


def _sent(entry: dict[str, Any]) -> list[tuple[SampledSums, int]]:
    """The sums that the server knows this client to be part of, one an update."""
    events = [{**_event(entry["terms"], index), "num_sums": 1} for index in entry["rounds"]]
    return charges_of([{"event": event, "count": 1} for event in events])


def _updates_in(terms: dict[str, Any], round_index: int) -> int:
    """In how many sums of a round a client may be."""
    if "records" in terms:
        return int(_records(terms)["sums_per_round"])
    return int(_event(terms, round_index).get("num_sums", 1))


def _most_updates(terms: dict[str, Any]) -> int:
    """Updates in all rounds that a client may be sampled in."""
    return sum(_updates_in(terms, round_index) for round_index in _rounds(terms))


def _check_entry(entry: dict[str, Any]) -> list[str]:
    name, charged, rounds = entry["terms"]["run"], _rounds(entry["terms"]), entry["rounds"]
    findings = []
    if any(rounds.count(index) > _updates_in(entry["terms"], index) for index in rounds):
        findings.append(f"run {name} sent more updates in one round than it was charged for")
    if any(index not in charged for index in rounds):
        findings.append(f"run {name} sent an update in a round that it was not charged for")
    about_records = _unit(entry["terms"]) == "record"
    private_by_itself = about_records and _records(entry["terms"])["work"] == "dp_sgd"
    if not (entry["terms"]["sums_hidden"] or _trusted(entry) or private_by_itself):
        findings.append(f"run {name} showed single updates to the server")
    if about_records:
        findings += _check_steps(entry)
    return findings


def _check_steps(entry: dict[str, Any]) -> list[str]:
    """The steps of a run about records: some in every round with an update, and no more than were charged."""
    name, steps, most = entry["terms"]["run"], entry["steps"], _most_steps(entry["terms"])
    findings = []
    events = [charge["event"] for charge in _saved_charges(entry["terms"])]
    records = _records(entry["terms"])
    if _has_path(entry["terms"]):
        if any(each["kind"] != "gaussian" or each["adjacency"] != "replace_one" for each in events):
            findings.append(f"the path of run {name} is not Gaussian noise under replace_one in every round")
    elif len({(each["batch_rate"], each["noise_multiplier"]) for each in events}) > 1 or (
        events[0]["batch_rate"] != records["batch_rates"][0]
    ):
        findings.append(f"the charges of run {name} are not those of one noise and its batch rates")
    if len(steps) != len(entry["rounds"]) or any(type(each) is not int or each < 1 for each in steps):
        findings.append(f"run {name} has steps {steps} for {len(entry['rounds'])} rounds with an update")
    if sum(steps) > most:
        findings.append(f"run {name} took {sum(steps)} steps, and {most} were charged")
    return findings
