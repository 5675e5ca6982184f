"""An engine in which some clients are canaries, whose updates are treated as all others."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from gdpfed.canaries.canary import Canaries
from gdpfed.clients.order import ClientPart, TrainingOrder
from gdpfed.clients.update import contribution_steps
from gdpfed.methods.base import Theta
from gdpfed.simulation.batched_encoding import contributions_steps
from gdpfed.simulation.engine import Cohort, Engine, Steps, StepSum

CLIENTS_AT_ONCE = 128


class CanaryEngine(Engine):
    """Canaries send their vectors; the others train, or send zeros.

    What a canary sends is weighed, clipped and rounded by the code that does it for every client: the code
    of a node, or that of many clients at once.

    Args:
        canaries: of the run.
        others: trains the other clients; None where they send zeros.
        many_at_once: whether the code of the batched engine is used in place of a node's.
    """

    def __init__(self, canaries: Canaries, others: Engine | None, *, many_at_once: bool) -> None:
        self._canaries, self._others, self._many_at_once = canaries, others, many_at_once

    def updates(
        self, order: TrainingOrder, theta: Theta, cohort: Cohort
    ) -> Iterator[tuple[Sequence[int], Steps]]:
        ours, rest = self._split(cohort)
        if self._others is not None and rest:
            yield from self._others.updates(order, theta, replace(cohort, clients=rest))
        elif rest:
            yield rest, np.zeros((len(rest), cohort.encoding.dimension), dtype=np.int64)
        for begin in range(0, len(ours), CLIENTS_AT_ONCE):
            clients = ours[begin : begin + CLIENTS_AT_ONCE]
            yield clients, self._steps(order, cohort, clients)

    def sum_updates(self, order: TrainingOrder, theta: Theta, cohort: Cohort) -> StepSum:
        """The sum of the cohort's updates; zeros are counted and not added."""
        ours, rest = self._split(cohort)
        if self._others is not None and rest:
            total = self._others.sum_updates(order, theta, replace(cohort, clients=rest))
        else:
            total = StepSum(np.zeros(cohort.encoding.dimension, dtype=np.int64), len(rest))
        for clients, steps in self.updates(order, theta, replace(cohort, clients=ours)):
            total.add(steps.sum(axis=0), len(clients))
        return total

    def close(self) -> None:
        if self._others is not None:
            self._others.close()

    def _split(self, cohort: Cohort) -> tuple[list[int], list[int]]:
        numbers = self._canaries.numbers
        ours = [client for client in cohort.clients if client in numbers]
        return ours, [client for client in cohort.clients if client not in numbers]

    def _steps(self, order: TrainingOrder, cohort: Cohort, clients: Sequence[int]) -> Steps:
        parts = [cohort.parts.get(client, ClientPart()) for client in clients]
        sum_norm = cohort.encoding.clipping_norm
        norms = [order.norm_factor * min(sum_norm, part.clipping_norm) / part.weight for part in parts]
        updates = torch.from_numpy(self._canaries.updates(clients, norms))
        if self._many_at_once:
            steps: Steps = contributions_steps(updates, order, cohort, clients).numpy()
        else:
            pairs = zip(parts, updates, strict=True)
            steps = np.stack(
                [contribution_steps(order.for_part(part), update, cohort.encoding) for part, update in pairs]
            )
        # Whoever is absent has no indicator either.
        steps[self._canaries.signs_of(clients) == 0] = 0
        return steps
