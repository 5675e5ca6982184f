"""Hashes of the training data of finished runs, with which a later command compares the data.

They are hashes of private data, so the file is readable by its owner only, and lies beside the runs: a run's
own directory, which may be shown to others, has none of them when the run is finished.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from gdpfed.errors import ExperimentError, LearningError
from gdpfed.extras.experiments.runs import Run
from gdpfed.files import read_regular, save_whole
from gdpfed.json_files import WRONG_FORM, read_json

HASHES_FILE = ".data.json"
VERSION = 1
SHOWN = 12
"""Characters of a hash in a message."""

Loaded = Mapping[Path, str | LearningError | None]
"""The hash of the data of each run, by its directory; the error where they cannot be loaded."""


class TrainedData:
    """The hashes of the training data of an output directory's runs, by the names of these runs.

    Raises ExperimentError: the file of an earlier command cannot be read.
    """

    def __init__(self, output: Path) -> None:
        self.path = output / HASHES_FILE
        self.hashes: dict[str, str] = {}
        if self.path.is_symlink() or self.path.exists():
            try:
                values = read_json(read_regular(self.path))
                if values["version"] != VERSION:
                    raise ValueError(f"its version is {values['version']}, not {VERSION}")
                self.hashes = {str(name): str(value) for name, value in values["sha256"].items()}
            except (OSError, *WRONG_FORM) as error:
                raise ExperimentError(
                    f"{self.path} cannot be read ({error}), so the data of finished runs are not known: "
                    "restore it from a copy, or name another --output"
                ) from None

    def knows(self, run: Run) -> bool:
        """Whether an earlier command has kept the hash of the data of a run."""
        return run.path.name in self.hashes

    def compared(self, finished: Iterable[Run], loaded: Loaded) -> int:
        """Return how many finished runs were trained on the same data as are loaded now.

        The others are those whose data are not known, or cannot be loaded any more. Raises ExperimentError: a
        run was trained on other data.
        """
        number = 0
        for run in finished:
            now = loaded.get(run.path)
            then = self.hashes.get(run.path.name)
            if not isinstance(now, str) or then is None:
                continue
            if now != then:
                dataset = run.config.dataset
                place = f"dataset={dataset.name}" if dataset.path is None else f"dataset.path={dataset.path}"
                raise ExperimentError(
                    f"{place} is not what {run.path} was trained on (SHA-256 of its content {now[:SHOWN]}, "
                    f"then {then[:SHOWN]}): put it back, or name another --output"
                )
            number += 1
        return number

    def keep(self, runs: Iterable[Run], loaded: Loaded) -> None:
        """Keep the hashes of the data of runs that are about to be trained.

        Raises RunError: the file system refuses.
        """
        new = {run.path.name: now for run in runs if isinstance(now := loaded[run.path], str)}
        if new:
            self.hashes |= new
            text = json.dumps({"version": VERSION, "sha256": self.hashes}, indent=2)
            save_whole(self.path, f"{text}\n".encode())
