"""What the clients of a run keep between their rounds, as far as the run knows of it.

That is the vector that all of them are told, made of released sums, and after which round each client's own
file was written (`gdpfed.clients.kept_states`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import numpy.typing as npt

from conf.schema import Config
from gdpfed.clients.configured import training_of
from gdpfed.clients.kept_states import KeptStates, state_file
from gdpfed.errors import RunError
from gdpfed.learning.training.client_states import CLIENT_STATES, RoundSums
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.methods.base import ClientSum, SumRequest
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.runs.file_formats import CLIENT_STATES_FOLDER

TOLD_KEY, KEEPING_KEY = "clients.told", "clients.keeping"

State = dict[str, npt.NDArray[np.generic]]
NO_CLIENT_STATES = (
    "training.client_state={}: nodes keep nothing between their rounds, the clients of a simulation do: use "
    "gdpfed simulate, or training.client_state=null"
)


class ClientMemory:
    """The states of a run's clients; nothing where `training.client_state` is null.

    `config`: of the run. `plan`: of its method. `directory`: of its files. Raises LearningError for a state
    that there is not, or that does not go with the training.
    """

    def __init__(self, config: Config, plan: PrivacyPlan, directory: Path) -> None:
        self.kind = config.training.client_state
        self._plan, self._folder = plan, directory / CLIENT_STATES_FOLDER
        self._told: npt.NDArray[np.float32] | None = None
        self._last: dict[int, int] = {}
        self._asked: set[int] = set()
        self._replaced: list[Path] = []
        if self.kind is not None:
            CLIENT_STATES.get(self.kind).check(training_of(config, 0))

    def check(self, requests: Sequence[SumRequest], *, can_keep: bool) -> None:
        """Refuse clients that cannot keep anything, and sums by whose total their states cannot be stepped.

        Raises RunError: the fleet keeps nothing, or clients have weights or a training of their own.
        """
        if self.kind is None:
            return
        if not can_keep:
            raise RunError(NO_CLIENT_STATES.format(self.kind))
        for each in requests:
            if each.client_weights is not None or each.training is not None:
                raise RunError(
                    f"{each.name}: training.client_state={self.kind} follows from plain sums of updates by "
                    "the run's own training: set training.client_state=null, or use another method"
                )

    def open(self, completed_rounds: int) -> None:
        """Make the folder, and remove what rounds have written that were never completed."""
        if self.kind is None:
            return
        self._folder.mkdir(exist_ok=True)
        for path, client, index in self._files():
            if self._last.get(client) != index or index >= completed_rounds:
                path.unlink()

    def of_round(self, round_index: int, requests: Sequence[SumRequest]) -> KeptStates | None:
        """Return what the clients of these requests have kept; None where they keep nothing."""
        if self.kind is None or not requests:
            return None
        if self._told is None:
            self._told = np.zeros(len(requests[0].start), np.float32)
        self._asked = {client for each in requests for client in each.clients.tolist()}
        last = {client: self._last[client] for client in self._asked & self._last.keys()}
        return KeptStates(self.kind, self._told, self._folder, round_index, last)

    def taken(self, round_index: int, sums: Sequence[ClientSum], training: LocalTraining) -> None:
        """Step what clients are told by a round's released sums, and count what their members have kept.

        A client whose sum there is not keeps what it had.
        """
        if self.kind is None or self._told is None:
            return
        released = [each for each in sums if each.total is not None]
        totals = [each.total for each in sums if each.total is not None]
        if totals:
            found = RoundSums(
                np.sum(totals, axis=0), self._expected(round_index, released), self._plan.num_clients
            )
            self._told = CLIENT_STATES.get(self.kind).told(self._told, found, training)
        members = {client for each in released for client in each.members}
        for client in self._asked:
            path, before = state_file(self._folder, client, round_index), self._last.get(client)
            if before == round_index or not path.exists():
                continue
            if client not in members:
                path.unlink()
                continue
            if before is not None:
                self._replaced.append(state_file(self._folder, client, before))
            self._last[client] = round_index

    def saved(self) -> None:
        """Remove the files that newer ones replace, now that the checkpoint knows of these."""
        for path in self._replaced:
            path.unlink(missing_ok=True)
        self._replaced.clear()

    def forget(self) -> None:
        """Remove all states, since the run is over."""
        if self.kind is not None:
            rmtree(self._folder, ignore_errors=True)

    def state_dict(self) -> State:
        """Return what clients are told, float32[d], and how many have kept something."""
        if self._told is None:
            return {}
        return {TOLD_KEY: self._told, KEEPING_KEY: np.array(len(self._last))}

    def restore(self, state: Mapping[str, npt.NDArray[Any]], completed_rounds: int) -> State:
        """Take what `state_dict` returned out of a checkpoint's state, find the files, and return the rest.

        Raises ValueError for a state that is not this run's, or where files are missing.
        """
        rest = {key: value for key, value in state.items() if key not in (TOLD_KEY, KEEPING_KEY)}
        if len(rest) == len(state):
            return rest
        if self.kind is None or len(rest) != len(state) - 2:
            raise ValueError("what its clients are told is not what this run keeps")
        self._told = state[TOLD_KEY].astype(np.float32)
        for _, client, index in self._files():
            if index < completed_rounds:
                self._last[client] = max(index, self._last.get(client, 0))
        if len(self._last) != int(state[KEEPING_KEY]):
            raise ValueError(
                f"{CLIENT_STATES_FOLDER} has the states of {len(self._last)} of {int(state[KEEPING_KEY])} "
                "clients"
            )
        return rest

    def _expected(self, round_index: int, sums: Sequence[ClientSum]) -> float:
        """How many updates are to be expected in these sums, whoever was drawn."""
        groups = range(len(self._plan.groups))
        asked = groups if self._plan.one_sum else {group for each in sums for group in each.groups}
        planned = [self._plan.groups[m] for m in asked]
        return float(sum(each.at(round_index).sampling_rate * len(each.clients) for each in planned))

    def _files(self) -> list[tuple[Path, int, int]]:
        """Every state's file, with its client and its round."""
        named = [(path, path.name.split(".")) for path in self._folder.glob("*.*.npy")]
        return [(path, int(parts[0]), int(parts[1])) for path, parts in named]
