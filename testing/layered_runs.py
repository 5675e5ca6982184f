"""Runs a central server and its edge servers in one process, with a thread for each edge server."""

from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import Any

from server_app.train import train
from testing.local_grid import FIRST_NODE_ID, LocalGrid, as_grid
from testing.small_runs import nothing_drawn, small_config

CLOUD = ("method=edge_average", "secagg=off")


def cloud_grid(folders: Sequence[Path], seconds: float = 60.0, **options: Any) -> LocalGrid:
    """Return a central server's grid; node k answers for the edge server with its files in ``folders[k]``."""
    grid = LocalGrid(len(folders), **options)
    for number, folder in enumerate(folders):
        folder.mkdir(exist_ok=True)
        told: dict[str, Any] = {"edge": str(folder), "edge-seconds": seconds, "secagg-mode": "off"}
        grid.contexts[FIRST_NODE_ID + number].node_config |= told
    return grid


class EdgeRun(Thread):
    """A thread that trains an edge server's run on a grid of its devices, and keeps any error."""

    def __init__(self, directory: Path, folder: Path, grid: LocalGrid, overrides: Sequence[str]) -> None:
        super().__init__(daemon=True)
        folder.mkdir(exist_ok=True)
        words = [*overrides, f"run.mailbox={folder}", f"dataset.num_clients={len(grid.contexts)}"]
        resume = (directory / "config.yaml").exists()
        self._config = small_config(directory, [] if resume else words, resume=resume)
        self._grid = grid
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            train(as_grid(self._grid), self._config, LocalGrid.RUN)
        except BaseException as error:
            self.error = error


def run_layers(
    root: Path,
    edges: Sequence[LocalGrid],
    overrides: Sequence[str],
    cloud: Sequence[str],
    edge_clients: LocalGrid | None = None,
) -> None:
    """Run all edge servers and the central server to their end, each with its files below ``root``.

    The files are in ``root / "edge-<k>" / "run"`` and ``root / "cloud"``.

    Raises what an edge's run has raised.
    """
    folders = [root / f"mailbox-{number}" for number in range(len(edges))]
    words = [*cloud, *CLOUD, f"dataset.num_clients={len(edges)}", "secagg.minimum_cohort=2"]
    with nothing_drawn():
        runs = [
            EdgeRun(root / f"edge-{number}" / "run", folders[number], grid, overrides)
            for number, grid in enumerate(edges)
        ]
        for each in runs:
            each.start()
        config = small_config(root / "cloud", words)
        train(as_grid(edge_clients or cloud_grid(folders)), config, LocalGrid.RUN)
        for each in runs:
            each.join(60)
            if each.error is not None:
                raise each.error
