"""The files of one run: created once everything is known to be in order, continued on resume."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml
from safetensors.torch import save as save_tensors

from conf.load import to_yaml
from conf.schema import Config
from gdpfed.learning.models import state_dict_of
from gdpfed.learning.task import Task
from gdpfed.privacy.ledger import Ledger
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.report.plots import accuracy_curve, budget_curve
from gdpfed.report.records import (
    ACCURACY_PICTURE,
    BUDGET_PICTURE,
    CONFIG_FILE,
    LEDGER_FILE,
    MODEL_FILE,
    PLAN_FILE,
    ROUNDS_FILE,
    RoundRecord,
    read_rounds,
)
from gdpfed.rounds.checkpoint import CHECKPOINT_FILE, PRIVATE_MODE, write_whole
from gdpfed.rounds.errors import RunError

# How a run is carried out may change when it is resumed; what it computes may not.
RESUMABLE_CHANGES = {"directory", "resume", "stop_after_round", "timeout_seconds", "device"}


class RunDirectory:
    """Writes the files of one run; every one of them is whole at any time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: Config, plan: PrivacyPlan) -> "RunDirectory":
        """Make a directory for a new run.

        Raises:
            RunError: it exists and is not empty, or cannot be made.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            occupied = any(path.iterdir())
        except OSError as error:
            raise RunError(f"run.directory={path} cannot be made: {error.strerror}") from None
        if occupied:
            raise RunError(
                f"run.directory={path} is not empty: name another one, or continue with run.resume"
            )
        files = cls(path)
        write_whole(path / CONFIG_FILE, to_yaml(config).encode())
        write_whole(path / PLAN_FILE, _json(plan.to_dict()))
        write_whole(path / ROUNDS_FILE, b"")
        return files

    @classmethod
    def resume(cls, path: Path, config: Config) -> "RunDirectory":
        """Open the directory of an unfinished run that had the same configuration.

        Raises:
            RunError: no run, a damaged one, or one of another configuration; names the first difference.
        """
        try:
            saved = yaml.safe_load((path / CONFIG_FILE).read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError) as error:
            raise RunError(f"run.resume={path} is no run: {CONFIG_FILE}: {error}") from None
        difference = _difference(saved, asdict(config))
        if difference:
            raise RunError(f"run.resume={path} was another run: {difference}")
        return cls(path)

    def load_ledger(self, plan: PrivacyPlan) -> Ledger:
        """The ledger as of the last charge.

        Raises:
            RunError: it is missing or damaged.
            PrivacyError: it belongs to another plan.
        """
        path = self.path / LEDGER_FILE
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(
                f"run.resume={self.path}: {LEDGER_FILE} cannot be read ({error}); without it nobody "
                "knows what has been spent: restore it from a copy or start a new run"
            ) from None
        return Ledger.from_dict(plan, data)

    def save_ledger(self, ledger: Ledger) -> None:
        """Write what has been charged, before anything is released for it."""
        write_whole(self.path / LEDGER_FILE, _json(ledger.to_dict()), mode=PRIVATE_MODE)

    def completed_records(self, completed_rounds: int) -> list[RoundRecord]:
        """The record up to the last checkpoint.

        Raises:
            RunError: rounds are missing in it, or it is damaged.
        """
        try:
            records = [r for r in read_rounds(self.path) if r.round <= completed_rounds]
        except ValueError as error:
            raise RunError(f"run.resume={self.path}: {error}") from None
        if len(records) != completed_rounds:
            raise RunError(
                f"run.resume={self.path}: {ROUNDS_FILE} holds {len(records)} of the "
                f"{completed_rounds} rounds of the checkpoint: restore it from a copy"
            )
        return records

    def keep_rounds(self, completed_rounds: int) -> None:
        """Drop what the record holds of rounds after the last checkpoint."""
        lines = [f"{record.to_json()}\n" for record in self.completed_records(completed_rounds)]
        write_whole(self.path / ROUNDS_FILE, "".join(lines).encode())

    def append_round(self, record: RoundRecord) -> None:
        """Add one line to the record."""
        with (self.path / ROUNDS_FILE).open("a", encoding="utf-8") as file:
            file.write(f"{record.to_json()}\n")

    def draw(self, plan: PrivacyPlan, title: str) -> None:
        """Write the pictures from the record."""
        records = read_rounds(self.path)
        budgets = [group["epsilon"] for group in plan.to_dict()["groups"]]
        accuracy_curve(records, title, self.path / ACCURACY_PICTURE)
        budget_curve(records, budgets, title, self.path / BUDGET_PICTURE)

    def finish(self, task: Task, theta: npt.NDArray[np.float32]) -> None:
        """Write the final model and forget the checkpoint, and with it the sampling key."""
        tensors = state_dict_of(task.build_model(), theta)
        write_whole(self.path / MODEL_FILE, save_tensors(tensors))
        (self.path / CHECKPOINT_FILE).unlink(missing_ok=True)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def _difference(saved: Any, given: dict[str, Any]) -> str | None:
    """The first setting that differs, in words; None if the runs compute the same."""
    if not isinstance(saved, dict):
        return f"{CONFIG_FILE} holds no settings"
    for group, section in given.items():
        kept = saved.get(group)
        for key, value in section.items():
            if group == "run" and key in RESUMABLE_CHANGES:
                continue
            old = kept.get(key) if isinstance(kept, dict) else None
            if old != value:
                return f"{group}.{key} was {old} and is now {value}; resume with {group}.{key}={old}"
    return None
