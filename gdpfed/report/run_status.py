"""Reads the status of a run, finished or not, from its directory, for the server's operator.

What depends on who was drawn is left out where epsilon rests on nobody knowing that, as in status lines.
"""

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import isinf
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from gdpfed.decimal_numbers import counted
from gdpfed.errors import ReportError, kind_and_words
from gdpfed.json_files import read_json
from gdpfed.report.comparison_tables import whom_it_holds_against
from gdpfed.report.console import Table
from gdpfed.report.evaluated import Result
from gdpfed.report.finished_run import cohorts_shown, read_plan, read_whole_settings
from gdpfed.report.metric_display import WITHOUT_A_SUM, duration, each_of
from gdpfed.report.run_folders import is_run, run_paths
from gdpfed.runs.file_formats import (
    CONFIG_FILE,
    LEDGER_FILE,
    MODEL_FILE,
    PLAN_FILE,
    ROUNDS_FILE,
    SEAL_FILE,
    check_json_file,
)
from gdpfed.runs.round_log import RoundLogEntry, failed_in, read_rounds
from gdpfed.runs.run_end import RunEnd

COMPLETE, PAUSED, GOES_ON = "complete", "paused", "under way or interrupted"
FAILURES_SHOWN = 3
IDLE = "no process here is working on it: run.resume with its directory continues it"


@dataclass(frozen=True)
class GroupStatus:
    """A group's privacy budget, and how much of it is spent; both are None for a run without privacy.

    `group`: its number. `clients`: how many. `budget`, `spent`: epsilon.
    """

    group: int
    clients: int
    budget: float | None
    spent: float | None

    @property
    def left(self) -> float | None:
        """How much epsilon a group has left; None without a budget or without a bound on what is spent."""
        return None if self.budget is None or self.spent is None else max(0.0, self.budget - self.spent)


@dataclass(frozen=True)
class CohortStatus:
    """Numbers of a run that reveal which clients were sampled; shown only if this is not secret.

    `asked`, `survivors`: by group and by sum. `present`: clients that could be reached, by group. `seconds`:
    that the round took. `seconds_left`: for the rounds that are left, at the mean of those so far. `reasons`:
    of the last sums that failed, by round and name.
    """

    asked: tuple[int, ...]
    survivors: tuple[int, ...]
    present: tuple[int, ...]
    seconds: float | None
    seconds_left: float | None
    reasons: tuple[tuple[int, str, str], ...]


@dataclass(frozen=True)
class RunStatus:
    """The status of a run: its round, its result, spent budgets, and who takes part.

    Attributes:
        path: of its directory.
        state: complete, paused, or one of the two that files do not tell apart.
        rounds, num_rounds: that are done, and of how many.
        result: the metric that is shown, in words; empty before the first round.
        figure: the same as its name and value, None where there is none.
        groups: what every group has spent as of the last round.
        delta, against: of epsilon, and against whom it holds.
        failed: sums that there are not, of all rounds; `without_a_sum`: rounds that have none.
        changed: when the last round was written down, or the run began, in seconds since 1970.
        cohorts: None where it may not be shown.
    """

    path: Path
    state: str
    rounds: int
    num_rounds: int
    result: str
    figure: tuple[str, float] | None
    groups: tuple[GroupStatus, ...]
    delta: float
    against: str
    failed: int
    without_a_sum: int
    changed: float
    cohorts: CohortStatus | None

    @classmethod
    def read(cls, path: Path) -> "RunStatus":
        """Read the status of a run, or of the newest run in a folder.

        Raises:
            ReportError: no run, or a damaged one.
            RunError: a run of another format.
        """
        runs = [run for run in run_paths([path]) if is_run(run)]
        if not runs and path.is_dir():
            raise ReportError(f"{path} is not a run and holds none: name a run's directory, or the folder")
        path = max(runs, key=lambda run: (run / CONFIG_FILE).stat().st_mtime, default=path)
        check_json_file(path / PLAN_FILE)
        settings, plan = read_whole_settings(path), read_plan(path)
        try:
            records = read_rounds(path)
            ledger = read_json((path / LEDGER_FILE).read_bytes()) if (path / LEDGER_FILE).is_file() else {}
            charged = ledger.get("charged_rounds", len(records))
            # In no correct run is the ledger more than one round ahead of the log.
            if charged > len(records) + 1:
                raise ValueError(
                    f"{LEDGER_FILE} has {charged} rounds charged and {ROUNDS_FILE} has {len(records)}"
                )
            changed = max((path / name).stat().st_mtime for name in (CONFIG_FILE, ROUNDS_FILE))
            return cls._of(path, plan, records, changed, shows=cohorts_shown(plan, settings))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            reason = kind_and_words(error)
            raise ReportError(f"{path} is a damaged run: {reason}; restore it from a copy") from None

    @classmethod
    def _of(
        cls, path: Path, plan: Mapping[str, Any], records: list[RoundLogEntry], changed: float, *, shows: bool
    ) -> "RunStatus":
        last, num_rounds = records[-1] if records else None, int(plan["num_rounds"])
        state = GOES_ON
        if (path / MODEL_FILE).is_file():
            state = COMPLETE
        elif (path / SEAL_FILE).is_file() and (path / LEDGER_FILE).is_file():
            state = PAUSED
        groups = []
        for index, group in enumerate(plan["groups"]):
            budget = group["epsilon"] if plan["private"] else None
            spent = None if budget is None else 0.0
            if last is not None and budget is not None:
                spent = last.spent_epsilon[index]
            groups.append(GroupStatus(index, int(group["clients"]), budget, spent))
        return cls(
            path=path,
            state=state,
            rounds=len(records),
            num_rounds=num_rounds,
            result=str(Result.of(path, last)) if last else "",
            figure=RunEnd.read(path).judged(last).shown if last else None,
            groups=tuple(groups),
            delta=float(plan["delta"]),
            against=whom_it_holds_against(plan),
            failed=sum(len(record.failures) for record in records),
            without_a_sum=sum(not record.summed for record in records),
            changed=changed,
            cohorts=_cohort_status(records, num_rounds) if last and shows else None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the status as a dictionary for JSON; None stands for missing or secret values."""
        name, value = self.figure or (None, None)
        return {
            "run": str(self.path),
            "state": self.state,
            "rounds": self.rounds,
            "num_rounds": self.num_rounds,
            "metric": name,
            "result": value if value == value else None,
            "delta": self.delta,
            "against": self.against,
            "groups": [asdict(group) | {"left": group.left} for group in self.groups],
            "failed_sums": self.failed,
            "rounds_not_summed": self.without_a_sum,
            "seconds_since_last_round": round(max(0.0, time.time() - self.changed), 1),
            "cohorts": None if self.cohorts is None else asdict(self.cohorts),
        }

    def shown(self) -> RenderableType:
        """Return the status as one screen of text."""
        rows = [
            [str(group.group), str(group.clients), *map(_figure, (group.budget, group.spent, group.left))]
            for group in self.groups
        ]
        against = f"epsilon against {self.against} at delta {self.delta:.3g}, as of round {self.rounds}"
        promised = any(group.budget is not None for group in self.groups)
        note = against if promised else "nothing is promised: no clipping and no noise"
        table = Table("budgets", ("group", "clients", "budget", "spent", "left"), rows, note)
        lines = "\n".join(self._lines())
        return Group(Text(f"{self.path.name}: {self.state}\n{lines}"), table.to_rich(), *self._failures())

    def _lines(self) -> Iterator[str]:
        if self.state == GOES_ON and not _is_held(self.path):
            yield IDLE
        ago = duration(max(0.0, time.time() - self.changed))
        if not self.rounds:
            yield f"no round of {self.num_rounds} yet; it began {ago} ago"
            return
        took = ""
        if self.cohorts is not None and self.cohorts.seconds is not None:
            took = f" and took {self.cohorts.seconds:.1f} s"
        yield f"round {self.rounds} of {self.num_rounds}, {self.result}; it ended {ago} ago{took}"
        if self.cohorts is None:
            yield "cohorts and times are not shown: epsilon holds only while they are secret"
            return
        left = self.cohorts.seconds_left
        after = "" if left is None or self.state != GOES_ON else f"; about {duration(left)} left"
        yield (
            f"in reach {each_of(self.cohorts.present)}, asked {each_of(self.cohorts.asked)}, in the sums "
            f"{each_of(self.cohorts.survivors)}{after}"
        )

    def _failures(self) -> Iterator[RenderableType]:
        if not self.failed:
            return
        yield Text(
            f"{counted(self.failed, 'sum')} failed; {counted(self.without_a_sum, 'round')} without any sum"
        )
        if self.cohorts is None:
            yield Text(WITHOUT_A_SUM)
            return
        for number, name, reason in self.cohorts.reasons:
            yield Text(f"{failed_in(number, name)}: {reason}", overflow="fold")


def _is_held(path: Path) -> bool:
    """Whether another process may be working on the run; True also if the run's lock cannot be tested."""
    try:
        folder = os.open(path, os.O_RDONLY)
    except OSError:
        return True
    try:
        fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(folder)
    return False


def _cohort_status(records: list[RoundLogEntry], num_rounds: int) -> CohortStatus:
    last = records[-1]
    times = [record.seconds["total"] for record in records if "total" in record.seconds]
    mean = sum(times) / len(times) if times else None
    reasons = [(record.round, name, reason) for record in records for name, reason in record.failures.items()]
    return CohortStatus(
        asked=tuple(last.cohort_sizes),
        survivors=tuple(last.survivors),
        present=tuple(last.reachable),
        seconds=last.seconds.get("total"),
        seconds_left=None if mean is None else mean * (num_rounds - len(records)),
        reasons=tuple(reasons[-FAILURES_SHOWN:]),
    )


def _figure(value: float | None) -> str:
    return "none" if value is None or isinf(value) else f"{round(value, 4):.4g}"
