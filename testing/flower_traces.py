"""Finds the processes and directories that the Flower commands of one test have left behind."""

import os
from contextlib import suppress
from pathlib import Path

import psutil

from gdpfed.launch.home import HOMES_VARIABLE


class FlowerTraces:
    """A test's own directories for Flower commands, by which left-over processes and files are found.

    `home`: the user's home. `homes`: where Flower's homes are made.
    """

    def __init__(self, root: Path) -> None:
        self.home, self.homes = root / "home", root / "flower"
        self.home.mkdir()
        self.homes.mkdir()

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables for a command that uses these directories."""
        return os.environ | {"HOME": str(self.home), HOMES_VARIABLE: str(self.homes)}

    def running(self) -> list[str]:
        """Return the Flower folders (FLWR_HOME) of this test's processes that still run."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                home = process.environ().get("FLWR_HOME", "")
                if Path(home).is_relative_to(self.homes):
                    found.append(home)
        return found

    def left(self) -> list[str]:
        """Return the Flower folders of processes that still run, and the directories that a test left."""
        directories = [*self.homes.glob("tmp*"), *self.home.iterdir()]
        return [*self.running(), *(str(path) for path in directories)]
