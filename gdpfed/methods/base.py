"""What a method is: a plan, the cohorts it chooses, the sums it asks for, and its step.

The round loop knows nothing else of a method. It lets the method choose the round's cohorts, charges
them to the ledger, and calls :meth:`Method.round`, which asks for as many sums as it needs: all at once
(the default) or one after the other, from whatever model each of them is to start from.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from conf.schema import Config
from gdpfed.privacy.groups import Group, groups_from_shares
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.sampler import draw_cohorts

Vector = npt.NDArray[np.float64]
Theta = npt.NDArray[np.float32]


class NoiseAt(Enum):
    """Who adds the noise of a sum: every client its share, or nobody."""

    CLIENT = "client"
    NOWHERE = "nowhere"


@dataclass(frozen=True, eq=False)
class SumRequest:
    """One sum of clipped, noised updates over a cohort.

    Attributes:
        name: unique in the round, bound into the masks of the sum.
        clients: ids of the cohort.
        clipping_norm: C, the L2 bound on every update; infinite for none.
        noise_multiplier: sigma; the sum carries noise of variance at least C^2 sigma^2 a coordinate.
        noise_at: who adds it.
    """

    name: str
    clients: npt.NDArray[np.int64]
    clipping_norm: float
    noise_multiplier: float
    noise_at: NoiseAt


@dataclass(frozen=True, eq=False)
class ClientSum:
    """What came of a request: the sum, or None where too few clients were left for one.

    Attributes:
        total: y_m of shape (d,) in float64, or None.
        survivors: how many clients are in it.
        failure: why there is none, in one line.
        upload_bytes: what a client sent for it, in bytes a coordinate.
    """

    name: str
    total: Vector | None
    survivors: int
    failure: str | None = None
    upload_bytes: float = 0.0


SumUpdates = Callable[[Theta, Sequence[SumRequest]], list[ClientSum]]


class Method(ABC):
    """A federated method under a privacy plan."""

    name: ClassVar[str]

    def __init__(self, plan: PrivacyPlan, *, server_learning_rate: float) -> None:
        self.plan = plan
        self.server_learning_rate = server_learning_rate

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Plan the configured run."""
        return cls(cls.make_plan(config), server_learning_rate=config.method.server_learning_rate)

    @classmethod
    @abstractmethod
    def make_plan(cls, config: Config) -> PrivacyPlan:
        """What the method promises under this configuration."""

    def cohorts(self, round_index: int, sampling_key: bytes) -> list[npt.NDArray[np.int64]]:
        """The clients of every group of the plan that take part in a round."""
        return list(draw_cohorts(self.plan, round_index, sampling_key))

    def requests(self, cohorts: Sequence[npt.NDArray[np.int64]]) -> list[SumRequest]:
        """One sum a group, noised on the clients."""
        noise_at = NoiseAt.CLIENT if self.plan.private else NoiseAt.NOWHERE
        return [
            SumRequest(
                name=f"group {index}",
                clients=cohort,
                clipping_norm=self.plan.clipping_norm,
                noise_multiplier=group.noise_multiplier,
                noise_at=noise_at,
            )
            for index, (group, cohort) in enumerate(zip(self.plan.groups, cohorts, strict=True))
        ]

    def round(
        self,
        theta: Theta,
        cohorts: Sequence[npt.NDArray[np.int64]],
        sum_updates: SumUpdates,
    ) -> tuple[Theta, list[ClientSum]]:
        """One round: from theta^t and the cohorts to theta^{t+1} and the sums that led there."""
        sums = sum_updates(theta, self.requests(cohorts))
        return self.step(theta, sums), sums

    def step(self, theta: Theta, sums: Sequence[ClientSum]) -> Theta:
        """theta^{t+1} = theta^t + server_learning_rate * sum_m omega_m * transform_m(y_m).

        A group whose sum is missing contributes nothing; with all of them missing theta stays as it is.
        """
        update = np.zeros(len(theta))
        for index, (group, each) in enumerate(zip(self.plan.groups, sums, strict=True)):
            if each.total is not None:
                update += group.group_weight * self.transform(index, each.total)
        return (theta + self.server_learning_rate * update).astype(np.float32)

    def transform(self, group_index: int, total: Vector) -> Vector:
        """Post-processing of one group's released sum; costs no privacy."""
        del group_index
        return total


def configured_groups(config: Config) -> tuple[Group, ...]:
    """The groups that budgets and shares of the configuration describe."""
    return groups_from_shares(config.dataset.num_clients, config.privacy.budgets, config.privacy.group_shares)
