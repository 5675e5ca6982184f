"""InProcessFleet: the clients of a wave are trained and summed in this process."""

from collections.abc import Sequence
from time import perf_counter
from typing import Self

from conf.schema import SecAggConfig
from gdpfed.methods.base import ClientSum
from gdpfed.rounds.fleet import Fleet
from gdpfed.rounds.pairwise import StageRequests
from gdpfed.rounds.plain import plain_sum, sum_noise_steps
from gdpfed.rounds.prepared import PreparedSum
from gdpfed.simulation.engine import Cohort, Engine
from gdpfed.simulation.joined_sessions import Identities, JoinedSessions, roster_of
from secagg import Identity, Roster, Stage


class InProcessFleet(Fleet):
    """Clients that an engine trains, without messages.

    With secure aggregation their real sessions are joined to the server's in memory: keys, shares, masks
    and recovery are those of a run over Flower. Without it the updates are summed and the noise of the
    sum is drawn at once. Release the engine with ``close``, or use it as a context manager.
    """

    def __init__(self, secagg: SecAggConfig, run_label: str, engine: Engine) -> None:
        super().__init__(secagg, run_label)
        self.engine = engine
        self._identities = Identities()
        self._joined: dict[str, JoinedSessions] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.close()

    def roster_of(self, clients: Sequence[int]) -> Roster:
        """The public keys of these clients, who sign in active mode only."""
        return roster_of(self._identities_of(clients))

    def exchange(self, asked: Sequence[StageRequests]) -> list[dict[int, bytes]]:
        """The answers of the clients' sessions. Nothing is agreed ahead, so a wave's sums begin together."""
        if asked[0].stage is Stage.ADVERTISE:
            self._joined = {each.prepared.name: self._opened(each.prepared) for each in asked}
        return [self._answers(each) for each in asked]

    def sum_plain(self, sums: Sequence[PreparedSum]) -> dict[str, ClientSum]:
        """Train all cohorts, and add up what they would send."""
        return {each.name: self._plain(each) for each in sums}

    def _plain(self, each: PreparedSum) -> ClientSum:
        parameters, order = each.parameters, each.order
        cohort = Cohort(each.clients, parameters.encoding(len(each.clients)), each.parts)
        started = perf_counter()
        trained = self.engine.sum_updates(order, each.start, cohort)
        self._spend("train", started)
        started = perf_counter()
        steps = trained.total + sum_noise_steps(order, parameters, trained.num_updates)
        self._spend("noise", started)
        residues = cohort.encoding.to_residues(steps)
        return plain_sum(each.name, parameters, residues, each.clients)

    def _opened(self, prepared: PreparedSum) -> JoinedSessions:
        return JoinedSessions(prepared, self._identities_of(prepared.clients), self.engine)

    def _identities_of(self, clients: Sequence[int]) -> dict[int, Identity]:
        return self._identities.of(clients) if self.secagg.mode == "active" else {}

    def _answers(self, asked: StageRequests) -> dict[int, bytes]:
        started = perf_counter()
        answers = self._joined[asked.prepared.name].answers(asked.stage, asked.requests)
        self._spend(str(asked.stage), started)
        return answers

    def _spend(self, phase: str, started: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + perf_counter() - started
