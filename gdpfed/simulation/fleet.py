"""InProcessFleet: the jobs of a wave are trained and summed in this process."""

from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import Self

from conf.schema import SecAggConfig
from gdpfed.clients.order import TrainingOrder
from gdpfed.methods.base import ClientSum, Theta
from gdpfed.rounds.fleet import Fleet, Jobs
from gdpfed.rounds.pairwise import PairwiseSums, StageRequests
from gdpfed.rounds.plain import plain_sum
from gdpfed.simulation.engine import Cohort, Engine, Steps
from gdpfed.simulation.joined_sessions import Identities, JoinedSessions, open_sessions, public_keys
from gdpfed.simulation.sum_noise import sum_noise_steps
from secagg import Encoding, RoundParameters


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

    def sum_jobs(
        self,
        order: TrainingOrder,
        theta: Theta,
        jobs: Jobs,
        clipping_norms: Mapping[int, float],
        upcoming: Jobs,
    ) -> dict[str, ClientSum]:
        """Train all jobs, and sum them with masks or without."""
        del upcoming  # exchanges in memory cost nothing
        if self.secagg.mode != "off":
            return self._masked(order, theta, jobs, clipping_norms)
        sums: dict[str, ClientSum] = {}
        for name, (parameters, clients) in jobs.items():
            cohort = Cohort(clients, parameters.encoding(len(clients)), clipping_norms)
            sums[name] = self._plain(order, theta, name, parameters, cohort)
        return sums

    def _plain(
        self, order: TrainingOrder, theta: Theta, name: str, parameters: RoundParameters, cohort: Cohort
    ) -> ClientSum:
        started = perf_counter()
        trained = self.engine.sum_updates(order, theta, cohort)
        self._spend("train", started)
        started = perf_counter()
        steps = trained.total + sum_noise_steps(order, parameters, trained.num_updates)
        self._spend("noise", started)
        return plain_sum(name, parameters, cohort.encoding.to_residues(steps), trained.num_updates)

    def _masked(
        self, order: TrainingOrder, theta: Theta, jobs: Jobs, clipping_norms: Mapping[int, float]
    ) -> dict[str, ClientSum]:
        def train(clients: Sequence[int], encoding: Encoding) -> Iterator[tuple[Sequence[int], Steps]]:
            return self.engine.updates(order, theta, Cohort(clients, encoding, clipping_norms))

        def exchange(asked: Sequence[StageRequests]) -> list[dict[int, bytes]]:
            return [self._answers(joined, each) for each in asked]

        clients = [client_id for _, ids in jobs.values() for client_id in ids]
        identities = self._identities.of(clients) if self.secagg.mode == "active" else {}
        context = order.context(theta)
        joined = JoinedSessions(open_sessions(clients, identities), train, order, context)
        sums = PairwiseSums(public_keys(identities))
        return sums.sum(exchange, jobs, context, order.round_index, upcoming={})

    def _answers(self, joined: JoinedSessions, asked: StageRequests) -> dict[int, bytes]:
        started = perf_counter()
        answers = joined.exchange(asked.stage, asked.requests)
        self._spend(str(asked.stage), started)
        return answers

    def _spend(self, phase: str, started: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + perf_counter() - started
