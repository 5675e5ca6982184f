"""What the server knows of states that clients keep: who has one, and the vector common to all clients.

That is the vector that all of them are told, made of released sums, and after which round each client's own
file was written (`gdpfed.clients.kept_states`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from conf.schema import Config
from gdpfed.clients.configured import training_of
from gdpfed.clients.kept_states import KeptStates, state_file
from gdpfed.clients.order import TrainingOrder
from gdpfed.errors import RunError
from gdpfed.learning.training.client_states import CLIENT_STATES, RoundSums
from gdpfed.methods.base import ClientSum, SumRequest
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.rounds.extensions.base import State, SumExtension
from gdpfed.rounds.fleet import Fleet
from gdpfed.rounds.prepared import PreparedSum
from gdpfed.runs.file_formats import CLIENT_STATES_FOLDER

if TYPE_CHECKING:
    from gdpfed.rounds.run import OpenRun, PreparedRun

CAN_KEEP = "keep something between their rounds"
"""What a fleet names in `Fleet.clients_can` if its clients keep states."""
TOLD, KEEPING = "told", "keeping"
NO_CLIENT_STATES = (
    "training.client_state={}: nodes keep nothing between their rounds, the clients of a simulation do: use "
    "gdpfed simulate, or training.client_state=null"
)


class ClientMemory(SumExtension):
    """Keeps track of the states that a run's clients keep between rounds.

    `config`: of the run, which has a `training.client_state`. `plan`: of its method. `directory`: of its
    files. Raises LearningError for a state that there is not, or that does not go with the training.
    """

    key = "clients"

    def __init__(self, config: Config, plan: PrivacyPlan, directory: Path) -> None:
        self.kind = str(config.training.client_state)
        self._plan, self._folder = plan, directory / CLIENT_STATES_FOLDER
        self._told: npt.NDArray[np.float32] | None = None
        self._last: dict[int, int] = {}
        self._asked: set[int] = set()
        self.kept: KeptStates | None = None
        self._replaced: list[Path] = []
        CLIENT_STATES.get(self.kind).check(training_of(config, 0))

    @classmethod
    def of(cls, run: "PreparedRun") -> Self | None:
        """Return the client memory of a run; None if `training.client_state` is null."""
        if run.config.training.client_state is None:
            return None
        return cls(run.config, run.method.plan, run.path)

    def check(self, run: "PreparedRun", fleet: Fleet, requests: Sequence[SumRequest]) -> None:
        """Raise RunError if clients cannot keep states, or if a sum has weights or training of its own."""
        if CAN_KEEP not in fleet.clients_can:
            raise RunError(NO_CLIENT_STATES.format(self.kind))
        for request in requests:
            if request.client_weights is not None or request.training is not None:
                raise RunError(
                    f"{request.name}: training.client_state={self.kind} follows from plain sums of updates "
                    "by the run's own training: set training.client_state=null, or use another method"
                )

    def opened_run(self, run: "OpenRun") -> None:
        """Make the folder for states, and delete states from rounds that were not completed."""
        self._folder.mkdir(exist_ok=True)
        for path, client, index in self._files():
            if self._last.get(client) != index or index >= run.loop.state.completed_rounds:
                path.unlink()

    def requested(self, order: TrainingOrder, requests: Sequence[SumRequest]) -> None:
        """Note which clients are asked for updates, and find the states that they stored in past rounds."""
        updates = [request for request in requests if request.coordinates is None]
        self._asked, self.kept = {client for update in updates for client in update.clients.tolist()}, None
        if not updates:
            return
        if self._told is None:
            self._told = np.zeros(len(updates[0].start), np.float32)
        last = {client: self._last[client] for client in self._asked & self._last.keys()}
        self.kept = KeptStates(self.kind, self._told, self._folder, order.round_index, last)

    def sum_prepared(
        self, fleet: Fleet, request: SumRequest, prepared: PreparedSum, *, ahead: bool
    ) -> PreparedSum:
        """Attach the stored states of a sum's clients to the sum."""
        counts = request.coordinates is not None
        return (
            prepared
            if ahead or counts
            else replace(prepared, beside=replace(prepared.beside, kept=self.kept))
        )

    def taken(self, order: TrainingOrder, sums: Sequence[ClientSum]) -> list[ClientSum]:
        """Compute the new vector common to all clients from the sums; note which clients have stored states.

        A client whose sum there is not keeps what it had.
        """
        if self._told is None or not self._asked:
            return list(sums)
        released = [each for each in sums if each.total is not None]
        totals = [each.total for each in sums if each.total is not None]
        if totals:
            expected = self._expected(order.round_index, released)
            round_sums = RoundSums(np.sum(totals, axis=0), expected, self._plan.num_clients)
            self._told = CLIENT_STATES.get(self.kind).told(self._told, round_sums, order.training)
        members = {client for each in released for client in each.members}
        for client in self._asked:
            path, before = state_file(self._folder, client, order.round_index), self._last.get(client)
            if before == order.round_index or not path.exists():
                continue
            if client not in members:
                path.unlink()
                continue
            if before is not None:
                self._replaced.append(state_file(self._folder, client, before))
            self._last[client] = order.round_index
        return list(sums)

    def saved(self) -> None:
        """Delete replaced states, since the new checkpoint names the newer ones."""
        for path in self._replaced:
            path.unlink(missing_ok=True)
        self._replaced.clear()

    def finished(self) -> None:
        """Delete all client states, since the run is over."""
        rmtree(self._folder, ignore_errors=True)

    def state_dict(self) -> State:
        """Return the vector common to all clients, float32[d], and how many clients have stored a state."""
        if self._told is None:
            return {}
        return {TOLD: self._told, KEEPING: np.array(len(self._last))}

    def load_state_dict(self, state: Mapping[str, npt.NDArray[Any]], completed_rounds: int) -> None:
        """Restore what `state_dict` returned, and find the files with clients' states.

        Raises ValueError for a state that is not this run's, or where files are missing.
        """
        if not state:
            return
        if state.keys() != {TOLD, KEEPING}:
            held = ", ".join(sorted(state)) or "nothing"
            raise ValueError(f"the checkpoint's clients' states hold {held}, not {TOLD} and {KEEPING}")
        self._told = state[TOLD].astype(np.float32)
        for _, client, index in self._files():
            if index < completed_rounds:
                self._last[client] = max(index, self._last.get(client, 0))
        if len(self._last) != int(state[KEEPING]):
            raise ValueError(
                f"{CLIENT_STATES_FOLDER} has the states of {len(self._last)} of {int(state[KEEPING])} clients"
            )

    def _expected(self, round_index: int, sums: Sequence[ClientSum]) -> float:
        """Return how many updates are in these sums together on average, by the groups' sampling rates."""
        groups = range(len(self._plan.groups))
        asked = groups if self._plan.one_sum else {group for each in sums for group in each.groups}
        planned = [self._plan.groups[m] for m in asked]
        return float(sum(each.at(round_index).sampling_rate * len(each.clients) for each in planned))

    def _files(self) -> list[tuple[Path, int, int]]:
        """Return the file of every client state, with its client and round."""
        named = [(path, path.name.split(".")) for path in self._folder.glob("*.*.npy")]
        return [(path, int(parts[0]), int(parts[1])) for path, parts in named]
