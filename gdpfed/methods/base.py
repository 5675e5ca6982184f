"""What a method is: a plan, the cohorts it chooses, the sums it asks for, and its step.

The round loop knows nothing else of a method. It lets the method choose the round's cohorts, charges
them to the ledger, and calls :meth:`Method.round`, which asks for as many sums as it needs: all at once
(the default) or one after the other, from whatever model each of them is to start from.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from conf.schema import CLIENTS, Config, MethodConfig
from gdpfed.errors import ConfigError
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import Group, form_groups, groups_from_shares
from gdpfed.privacy.sampling.cohorts import draw_cohorts

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
        client_clipping_norms: C_i <= C of every client, in the order of ``clients``, where the clients
            of one sum have bounds of their own; the noise multiplier is C sigma / C_i for them.

    Raises:
        ValueError: bounds that are not one a client in (0, C].
    """

    name: str
    clients: npt.NDArray[np.int64]
    clipping_norm: float
    noise_multiplier: float
    noise_at: NoiseAt
    client_clipping_norms: Vector | None = None

    def __post_init__(self) -> None:
        norms = self.client_clipping_norms
        if norms is None:
            return
        if norms.shape != self.clients.shape or not np.all((norms > 0) & (norms <= self.clipping_norm)):
            raise ValueError(
                f"{self.name}: client_clipping_norms must be {len(self.clients)} numbers above 0 and "
                f"at most the sum's {self.clipping_norm}"
            )

    @property
    def noise_stddev(self) -> float:
        """C sigma, per coordinate of the sum; 0 without noise, whatever C is."""
        return self.clipping_norm * self.noise_multiplier if self.noise_multiplier else 0.0


@dataclass(frozen=True, eq=False)
class ClientSum:
    """What came of a request: the sum, or None where too few clients were left for one.

    Attributes:
        total: y_m of shape (d,) in float64, or None.
        survivors: how many clients are in it.
        failure: why there is none, in one line.
        upload_bytes: what a client sent for it, in bytes a coordinate.
        noise_stddev: C sigma, the standard deviation of the noise that was asked for, at least.
    """

    name: str
    total: Vector | None
    survivors: int
    failure: str | None = None
    upload_bytes: float = 0.0
    noise_stddev: float = 0.0


SumUpdates = Callable[[Theta, Sequence[SumRequest]], list[ClientSum]]


class Method(ABC):
    """A federated method under a privacy plan.

    Attributes:
        name: what it is chosen by, as in ``method=<name>``.
        config_class: of a method that another package brings along, the dataclass of its options; those
            of the project's own methods are in :data:`conf.schema.METHODS`.
    """

    name: ClassVar[str]
    config_class: ClassVar[type[MethodConfig]] = MethodConfig

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

    def requests_ahead(self, cohorts: Sequence[npt.NDArray[np.int64]]) -> list[SumRequest]:
        """What :meth:`round` will first ask for over these cohorts, as far as is known a round before.

        Clients agree on the keys of these sums while the round before is still running, which saves two
        of its four exchanges. A request that then comes otherwise agrees on keys of its own. A method
        that asks for its sums one after the other returns those it asks for first, or [].
        """
        return self.requests(cohorts)

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
        for index, (weight, each) in enumerate(zip(self.sum_weights, sums, strict=True)):
            if each.total is not None:
                update += weight * self.transform(index, each.total)
        return (theta + self.server_learning_rate * update).astype(np.float32)

    @property
    def sum_weights(self) -> list[float]:
        """omega of every sum of a round, in the order of the requests."""
        return [group.group_weight for group in self.plan.groups]

    def transform(self, group_index: int, total: Vector) -> Vector:
        """Post-processing of one group's released sum; costs no privacy."""
        del group_index
        return total

    def released(self, theta: Theta) -> Theta:
        """The model that the run releases: it is evaluated, saved and described in the card.

        By default theta itself. A method may release an average of the models so far, for instance. It is
        made of theta and of what :meth:`state_dict` holds, so of released sums only: post-processing, which
        costs no privacy. It changes neither, since training goes on from theta; it may be asked for twice.
        """
        return theta

    def state_dict(self) -> dict[str, npt.NDArray[np.generic]]:
        """What the method carries from round to round, made of released sums only; by default nothing.

        It is part of every checkpoint, so that a resumed run goes on as if it had never stopped.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Go on from what :meth:`state_dict` returned.

        Raises:
            ValueError: the state is not one of this method.
        """
        if state:
            raise ValueError(f"{self.name} keeps no state, but got {', '.join(sorted(state))}")


def configured_groups(config: Config) -> tuple[Group, ...]:
    """The groups that the configuration describes, by budgets and shares or by the clients' own budgets.

    Raises:
        ConfigError: the clients' own budgets are not known yet, or are not one a client.
        PrivacyError: budgets or groups that cannot be had.
    """
    privacy, num_clients = config.privacy, config.dataset.num_clients
    if privacy.budgets != CLIENTS:
        return groups_from_shares(num_clients, privacy.budgets, privacy.group_shares)
    if privacy.client_budgets is None:
        raise ConfigError(
            f"privacy.budgets={CLIENTS} is planned once the nodes have joined and said their budgets: to "
            "plan or simulate, name every client's in privacy.client_budgets=[0.5,2,...]"
        )
    if len(privacy.client_budgets) != num_clients:
        raise ConfigError(
            f"privacy.client_budgets has {len(privacy.client_budgets)} entries for "
            f"dataset.num_clients={num_clients}: give one a client"
        )
    if privacy.group_edges is not None:
        return form_groups(privacy.client_budgets, edges=privacy.group_edges)
    return form_groups(privacy.client_budgets, num_groups=privacy.num_groups)
