"""Makes small training runs in this process, and sum requests that are marked as recorded in a ledger."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from safetensors.numpy import load_file

from conf.load import load
from conf.schema import Config
from gdpfed.errors import FailedError, RunError
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.files import save_whole
from gdpfed.methods import METHODS
from gdpfed.methods.base import SumRequest
from gdpfed.privacy.ledgers.charged import SEAL, ChargedSum, ExpectedSum
from gdpfed.privacy.ledgers.client import ClientLedger
from gdpfed.report import run_observers
from gdpfed.report.run_observers import ModelCard
from gdpfed.rounds.loop import Announce
from gdpfed.rounds.observers import Observer
from gdpfed.rounds.run import PreparedRun
from gdpfed.runs.file_formats import MODEL_FILE
from gdpfed.runs.resume import load_run
from gdpfed.runs.round_log import RoundLogEntry, read_rounds
from server_app.train import train
from testing.local_grid import FIRST_NODE_ID, IN_CLEAR, LocalGrid, as_grid

NUM_CLIENTS = 12
SMALL = (
    f"dataset.num_clients={NUM_CLIENTS}",
    "dataset.num_rounds=3",
    "privacy.sampling_rate=0.6",
    "privacy.delta=1e-3",
    "privacy.accountant=rdp",
    "privacy.against=outsiders",
    # Of so few clients sums of the same size would have them all.
    "secagg.same_size=false",
)
TRAINING = [name for name, method in METHODS.items().items() if method.curve is not None]
"""Methods that train a model and so have an accuracy curve; others count, or train on tables only."""
# Sums with signatures, over nodes that believe the first roster that they are sent.
ACTIVE = ("secagg.mode=active", "secagg.identities=first_seen")
FIRST_SEEN = {"roster-file": "first-seen"}


def run(
    directory: Path,
    overrides: Sequence[str] = (),
    *,
    grid: LocalGrid | None = None,
    resume: bool = False,
    pictures: bool = False,
    without_a_sum: bool = False,
) -> list[RoundLogEntry]:
    """Train with small settings into ``directory``, and return the log entries of its rounds.

    Without ``pictures`` nothing is drawn: their files are empty. A run that is said to end ``without_a_sum``
    must say so itself.
    """
    config = small_config(directory, overrides, resume=resume)
    with nullcontext() if pictures else nothing_drawn():
        try:
            train(as_grid(grid or grid_for(config)), config, LocalGrid.RUN)
        except RunError as error:
            if not (without_a_sum and "rounds has a sum" in str(error)):
                raise
        else:
            if without_a_sum:
                raise FailedError(f"the run in {directory} ended without a word of its having no sum")
    return read_rounds(directory)


def only_a_card(run: PreparedRun, announce: Announce) -> list[Observer]:
    """Return only the observer that writes the model card, so that nothing is drawn or printed."""
    del announce
    return [ModelCard(run)]


def grid_for(config: Config) -> LocalGrid:
    """Return a grid for tests, whose nodes are set up for the configuration's mode of secure aggregation."""
    told = {"off": IN_CLEAR, "active": FIRST_SEEN}.get(config.secagg.mode)
    return LocalGrid(config.dataset.num_clients, node_config=told)


def small_config(directory: Path, overrides: Sequence[str] = (), *, resume: bool = False) -> Config:
    """Return the configuration of a small run that begins in ``directory``, or continues there."""
    if resume:
        return load_run([*overrides, f"run.resume={directory}"])
    config = deepcopy(_loaded((*SMALL, *overrides)))
    config.run.directory = str(directory)
    config.validate()
    return config


@lru_cache(maxsize=512)
def _loaded(overrides: tuple[str, ...]) -> Config:
    """Return the configuration for these settings; each is loaded once in a process."""
    return load(overrides)


@contextmanager
def nothing_drawn() -> Iterator[None]:
    """Write empty files in place of a run's pictures, to save time."""
    with (
        patch.object(Figure, "savefig", lambda figure, file, **options: None),
        patch.object(run_observers, "accuracy_curve", _empty_picture),
        patch.object(run_observers, "budget_curve", _empty_picture),
    ):
        yield


def _empty_picture(records: Sequence[RoundLogEntry], drawn: Any, title: str, path: Path, *more: Any) -> None:
    """Write an empty file in place of a picture of `gdpfed.report.plots`."""
    save_whole(path, b"")


def files_in(directory: Path) -> dict[Path, bytes]:
    """Return the content of every file below a directory."""
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def final_model(directory: Path) -> npt.NDArray[np.float32]:
    """Return the parameters of a finished run as one vector, float32[d]."""
    tensors = load_file(directory / MODEL_FILE)
    return np.concatenate([tensors[name].ravel() for name in sorted(tensors)])


def grid_of_owners(
    folder: Path, epsilons: Sequence[float | None], more: dict[str, Any] | None = None, **options: Any
) -> LocalGrid:
    """Return a grid on which node k has the budget ``epsilons[k]``, and a ledger in ``folder``."""
    grid = LocalGrid(len(epsilons), **options)
    folder.mkdir(exist_ok=True)
    for client, epsilon in enumerate(epsilons):
        if epsilon is not None:
            own: dict[str, Any] = {
                "epsilon": epsilon,
                "delta": 1e-3,
                "ledger": str(folder / f"{client}.json"),
            }
            grid.contexts[FIRST_NODE_ID + client].node_config |= own | (more or {})
    return grid


def ledger_of(folder: Path, client: int) -> ClientLedger:
    """Read the ledger of a client of :func:`grid_of_owners`."""
    with locked_ledger(folder / f"{client}.json") as file:
        return file.ledger


def as_charged(requests: Sequence[SumRequest], round_index: int = 0) -> list[ChargedSum[SumRequest]]:
    """Wrap requests for sums as if a ledger had recorded them; no ledger is needed."""
    return [ChargedSum(SEAL, request, round_index) for request in requests]


def as_expected(requests: Sequence[SumRequest], round_index: int = 1) -> list[ExpectedSum[SumRequest]]:
    """Wrap requests as a round's expected sums: no privacy cost is recorded, so no ledger is needed."""
    return [ExpectedSum(SEAL, request, round_index) for request in requests]
