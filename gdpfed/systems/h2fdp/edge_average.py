"""The cloud of a layered federation: its clients are edges, and it averages their models.

Every edge runs a private method of its own on its devices, and answers with how far an interval of it moved
the model. What it answers is made of released sums, so averaging it costs no privacy, and this plan promises
none: what holds for devices is in the plan, the ledger and the card of their edge's run.
"""

from collections.abc import Sequence
from typing import ClassVar, cast

import numpy as np

from conf.schema import Config
from gdpfed.methods.base import ClientSum, CurveStyle, Method, Theta
from gdpfed.methods.rates import refuse_given_rates
from gdpfed.privacy.events import Sampling, Unit
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import groups_from_sizes
from gdpfed.privacy.planning.make_plan import plain_plan

# A plan without privacy has every budget infinite; groups want a number.
ANY_BUDGET = 1.0


class EdgeAverage(Method):
    """theta + server_learning_rate * mean of w_c - theta over the edges c that answer."""

    name: ClassVar[str] = "edge_average"
    label: ClassVar[str] = "Average of edges"
    curve: ClassVar[CurveStyle | None] = ("#18FDFA", "-", "4")
    unit: ClassVar[Unit | None] = None
    compared: ClassVar[bool] = False
    clients_are_edges: ClassVar[bool] = True

    @classmethod
    def make_plan(cls, config: Config) -> PrivacyPlan:
        refuse_given_rates(config)
        return plain_plan(
            groups=groups_from_sizes(ANY_BUDGET, [config.dataset.num_clients]),
            num_rounds=config.run.num_rounds,
            sampling_rate=1.0,
            sampling=cast("Sampling", config.privacy.sampling),
        )

    def step(self, theta: Theta, sums: Sequence[ClientSum]) -> Theta:
        """The mean over the edges that are in the sum; the model stays where there is no sum."""
        (edges,) = sums
        if edges.total is None:
            return theta
        mean = np.asarray(edges.total) / edges.survivors
        return (theta + self.server_learning_rate * mean).astype(np.float32)
