"""The names of a run's files that other programs read, and their format version."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from gdpfed.errors import GDPFedError, RunError
from gdpfed.files import save_whole
from gdpfed.json_files import WRONG_FORM, read_json

R = TypeVar("R")

FORMAT_VERSION = 4
"""`versioned` writes it into JSON files and lines of rounds.jsonl; the checkpoint has it too."""
VERSION_KEY = "version"
SETTINGS_KEY, SETTINGS_OF = "settings", ("privacy", "secagg", "training", "method")
"""The entry of plan.json with the settings of the plan, and the groups of settings that it holds; the entry
also has the seed of the group `run`."""
CONFIG_FILE = "config.yaml"
PLAN_FILE = "plan.json"
ROUNDS_FILE = "rounds.jsonl"
LEDGER_FILE = "ledger.json"
REWARDS_FILE = "rewards.json"
COUNTS_FILE = "class_counts.json"
ASSIGNMENT_FILE = "assignment.json"
IDENTITIES, PARTIES, COLUMNS = "identities", "parties", "columns"
"""Optional entries of assignment.json: the clients' keys, their names, and the digest of the columns."""
MODEL_CARD_FILE = "model_card.md"
MODEL_FILE = "model/weights.safetensors"
DESCRIPTION_FILE = "model/model.json"
MANIFEST_FILE = "model/manifest.json"
COLUMNS_FILE = "model/columns.yaml"
CHECKPOINT_FILE = "checkpoint.safetensors"
PAGE_FILE = "report.html"
PAGE_SEAL_FILE = "report_seal.json"
SEAL_FILE = "seal.json"
PARTS_FILE = "parts.json"
HELD_OUT_FILE = "held_out.json"
VOTE_FILE = "vote.json"
NORMS_FILE = "norm_histogram.json"
AT_CHANCE_FILE = "at_chance.json"
END_FILE = "ending.json"
CUT_FILE = "data_cut.json"
PERSONAL_FILE = "personal.safetensors"
"""The clients' own models, if a method has them: one array `PERSONAL_KEY` of shape (n, d)."""
STATISTICS_FILE, STATISTICS_PAGE = "statistics.json", "statistics.html"
"""The statistics, which are sealed, and an HTML page that shows them, which is not."""
PERSONAL_KEY = "personal"
CLIENT_STATES_FOLDER = "client_states"
"""The folder with the client states of simulated clients, which exists while the run lasts."""
ACCURACY_PICTURE = "accuracy.png"
BUDGET_PICTURE = "budget.png"
EVENTS_FOLDER = "tensorboard"
SEALED = (CONFIG_FILE, PLAN_FILE, ASSIGNMENT_FILE, LEDGER_FILE, ROUNDS_FILE)
"""Files of every run that has ended or pauses; the seal has a hash of each."""
SEALED_AT_END = (MODEL_FILE, DESCRIPTION_FILE, MANIFEST_FILE)
"""Further sealed files of a run that has ended; a run that pauses has a checkpoint instead."""
SEALED_IF_THERE = (
    *(COUNTS_FILE, REWARDS_FILE, PARTS_FILE, HELD_OUT_FILE, VOTE_FILE, NORMS_FILE),
    *(PERSONAL_FILE, COLUMNS_FILE),
    *(MODEL_CARD_FILE, AT_CHANCE_FILE, CUT_FILE, ACCURACY_PICTURE, BUDGET_PICTURE),
    *(STATISTICS_FILE, END_FILE),
)
"""Sealed files that only some runs have. The files in `EVENTS_FOLDER` are sealed too."""
WEAK_DATA = "weak data: {}"
"""How the output of a run marks a warning about weak data."""


def versioned(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a run's file with the format version first."""
    return {VERSION_KEY: FORMAT_VERSION, **values}


def check_version(path: Path, found: object) -> None:
    """Raise RunError if a run's file has another format version.

    `path`: the file. `found`: the version in the file, or None; it must be :data:`FORMAT_VERSION`.
    """
    if found != FORMAT_VERSION:
        named = "no format version" if found is None else f"format version {found}"
        raise RunError(
            f"{path} has {named}, and this gdpfed reads version {FORMAT_VERSION}: "
            "use the gdpfed that wrote the run, or start a new run"
        )


def read_versioned(path: Path) -> dict[str, Any]:
    """Read a file that `versioned` made, and return its values without the version.

    Raises:
        RunError: as :func:`check_version`.
        OSError, ValueError: the file cannot be read, or is not a JSON object.
    """
    values = read_json(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise ValueError("it is not a JSON object")
    check_version(path, values.pop(VERSION_KEY, None))
    return values


def read_result(
    path: Path, words: str, of_values: Callable[[dict[str, Any]], R], error: type[GDPFedError] = RunError
) -> R | None:
    """Read a result that `save_result` wrote into a run's directory; None if there is none.

    `words`: what the result is, for errors. `of_values`: makes the result from the file's values. `error`:
    the class of error for a damaged file. Raises RunError for a file of another format.
    """
    if not path.is_file():
        return None
    try:
        return of_values(read_versioned(path))
    except (OSError, *WRONG_FORM) as reason:
        raise error(f"{path} cannot be read as {words}: {reason}") from None


def save_result(path: Path, values: Mapping[str, Any]) -> None:
    """Write a result into a run's directory, in the form that `read_result` reads."""
    save_whole(path, json.dumps(versioned(values), allow_nan=False, indent=1).encode() + b"\n")


def check_json_file(path: Path) -> None:
    """Raise RunError if a JSON file has another format version; do nothing if it cannot be read as JSON."""
    try:
        content = read_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if isinstance(content, dict):
        check_version(path, content.get(VERSION_KEY))
