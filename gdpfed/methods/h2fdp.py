"""H2FDP: devices behind edges, which sum several times a round, with noise where trust is.

Source: Lin and Brinton, "Differentially-Private Hierarchical Federated Learning". Its noise does not cover
what it releases; the mechanisms here do, and docs/h2fdp.md says why and what is left of its claims.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, cast

import numpy as np
import numpy.typing as npt

from conf.schema import Config, MethodConfig, require
from gdpfed.errors import PrivacyError
from gdpfed.methods.base import ClientSum, Cohorts, Method, SumRequest, SumUpdates, Theta
from gdpfed.methods.plan_tables import PlanTable
from gdpfed.methods.rates import configured_delta, refuse_given_rates, renyi_orders
from gdpfed.methods.records import configured_records
from gdpfed.methods.subnet_tables import subnet_table
from gdpfed.methods.subnets import TrustConfig, drawing, subnets_of, windows_of_round
from gdpfed.privacy.events import Adjacency, NoiseLaw, Unit
from gdpfed.privacy.ledgers.charged import NoiseAt
from gdpfed.privacy.plan import GroupPlan, PrivacyPlan, Trust, Work
from gdpfed.privacy.planning.make_plan import make_plan
from gdpfed.privacy.planning.subnet_plan import Windows, subnet_record_plan
from gdpfed.record_steps import RecordSteps, record_move

Mechanism = Literal["update", "step_sum", "convex", "step_local", "window"]
WORKS: dict[Mechanism, Work] = {
    "update": "update",
    "step_sum": "gradient_sum",
    "convex": "convex_steps",
    "step_local": "dp_sgd",
    "window": "window_steps",
}
CONVEX_MODEL = "softmax"
# The part of delta that steps may use up which are too long for the batch that was drawn.
MOST_RESERVED = 0.01


@dataclass
class H2FDPConfig(TrustConfig):
    """The options of method=h2fdp."""

    def validate(self) -> None:
        super().validate()
        require(
            self.mechanism in ("auto", *WORKS),
            f"method.mechanism={self.mechanism} is none of auto, {', '.join(WORKS)}",
        )
        require(
            self.mechanism != "step_local" or "trusted" not in self.trust_of_subnets(),
            "method.mechanism=step_local adds noise on every device, whoever is trusted: leave out "
            f"method.trusted_share={self.trusted_share}, and use method.trust=untrusted",
        )


class SubnetMethod(Method):
    """Subnets start a round from one model, sum in J windows each, and their models are averaged.

    Args:
        config: of the run.
    """

    unit: ClassVar[Unit | None] = None
    compared: ClassVar[bool] = False

    def __init__(self, plan: PrivacyPlan, config: Config) -> None:
        super().__init__(
            plan,
            self.make_weighting(config, plan),
            server_learning_rate=config.method.server_learning_rate,
        )
        self.config = config

    @classmethod
    def from_config(cls, config: Config) -> "SubnetMethod":
        """Plan the configured run."""
        return cls(cls.make_plan(config), config)

    @property
    def work(self) -> Work:
        """What devices compute in a window."""
        return self.plan.works[0]

    @property
    def window_steps(self) -> int:
        """m, the steps of a device in a window."""
        return int(self.config.training.local_steps) // self.plan.sums_per_round

    def learning_rate(self, round_index: int) -> float:
        """eta of a round."""
        training = self.config.training
        return float(training.learning_rate * training.learning_rate_decay**round_index)

    def requests(self, theta: Theta, round_index: int, cohorts: Cohorts) -> list[SumRequest]:
        """The sums of the first window of a round."""
        return self.window_requests([theta] * len(cohorts), round_index, cohorts, 0)

    def requests_ahead(self, theta: Theta, round_index: int, draw: Callable[[], Cohorts]) -> list[SumRequest]:
        """Nothing: a round has several sums of the same clients, and keys are agreed for each in its turn."""
        del theta, round_index, draw
        return []

    def window_requests(
        self, models: Sequence[Theta], round_index: int, cohorts: Cohorts, window: int
    ) -> list[SumRequest]:
        """One sum a subnet, from the subnet's model."""
        from gdpfed.learning.local_update import LocalTraining

        own = self.config.training
        training = LocalTraining(
            local_steps=self.window_steps,
            batch_size=own.batch_size,
            learning_rate=self.learning_rate(round_index),
            momentum=own.momentum,
        )
        return [
            replace(
                self.subnet_request(group, round_index, cohort, start),
                name=f"subnet {number}, window {window + 1}",
                training=training,
                window=window,
            )
            for number, (group, cohort, start) in enumerate(
                zip(self.plan.groups, cohorts, models, strict=True)
            )
            if len(cohort)
        ]

    def subnet_request(
        self, group: GroupPlan, round_index: int, cohort: npt.NDArray[np.int64], start: Theta
    ) -> SumRequest:
        """What is asked of a subnet in any window."""
        stretch = group.stretch(round_index)
        return SumRequest(
            name="subnet",
            clients=cohort,
            clipping_norm=stretch.clipping_norm,
            noise_multiplier=stretch.noise_multiplier * group.noise_factor(len(cohort)),
            noise_at=self.noise_at if group.trust != "trusted" else NoiseAt.EDGE,
            noise=self.plan.noise,
            work=self.work,
            unit=self.plan.unit,
            start=start,
        )

    def round(
        self, theta: Theta, round_index: int, cohorts: Cohorts, sum_updates: SumUpdates
    ) -> tuple[Theta, list[ClientSum]]:
        """J windows of all subnets at once; a subnet without any sum leaves the mean to the others."""
        models, summed = [theta] * len(cohorts), set[int]()
        sums: list[ClientSum] = []
        asked = [number for number, cohort in enumerate(cohorts) if len(cohort)]
        for window in range(self.plan.sums_per_round):
            requests = self.window_requests(models, round_index, cohorts, window)
            answers = sum_updates(requests)
            for number, answer in zip(asked, answers, strict=True):
                if answer.total is not None:
                    change = self.change(self.plan.groups[number], answer, round_index)
                    models[number] = (models[number] + change).astype(np.float32)
                    summed.add(number)
            sums += answers
        if summed:
            mean = np.mean([models[number] for number in sorted(summed)], axis=0, dtype=np.float64)
            theta = (theta + self.server_learning_rate * (mean - theta)).astype(np.float32)
        return theta, sums

    def change(self, group: GroupPlan, released: ClientSum, round_index: int) -> npt.NDArray[np.float64]:
        """What a released sum changes of its subnet's model: by default the mean over the planned devices."""
        del round_index
        return np.asarray(released.total) / group.expected_cohort_size


class H2FDP(SubnetMethod):
    """Noise once at a trusted edge, once by all devices under secure aggregation, or on every device."""

    name: ClassVar[str] = "h2fdp"
    config_class: ClassVar[type[MethodConfig]] = H2FDPConfig

    @classmethod
    def make_plan(cls, config: Config) -> PrivacyPlan:
        """Plan all windows of all rounds.

        Raises:
            ConfigError: options that contradict each other, a model that is not convex, or momentum.
            PrivacyError: a plan that has no valid accounting.
        """
        mechanism = mechanism_of(config)
        subnets = subnets_of(config)
        trust: tuple[Trust, ...] = config.method.trust_of_subnets()
        sampling, rate = drawing(config)
        if mechanism == "step_local":
            trust = tuple("untrusted" for _ in subnets)
        sums_hidden = config.secagg.mode != "off"
        if mechanism == "update":
            refuse_given_rates(config)
            privacy = config.privacy
            plan = make_plan(
                groups=subnets,
                num_rounds=config.run.num_rounds,
                sampling_rate=rate,
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
            groups = tuple(replace(group, trust=word) for group, word in zip(plan.groups, trust, strict=True))
            return replace(plan, groups=groups)
        return subnet_record_plan(
            subnets=subnets,
            trust=trust,
            windows=_windows(config, mechanism),
            num_rounds=config.run.num_rounds,
            delta=configured_delta(config),
            reserved_delta=_reserved_delta(config) if mechanism == "convex" else 0.0,
            accountant=config.privacy.accountant,
            sampling=sampling,
            sampling_rate=rate,
            clipping_norm=config.privacy.clipping_norm,
            sums_hidden=sums_hidden,
        )

    def plan_tables(self) -> Sequence[PlanTable]:
        """Who is trusted where, the noise that follows, and epsilon per observer."""
        return (subnet_table(self),)

    @cached_property
    def record_counts(self) -> npt.NDArray[np.float64]:
        """D_i of every client, shape (num_clients,)."""
        return configured_records(self.config)

    def subnet_request(
        self, group: GroupPlan, round_index: int, cohort: npt.NDArray[np.int64], start: Theta
    ) -> SumRequest:
        request = super().subnet_request(group, round_index, cohort, start)
        if group.records is None:
            return request
        noised = self.work == "dp_sgd"
        one = RecordSteps(
            num_steps=self.window_steps,
            batch_rates=group.records.batch_rates,
            clipping_norm=self.record_norm,
            noise_multiplier=group.records.noise_multiplier if noised else 0.0,
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
        """What a record's gradient, or a step, is held to."""
        return _record_norm(self.config, mechanism_of(self.config))

    def change(self, group: GroupPlan, released: ClientSum, round_index: int) -> npt.NDArray[np.float64]:
        """The mean over the devices in the sum, weighed by their records unless steps are clipped whole."""
        if group.records is None:
            return super().change(group, released, round_index)
        total, members = np.asarray(released.total), list(released.members)
        counts = self.record_counts[members]
        if self.work == "dp_sgd":
            return np.asarray(total / (counts / self.record_counts.mean()).sum())
        rate = self.learning_rate(round_index)
        if self.work == "window_steps":
            return np.asarray(rate * total / len(members))
        return np.asarray(rate * total / (group.records.mean_rate * counts.sum()))

    def mean_noise(self, group_index: int) -> float:
        """The standard deviation of a coordinate of a subnet's mean after one window of the first round.

        With all of the group's devices in it, and no dropouts or colluders to make up for.
        """
        group = self.plan.groups[group_index]
        members = np.asarray(group.clients, dtype=np.int64)
        size = max(1, round(group.expected_cohort_size))
        factor = group.noise_factor(size)
        if group.records is None:
            return group.noise_stddev * factor / group.expected_cohort_size
        counts, rate = self.record_counts[members], self.learning_rate(0)
        stddev = group.records.noise_multiplier * group.records.clipping_norm * factor
        if self.work == "window_steps":
            return rate * stddev / size
        batches = group.records.mean_rate * counts.mean() * size
        steps = self.window_steps if self.work == "dp_sgd" else 1
        return float(rate * stddev * np.sqrt(steps) / batches)


def mechanism_of(config: Config) -> Mechanism:
    """The configured mechanism; of `auto` the one for the unit and, of records, for the model.

    Raises:
        ConfigError: a mechanism that protects another unit.
    """
    privacy = config.privacy
    chosen = config.method.mechanism
    if chosen == "auto":
        convex = config.dataset.model == CONVEX_MODEL
        chosen = "update" if privacy.unit == "client" else "convex" if convex else "step_sum"
    unit = "client" if chosen == "update" else "record"
    require(
        privacy.unit == unit,
        f"method.mechanism={chosen} protects a {unit}, not privacy.unit={privacy.unit}: set "
        f"privacy={unit}_level, or method.mechanism=auto",
    )
    return cast("Mechanism", chosen)


def _windows(config: Config, mechanism: Mechanism) -> Windows:
    """How a round is cut, and how far a record moves a device's part.

    Raises:
        ConfigError: momentum where noise comes after several steps, or other sums than steps.
    """
    training = config.training
    require(
        mechanism == "step_local" or training.momentum == 0,
        f"training.momentum={training.momentum} does not go with method.mechanism={mechanism}, whose "
        "accounting has a record act in the steps that it is in: set training.momentum=0, or "
        "method.mechanism=step_local",
    )
    count = windows_of_round(config)
    if mechanism == "step_sum":
        given = config.method.local_aggregations
        require(
            given in (None, training.local_steps),
            f"method.mechanism=step_sum sums after every step: method.local_aggregations={given} must be "
            f"training.local_steps={training.local_steps}, or null",
        )
        count = training.local_steps
    work, steps = WORKS[mechanism], training.local_steps // count
    told = RecordSteps(
        num_steps=steps,
        batch_rates=(config.privacy.batch_rate,),
        clipping_norm=_record_norm(config, mechanism),
        noise_multiplier=0.0,
    )
    return Windows(
        work=work,
        batch_rate=config.privacy.batch_rate,
        num_steps=steps,
        windows_per_round=count,
        move=record_move(work, told),
        most_records=int(configured_records(config).max()),
    )


def _record_norm(config: Config, mechanism: Mechanism) -> float:
    """C_x of a convex model, whose gradients no setting bounds; the configured norm otherwise.

    Raises:
        ConfigError: a model or a loss that is not known to be convex.
    """
    if mechanism != "convex":
        return float(config.privacy.clipping_norm)
    from gdpfed.clients.configured import task_of
    from gdpfed.learning.models.softmax import convex_bounds

    data = config.dataset
    bounds = convex_bounds(task_of(config).build_model())
    require(
        bounds is not None,
        f"method.mechanism=convex needs a convex loss with bounded gradients, and dataset.model={data.model} "
        f"has none: use dataset.model={CONVEX_MODEL}, or method.mechanism=step_sum",
    )
    require(
        data.loss == "cross_entropy" and not data.class_weights,
        f"method.mechanism=convex is proved for dataset.loss=cross_entropy without weights, not "
        f"{data.loss} with dataset.class_weights={data.class_weights}: use method.mechanism=step_sum",
    )
    return 0.0 if bounds is None else bounds.gradient_norm


def _reserved_delta(config: Config) -> float:
    """The chance that, in a run, a batch is so large that a step brings two models further apart.

    Only the steps of a record's own device matter to it.

    Raises:
        PrivacyError: more than `MOST_RESERVED` of delta.
    """
    from gdpfed.clients.configured import task_of
    from gdpfed.learning.models.softmax import convex_bounds

    bounds = convex_bounds(task_of(config).build_model())
    if bounds is None:
        return 0.0
    rate, eta = config.privacy.batch_rate, config.training.learning_rate
    steps = config.run.num_rounds * config.training.local_steps
    counts = {int(count) for count in configured_records(config)}
    reserved = steps * max(bounds.chance_of_long_step(eta, rate, count) for count in counts)
    if reserved > MOST_RESERVED * configured_delta(config):
        safe = 2 * rate / bounds.smoothness
        raise PrivacyError(
            f"training.learning_rate={eta:g} is too long a step for method.mechanism=convex: with a chance "
            f"of {reserved:.2g} a batch makes it expand distances. Any up to {safe:.3g} will do at "
            f"privacy.batch_rate={rate:g}, and longer ones at larger batches"
        )
    return reserved
