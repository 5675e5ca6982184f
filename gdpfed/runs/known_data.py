"""Hashes of a run's data, so that a resumed run continues with the same data.

The names are hashes of private data. They lie in the run directory for its owner alone, go with the
checkpoint when the run is finished, and are in nothing that is shown of it.
"""

import json
from pathlib import Path

from gdpfed.errors import RunError
from gdpfed.files import save_whole
from gdpfed.json_files import WRONG_FORM
from gdpfed.learning.data import load_dataset
from gdpfed.learning.data.fingerprint import fingerprint
from gdpfed.learning.data.named_partitions import OF_ONE_CLIENT
from gdpfed.learning.task import Task
from gdpfed.runs.checkpoint import Checkpoint
from gdpfed.runs.file_formats import (
    ASSIGNMENT_FILE,
    CHECKPOINT_FILE,
    COLUMNS,
    COLUMNS_FILE,
    read_versioned,
    versioned,
)
from gdpfed.runs.paths import PARTITION_OPTIONS

DATA_FILE = "data.json"
PATH, TEST_PATH = "dataset.path", "dataset.test_path"
SHOWN = 12
"""Characters of a hash in a message."""


def save_data(run: Path, task: Task) -> None:
    """Write the hashes of the data of a new run.

    Raises RunError: the file system refuses.
    """
    save_whole(run / DATA_FILE, json.dumps(versioned({"sha256": _hashes(task)}), indent=2).encode() + b"\n")


def forget_data(run: Path) -> None:
    """Remove the hashes of the data, since the run will not be resumed any more."""
    (run / DATA_FILE).unlink(missing_ok=True)


def refuse_other_data(run: Path, task: Task) -> None:
    """Raise RunError if a run is resumed with other data than it began with; called before planning.

    Raises:
        RunError: they are others, which is said by the name of the file; or nothing says what they were; or
            the run has ended, or has no checkpoint.
        LearningError: data that cannot be used.
    """
    path = run / DATA_FILE
    if not (run / CHECKPOINT_FILE).exists():
        Checkpoint.load(run)  # Nothing is resumed without one, and this says why.
    try:
        began = dict(read_versioned(path)["sha256"])
    except (OSError, *WRONG_FORM) as error:
        raise RunError(
            f"run.resume={run}: {DATA_FILE} cannot be read ({error}), so the data that the run began with "
            "are not known: restore it from a copy, or start a new run"
        ) from None
    for setting, now in _hashes(task).items():
        if began.get(setting) != now:
            # The file or, without one, the setting that chooses the data.
            if setting == PARTITION_OPTIONS:
                place = task.owners_file or f"dataset.partition={task.partition}"
            else:
                of_test = task.source.test_path if setting == TEST_PATH else None
                place = of_test or task.source.path or f"dataset={task.source.name}"
            raise RunError(
                f"{place} is not what the run began with (SHA-256 of its content "
                f"{now[:SHOWN]}, then {str(began.get(setting))[:SHOWN]}): put it back, or start a new run"
            )


def refuse_other_columns(run: Path, task: Task) -> None:
    """Raise RunError if tables are declared otherwise than they were for a run, which may be finished.

    Raises LearningError: data that cannot be used.
    """
    try:
        began = read_versioned(run / ASSIGNMENT_FILE).get(COLUMNS)
    except (OSError, *WRONG_FORM):
        return  # Whoever reads the rest of the file says so.
    columns = task.load().columns
    if began is not None and began != (None if columns is None else columns.digest):
        place = task.source.columns or f"the declaration of {task.source.path or task.source.name}"
        raise RunError(
            f"{place} is not what the run {run} began with: put it back, as in {run / COLUMNS_FILE}"
        )


def _hashes(task: Task) -> dict[str, str]:
    """Hash the training data, test data and partition; return the hashes by the names of their settings.

    A partition that is computed from examples and seed has none; one of another kind may follow from a file.
    """
    train, test = load_dataset(task.source).fingerprints
    found = {PATH: train, TEST_PATH: test}
    if task.partition not in OF_ONE_CLIENT:
        found[PARTITION_OPTIONS] = fingerprint(
            [task.client_indices(client) for client in range(task.num_clients)]
        )
    return found
