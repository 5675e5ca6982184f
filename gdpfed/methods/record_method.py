"""Base class of methods that protect records: DP-SGD steps, and one sum over all clients."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import inf
from typing import ClassVar, cast, get_args

import numpy as np
import numpy.typing as npt

from conf.schema import CHOOSABLE, Config, MethodConfig, require
from gdpfed.errors import not_known
from gdpfed.methods.base import ClientSum, Cohorts, ConfiguredMethod, SumRequest, SumUpdates, Theta
from gdpfed.methods.choose import Proposal
from gdpfed.methods.choose_records import PublicNumbers, propose
from gdpfed.methods.party_budgets import configured_groups, configured_parties
from gdpfed.methods.rates import configured_delta, renyi_orders
from gdpfed.methods.vote import planned_vote
from gdpfed.privacy.accountants.gaussian import gaussian_sigma
from gdpfed.privacy.events import Sampling, Unit
from gdpfed.privacy.mechanisms.records.budgets import Heterogeneous, RecordTraining
from gdpfed.privacy.mechanisms.records.mechanism import records_of
from gdpfed.privacy.mechanisms.records.planner import most_rounds, record_plan
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import Group
from gdpfed.privacy.release import NoiseAt
from gdpfed.record_steps import RecordSteps, Work, kind_of

HETEROGENEOUS = get_args(Heterogeneous)


@dataclass
class RecordMethodConfig(MethodConfig):
    """The options that all record-level DP methods have."""

    heterogeneous: str = "rate"
    noise_multiplier: float | None = None
    chosen: list[str] | None = None

    def validate(self) -> None:
        super().validate()
        require(
            self.heterogeneous in HETEROGENEOUS,
            not_known(f"method.heterogeneous={self.heterogeneous}", HETEROGENEOUS),
        )
        sigma = self.noise_multiplier
        require(
            sigma is None or 0 < sigma < 1e6,
            f"method.noise_multiplier={sigma} must be above 0 and below 1e6, or null for the least that the "
            "budgets allow",
        )
        for each in self.chosen or ():
            require(
                each.partition("=")[0] in CHOOSABLE,
                not_known(f"method.chosen={each}", CHOOSABLE),
            )


class RecordMethod(ConfiguredMethod):
    """A record-level DP method: clients take DP-SGD steps, and a round gives one sum over all clients.

    Args:
        config: where the numbers of records come from, which are public; they are read when they are needed.
    """

    unit: ClassVar[Unit | None] = "record"
    differences: ClassVar[Sequence[str]] = HETEROGENEOUS
    config_class: ClassVar[type[MethodConfig]] = RecordMethodConfig
    work: ClassVar[Work]

    @classmethod
    @abstractmethod
    def schedule(cls, config: Config, num_rounds: int) -> Sequence[int]:
        """Return the number of DP-SGD steps (tau) for each round in which a client takes part."""

    @classmethod
    def resolve(cls, config: Config) -> Config:
        """Choose, from public numbers, the settings that the user left open."""
        if not config.privacy.about_records or not any(
            "=" not in each for each in config.method.chosen or ()
        ):
            return config
        resolved, proposals = cls.proposals(config)
        chosen = [proposal.override for proposal in proposals]
        return replace(resolved, method=replace(resolved.method, chosen=chosen))

    @classmethod
    def proposals(cls, config: Config) -> tuple[Config, list[Proposal]]:
        """Choose values for the settings in method.chosen; return the new configuration and the reasons."""
        rate, counts = config.privacy.sampling_rate, configured_records(config)

        def steps_of(planned: Config) -> int:
            rounds = planned.run.num_rounds
            schedule = cls.schedule(planned, most_rounds(rounds, rate))
            return round(sum(schedule) * rounds / len(schedule))

        # The mean Gaussian DP parameter mu that the budgets allow, over clients or over records.
        shares = record_budgets(config)
        if shares is None:
            of_all = config.dataset.num_clients
            shares = [(group.epsilon, group.size / of_all) for group in record_groups(config)]
        delta = configured_delta(config)
        mean_mu = sum(share / gaussian_sigma(epsilon, delta) for epsilon, share in shares)
        known = PublicNumbers(
            clients=rate * len(counts),
            records=rate * float(counts.sum()),
            privacy=mean_mu,
            dimension=configured_dimension(config),
            shares_noise=not kind_of(cls.work).own_noise,
            parties=configured_parties(config) or 1,
        )
        return propose(config, config.method.chosen or (), known, steps_of)

    @classmethod
    def most_records(cls, config: Config) -> int | None:
        """Return the largest number of records of any client; None if the method needs no such bound."""
        return None

    @classmethod
    def make_plan(cls, config: Config) -> PrivacyPlan:
        privacy = config.privacy
        rounds = most_rounds(config.run.num_rounds, privacy.sampling_rate)
        return record_plan(
            groups=record_groups(config),
            num_rounds=config.run.num_rounds,
            training=RecordTraining(
                batch_rate=privacy.batch_rate,
                clipping_norm=privacy.clipping_norm,
                schedule=tuple(cls.schedule(config, rounds)),
                noise_multiplier=config.method.noise_multiplier,
                heterogeneous=cast("Heterogeneous", config.method.heterogeneous),
                work=cls.work,
                whole_rounds=privacy.sampling_rate < 1,
                parties=configured_parties(config) or 1,
            ),
            delta=configured_delta(config),
            accountant=privacy.accountant,
            renyi_orders=renyi_orders(config),
            sampling=cast("Sampling", privacy.sampling),
            sampling_rate=privacy.sampling_rate,
            record_budgets=record_budgets(config),
            sums_hidden=config.secagg.hides_updates,
            most_records=cls.most_records(config),
            minimum_cohort=config.secagg.minimum_cohort,
            first=planned_vote(config, epsilons_of(config), configured_delta(config), "record"),
        )

    @cached_property
    def record_counts(self) -> npt.NDArray[np.float64]:
        """D_i, the number of records of every client, shape (num_clients,)."""
        return configured_records(self.config)

    @cached_property
    def expected_batches(self) -> npt.NDArray[np.float64]:
        """Return every client's expected batch size B_i, shape (num_clients,).

        B_i = sum_k q_k share_k D_i over the client's groups k of records.
        """
        batches = self.record_counts.copy()
        for group, records in zip(self.plan.groups, records_of(self.plan), strict=True):
            batches[list(group.clients)] *= records.mean_rate
        return batches

    def steps(self, group_index: int, round_index: int) -> RecordSteps:
        """Return a group's DP-SGD steps in a round: their number, batch rates, clipping norm and noise."""
        records = records_of(self.plan)[group_index]
        return RecordSteps(
            num_steps=self.plan.groups[group_index].at(round_index).record_steps,
            batch_rates=records.batch_rates,
            clipping_norm=records.clipping_norm,
            noise_multiplier=records.noise_multiplier,
        )

    def rehearsal(self, client: int) -> RecordSteps:
        """Return the steps by which a client alone tries out settings, with the run's noise per step.

        The client divides its sums by its own expected batch B_i, so a model that moves by eta times a noise
        of s in every step has the multiplier s B_i / C there.
        """
        noise = self.step_noise * float(self.expected_batches[client])
        records = next(
            each
            for group, each in zip(self.plan.groups, records_of(self.plan), strict=True)
            if client in group.clients
        )
        rounds = [
            sum(each.num_rounds * each.record_steps for each in group.ranges) for group in self.plan.groups
        ]
        return RecordSteps(
            num_steps=max(rounds),
            batch_rates=(records.mean_rate,),
            clipping_norm=records.clipping_norm,
            noise_multiplier=noise / records.clipping_norm,
        )

    @property
    def step_noise(self) -> float:
        """Return the noise (stddev) that one step adds to the model; raise TypeError if it is not known."""
        raise TypeError(f"{self.name} does not say what noise its model has")

    @property
    def weighs_by_batch(self) -> bool:
        return getattr(self.config.method, "client_weights", "") == "batches"

    def requests(self, theta: Theta, round_index: int, cohorts: Cohorts) -> list[SumRequest]:
        """Return the request for one sum over all sampled clients that have DP-SGD steps in this round."""
        asked = [
            index
            for index, (group, cohort) in enumerate(zip(self.plan.groups, cohorts, strict=True))
            if len(cohort) and group.at(round_index).record_steps
        ]
        if not asked:
            return []
        records = [[self.steps(index, round_index)] * len(cohorts[index]) for index in asked]
        request = SumRequest(
            name="all clients",
            clients=np.concatenate([cohorts[index] for index in asked]),
            clipping_norm=inf,
            noise_multiplier=0.0,
            noise_at=NoiseAt.NOWHERE,
            work=self.work,
            unit="record",
            records=[*chain.from_iterable(records)],
            start=theta,
        )
        return [request]

    def round(
        self, theta: Theta, round_index: int, cohorts: Cohorts, sum_updates: SumUpdates
    ) -> tuple[Theta, list[ClientSum]]:
        sums = sum_updates(self.requests(theta, round_index, cohorts))
        for each in sums:
            if each.total is not None:
                theta = (theta + self.change(each, round_index)).astype(np.float32)
        return theta, sums

    @abstractmethod
    def change(self, released: ClientSum, round_index: int) -> npt.NDArray[np.float64]:
        """Return the vector, shape (d,), that a released sum adds to the model parameters theta."""


def epsilons_of(config: Config) -> list[float]:
    """Return the epsilon of every budget: one for each group of clients, or one for each group of records."""
    shares = record_budgets(config)
    return (
        [each.epsilon for each in record_groups(config)] if shares is None else [each for each, _ in shares]
    )


def configured_records(config: Config) -> npt.NDArray[np.float64]:
    """Return D_i, the number of records of every client, shape (num_clients,).

    Raises ConfigError: counts that are not one a client, or a client without records.
    """
    # Data sets and torch take seconds to load, and a plan can do without them.
    from gdpfed.clients.configured import record_counts

    return record_counts(config).astype(np.float64)


def configured_dimension(config: Config) -> int:
    """Return d, the number of parameters of the configured model; slow, since it loads torch."""
    from gdpfed.clients.configured import task_of

    return task_of(config).dimension


def record_groups(config: Config) -> tuple[Group, ...]:
    """Return the groups of clients by budget, or one group of all clients if budgets belong to records."""
    if config.privacy.budgets_of == "clients":
        return configured_groups(config)
    return (Group(min(config.privacy.budgets), range(config.dataset.num_clients)),)


def record_budgets(config: Config) -> list[tuple[float, float]] | None:
    """Return epsilon and share of records for each group of records; None if budgets belong to clients."""
    privacy = config.privacy
    if privacy.budgets_of == "clients":
        return None
    return list(zip(privacy.budgets, privacy.record_shares, strict=True))
