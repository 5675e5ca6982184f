"""Reads a node's status from its ledger and the files beside it: epsilon spent and requests refused.

In which rounds a node was drawn is a secret where epsilon rests on nobody knowing it. So the figures for
Prometheus leave out updates, what holds against the server and the time of a stage there; queries come to
every node alike.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf, isfinite
from pathlib import Path
from typing import Any

from gdpfed.audit.node_audit import NodeAudit, NodeRunAudit, NodeStanding, audit_node_ledger, node_standing
from gdpfed.cli.audit_tables import figure
from gdpfed.clients.messages import ASK, BEGIN, CARRY, END, JOIN, OFFER
from gdpfed.federation.node.journal import (
    ACCEPTED,
    BEGUN,
    DATA,
    OTHER,
    ZEROS,
    JournalEntry,
    heard_at,
    read_journal,
)
from gdpfed.federation.node.node_config import SETTING_OF
from gdpfed.federation.node.node_settings import NodeSettings
from gdpfed.federation.node.own_budget import Budgets
from gdpfed.report.console import Table
from gdpfed.report.exported import Figure
from gdpfed.report.spending import Step

RUNS_SHOWN = 5
REFUSALS_SHOWN = 3
NAME_WIDTH = 12
REASON_WIDTH = 36
CAUSES_NOTE = "why is in the node's log, of its budget with all figures"


@dataclass(frozen=True)
class NodeStatus:
    """What a node's files say about its ledger, its budgets, its runs and the requests that it refused.

    Attributes:
        ledger: the file.
        audit: of its runs.
        standing: of all of them, against today's budgets.
        budgets: that the operator has given; none where only the ledger's are known.
        journal: what was begun and refused.
        heard: when a query last came, in seconds since 1970; None before the first.
        changed: when the ledger last changed, in seconds since 1970.
    """

    ledger: Path
    audit: NodeAudit
    standing: NodeStanding
    budgets: Budgets
    journal: Sequence[JournalEntry]
    heard: float | None
    changed: float

    @classmethod
    def read(cls, ledger: Path, config: Mapping[str, Any], known: "NodeStatus | None" = None) -> "NodeStatus":
        """Read a node's ledger and the files beside it; audit the ledger again only if it has changed.

        Raises:
            AuditError: the ledger is missing, cannot be read, or is none.
            NodeConfigError: settings that do not go together.
        """
        given = any(key in config for key in SETTING_OF.values())
        budgets = NodeSettings({**config, "ledger": str(ledger)}).budgets if given else {}
        changed = ledger.stat().st_mtime if ledger.exists() else 0.0
        if known is None or known.changed != changed:
            audit = audit_node_ledger(ledger)
            today = {str(unit): (own.epsilons, own.delta) for unit, own in budgets.items()}
            standing = node_standing(ledger, today)
        else:
            audit, standing = known.audit, known.standing
        return cls(ledger, audit, standing, budgets, read_journal(ledger), heard_at(ledger), changed)

    @property
    def passed(self) -> bool:
        """Whether the ledger has no contradiction and all runs are within the currently set budgets."""
        return not self.audit.findings and all(each.within_budget for each in self.standing.now)

    @property
    def refusals(self) -> list[JournalEntry]:
        """The requests that the node refused or answered with zeros, oldest first."""
        return [each for each in self.journal if each.cause not in (BEGUN, ACCEPTED)]

    def limit(self, run: NodeRunAudit) -> float:
        """Return the largest epsilon against the server that the node's settings allow; inf if unlimited."""
        own = self._budget(run)
        return inf if own is None else own.max_epsilon_against_server

    def most_updates(self, run: NodeRunAudit) -> int:
        """Return the smaller of the run's and the node's limits on the number of this node's updates."""
        own = self._budget(run)
        most = inf if own is None else own.max_participations
        return run.num_updates if most >= run.num_updates else int(most)

    def begun(self, name: str) -> float | None:
        """Return when a run began, in seconds since 1970; None if the journal does not say."""
        return next((each.time for each in self.journal if each.run == name and each.cause == BEGUN), None)

    def spent_by_run(self) -> dict[str, list[Step]]:
        """Return what each client, or each group of records, has spent before and after each run."""
        found: dict[str, list[Step]] = {}
        for run in self.audit.runs:
            steps = found.setdefault(f"{self.ledger.absolute().parent.name}, {run.protected_unit}", [])
            before = steps[-1].after if steps else 0.0
            steps.append(Step(before, run.epsilon, run.budget))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the node's status as a dictionary for JSON; a limit that is not set is infinity."""
        return {
            "ledger": str(self.ledger),
            "passed": self.passed,
            "findings": list(self.audit.findings),
            "not_computed": list(self.audit.not_computed),
            "budgets": [self._standing(each) for each in self.standing.now] or self._unspent(),
            "limits": {
                unit: {"max_participations": own.max_participations, "min_separation": own.min_separation}
                for unit, own in self.budgets.items()
            },
            "runs": [self._run(run) for run in self.audit.runs],
            "refusals": [
                {"time": _iso(each.time), "asked": each.asked, "run": each.run, "flower_run": each.flower_run}
                | {"cause": each.cause, "reason": each.reason}
                for each in self.refusals
            ],
            "last_query": None if self.heard is None else _iso(self.heard),
            "ledger_changed": _iso(self.changed),
        }

    def tables(self) -> list[Table]:
        """Return tables of the budgets that are left, of the last runs, and of the requests last refused."""
        tables = [self._left(), self._runs()] if self.audit.runs else []
        return [*tables, *([self._refused()] if self.refusals else [])]

    @property
    def last_line(self) -> str:
        """Return a line: times of the last query and ledger change and, before any run, also the budgets."""
        heard = "never" if self.heard is None else f"{_minute(self.heard)} UTC"
        last = f"last query to every node {heard}, ledger last changed {_minute(self.changed)} UTC"
        if self.audit.runs:
            return last
        left = " and ".join(f"{own.epsilon:g} for a {unit}" for unit, own in self.budgets.items())
        whole = f", all of epsilon {left} is left" if left else ""
        return f"{self.ledger.name}: no run was begun{whole}; {last}"

    def _budget(self, run: NodeRunAudit) -> Any:
        return {str(unit): own for unit, own in self.budgets.items()}.get(run.unit)

    def _standing(self, run: NodeRunAudit) -> dict[str, Any]:
        return {
            "protects": run.protects or run.unit,
            "record_group": run.record_group,
            "budget": run.budget,
            "delta": run.delta,
            "spent": run.epsilon,
            "left": left(run),
            "against_server": run.against_server,
            "max_against_server": self.limit(run),
        }

    def _unspent(self) -> list[dict[str, Any]]:
        return [
            {"protects": str(unit), "record_group": None, "budget": own.epsilon, "delta": own.delta}
            | {"spent": 0.0, "left": own.epsilon, "against_server": 0.0}
            | {"max_against_server": own.max_epsilon_against_server}
            for unit, own in self.budgets.items()
        ]

    def _run(self, run: NodeRunAudit) -> dict[str, Any]:
        begun = self.begun(run.name)
        return {
            "name": run.name,
            "begun": None if begun is None else _iso(begun),
            "protects": run.protects or run.unit,
            "record_group": run.record_group,
            "updates": run.sent,
            "most_updates": self.most_updates(run),
            "steps": run.steps,
            "most_steps": run.num_steps,
            "spent_up_to_here": run.epsilon,
        }

    def _left(self) -> Table:
        rows = []
        for run in self.standing.now:
            limit = self.limit(run)
            rows.append(
                [
                    run.protected_unit,
                    *(
                        figure(run.budget),
                        f"{run.delta:.3g}",
                        figure(run.epsilon),
                        figure(round(left(run), 4)),
                    ),
                    f"{figure(run.against_server)} of {figure(limit)}",
                ]
            )
        said = "the node's settings" if self.budgets else "its last run: give --node-config for today's"
        headings = ("protects", "budget", "delta", "spent", "left", "vs server")
        return Table(f"{self.ledger.name}: all runs together", headings, rows, f"budgets are those of {said}")

    def _runs(self) -> Table:
        runs, records = self.audit.runs, any(run.num_steps for run in self.audit.runs)
        rows = []
        for run in runs[-RUNS_SHOWN:]:
            begun, group = self.begun(run.name), "" if run.record_group is None else f" {run.record_group}"
            rows.append(
                [
                    f"{run.name[:NAME_WIDTH]}{group}",
                    "?" if begun is None else _minute(begun),
                    f"{run.sent}/{self.most_updates(run)}",
                    *([run.steps_of_most] if records else []),
                    figure(run.epsilon),
                ]
            )
        steps = ("steps",) if records else ()
        headings = ("run", "begun (UTC)", "updates", *steps, "spent up to here")
        hidden = len(runs) - len(rows)
        apart = max((own.min_separation for own in self.budgets.values()), default=1)
        note = f"updates of a run are {apart} rounds apart at least" if apart > 1 else ""
        return Table(f"runs, {hidden} earlier ones left out" if hidden else "runs", headings, rows, note)

    def _refused(self) -> Table:
        refused = self.refusals
        alike = Counter((each.cause, each.asked, each.run, each.reason) for each in refused)
        last = {(each.cause, each.asked, each.run, each.reason): each.time for each in refused}
        newest = sorted(last, key=lambda key: last[key])[-REFUSALS_SHOWN:]
        rows = [
            [
                _minute(last[key]),
                *(str(alike[key]), key[0], key[1]),
                key[3] if len(key[3]) <= REASON_WIDTH * 2 else f"{key[3][: REASON_WIDTH * 2 - 3]}...",
            ]
            for key in newest
        ]
        since = _minute(refused[0].time)
        zeros = " or answered with zeros" * any(each.cause == ZEROS for each in refused)
        title = f"refused{zeros}, {len(refused)} in all since {since}; the last reasons"
        return Table(title, ("last (UTC)", "times", "cause", "asked", "reason"), rows, CAUSES_NOTE)


def left(run: NodeRunAudit) -> float:
    """Return how much of the budget (epsilon) is left after a run and all earlier ones; at least 0."""
    return max(0.0, run.budget - run.epsilon) if isfinite(run.epsilon) else 0.0


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).isoformat()


def _minute(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%m-%d %H:%M}"


QUERIES = frozenset({JOIN, ASK, CARRY, OFFER, BEGIN, END})


class NodeFigures:
    """Reads one node's metrics for monitoring; recomputes epsilon only if the ledger has changed."""

    def __init__(self, ledger: Path, config: Mapping[str, Any]) -> None:
        self._ledger, self._config = ledger, config
        self._known: NodeStatus | None = None

    def read(self) -> Iterator[Figure]:
        """Read the node's files and yield its metrics, such as the epsilon spent and left.

        Raises AuditError, NodeConfigError: as `NodeStatus.read`.
        """
        status = self._known = NodeStatus.read(self._ledger, self._config, self._known)
        own = {"ledger": str(self._ledger)}
        yield Figure("gdpfed_node_ledger_sound", float(status.passed), own)
        for budget in status.to_dict()["budgets"]:
            group = "" if budget["record_group"] is None else str(budget["record_group"])
            about = own | {"protects": budget["protects"], "record_group": group}
            yield Figure("gdpfed_node_epsilon_budget", budget["budget"], about)
            yield Figure("gdpfed_node_epsilon_spent", budget["spent"], about)
            yield Figure("gdpfed_node_epsilon_left", budget["left"], about)
        public = status.standing.public_runs
        refused = Counter(
            each.cause
            for each in status.refusals
            if each.cause not in (DATA, OTHER, ZEROS) and (each.asked in QUERIES or each.run in public)
        )
        for cause in sorted(refused):
            yield Figure("gdpfed_node_refusals_total", refused[cause], own | {"cause": cause})
        # When the ledger last changed could reveal a round for which the node was drawn in secret.
        changed = None if status.standing.sampled else status.changed
        heard = [time for time in (status.heard, changed) if time is not None]
        if heard:
            yield Figure("gdpfed_node_last_message_timestamp_seconds", max(heard), own)
