"""InProcessFleet: the clients of a wave are trained and summed in this process."""

from collections.abc import Sequence
from time import perf_counter
from typing import Self

import numpy as np
import numpy.typing as npt

from conf.schema import SecAggConfig
from gdpfed.clients.own_noise import noised_counts
from gdpfed.clients.record_work import secret_bits
from gdpfed.learning.task import Task
from gdpfed.methods.base import ClientSum
from gdpfed.privacy.ledgers.charged import ChargedCounts
from gdpfed.rounds.fleet import Fleet
from gdpfed.rounds.pairwise import StageRequests
from gdpfed.rounds.plain import plain_sum, sum_noise_steps
from gdpfed.rounds.prepared import PreparedSum
from gdpfed.simulation.engine import Cohort, Engine, StepSum, SumJob
from gdpfed.simulation.joined_sessions import Identities, JoinedSessions, masked_updates, roster_of
from secagg import Encoding, Identity, Roster, Stage


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

    @property
    def has_edges(self) -> bool:
        """Whether there are edges that sum in clear: they are simulated."""
        return True

    @property
    def shows_single_updates(self) -> bool:
        """Whether one client's update may be read in clear: of simulated clients, without masks."""
        return self.secagg.mode == "off"

    @property
    def releases_counts(self) -> bool:
        """Whether clients can be asked for their class counts: they are here."""
        return True

    def release_counts(self, task: Task, charged: ChargedCounts) -> npt.NDArray[np.float64]:
        """The releases of all clients, with noise from their own secret bits."""
        noise = charged.take().noise_stddev
        own = enumerate(task.class_counts())
        return np.stack([noised_counts(counts, noise, secret_bits(client)) for client, counts in own])

    def sum_wave(self, sums: Sequence[PreparedSum], upcoming: Sequence[PreparedSum]) -> dict[str, ClientSum]:
        """Every sum by name; those at an edge in clear, the others as configured."""
        at_edges = [each for each in sums if each.at_edge]
        if not at_edges:
            return super().sum_wave(sums, upcoming)
        others = [each for each in sums if not each.at_edge]
        return self.sum_plain(at_edges) | (super().sum_wave(others, upcoming) if others else {})

    def exchange(self, asked: Sequence[StageRequests]) -> list[dict[int, bytes]]:
        """The answers of the clients' sessions. Nothing is agreed ahead, so a wave's sums begin together."""
        if asked[0].stage is Stage.ADVERTISE:
            self._joined = {each.prepared.name: self._opened(each.prepared) for each in asked}
        masking = [each for each in asked if each.stage is Stage.MASK]
        masked = dict(zip(map(id, masking), self._masked(masking), strict=True))
        return [masked[id(each)] if id(each) in masked else self._answers(each) for each in asked]

    def sum_plain(self, sums: Sequence[PreparedSum]) -> dict[str, ClientSum]:
        """Train all cohorts at once, and add up what they would send."""
        jobs = [
            SumJob(
                each.order,
                each.start,
                Cohort(each.clients, each.parameters.encoding(len(each.clients)), each.parts),
            )
            for each in sums
        ]
        started = perf_counter()
        trained = self.engine.sums_of(jobs)
        self._spend("train", started)
        return {
            each.name: self._plain(each, job.cohort.encoding, own)
            for each, job, own in zip(sums, jobs, trained, strict=True)
        }

    def _plain(self, each: PreparedSum, encoding: Encoding, trained: StepSum) -> ClientSum:
        started = perf_counter()
        steps = trained.total + sum_noise_steps(each.order, each.parameters, each.noise)
        self._spend("noise", started)
        return plain_sum(each.name, each.parameters, encoding.to_residues(steps), each.clients)

    def _opened(self, prepared: PreparedSum) -> JoinedSessions:
        return JoinedSessions(prepared, self._identities_of(sorted(prepared.members)))

    def _identities_of(self, clients: Sequence[int]) -> dict[int, Identity]:
        return self._identities.of(clients) if self.secagg.mode == "active" else {}

    def _masked(self, asked: Sequence[StageRequests]) -> list[dict[int, bytes]]:
        """The answers of stage MASK, in which the clients of all sums are trained at once."""
        if not asked:
            return []
        started = perf_counter()
        answers = masked_updates(
            self.engine, [(self._joined[each.prepared.name], each.requests) for each in asked]
        )
        self._spend(str(Stage.MASK), started)
        return answers

    def _answers(self, asked: StageRequests) -> dict[int, bytes]:
        started = perf_counter()
        answers = self._joined[asked.prepared.name].answers(asked.stage, asked.requests)
        self._spend(str(asked.stage), started)
        return answers

    def _spend(self, phase: str, started: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + perf_counter() - started
