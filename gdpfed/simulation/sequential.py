"""An engine that trains one client after the other, as a node does."""

from collections.abc import Iterator, Sequence

from gdpfed.clients.order import ClientPart, TrainingOrder
from gdpfed.clients.update import update_steps
from gdpfed.methods.base import Theta
from gdpfed.simulation.engine import Cohort, Engine, Steps


class SequentialEngine(Engine):
    """Trains each client by the same code as a node."""

    def updates(
        self, order: TrainingOrder, theta: Theta, cohort: Cohort
    ) -> Iterator[tuple[Sequence[int], Steps]]:
        for client_id in cohort.clients:
            own = order.for_part(cohort.parts.get(client_id, ClientPart()))
            yield [client_id], update_steps(own, theta, cohort.encoding, client_id)[None]
