"""State files of simulated clients: each client reads its state and writes a new one each round.

A file is named by client and round. Which of them count is for the run to say: what a round has written that
was never completed is not read.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gdpfed.clients.order import TrainingOrder
from gdpfed.errors import LearningError, RunError
from gdpfed.learning.training.client_states import CLIENT_STATES, Floats, KeptState, Updates
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.registry import is_ours


def state_file(folder: Path, client_id: int, round_index: int) -> Path:
    """Return the path of the file with a client's state after a round."""
    return folder / f"{client_id}.{round_index}.npy"


@dataclass(frozen=True, eq=False)
class KeptStates:
    """The states that simulated clients kept from earlier rounds, and the folder of their state files.

    Attributes:
        kind: of the state, by name.
        told: by the server to all of them, float32[d].
        folder: of the files.
        round_index: of the round.
        last: the round after which each client's state was written; whoever is not in it has kept zeros.
    """

    kind: str
    told: Floats
    folder: Path
    round_index: int
    last: Mapping[int, int] = field(default_factory=dict)

    def added(self, clients: Sequence[int], training: LocalTraining) -> Floats:
        """Return the correction that each client's kept state adds to its gradients: float32[clients, d]."""

        def of(kind: KeptState, kept: Floats) -> Floats:
            return kind.added(kept, self.told.copy(), training)

        return self._row_by_row(of, self._kept(clients))

    def keep(
        self, clients: Sequence[int], steps: npt.NDArray[np.int64], grid: float, order: TrainingOrder
    ) -> None:
        """Compute and save clients' new states from the integer updates that they send, shape (clients, d).

        Raises RunError: the file system refused, as when it is full.
        """
        sent = steps[:, : len(self.told)].astype(np.float64) * (order.norm_factor * grid)

        def of(kind: KeptState, kept: Floats, sent: Updates) -> Floats:
            return kind.kept(kept, self.told.copy(), sent, order.training)

        kept = self._row_by_row(of, self._kept(clients), sent)
        for client_id, own in zip(clients, kept, strict=True):
            path = state_file(self.folder, client_id, self.round_index)
            try:
                np.save(path, own)
            except OSError as error:
                raise RunError(
                    f"{path} cannot be written: {error.strerror}; free space there, or let this user write it"
                ) from None

    @property
    def _kind(self) -> KeptState:
        return CLIENT_STATES.get(self.kind)

    def _row_by_row(self, function: Callable[..., Floats], *given: Updates | Floats) -> Floats:
        """Call a function of rows of clients; a package's state sees one row, and keeps nothing of it."""
        kind, count = self._kind, len(given[0])
        if is_ours(type(kind)) or not count:
            return np.array(function(kind, *given), np.float32)
        rows = ([each[k : k + 1] for each in given] for k in range(count))
        return np.concatenate([np.array(function(self._copy(), *row), np.float32) for row in rows])

    def _copy(self) -> KeptState:
        try:
            return deepcopy(self._kind)
        except Exception as error:
            raise LearningError(
                f"training.client_state={self.kind} cannot be copied for each client ({error}): keep no lock "
                "and no open file in it"
            ) from error

    def _kept(self, clients: Sequence[int]) -> Floats:
        """Read the kept states of clients, float32[clients, size]; zeros for a client that has none yet."""
        kept = np.zeros((len(clients), self._kind.size(len(self.told))), np.float32)
        for row, client_id in zip(kept, clients, strict=True):
            if client_id in self.last:
                row[:] = _read_state(state_file(self.folder, client_id, self.last[client_id]), len(row))
        return kept


def _read_state(path: Path, size: int) -> npt.NDArray[np.float32]:
    """Return the numbers in a client's state file; raise RunError if it is missing or damaged."""
    try:
        kept = np.load(path, allow_pickle=False)
        if kept.shape != (size,) or kept.dtype != np.float32:
            raise ValueError(f"the file holds {kept.dtype}{list(kept.shape)}, not float32[{size}]")
    except (OSError, ValueError, EOFError) as error:
        raise RunError(
            f"{path} cannot be read as a client's state ({error}): restore it from a copy, or start a new run"
        ) from None
    return np.asarray(kept)
