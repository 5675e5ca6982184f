"""GridFleet: a method's sum requests become exchanges with clients and come back as sums.

Requests over disjoint cohorts share their exchanges, so a round costs four of them however many groups
there are; requests that share clients go one after the other.
"""

from collections.abc import Mapping, Sequence

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from conf.schema import SecAggConfig
from gdpfed.exchange import ORDER_RECORD, THETA_RECORD
from gdpfed.learning.order import TrainingOrder
from gdpfed.methods.base import ClientSum, NoiseAt, SumRequest, Theta
from secagg import EncodingError, RoundParameters
from server_app.errors import RunError
from server_app.exchange import Exchanger
from server_app.parameters import round_parameters
from server_app.summation import sum_pairwise, sum_plain


class GridFleet:
    """Clients behind Flower's grid.

    Attributes:
        exchanger: sends and receives.
        secagg: how cohorts are summed.
        run_label: names the run in every transcript.
        roster: the public identity key of every client, in active mode.
    """

    def __init__(
        self,
        exchanger: Exchanger,
        secagg: SecAggConfig,
        run_label: str,
        roster: Mapping[int, bytes] | None = None,
    ) -> None:
        self.exchanger = exchanger
        self.secagg = secagg
        self.run_label = run_label
        self.roster = dict(roster or {})

    def sum_updates(
        self, order: TrainingOrder, theta: Theta, requests: Sequence[SumRequest]
    ) -> list[ClientSum]:
        """One sum for each request, of updates that start from ``theta``, in the requests' order."""
        sums: dict[str, ClientSum] = {}
        for wave in disjoint_waves(requests):
            sums |= self._sum_wave(order, theta, wave)
        return [sums[request.name] for request in requests]

    def _sum_wave(
        self, order: TrainingOrder, theta: Theta, wave: Sequence[SumRequest]
    ) -> dict[str, ClientSum]:
        sums, jobs = {}, {}
        for request in wave:
            if len(request.clients) < self.secagg.minimum_cohort:
                sums[request.name] = ClientSum(
                    request.name,
                    None,
                    0,
                    f"cohort of {len(request.clients)} is below secagg.minimum_cohort="
                    f"{self.secagg.minimum_cohort}",
                )
            else:
                jobs[request.name] = (
                    self._parameters(order, theta, request),
                    request.clients.tolist(),
                )
        training = training_content(order, theta)
        if self.secagg.mode == "off":
            return sums | sum_plain(self.exchanger, jobs, training)
        return sums | sum_pairwise(self.exchanger, jobs, training, order.context(theta), self.roster)

    def check(self, order: TrainingOrder, theta: Theta, requests: Sequence[SumRequest]) -> None:
        """Refuse sums whose cohorts would not fit the integers that are summed.

        Raises:
            RunError: names the sum and why.
        """
        for request in requests:
            parameters = self._parameters(order, theta, request)
            try:
                parameters.encoding(parameters.num_clients)
            except EncodingError as error:
                raise RunError(f"{request.name}: {error}") from None

    def _parameters(self, order: TrainingOrder, theta: Theta, request: SumRequest) -> RoundParameters:
        if request.noise_at is NoiseAt.NOWHERE and request.noise_multiplier != 0:
            raise RunError(f"{request.name} asks for noise of {request.noise_multiplier} from nobody")
        return round_parameters(
            self.secagg,
            label=f"{self.run_label}/round {order.round_index}/{request.name}",
            num_clients=len(request.clients),
            dimension=len(theta),
            clipping_norm=request.clipping_norm,
            noise_multiplier=request.noise_multiplier,
        )


def training_content(order: TrainingOrder, theta: Theta) -> RecordDict:
    """The order and the model as records, shared by the messages of a wave."""
    return RecordDict(
        {
            ORDER_RECORD: ConfigRecord(dict(order.to_scalars())),
            THETA_RECORD: ArrayRecord({THETA_RECORD: Array(theta)}),
        }
    )


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
