"""H2FDP: edge servers sum their devices' steps several times a round; trusted edges or devices add noise.

Source: Lin and Brinton, "Differentially-Private Hierarchical Federated Learning". Its noise does not cover
what it releases; the mechanisms here do, and docs/h2fdp.md says why and what is left of its claims.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, cast

import numpy as np
import numpy.typing as npt

from conf.schema import Config, MethodConfig, require
from gdpfed.errors import not_known
from gdpfed.extras.h2fdp import subnet_mechanisms
from gdpfed.extras.h2fdp.control import Problem, control_tables
from gdpfed.extras.h2fdp.controlled import controlled, problem_of, trust_of
from gdpfed.extras.h2fdp.subnet_mechanisms import WORKS, mean_noise, mechanism_of, noise_factor
from gdpfed.extras.h2fdp.subnet_plan import subnet_record_plan
from gdpfed.extras.h2fdp.subnet_sums import SubnetSums, Trust, trusts_of
from gdpfed.extras.h2fdp.subnet_tables import subnet_table
from gdpfed.extras.h2fdp.subnets import ControlConfig, drawing, rate_of_all, subnets_of, windows_of_round
from gdpfed.methods.base import (
    ClientSum,
    Cohorts,
    ConfiguredMethod,
    CurveStyle,
    PlanTable,
    RunOption,
    SumRequest,
    SumUpdates,
    Theta,
)
from gdpfed.methods.rates import configured_delta, refuse_given_rates, renyi_orders
from gdpfed.methods.record_method import configured_records
from gdpfed.privacy import mechanism_options
from gdpfed.privacy.events import Adjacency, NoiseLaw, Unit
from gdpfed.privacy.mechanisms.records.mechanism import records_of
from gdpfed.privacy.mechanisms.sampled.planner import make_plan
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.release import NoiseAt
from gdpfed.record_steps import RecordSteps, Work, kind_of


@dataclass
class H2FDPConfig(ControlConfig):
    """The options of method=h2fdp."""

    def validate(self) -> None:
        super().validate()
        require(
            self.mechanism in ("auto", *WORKS),
            not_known(f"method.mechanism={self.mechanism}", ("auto", *WORKS)),
        )
        require(
            self.mechanism != "step_local" or "trusted" not in self.trust_of_subnets(),
            "method.mechanism=step_local adds noise on every device, whoever is trusted: leave out "
            f"method.trusted_share={self.trusted_share}, and use method.trust=untrusted",
        )


class SubnetMethod(ConfiguredMethod):
    """Base class of methods in which each edge server makes J sums a round before the server averages.

    Args:
        config: of the run.
    """

    unit: ClassVar[Unit | None] = None
    compared: ClassVar[bool] = False
    goes_with: ClassVar[tuple[RunOption, ...]] = ()

    @property
    def work(self) -> Work:
        """What devices compute between two sums."""
        return self.plan.works[0]

    @property
    def window_steps(self) -> int:
        """m: how many steps a device takes between two sums."""
        return int(self.config.training.local_steps) // self.plan.sums_per_round

    def learning_rate(self, round_index: int) -> float:
        """Return eta, the learning rate of devices in a round."""
        from gdpfed.clients.configured import learning_rate_of

        return learning_rate_of(self.config, round_index)

    def requests(self, theta: Theta, round_index: int, cohorts: Cohorts) -> list[SumRequest]:
        """Return the requests for the first sums of a round, one for each edge server."""
        return self.window_requests([theta] * len(cohorts), round_index, cohorts, 0)

    def requests_ahead(self, theta: Theta, round_index: int, draw: Callable[[], Cohorts]) -> list[SumRequest]:
        """Return no requests ahead, since the members of each sum agree on keys when the sum begins."""
        return []

    def window_requests(
        self, models: Sequence[Theta], round_index: int, cohorts: Cohorts, window: int
    ) -> list[SumRequest]:
        """Return a request for each edge server: a noised sum of its devices' steps from its own model."""
        from gdpfed.clients.configured import training_of

        training = replace(training_of(self.config, round_index), local_steps=self.window_steps)
        return [
            replace(
                self.subnet_request(number, round_index, cohort, start),
                name=f"subnet {number}, window {window + 1}",
                training=training,
                window=window,
            )
            for number, (cohort, start) in enumerate(zip(cohorts, models, strict=True))
            if len(cohort)
        ]

    def subnet_request(
        self, number: int, round_index: int, cohort: npt.NDArray[np.int64], start: Theta
    ) -> SumRequest:
        """Return one edge server's request: the noised sum of its devices' steps from its model `start`."""
        round_range, mechanism = self.plan.groups[number].at(round_index), self.plan.mechanism
        return SumRequest(
            name="subnet",
            clients=cohort,
            clipping_norm=round_range.clipping_norm,
            noise_multiplier=round_range.noise_multiplier
            * mechanism_options.noise_factor(mechanism, number, len(cohort)),
            noise_at=NoiseAt.EDGE if mechanism_options.edge_adds_noise(mechanism, number) else self.noise_at,
            noise=self.plan.noise,
            work=self.work,
            unit=self.plan.unit,
            start=start,
        )

    def round(
        self, theta: Theta, round_index: int, cohorts: Cohorts, sum_updates: SumUpdates
    ) -> tuple[Theta, list[ClientSum]]:
        """Carry out J sums at every edge server, then average the edge servers' models."""
        models, summed = [theta] * len(cohorts), set[int]()
        sums: list[ClientSum] = []
        asked = [number for number, cohort in enumerate(cohorts) if len(cohort)]
        for window in range(self.plan.sums_per_round):
            requests = self.window_requests(models, round_index, cohorts, window)
            answers = sum_updates(requests)
            for number, answer in zip(asked, answers, strict=True):
                if answer.total is not None:
                    change = self.change(number, answer, round_index)
                    models[number] = (models[number] + change).astype(np.float32)
                    summed.add(number)
            sums += answers
        if summed:
            mean = np.mean([models[number] for number in sorted(summed)], axis=0, dtype=np.float64)
            theta = (theta + self.server_learning_rate * (mean - theta)).astype(np.float32)
        return theta, sums

    def change(self, number: int, released: ClientSum, round_index: int) -> npt.NDArray[np.float64]:
        """Return the change of an edge server's model: its devices' sum divided by their expected number."""
        return np.asarray(released.total) / self.plan.groups[number].expected_cohort_size


class H2FDP(SubnetMethod):
    """The method H2FDP: edge servers that devices trust, or else the devices, add the noise.

    Devices of an edge server that is not trusted add the noise together under masks, or each adds all of it.
    """

    name: ClassVar[str] = "h2fdp"
    label: ClassVar[str] = "H2FDP"
    curve: ClassVar[CurveStyle | None] = ("#A01828", "-", "h")
    config_class: ClassVar[type[MethodConfig]] = H2FDPConfig

    @classmethod
    def resolve(cls, config: Config) -> Config:
        """Return the configuration with the steps, rounds and participants that H2FDP chooses."""
        return controlled(config)

    @classmethod
    def make_plan(cls, config: Config) -> PrivacyPlan:
        """Make the plan for all sums of all rounds.

        Raises:
            ConfigError: options that contradict each other, a model that is not convex, or momentum.
            PrivacyError: a plan that has no valid accounting.
        """
        mechanism = mechanism_of(config)
        subnets = subnets_of(config)
        trust = trust_of(config, mechanism)
        sampling, rates = drawing(config)
        sums_hidden = config.secagg.hides_updates
        if mechanism == "update":
            refuse_given_rates(config)
            privacy = config.privacy
            plan = make_plan(
                groups=subnets,
                num_rounds=config.run.num_rounds,
                sampling_rate=rate_of_all(config),
                group_sampling_rates=rates,
                clipping_norm=privacy.clipping_norm,
                delta=configured_delta(config),
                accountant=privacy.accountant,
                renyi_orders=renyi_orders(config),
                noise=cast("NoiseLaw", privacy.noise),
                sampling=sampling,
                adjacency=cast("Adjacency", privacy.adjacency),
                sums_hidden=sums_hidden,
                sums_per_round=windows_of_round(config),
            )
            return replace(plan, mechanism=SubnetSums(**vars(plan.mechanism), trusts=trust))
        return subnet_record_plan(
            subnets=subnets,
            trust=trust,
            windows=subnet_mechanisms.windows_of(config, mechanism),
            num_rounds=config.run.num_rounds,
            delta=configured_delta(config),
            reserved_delta=subnet_mechanisms.reserved_delta(config) if mechanism == "convex" else 0.0,
            accountant=config.privacy.accountant,
            sampling=sampling,
            sampling_rate=rate_of_all(config),
            subnet_rates=rates,
            clipping_norm=config.privacy.clipping_norm,
            sums_hidden=sums_hidden,
        )

    def plan_tables(self) -> Sequence[PlanTable]:
        """Return a table of trust and epsilon by adversary; if steps are optimised, add tables of steps."""
        problem = self.problem
        return (subnet_table(self), *(control_tables(problem) if problem is not None else ()))

    @cached_property
    def problem(self) -> Problem | None:
        """The optimisation problem that chooses steps and participants; None if they are configured."""
        return None if self.config.method.control == "none" else problem_of(self.config)

    @cached_property
    def record_counts(self) -> npt.NDArray[np.float64]:
        """D_i: the number of records of every client, shape (num_clients,)."""
        return configured_records(self.config)

    def subnet_request(
        self, number: int, round_index: int, cohort: npt.NDArray[np.int64], start: Theta
    ) -> SumRequest:
        request = super().subnet_request(number, round_index, cohort, start)
        if not self.plan.about_records:
            return request
        records = records_of(self.plan)[number]
        noised = kind_of(self.work).own_noise
        one = RecordSteps(
            num_steps=self.window_steps,
            batch_rates=records.batch_rates,
            clipping_norm=self.record_norm,
            noise_multiplier=records.noise_multiplier if noised else 0.0,
        )
        request = replace(request, records=[one] * len(cohort))
        if not noised:
            return request
        weights = self.record_counts / self.record_counts.mean()
        return replace(
            request, noise_at=NoiseAt.NOWHERE, noise_multiplier=0.0, client_weights=weights[cohort]
        )

    @cached_property
    def record_norm(self) -> float:
        """The bound on the norm of a record's gradient or step: by clipping, or proven for a convex model."""
        return subnet_mechanisms.record_norm(self.config, mechanism_of(self.config))

    def change(self, number: int, released: ClientSum, round_index: int) -> npt.NDArray[np.float64]:
        """Return an edge server's model change, from its sum divided by number of devices or batch size."""
        if not self.plan.about_records:
            return super().change(number, released, round_index)
        total, members = np.asarray(released.total), list(released.members)
        counts = self.record_counts[members]
        if kind_of(self.work).own_noise:
            return np.asarray(total / (counts / self.record_counts.mean()).sum())
        rate = self.learning_rate(round_index)
        if kind_of(self.work).window == "window":
            return np.asarray(rate * total / len(members))
        return np.asarray(rate * total / (records_of(self.plan)[number].mean_rate * counts.sum()))

    def mean_noise(self, group_index: int) -> float:
        """Return the noise (standard deviation) in an edge server's mean over its devices, after one sum.

        With all devices of the round in it; noise for dropouts and colluders is part of it, as it is added.
        """
        size = max(1, round(self.plan.groups[group_index].expected_cohort_size))
        return self._mean_noise(group_index, size) * self._factor(group_index, size)

    def noise_at_edge(self, group_index: int) -> float:
        """Return the noise stddev in what an edge server sees, converted to noise in its devices' mean.

        A trusted edge server sees contributions without noise. Under masks, it sees only their sum with all
        the noise. Otherwise it sees single contributions, each with the noise of one device.
        """
        size = max(1, round(self.plan.groups[group_index].expected_cohort_size))
        seen = {"trusted": 0.0, "secagg": 1.0, "untrusted": 1 / float(np.sqrt(size))}
        return self.mean_noise(group_index) * seen[self.trusts[group_index]]

    @property
    def trusts(self) -> tuple[Trust, ...]:
        """Who adds the noise for each edge server's devices."""
        return trusts_of(self.plan)

    def _factor(self, number: int, size: int) -> float:
        if kind_of(self.work).own_noise:
            return float(np.sqrt(size))
        return noise_factor(self.config.secagg, self.trusts[number], size)

    def _mean_noise(self, number: int, size: int) -> float:
        """Return the planned noise (stddev) in an edge server's mean, without extra noise for dropouts."""
        group, stddev, batch = self.plan.groups[number], self.plan.groups[number].noise_stddev, 1.0
        if self.plan.about_records:
            records = records_of(self.plan)[number]
            stddev = records.noise_multiplier * records.clipping_norm
            batch = float(records.mean_rate * self.record_counts[list(group.clients)].mean())
        return mean_noise(
            work=self.work,
            stddev=stddev,
            learning_rate=self.learning_rate(0),
            size=size,
            expected_batch=batch,
            steps=self.window_steps,
        )
