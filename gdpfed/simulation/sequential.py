"""One client after the other, as a node trains it."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.update import update_steps
from gdpfed.methods.base import Theta
from gdpfed.simulation.engine import Cohort, Engine, Steps
from secagg import EncodingError

logger = logging.getLogger(__name__)


class SequentialEngine(Engine):
    """The very code of a node, client by client."""

    def updates(
        self, order: TrainingOrder, theta: Theta, cohort: Cohort
    ) -> Iterator[tuple[Sequence[int], Steps]]:
        for client_id in cohort.clients:
            own = replace(order, clipping_norm=cohort.clipping_norms.get(client_id, inf))
            try:
                steps = update_steps(own, theta, cohort.encoding, client_id)
            except EncodingError as error:
                logger.warning("client %d left: %s", client_id, error)
                continue
            yield [client_id], steps[None]
