"""InProcessFleet: the clients of a wave are trained and summed in this process."""

from collections.abc import Sequence
from time import perf_counter
from typing import Self

from conf.schema import SecAggConfig
from gdpfed.methods.base import ClientSum
from gdpfed.rounds.fleet import Fleet, PreparedSum
from gdpfed.rounds.pairwise import PairwiseSums, StageRequests
from gdpfed.rounds.plain import plain_sum, sum_noise_steps
from gdpfed.simulation.engine import Cohort, Engine
from gdpfed.simulation.joined_sessions import Identities, JoinedSessions, open_sessions, roster_of


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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.close()

    def sum_wave(self, sums: Sequence[PreparedSum], upcoming: Sequence[PreparedSum]) -> dict[str, ClientSum]:
        """Train all cohorts, and sum them with masks or without; exchanges in memory cost nothing ahead."""
        del upcoming
        if self.secagg.mode == "off":
            return {each.name: self._plain(each) for each in sums}
        clients = [client_id for each in sums for client_id in each.clients]
        identities = self._identities.of(clients) if self.secagg.mode == "active" else {}
        joined = JoinedSessions(open_sessions(clients, identities), sums, self.engine)

        def exchange(asked: Sequence[StageRequests]) -> list[dict[int, bytes]]:
            return [self._answers(joined, each) for each in asked]

        return PairwiseSums(roster_of(identities)).sum(exchange, sums, upcoming=[])

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

    def _answers(self, joined: JoinedSessions, asked: StageRequests) -> dict[int, bytes]:
        started = perf_counter()
        answers = joined.exchange(asked.stage, asked.requests)
        self._spend(str(asked.stage), started)
        return answers

    def _spend(self, phase: str, started: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + perf_counter() - started
