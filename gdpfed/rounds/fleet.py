"""A fleet runs the clients of a run and returns the sums of what they compute."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import hypot, inf

import numpy as np
import numpy.typing as npt

from conf.schema import SecAggConfig
from gdpfed.clients.order import OrderError, TrainingOrder
from gdpfed.clients.order_checks import check_grid
from gdpfed.errors import PrivacyError, RunError
from gdpfed.learning.task import Task
from gdpfed.methods.base import ClientSum, SumRequest
from gdpfed.methods.sum_parameters import sum_parameters
from gdpfed.privacy.ledgers.charged import ChargedCounts, ChargedSum, ExpectedSum
from gdpfed.privacy.release import NoiseAt
from gdpfed.rounds.client_memory import ClientMemory
from gdpfed.rounds.noise_streams import NoiseStreams, SumNoise
from gdpfed.rounds.pairwise import PairwiseSums, StageRequests
from gdpfed.rounds.prepared import PreparedSum, client_parts, order_of_sum
from secagg import NO_CORRECTIONS, Corrections, Roster, SumParameters

Upcoming = Callable[[], Sequence[ExpectedSum[SumRequest]]]
Suffices = Callable[[Collection[int]], bool]
"""Whether some clients are enough for a round."""


NO_EDGE = (
    "method.trust has subnets that are trusted, and a flat federation has no edge to trust: use "
    "method.trust=secagg without method.trusted_share, gdpfed simulate, or the run of an edge (run.mailbox "
    "with secagg=off)"
)
NO_COUNTS = (
    "method.client_sampling=fed_cbs has every client release its class counts, for which there is no message "
    "to nodes: use gdpfed simulate, or another method.client_sampling"
)
NO_SINGLE_UPDATES = (
    "the server reads every update alone, which nodes do not answer and secure aggregation hides: use gdpfed "
    "simulate with secagg=off"
)


def any_number(clients: Collection[int]) -> bool:
    """However many there are, a round begins."""
    del clients
    return True


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
        self._pairwise = PairwiseSums(self.roster_of)

    @property
    def prepares_ahead(self) -> bool:
        """Whether keys of the next round's sums are agreed beside this round's."""
        return False

    @property
    def has_edges(self) -> bool:
        """Whether there are edges between clients and server, which may be trusted with single updates."""
        return False

    @property
    def shows_single_updates(self) -> bool:
        """Whether one client's update may be read in clear."""
        return False

    @property
    def releases_counts(self) -> bool:
        """Whether clients can be asked for their class counts."""
        return False

    @property
    def keeps_client_states(self) -> bool:
        """Whether clients can keep something between their rounds (training.client_state)."""
        return False

    def release_counts(self, task: Task, charged: ChargedCounts) -> npt.NDArray[np.float64]:
        """The class counts of every client, each under its client's own noise, shape (n, B)."""
        del task, charged
        raise RunError(NO_COUNTS)

    def present(self, round_index: int, suffices: Suffices = any_number) -> frozenset[int] | None:
        """The clients that can be reached in the round that begins; None where all can at any time.

        A fleet whose clients come and go waits until those who are there suffice, for a while.
        """
        del round_index, suffices
        return None

    def roster_of(self, clients: Sequence[int]) -> Roster:
        """Whose key is whose, of these clients at least; empty where nobody signs."""
        del clients
        return Roster({})

    @abstractmethod
    def exchange(self, asked: Sequence[StageRequests]) -> Sequence[Mapping[int, bytes]]:
        """Carry one stage of every sum to its clients; the answers that came, in the same order."""

    @abstractmethod
    def sum_plain(self, sums: Sequence[PreparedSum]) -> dict[str, ClientSum]:
        """Every sum by name, without masks; no client is in two of them."""

    def sum_wave(self, sums: Sequence[PreparedSum], upcoming: Sequence[PreparedSum]) -> dict[str, ClientSum]:
        """Every sum by name; no client is in two of them.

        ``upcoming`` are expected of the next round: a fleet may prepare them, and none is bound by them.
        """
        if not self.secagg.hides_updates:
            return self.sum_plain(sums)
        return self._pairwise.sum(self.exchange, sums, upcoming)

    def sum_updates(
        self,
        order: TrainingOrder,
        charged: Sequence[ChargedSum[SumRequest]],
        *,
        upcoming: Upcoming = nothing_upcoming,
        noise: NoiseStreams | None = None,
        memory: ClientMemory | None = None,
    ) -> list[ClientSum]:
        """One sum for each charged request, in their order; each is taken and so cannot be summed again.

        ``upcoming`` says what is expected of the next round; it is asked beside the last wave, and only by
        a fleet that prepares ahead. ``noise`` is that of sums which take parts of earlier ones' back,
        ``memory`` what clients keep between their rounds.

        Raises:
            PrivacyError: what no ledger has charged, or what has been summed already.
        """
        for each in charged:
            if not isinstance(each, ChargedSum):
                raise PrivacyError(f"a fleet sums what a ledger has charged, not a {type(each).__name__}")
        requests = [each.take() for each in charged]
        paid = {each.request.name: each for each in charged}
        sums: dict[str, ClientSum] = {}
        waves = disjoint_waves(requests)
        kept = None if memory is None else memory.of_round(order.round_index, requests)
        for wave in waves:
            drawn = _in_streams(wave, noise, order.round_index)
            prepared = [replace(each, kept=kept) for each in self._prepared(order, wave, drawn)]
            for each_sum in prepared:
                paid[each_sum.name].check(each_sum.clients, each_sum.norms, each_sum.noise_stddev)
                if noise is not None and each_sum.name in drawn and self.secagg.hides_updates:
                    noise.asked(each_sum.name, tuple(each_sum.clients), _largest_share(each_sum.parameters))
            ahead: list[PreparedSum] = []
            if self.prepares_ahead and wave is waves[-1]:
                expected = disjoint_waves([each.request for each in upcoming()])
                following, first = order.round_index + 1, next(iter(expected), [])
                drawn = _in_streams(first, noise, following, ahead=True)
                ahead = self._prepared(replace(order, round_index=following), first, drawn)
            sums |= self.sum_wave(prepared, ahead)
        if noise is not None:
            noise.round_ended(order.round_index, sums)
        return [
            replace(
                sums.get(each.name) or self._too_few(order.round_index, each), noise_stddev=each.noise_stddev
            )
            for each in requests
        ]

    def check(self, order: TrainingOrder, requests: Sequence[SumRequest]) -> None:
        """Refuse sums whose cohorts would be too small, or would not fit the integers that are summed.

        ``requests`` are for the largest cohorts that are to be expected.

        Raises:
            RunError: names the sum and why.
        """
        for request in requests:
            if request.alone and not self.shows_single_updates:
                raise RunError(NO_SINGLE_UPDATES)
            if len(request.clients) < self._least(request):
                raise RunError(
                    f"{request.name}: at most {len(request.clients)} clients are drawn a round, always fewer "
                    f"than secagg.minimum_cohort={self.secagg.minimum_cohort}: use more clients, or a higher "
                    "privacy.sampling_rate"
                )
            if request.noise_at is NoiseAt.EDGE and not self.has_edges:
                raise RunError(NO_EDGE)
            try:
                parameters = self._parameters(order.round_index, request)
                if any(request.taps) and self.secagg.hides_updates:
                    parameters = self._parameters(order.round_index, request, _steady(request, parameters))
                encoding = parameters.encoding(parameters.num_updates)
                own_order = order_of_sum(request, order)
                own_order.check_work(request.dimension)
                check_grid(own_order, encoding)
                for part in client_parts(request).values():
                    if part.clipping_norm < inf:
                        encoding.clipped_to(part.clipping_norm)
                    if self.secagg.hides_updates:
                        own_order.for_part(part).check_part(parameters)
            except (ValueError, OrderError) as error:
                raise RunError(f"{request.name}: {error}") from None

    def _prepared(
        self, order: TrainingOrder, wave: Sequence[SumRequest], drawn: Mapping[str, SumNoise]
    ) -> list[PreparedSum]:
        """The requests whose cohorts are large enough, with their noise where it is that of a stream."""
        prepared = []
        for request in wave:
            if len(request.clients) < self._least(request):
                continue
            noise = drawn.get(request.name)
            corrections = self._corrections(noise)
            largest = 0.0 if noise is None else noise.largest_correction / request.clipping_norm
            updates = set(request.clients.tolist())
            parameters = self._parameters_or_why(order.round_index, request, corrections, largest)
            if isinstance(parameters, str) and corrections.keys() - updates:
                # Colluders could be all who add new noise: only those take back who bring an update, too.
                corrections = {client: corrections[client] for client in sorted(corrections.keys() & updates)}
                parameters = self._parameters_or_why(order.round_index, request, corrections, largest)
            if isinstance(parameters, str):
                continue
            each = PreparedSum.of(request, parameters, order)
            prepared.append(replace(each, noise=noise, corrections=corrections))
        return prepared

    def _corrections(self, noise: SumNoise | None) -> dict[int, tuple[int, ...]]:
        """Who takes back noise of a masked sum, and of which rounds; whoever cannot be reached does not.

        Where keys are agreed a round ahead, nobody knows yet whose share is in the sum that is running. So
        whoever was asked for one is a member, and takes nothing back where it is not.
        """
        turns: dict[int, list[int]] = {}
        for each, _ in noise.taken_back if noise and self.secagg.hides_updates else ():
            for client in each.asked if self.prepares_ahead else each.members:
                turns.setdefault(client, [])
            for client in each.members:
                turns[client].append(each.round_index)
        there = self.reachable(turns)
        return {client: tuple(sorted(turns[client])) for client in sorted(turns) if client in there}

    def reachable(self, clients: Collection[int]) -> Collection[int]:
        """Those of some clients that can be reached now."""
        return clients

    def _least(self, request: SumRequest) -> int:
        """How many clients a sum is of, at least."""
        return 1 if request.alone and self.shows_single_updates else self.secagg.minimum_cohort

    def _too_few(self, round_index: int, request: SumRequest) -> ClientSum:
        least = self.secagg.minimum_cohort
        reason = f"cohort of {len(request.clients)} is below secagg.minimum_cohort={least}"
        if len(request.clients) >= self._least(request):
            reason = str(self._parameters_or_why(round_index, request, {}, 0.0))
        then = "it is charged, and not summed" if len(request.clients) else "nobody is asked"
        return ClientSum(request.name, None, 0, f"{reason}: {then}")

    def _parameters_or_why(
        self, round_index: int, request: SumRequest, corrections: Collection[int], largest: float
    ) -> SumParameters | str:
        """The parameters of a sum; why there are none, as where its updates less D and c add no noise."""
        others = Corrections(len(set(corrections).difference(request.clients.tolist())), largest)
        try:
            return self._parameters(round_index, request, others)
        except ValueError as error:
            return str(error)

    def _parameters(
        self, round_index: int, request: SumRequest, corrections: Corrections = NO_CORRECTIONS
    ) -> SumParameters:
        if request.noise_at is NoiseAt.NOWHERE and request.noise_multiplier != 0:
            raise RunError(f"{request.name} asks for noise of {request.noise_multiplier} from nobody")
        # An edge that is trusted adds the noise itself, whoever colludes.
        at_edge = request.noise_at is NoiseAt.EDGE
        in_clear = at_edge or not self.secagg.hides_updates
        return sum_parameters(
            replace(self.secagg, mode="off", corrupt_tolerance=0.0) if at_edge else self.secagg,
            label=f"{self.run_label}/round {round_index}/{request.name}",
            num_clients=len(request.clients),
            dimension=request.dimension,
            clipping_norm=request.clipping_norm,
            noise_multiplier=request.noise_multiplier * (hypot(1.0, *request.taps) if in_clear else 1.0),
            corrections=NO_CORRECTIONS if in_clear else corrections,
            most_members=request.scheduled_members if self.secagg.signs else 0,
        )


def _in_streams(
    wave: Sequence[SumRequest], noise: NoiseStreams | None, round_index: int, *, ahead: bool = False
) -> dict[str, SumNoise]:
    """The noise of the sums of streams, by name; ``ahead``, what is expected of it.

    Raises PrivacyError for noise that nobody keeps.
    """
    taps = {each.name: each.taps for each in wave if each.taps}
    if not taps:
        return {}
    if noise is None:
        raise PrivacyError(f"{', '.join(taps)}: no stream of noise is kept for these sums")
    draw = noise.expected if ahead else noise.draw
    return {name: draw(name, own, round_index) for name, own in taps.items()}


def _largest_share(parameters: SumParameters) -> float:
    """The standard deviation of a client's noise if as many vanish as may, before and after they share keys.

    So it is known when keys are agreed for the sum in which parts of it are taken back.
    """
    return parameters.client_noise_stddev(
        max(parameters.num_updates - parameters.dropout_tolerance, parameters.fewest_updates)
    )


def _steady(request: SumRequest, parameters: SumParameters) -> Corrections:
    """What is taken back in a sum once as many rounds as there are taps lie before it."""
    lags = [tap for tap in request.taps if tap > 0]
    largest = hypot(*lags) * _largest_share(parameters) / request.clipping_norm
    return Corrections(len(lags) * len(request.clients), largest)


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
