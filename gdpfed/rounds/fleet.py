"""A fleet runs the clients of a run and returns the sums of what they compute."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum, inf

import numpy as np

from conf.schema import SecAggConfig
from gdpfed.clients.order import ClientPart, OrderError, TrainingOrder
from gdpfed.errors import PrivacyError, RunError
from gdpfed.methods.base import ClientSum, SumRequest, Theta
from gdpfed.privacy.ledgers.charged import ROUNDING, ChargedSum, ExpectedSum, NoiseAt
from gdpfed.rounds.parameters import sum_parameters
from secagg import SumParameters


@dataclass(frozen=True, eq=False)
class PreparedSum:
    """One sum as a fleet carries it out.

    Attributes:
        name: of the request.
        parameters: what its clients agree to.
        clients: their ids.
        order: what they compute; the part of each is in ``parts``.
        start: the model that they start from.
        parts: of every client whose part differs from the sum's bound and weight 1.
    """

    name: str
    parameters: SumParameters
    clients: Sequence[int]
    order: TrainingOrder
    start: Theta
    parts: dict[int, ClientPart]

    def part(self, client_id: int) -> ClientPart:
        """The part of one client."""
        return self.parts.get(client_id, ClientPart())

    def norms_of(self, clients: Iterable[int]) -> float:
        """The norms that these clients' contributions are clipped to, added up."""
        largest = self.parameters.clipping_norm
        return fsum(min(self.part(client_id).clipping_norm, largest) for client_id in clients)

    @cached_property
    def context(self) -> bytes:
        """Names the training, the same for all clients of the sum."""
        return self.order.context(self.start)


Upcoming = Callable[[], Sequence[ExpectedSum[SumRequest]]]


def nothing_upcoming() -> Sequence[ExpectedSum[SumRequest]]:
    """No request is expected of the next round."""
    return []


class Fleet(ABC):
    """Turns charged requests into sums.

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

    @property
    def prepares_ahead(self) -> bool:
        """Whether keys of the next round's sums are agreed beside this round's."""
        return False

    def present(self, round_index: int) -> frozenset[int] | None:
        """The clients that can be reached in the round that begins; None where all can at any time."""
        del round_index
        return None

    @abstractmethod
    def sum_wave(self, sums: Sequence[PreparedSum], upcoming: Sequence[PreparedSum]) -> dict[str, ClientSum]:
        """Every sum, by name; no client is in two of them.

        ``upcoming`` are expected of the next round: a fleet may prepare them, and none is bound by them.
        """

    def sum_updates(
        self,
        order: TrainingOrder,
        charged: Sequence[ChargedSum[SumRequest]],
        *,
        upcoming: Upcoming = nothing_upcoming,
    ) -> list[ClientSum]:
        """One sum for each charged request, in their order; each is taken and so cannot be summed again.

        ``upcoming`` says what is expected of the next round; it is asked beside the last wave, and only by
        a fleet that prepares ahead.

        Raises:
            PrivacyError: what no ledger has charged, or what has been summed already.
        """
        for each in charged:
            if not isinstance(each, ChargedSum):
                raise PrivacyError(f"a fleet sums what a ledger has charged, not a {type(each).__name__}")
        requests = [each.take() for each in charged]
        sums: dict[str, ClientSum] = {}
        waves = disjoint_waves(requests)
        for wave in waves:
            prepared = self._prepared(order, wave)
            ahead: list[PreparedSum] = []
            if self.prepares_ahead and wave is waves[-1]:
                expected = disjoint_waves([each.request for each in upcoming()])
                next_order = replace(order, round_index=order.round_index + 1)
                ahead = self._prepared(next_order, next(iter(expected), []))
            sums |= self.sum_wave(prepared, ahead)
        return [
            replace(sums.get(each.name) or self._too_few(each), noise_stddev=each.noise_stddev)
            for each in requests
        ]

    def check(self, order: TrainingOrder, requests: Sequence[SumRequest]) -> None:
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
            try:
                parameters = self._parameters(order.round_index, request)
                encoding = parameters.encoding(parameters.num_clients)
                own_order = _order_of(request, order)
                for part in client_parts(request).values():
                    if part.clipping_norm < inf:
                        encoding.clipped_to(part.clipping_norm)
                    if self.secagg.mode != "off":
                        own_order.for_part(part).check_part(parameters)
            except (ValueError, OrderError) as error:
                raise RunError(f"{request.name}: {error}") from None

    def _prepared(self, order: TrainingOrder, wave: Sequence[SumRequest]) -> list[PreparedSum]:
        """The requests whose cohorts are large enough."""
        return [
            PreparedSum(
                name=request.name,
                parameters=self._parameters(order.round_index, request),
                clients=request.clients.tolist(),
                order=_order_of(request, order),
                start=request.start,
                parts=client_parts(request),
            )
            for request in wave
            if len(request.clients) >= self.secagg.minimum_cohort
        ]

    def _too_few(self, request: SumRequest) -> ClientSum:
        least = self.secagg.minimum_cohort
        reason = f"cohort of {len(request.clients)} is below secagg.minimum_cohort={least}"
        return ClientSum(request.name, None, 0, f"{reason}: it is charged, and not summed")

    def _parameters(self, round_index: int, request: SumRequest) -> SumParameters:
        if request.noise_at is NoiseAt.NOWHERE and request.noise_multiplier != 0:
            raise RunError(f"{request.name} asks for noise of {request.noise_multiplier} from nobody")
        return sum_parameters(
            self.secagg,
            label=f"{self.run_label}/round {round_index}/{request.name}",
            num_clients=len(request.clients),
            dimension=len(request.start),
            clipping_norm=request.clipping_norm,
            noise_multiplier=request.noise_multiplier,
        )


def _order_of(request: SumRequest, order: TrainingOrder) -> TrainingOrder:
    """The round's order with what the request says of its own."""
    alike = _are_alike(request)
    least, largest = (1.0, 1.0) if alike else request.weights_between
    return replace(
        order,
        training=order.training if request.training is None else request.training,
        noise=request.noise,
        work=request.work,
        smallest_norm=inf if alike else request.smallest_norm,
        smallest_weight=least,
        largest_weight=largest,
    )


def client_parts(request: SumRequest) -> dict[int, ClientPart]:
    """The part of every client whose bound, weight or steps are its own; empty where all are alike."""
    if _are_alike(request) and request.records is None:
        return {}
    weights, norms, largest = request.weights, request.contribution_norms, request.clipping_norm
    # What is above the sum's norm by rounding alone is the sum's norm.
    norms = np.where(norms <= largest * (1 + ROUNDING), np.minimum(norms, largest), norms)
    if _are_alike(request):
        norms = np.full(len(norms), inf)
    records = [None] * len(norms) if request.records is None else request.records
    parts = zip(request.clients.tolist(), norms.tolist(), weights.tolist(), records, strict=True)
    return {client_id: ClientPart(norm, weight, own) for client_id, norm, weight, own in parts}


def _are_alike(request: SumRequest) -> bool:
    """Whether all clients have the sum's bound and weight 1."""
    return request.client_clipping_norms is None and request.client_weights is None


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
