"""Audit of a client's own privacy ledger: did each run that the client accepted fit its budget?

The mechanism that the terms of a run name says what is done with it. Runs about the client and runs about its
records are accounted apart, each against a budget of its own unit.
"""

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from gdpfed.audit.accounting import FIRST, Charges, charges_of, event_in
from gdpfed.audit.event_kinds import check_charges
from gdpfed.audit.mechanisms import NODE_ENTRIES
from gdpfed.audit.run_files import RunFiles
from gdpfed.audit.tolerances import ROUNDING
from gdpfed.errors import AuditError
from gdpfed.json_files import WRONG_FORM, read_json

SENT = {"vote": "voted", "norm_histogram": "norm_counted"}
"""The ledger field that says whether the client contributed to a one-time sum, by the sum's name."""
SENT_WORDS = {"vote": "a vote", "norm_histogram": "a norm"}
LEDGER_VERSIONS = (1, 2, 3, 4)
MOST_READS = 20
"""Of a ledger that its node writes meanwhile."""


@dataclass(frozen=True)
class NodeRunAudit:
    """Audit result of one run in a client's ledger: the epsilon of this and earlier runs, and the budget.

    Attributes:
        name: of the run.
        unit: whose presence it protects.
        budget, delta: the client's own when the run began.
        epsilon: of this run and all before it, at delta.
        num_updates: that the client may send at most.
        sent: updates that left the client in this run.
        against_server: epsilon at delta of the updates of this run and all before it; inf where one of them
            was shown to an edge, by the client's own word.
        protects: whose presence, in the client's own word: a person, where its columns declare persons.
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
    protects: str = ""
    record_group: int | None = None
    steps: int = 0
    num_steps: int = 0

    @property
    def within_budget(self) -> bool:
        """Whether epsilon is within the budget that the client had when this run began."""
        return self.epsilon <= self.budget * (1 + ROUNDING)

    @property
    def protected_unit(self) -> str:
        """What the run protects: the client, or a group of the client's records."""
        group = "" if self.record_group is None else f" {self.record_group}"
        return f"{self.protects or self.unit}{group}"

    @property
    def steps_of_most(self) -> str:
        """Steps taken and steps allowed in the run, as in "3/20"; "" if it protects whole clients."""
        return f"{self.steps}/{self.num_steps}" if self.num_steps else ""


@dataclass(frozen=True)
class NodeEntry(ABC):
    """One run in a client's ledger; methods raise ValueError if the file is malformed.

    `protects`: whose presence its terms are about. `kinds`: of the events that they charge, each in
    `EVENT_KINDS`; others are refused. `has_records`: whether they say more about records. `saved`: the entry,
    as it is in the file.
    """

    protects: ClassVar[str]
    kinds: ClassVar[frozenset[str]] = frozenset()
    has_records: ClassVar[bool] = False

    saved: Mapping[str, Any]

    def __post_init__(self) -> None:
        units = {charge["unit"] for charge in self.charges}
        if len(units) > 1:
            raise ValueError(
                f"a run is charged per {' and per '.join(sorted(units))}, and such costs cannot be added "
                "up; put back an undamaged copy"
            )
        has = "records" in self.terms
        if units != {self.protects} or has != self.has_records:
            raise ValueError(
                f"a run charged per {str(*units)} {'has' if has else 'lacks'} terms about records; put "
                "back an undamaged copy"
            )
        check_charges(self.charges, self.kinds)

    @property
    def terms(self) -> Mapping[str, Any]:
        """The conditions of the run (terms) that the server promised, as the ledger file states them."""
        found: Mapping[str, Any] = self.saved["terms"]
        return found

    @property
    def charges(self) -> list[dict[str, Any]]:
        """The privacy costs of all rounds of the run."""
        charges: list[dict[str, Any]] = json.loads(self.terms["charges"])
        return charges

    @property
    def held_out(self) -> Charges:
        """The privacy cost of the noised sum of counts to a held-out record; empty without such a sum."""
        return self._paid("held_out")

    @property
    def paid_first(self) -> Charges:
        """The privacy cost, to a client or a record, of the one-time sums before the first round."""
        return [charge for entry in FIRST for charge in self._paid(entry)]

    @property
    def first_sent(self) -> Charges:
        """Of the sums before the first round, the privacy costs of those to which this client contributed."""
        return [charge for entry in FIRST if self.saved.get(SENT[entry]) for charge in self._paid(entry)]

    def _paid(self, entry: str) -> Charges:
        charges = json.loads(self.terms.get(entry, "[]"))
        check_charges(charges, ("gaussian",))
        return charges_of(charges)

    @property
    @abstractmethod
    def num_rounds(self) -> int:
        """The number of rounds of the whole run."""

    @property
    def rounds(self) -> range:
        """The rounds, counted from 0, in which the client may be asked to take part."""
        return range(self.terms["first_round"], self.num_rounds)

    def event(self, round_index: int) -> Mapping[str, Any]:
        """Return the privacy event of a round; rounds after the plan's end have the last event."""
        return event_in(self.charges, round_index)

    @abstractmethod
    def updates_in(self, round_index: int) -> int:
        """Return how many noised sums of a round the client may take part in."""

    @property
    def most_updates(self) -> int:
        """The largest number of updates that the client may be asked for in all rounds."""
        return sum(self.updates_in(index) for index in self.rounds)

    @property
    def private_by_itself(self) -> bool:
        """Whether updates have enough noise before they leave the client."""
        return False

    @property
    def sample_is_secret(self) -> bool:
        """Whether epsilon holds only against those who do not know in which rounds the client took part."""
        return any(charge["event"].get("sampling_rate", 1.0) < 1.0 for charge in self.charges)

    @property
    def trusted(self) -> bool:
        """Whether the client trusts the edge server that it talks to."""
        return self.saved["edge_trusted"] is True

    @property
    def shown(self) -> bool:
        """Whether an edge server that the client trusts saw the client's single updates."""
        return self.trusted and bool(self.saved["rounds"])

    @abstractmethod
    def planned(self, last: "NodeEntry", group: int) -> Charges:
        """Return the privacy cost that counts against the budget of the client or of a record group."""

    @abstractmethod
    def taken(self, last: "NodeEntry", group: int) -> Charges:
        """Return the privacy cost so far against the server, which knows when the client took part."""

    @abstractmethod
    def audits(self, alike: Sequence["NodeEntry"]) -> Iterator[NodeRunAudit]:
        """Yield this run's audit results; epsilon includes earlier runs that protect the same unit."""

    def server_epsilon(self, alike: Sequence["NodeEntry"], figure: float) -> float:
        """Return ``figure``, an epsilon against the server, or inf if an edge server saw single updates."""
        return math.inf if any(each.shown for each in alike) else figure

    def check(self) -> Iterator[str]:
        """Yield one line for each contradiction within the run's ledger entry."""
        name, charged, rounds = self.terms["run"], self.rounds, self.saved["rounds"]
        if any(rounds.count(index) > self.updates_in(index) for index in rounds):
            yield f"run {name} sent more updates in one round than it was charged for"
        if any(index not in charged for index in rounds):
            yield f"run {name} sent an update in a round that it was not charged for"
        filled = self.saved.get("filled", [])
        if not isinstance(filled, list) or not all(type(index) is int for index in filled):
            yield f"run {name} filled sums of {filled!r}, which is not a list of rounds"
        elif Counter(filled) - Counter(rounds):
            yield f"run {name} filled a sum in a round in which it sent nothing"
        for entry in FIRST:
            if self.saved.get(SENT[entry]) and not self._paid(entry):
                yield f"run {name} sent {SENT_WORDS[entry]} that its terms do not charge"
        if not (self.terms["sums_hidden"] or self.trusted or self.private_by_itself):
            yield f"run {name} showed single updates to the server"


def node_entry(saved: Mapping[str, Any]) -> NodeEntry:
    """Convert a run saved in a ledger file to the class for the run's privacy mechanism.

    Raises:
        AuditError: terms of a mechanism that there is not.
        KeyError, TypeError, ValueError: it is no such entry.
    """
    return NODE_ENTRIES.get(saved["terms"]["mechanism"])(saved)


@dataclass(frozen=True)
class NodeAudit:
    """The result of auditing a node's ledger: numbers for each run, and a line for each contradiction.

    `not_computed`: a line for each check that the files at hand do not allow.
    """

    runs: tuple[NodeRunAudit, ...]
    findings: tuple[str, ...]
    not_computed: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the audit found no contradiction and no run exceeded its budget."""
        return not self.findings and all(run.within_budget for run in self.runs)

    @property
    def held(self) -> tuple[bool, ...]:
        """For each run, whether epsilon is within the budget; all false if the ledger contradicts itself."""
        return tuple(not self.findings and run.within_budget for run in self.runs)


def audit_node_ledger(path: Path, client: int | None = None, directories: Sequence[Path] = ()) -> NodeAudit:
    """Audit the ledger file of one node, and compare it with the files of the given runs.

    `path`: of the ledger. `client`: the number of the node's client in the runs it is compared with; None
    without any. `directories`: of these runs, all those that the client may have taken part in. Raises
    AuditError: it is missing, cannot be read, or is no such ledger.
    """
    with _reading(path):
        data, last = _ledger_and_lock(path)
        intact, entries = _entries(data)
        runs: list[NodeRunAudit] = []
        for number, entry in enumerate(entries, start=1):
            # With all runs until then that protect the same: the client, or its records.
            runs += entry.audits([each for each in entries[:number] if each.protects == entry.protects])
        findings = [] if intact else [f"{path} was changed: its checksum is another one"]
        if intact and last is not None and data["sha256"] not in last:
            findings += [
                f"{path} is not the ledger that was written last, as {path.name}.lock says: a copy forgets "
                "what was spent since; put its newest copy back"
            ]
        findings += [line for entry in entries for line in entry.check()]
        known = {entry.terms["run"] for entry in entries}
        for directory in directories:
            files = RunFiles.read(directory)
            rounds = _rounds_of(client, files, directory)
            if rounds and files.name not in known:
                findings.append(
                    f"run {files.name} in {directory} has drawn client {client} for {rounds} rounds, and "
                    "this ledger lacks it"
                )
    unknown = (
        f"whether {path} is the ledger that was written last: {path.name}.lock, which says so, is not "
        "beside it"
    )
    return NodeAudit(tuple(runs), tuple(findings), (unknown,) if last is None else ())


def _rounds_of(client: int | None, files: RunFiles, directory: Path) -> int:
    """Return in how many rounds a run has drawn a client, whatever spelling of its number the run has.

    Raises AuditError: the run has something else in place of a number.
    """
    counts = [counted for group in files.ledger["participations"] for counted in group.items()]
    try:
        return sum(int(count) for name, count in counts if int(name) == client)
    except ValueError as error:
        raise AuditError(f"{directory} has no number of a client: {error}; restore it from a copy") from None


@dataclass(frozen=True)
class NodeStanding:
    """The epsilon of all runs in a node's ledger together, compared with the node's current budgets.

    Attributes:
        now: the figures of all runs of a unit, by group of records, under the name of the last of them.
        public_runs: the names of those runs in which nothing is hidden by who is drawn.
        sampled: whether there are others.
    """

    now: tuple[NodeRunAudit, ...]
    public_runs: frozenset[str]
    sampled: bool


def node_standing(path: Path, budgets: Mapping[str, tuple[Sequence[float], float]]) -> NodeStanding:
    """Compute epsilon of all runs in a ledger, and compare it with the current budgets.

    `path`: of the ledger. `budgets`: epsilons and delta by unit; a unit without one keeps those of its last
    run. Raises AuditError: as `audit_node_ledger`.
    """
    with _reading(path):
        _, entries = _entries(_ledger_and_lock(path)[0])
        figures = []
        for unit in dict.fromkeys(entry.protects for entry in entries):
            *before, last = (entry for entry in entries if entry.protects == unit)
            if unit in budgets:
                epsilons, delta = budgets[unit]
                last = replace(last, saved={**last.saved, "epsilons": list(epsilons), "delta": delta})
            figures += [*last.audits([*before, last])]
        secret = [entry.sample_is_secret for entry in entries]
        public = {entry.terms["run"] for entry in entries if not entry.sample_is_secret}
        return NodeStanding(tuple(figures), frozenset(public), any(secret))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Convert any error from reading a damaged ledger into an AuditError with one clear line."""
    try:
        yield
    except FileNotFoundError:
        raise AuditError(f"{path} is not there: name the file of a node's ledger") from None
    except AuditError:
        raise  # It is a ValueError, too, and says of which file it is.
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        why = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise AuditError(
            f"{path} cannot be read as a node's ledger: {why}; put the newest undamaged copy back"
        ) from None


def _ledger_and_lock(path: Path) -> tuple[Any, list[str] | None]:
    """Read a ledger file, and from its lock file the hashes that the ledger may have; None without lock file.

    The node may write meanwhile: both belong together if the lock is the same before and after.
    """
    lock, before = path.with_name(f"{path.name}.lock"), b""
    for _ in range(MOST_READS):
        data = read_json(path.read_text(encoding="utf-8"))
        after = lock.read_bytes() if lock.exists() else b""
        if before == after:
            break
        before = after
    try:
        return data, [str(each) for each in read_json(after)["ledger"]] if after else None
    except WRONG_FORM:
        raise ValueError(f"{lock.name}, which says what was written last, is damaged") from None


def _entries(data: Any) -> tuple[bool, list[NodeEntry]]:
    """Return two values: whether the checksum in a ledger file is right, and the runs in the ledger."""
    if not isinstance(data, dict) or not {"ledger", "sha256"} <= data.keys():
        raise ValueError("it holds no ledger with its checksum")
    body = data["ledger"]
    if body["version"] not in LEDGER_VERSIONS:
        raise ValueError(
            f"it has version {body['version']!r}, and this audit reads 1 to {LEDGER_VERSIONS[-1]}"
        )
    canonical = json.dumps(body, sort_keys=True).encode()
    intact = data["sha256"] == hashlib.sha256(canonical).hexdigest()
    return intact, [node_entry(run) for run in body["runs"]]
