"""A fleet is an object that runs the clients of a run and returns the sums of what they compute."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import ClassVar

from conf.schema import SecAggConfig
from gdpfed.clients.messages import AGREED_OF_LABEL, ROUND_OF_LABEL
from gdpfed.clients.order import ClientPart, OrderError, TrainingOrder
from gdpfed.clients.order_checks import check_grid
from gdpfed.errors import PrivacyError, RunError
from gdpfed.methods.base import ClientSum, SumRequest
from gdpfed.methods.sum_parameters import NO_EDGE, parameters_of
from gdpfed.privacy.ledgers.charged import ChargedSum, ExpectedSum
from gdpfed.privacy.release import NoiseAt
from gdpfed.rounds.extensions.base import NO_EXTENSIONS, Extension, Extensions
from gdpfed.rounds.pairwise import PairwiseSums, StageRequests
from gdpfed.rounds.prepared import PreparedSum, client_parts, order_of_sum
from secagg import NO_CORRECTIONS, Corrections, Roster, SumParameters

Upcoming = Callable[[], Sequence[ExpectedSum[SumRequest]]]
Suffices = Callable[[Collection[int]], bool]
"""Whether these clients are enough for a round."""

NO_SINGLE_UPDATES = (
    "this method reads every single update, which nodes do not send and secure aggregation hides: use gdpfed "
    "simulate with secagg=off"
)


def any_number(clients: Collection[int]) -> bool:
    """Return True for any reachable clients, so that a round begins without waiting for more."""
    return True


def nothing_upcoming() -> Sequence[ExpectedSum[SumRequest]]:
    """Return no requests, for a run that does not announce its next round's sums."""
    return []


class Fleet(ABC):
    """Asks clients for sums whose privacy cost is already recorded, and returns the sums.

    Requests without common clients form a wave, whose sums run together. Requests that share clients run one
    after the other.

    Attributes:
        clients_can: further abilities of its clients, as texts that extensions look for.
        secagg: the settings of secure aggregation.
        run_label: the name of the run in the label of every sum.
        seconds: time spent in each phase of summing; the round loop clears it before every round.
    """

    clients_can: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, secagg: SecAggConfig, run_label: str) -> None:
        self.secagg = secagg
        self.run_label = run_label
        self.seconds: dict[str, float] = {}
        self._pairwise = PairwiseSums(self.roster_of)

    @property
    def prepares_ahead(self) -> bool:
        """Whether clients agree on keys for the next round's sums during this round."""
        return False

    @property
    def has_edges(self) -> bool:
        """Whether a trusted edge server can add a sum's noise in place of the clients."""
        return False

    @property
    def shows_single_updates(self) -> bool:
        """Whether the server may read single clients' updates."""
        return False

    def present(self, round_index: int, suffices: Suffices = any_number) -> frozenset[int] | None:
        """Return the clients that can be reached for a round; None if no client is ever absent.

        A fleet whose clients come and go waits, for a limited time, until the reachable clients suffice.
        """
        return None

    def roster_of(self, clients: Sequence[int]) -> Roster:
        """Return the public keys of at least these clients; return an empty roster if clients do not sign."""
        return Roster({})

    @abstractmethod
    def exchange(self, asked: Sequence[StageRequests]) -> Sequence[Mapping[int, bytes]]:
        """Send each sum's clients the messages of one protocol stage; return the answers sum by sum."""

    @abstractmethod
    def sum_plain(self, sums: Sequence[PreparedSum]) -> dict[str, ClientSum]:
        """Compute sums without masks, and return them by name; no client may be in more than one of them."""

    def sum_wave(self, sums: Sequence[PreparedSum], upcoming: Sequence[PreparedSum]) -> dict[str, ClientSum]:
        """Compute sums that have no common clients, with or without masks; return them by name.

        ``upcoming``: sums that are expected in the next round; a fleet may prepare them, but they may change.
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
        extensions: Extensions = NO_EXTENSIONS,
    ) -> list[ClientSum]:
        """Compute one sum for each request with a recorded privacy cost; no request can be summed twice.

        ``upcoming`` returns the requests that are expected in the next round. It is called before the last
        wave, and only in a fleet that prepares ahead. ``extensions`` may add to a sum (`Beside`).

        Raises:
            PrivacyError: a request that no ledger charged or that was summed before; a prepared sum that
                differs from its charge; or correlated noise for which no extension keeps the keys.
        """
        for charged_sum in charged:
            if not isinstance(charged_sum, ChargedSum):
                kind = type(charged_sum).__name__
                raise PrivacyError(f"a fleet sums what a ledger has charged, not a {kind}")
        requests = [charged_sum.take() for charged_sum in charged]
        paid = {charged_sum.request.name: charged_sum for charged_sum in charged}
        sums: dict[str, ClientSum] = {}
        waves = disjoint_waves(requests)
        extensions.tell(Extension.requested, order, requests)
        for wave in waves:
            prepared = self._prepared(order, wave, extensions)
            for one in prepared:
                paid[one.name].check(one.clients, one.norms, one.noise_stddev)
            ahead: list[PreparedSum] = []
            if self.prepares_ahead and wave is waves[-1]:
                expected = disjoint_waves([expected_sum.request for expected_sum in upcoming()])
                first = next(iter(expected), [])
                following = replace(order, round_index=order.round_index + 1)
                ahead = self._prepared(following, first, extensions, ahead=True)
            sums |= self.sum_wave(prepared, ahead)
        extensions.tell(Extension.sums_ended, order, sums)
        return [
            replace(sums.get(each.name) or self._too_few(order, each), noise_stddev=each.noise_stddev)
            for each in requests
        ]

    def check(
        self, order: TrainingOrder, requests: Sequence[SumRequest], extensions: Extensions = NO_EXTENSIONS
    ) -> None:
        """Raise RunError if one of the requested sums cannot be computed, for example with too few clients.

        ``requests`` are over the largest cohorts to be expected. The error names the sum and the reason.
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
                parameters = self.parameters(order.round_index, request)
                parameters = extensions.sum_checked(self, request, order.round_index, parameters)
                encoding = parameters.encoding(parameters.num_updates)
                own_order = order_of_sum(request, order)
                own_order.check_work(request.dimension)
                _check_grids(own_order, request, parameters)
                for part in client_parts(request).values():
                    if part.clipping_norm < inf:
                        encoding.clipped_to(part.clipping_norm)
                    if self.secagg.hides_updates:
                        own_order.for_part(part).check_part(parameters)
            except (ValueError, OrderError) as error:
                raise RunError(f"{request.name}: {error}") from None

    def _prepared(
        self, order: TrainingOrder, wave: Sequence[SumRequest], extensions: Extensions, *, ahead: bool = False
    ) -> list[PreparedSum]:
        """Prepare the requested sums that have enough clients, and let the extensions change each sum."""
        prepared = []
        for request in wave:
            if len(request.clients) < self._least(request):
                continue
            parameters = self._parameters_or_why(order, request)
            if isinstance(parameters, str):
                continue
            plain = PreparedSum.of(request, parameters, order)
            each = extensions.sum_prepared(self, request, plain, ahead=ahead)
            if request.taps and each.beside.noise is None:
                raise PrivacyError(f"{request.name}: no stream of noise is kept for this sum")
            prepared.append(each)
        return prepared

    def reachable(self, clients: Collection[int]) -> Collection[int]:
        """Return those of these clients that can be reached at this moment."""
        return clients

    def _least(self, request: SumRequest) -> int:
        """Return the smallest number of clients that a requested sum may have."""
        return 1 if request.alone and self.shows_single_updates else self.secagg.minimum_cohort

    def _too_few(self, order: TrainingOrder, request: SumRequest) -> ClientSum:
        reason = f"cohort of {len(request.clients)} is below secagg.minimum_cohort={self._least(request)}"
        if len(request.clients) >= self._least(request):
            reason = str(self._parameters_or_why(order, request))
        then = "it is charged, and not summed" if len(request.clients) else "nobody is asked"
        return ClientSum(request.name, None, 0, f"{reason}: {then}")

    def _parameters_or_why(self, order: TrainingOrder, request: SumRequest) -> SumParameters | str:
        """Return a sum's parameters, or the reason why it cannot be computed, such as too few updates."""
        try:
            parameters = self.parameters(order.round_index, request)
            if request.records:
                _check_grids(order_of_sum(request, order), request, parameters)
        except (ValueError, OrderError) as error:
            return str(error)
        return parameters

    def parameters(
        self, round_index: int, request: SumRequest, corrections: Corrections = NO_CORRECTIONS
    ) -> SumParameters:
        """Return the parameters that a sum's clients must agree to.

        Raises RunError if the sum has noise but names no side that adds it. Raises ValueError for a sum that
        is impossible.
        """
        agreed = f"/{AGREED_OF_LABEL}{request.agreed}" if request.agreed else ""
        label = f"{self.run_label}/{ROUND_OF_LABEL}{round_index}/{request.name}{agreed}"
        return parameters_of(self.secagg, label, request, corrections)


def _check_grids(order: TrainingOrder, request: SumRequest, parameters: SumParameters) -> None:
    """Raise OrderError if a sum's grid, coarser for fewer clients, is too coarse for one of them."""
    encoding = parameters.encoding(parameters.num_updates)
    for part in set(client_parts(request).values()) or {ClientPart()}:
        check_grid(order.for_part(part), request.start, encoding)


def disjoint_waves(requests: Sequence[SumRequest]) -> list[list[SumRequest]]:
    """Split requests, in order, into waves: consecutive sums in which no client occurs twice."""
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
