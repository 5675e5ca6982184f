"""A fleet: the clients of a run, whoever carries their messages, as one who sums their updates."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

from conf.schema import SecAggConfig
from gdpfed.clients.order import TrainingOrder
from gdpfed.errors import RunError
from gdpfed.methods.base import ClientSum, NoiseAt, SumRequest, Theta
from gdpfed.rounds.parameters import round_parameters
from secagg import EncodingError, RoundParameters

Jobs = Mapping[str, tuple[RoundParameters, Sequence[int]]]
"""Parameters and cohort of every sum, by its name; no client occurs twice."""


class Fleet(ABC):
    """Turns a method's sum requests into sums.

    Requests over disjoint cohorts form a wave, which is summed at once; requests that share clients go
    one after the other.

    Attributes:
        secagg: how cohorts are summed.
        run_label: names the run in every sum.
        seconds: time spent in each phase of summing; the round loop clears it.
    """

    def __init__(self, secagg: SecAggConfig, run_label: str) -> None:
        self.secagg = secagg
        self.run_label = run_label
        self.seconds: dict[str, float] = {}

    def present(self, round_index: int) -> frozenset[int] | None:
        """The clients that can be reached in the round that begins; None where all can at any time."""
        del round_index
        return None

    @abstractmethod
    def sum_jobs(
        self,
        order: TrainingOrder,
        theta: Theta,
        jobs: Jobs,
        clipping_norms: Mapping[int, float],
        upcoming: Jobs,
    ) -> dict[str, ClientSum]:
        """The sum of every job, by name, of updates that start from ``theta``.

        ``clipping_norms`` is C_i of the clients that have a bound of their own, which their order must
        carry; the others have that of their sum. ``upcoming`` are jobs expected of the next round: a fleet
        may prepare them, and none is bound by them.
        """

    def sum_updates(
        self,
        order: TrainingOrder,
        theta: Theta,
        requests: Sequence[SumRequest],
        *,
        upcoming: Sequence[SumRequest] = (),
    ) -> list[ClientSum]:
        """One sum for each request, of updates that start from ``theta``, in the requests' order.

        ``upcoming`` are requests expected of the next round; its first wave is prepared beside the last
        one of these.
        """
        sums: dict[str, ClientSum] = {}
        waves = disjoint_waves(requests)
        first_upcoming = next(iter(disjoint_waves(upcoming)), [])
        for wave in waves:
            jobs = self._jobs(order.round_index, len(theta), wave)
            ahead = first_upcoming if wave is waves[-1] else []
            next_jobs = self._jobs(order.round_index + 1, len(theta), ahead)
            sums |= self.sum_jobs(order, theta, jobs, own_clipping_norms(wave), next_jobs)
        return [
            replace(sums.get(each.name) or self._too_few(each), noise_stddev=each.noise_stddev)
            for each in requests
        ]

    def check(self, order: TrainingOrder, theta: Theta, requests: Sequence[SumRequest]) -> None:
        """Refuse sums whose cohorts would be too small, or would not fit the integers that are summed.

        ``requests`` are for the largest cohorts that are to be expected.

        Raises:
            RunError: names the sum and why.
        """
        for request in requests:
            if len(request.clients) < self.secagg.minimum_cohort:
                raise RunError(
                    f"{request.name}: at most {len(request.clients)} clients are drawn a round, always fewer "
                    f"than secagg.minimum_cohort={self.secagg.minimum_cohort}: use more clients, or a higher "
                    "privacy.sampling_rate"
                )
            parameters = self._parameters(order.round_index, len(theta), request)
            try:
                encoding = parameters.encoding(parameters.num_clients)
                for norm in set(own_clipping_norms([request]).values()):
                    encoding.clipped_to(norm)
            except EncodingError as error:
                raise RunError(f"{request.name}: {error}") from None

    def _jobs(self, round_index: int, dimension: int, wave: Sequence[SumRequest]) -> Jobs:
        """The requests whose cohorts are large enough."""
        return {
            request.name: (self._parameters(round_index, dimension, request), request.clients.tolist())
            for request in wave
            if len(request.clients) >= self.secagg.minimum_cohort
        }

    def _too_few(self, request: SumRequest) -> ClientSum:
        least = self.secagg.minimum_cohort
        reason = f"cohort of {len(request.clients)} is below secagg.minimum_cohort={least}"
        return ClientSum(request.name, None, 0, f"{reason}: it is charged, and not summed")

    def _parameters(self, round_index: int, dimension: int, request: SumRequest) -> RoundParameters:
        if request.noise_at is NoiseAt.NOWHERE and request.noise_multiplier != 0:
            raise RunError(f"{request.name} asks for noise of {request.noise_multiplier} from nobody")
        return round_parameters(
            self.secagg,
            label=f"{self.run_label}/round {round_index}/{request.name}",
            num_clients=len(request.clients),
            dimension=dimension,
            clipping_norm=request.clipping_norm,
            noise_multiplier=request.noise_multiplier,
        )


def own_clipping_norms(requests: Sequence[SumRequest]) -> dict[int, float]:
    """C_i of every client that has a bound of its own."""
    norms: dict[int, float] = {}
    for request in requests:
        if request.client_clipping_norms is not None:
            pairs = zip(request.clients.tolist(), request.client_clipping_norms.tolist(), strict=True)
            norms |= dict(pairs)
    return norms


def disjoint_waves(requests: Sequence[SumRequest]) -> list[list[SumRequest]]:
    """Split requests, in order, into runs in which no client occurs twice."""
    waves: list[list[SumRequest]] = []
    busy: set[int] = set()
    for request in requests:
        clients = set(request.clients.tolist())
        if not waves or busy & clients:
            waves.append([])
            busy = set()
        waves[-1].append(request)
        busy |= clients
    return waves
