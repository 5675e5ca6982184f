"""FedAvg without privacy, with clients sampled by AOCS, Fed-CBS or DELTA."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import ClassVar, cast

import numpy as np
import numpy.typing as npt

from conf.schema import Config, MethodConfig, require
from gdpfed.errors import ConfigError, not_known
from gdpfed.extras.fedpcs.client_choice import (
    BalancedSamples,
    aocs_chances,
    delta_chances,
    public_draws,
)
from gdpfed.methods.base import (
    ClientSum,
    Cohorts,
    ConfiguredMethod,
    CurveStyle,
    SumRequest,
    SumUpdates,
    Theta,
)
from gdpfed.methods.party_budgets import configured_groups
from gdpfed.methods.rates import refuse_given_rates
from gdpfed.methods.record_method import configured_records
from gdpfed.privacy.events import Sampling, Unit
from gdpfed.privacy.mechanisms.sampled.planner import plain_plan
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import merge_groups
from gdpfed.privacy.release import NoiseAt

Floats = npt.NDArray[np.float64]

CLIENT_SAMPLING = ("random", "aocs", "fed_cbs", "delta")
READS_UPDATES = ("aocs", "delta")


@dataclass
class SampledFedAvgConfig(MethodConfig):
    """The options of method=sampled_fedavg, in addition to the options of all methods."""

    client_sampling: str = "random"

    def validate(self) -> None:
        super().validate()
        require(
            self.client_sampling in CLIENT_SAMPLING,
            not_known(f"method.client_sampling={self.client_sampling}", CLIENT_SAMPLING),
        )


class SampledFedAvg(ConfiguredMethod):
    """FedAvg over a sample S of clients, theta + sum_{i in S} w_i Delta_i, without clipping or noise.

    random: every client with chance q, w_i = theta_i / q. aocs, delta: all train, the server reads every
    update and draws client i with a chance p_i of it, w_i = theta_i / p_i. fed_cbs: the server knows how many
    records of each class everybody has, and samples K whose classes are even together; w_i = theta_i over
    those in the sum. All but the last are unbiased.
    """

    name: ClassVar[str] = "sampled_fedavg"
    label: ClassVar[str] = "FedAvg, sampled (no privacy)"
    curve: ClassVar[CurveStyle | None] = ("#90FC6C", ":", "3")
    unit: ClassVar[Unit | None] = None
    compared: ClassVar[bool] = False
    config_class: ClassVar[type[MethodConfig]] = SampledFedAvgConfig

    @classmethod
    def make_plan(cls, config: Config) -> PrivacyPlan:
        refuse_given_rates(config)
        by, rate = config.method.client_sampling, config.privacy.sampling_rate
        if by in READS_UPDATES and config.secagg.hides_updates:
            raise ConfigError(
                f"method.client_sampling={by} reads every client's update, which secure aggregation hides: "
                "set secagg=off, or method.client_sampling=random"
            )
        if by != "random" and _cohort_size(config) < 1:
            raise ConfigError(
                f"privacy.sampling_rate={rate:g} of dataset.num_clients={config.dataset.num_clients} is less "
                "than one client a round: raise one of them"
            )
        return plain_plan(
            groups=(merge_groups(configured_groups(config)),),
            num_rounds=config.run.num_rounds,
            sampling_rate=rate if by == "random" else 1.0,
            sampling=cast("Sampling", config.privacy.sampling),
        )

    @cached_property
    def shares(self) -> Floats:
        """theta_i = D_i / sum D: each client's share of all records, shape (n,)."""
        counts = configured_records(self.config)
        return np.asarray(counts / counts.sum())

    @cached_property
    def balanced(self) -> BalancedSamples:
        """The sampler that draws clients by Fed-CBS, from the clients' true (not noised) class counts."""
        from gdpfed.clients.configured import require_classes, task_of

        task, config = task_of(self.config), self.config
        require_classes(task.load(), config.dataset.name)
        counts = task.class_counts().astype(np.float64)
        return BalancedSamples(counts, [_cohort_size(config)] * config.run.num_rounds, config.run.seed)

    def requests(self, theta: Theta, round_index: int, cohorts: Cohorts) -> list[SumRequest]:
        """Return a request for one weighted sum or, for AOCS and DELTA, for each single update."""
        (cohort,) = cohorts
        by = self.config.method.client_sampling
        if by in READS_UPDATES:
            return [_request(f"client {client}", theta, cohort[[i]]) for i, client in enumerate(cohort)]
        if by == "fed_cbs":
            cohort = cohort[np.isin(cohort, self.balanced.sample(round_index))]
        weights = self.shares / self.shares.mean()
        return [_request("all clients", theta, cohort, weights)] if len(cohort) else []

    def requests_ahead(self, theta: Theta, round_index: int, draw: Callable[[], Cohorts]) -> list[SumRequest]:
        """Return no requests for the next round, so that no keys are agreed on before it begins."""
        return []

    def round(
        self, theta: Theta, round_index: int, cohorts: Cohorts, sum_updates: SumUpdates
    ) -> tuple[Theta, list[ClientSum]]:
        sums = sum_updates(self.requests(theta, round_index, cohorts))
        arrived = [each for each in sums if each.total is not None]
        if arrived:
            change = self.server_learning_rate * self.change(arrived, round_index)
            theta = (theta + change).astype(np.float32)
        return theta, sums

    def change(self, arrived: list[ClientSum], round_index: int) -> Floats:
        """Return how the updates of a round change theta, shape (d,)."""
        by, mean = self.config.method.client_sampling, self.shares.mean()
        if by not in READS_UPDATES:
            (only,) = arrived
            members = self.shares[list(only.members)].sum()
            whole = self.config.privacy.sampling_rate if by == "random" else members
            return np.asarray(np.asarray(only.total) * mean / whole)
        clients = [client for each in arrived for client in each.members]
        updates = np.stack([np.asarray(each.total) for each in arrived])
        shares, size = self.shares[clients], min(_cohort_size(self.config), len(clients))
        if by == "aocs":
            chances = aocs_chances(shares * np.linalg.norm(updates, axis=1), size)
        else:
            chances = delta_chances(updates, shares, size)
        drawn = public_draws(self.config.run.seed, round_index).random(len(chances)) < chances
        return np.asarray((shares[drawn] / chances[drawn]) @ updates[drawn])


def _cohort_size(config: Config) -> int:
    return round(config.privacy.sampling_rate * config.dataset.num_clients)


def _request(
    name: str, theta: Theta, clients: npt.NDArray[np.int64], weights: Floats | None = None
) -> SumRequest:
    return SumRequest(
        name=name,
        clients=clients,
        clipping_norm=inf,
        noise_multiplier=0.0,
        noise_at=NoiseAt.NOWHERE,
        client_weights=None if weights is None else weights[clients],
        weight_range=None if weights is None else (float(weights.min()), float(weights.max())),
        alone=weights is None,
        start=theta,
    )
