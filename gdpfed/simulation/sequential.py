"""An engine that trains one client after the other, as a node does."""

from collections.abc import Iterator, Sequence

from gdpfed.clients.order import ClientPart, TrainingOrder
from gdpfed.clients.record_work import BitsOf, secret_bits
from gdpfed.clients.update import update_steps
from gdpfed.methods.base import Theta
from gdpfed.simulation.engine import Cohort, Engine, Steps


class SequentialEngine(Engine):
    """Trains each client by the same code as a node.

    Args:
        bits: the source of every client's secret bits, for works on records.
    """

    def __init__(self, bits: BitsOf = secret_bits) -> None:
        self._bits = bits

    def updates(
        self, order: TrainingOrder, theta: Theta, cohort: Cohort
    ) -> Iterator[tuple[Sequence[int], Steps]]:
        for client_id in cohort.clients:
            own = order.for_part(cohort.parts.get(client_id, ClientPart()))
            yield [client_id], update_steps(own, theta, cohort.encoding, client_id, bits=self._bits)[None]
