"""Plans that protect records: every party's steps of DP-SGD, within budgets that differ.

Source: the events of Abadi et al., "Deep Learning with Differential Privacy", CCS 2016; rates and norms that
fit one noise are those of Boenisch et al., arXiv:2303.17046 (Sample and Scale).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, get_args

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import Accountant, RenyiOrders, make_accountant
from gdpfed.privacy.accountants.server_view import participations_quantile
from gdpfed.privacy.events import Sampling
from gdpfed.privacy.group_plan import GroupPlan, Stretch
from gdpfed.privacy.mechanism import RecordGroup
from gdpfed.privacy.mechanisms.record_sums import RecordPlan, RecordSums
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import SHARES_TOLERANCE, Group, check_disjoint
from gdpfed.privacy.planning.record_steps import (
    largest_batch_rate,
    step_noise,
    steps_allowed,
    steps_epsilon,
)
from gdpfed.privacy.planning.shared_noise import scaled_clipping_norms, shared_noise_sampling_rates
from gdpfed.privacy.sampling.laws import sampling_law
from gdpfed.privacy.validation import (
    require_choice,
    require_count,
    require_delta,
    require_positive,
    require_rate,
)
from gdpfed.record_steps import STEP_WORKS, Work

Heterogeneous = Literal["rate", "scale", "steps"]
"""What differs where budgets do: the batch rate at one noise, the norm of a record at one noise, or how many
steps there are until a budget is spent."""

DEFAULT_DELTA = 1e-5
SHARE_UNITS = 10_000
BATCH_TAIL = 6.0


@dataclass(frozen=True, kw_only=True)
class _Budgeted:
    """Rate, noise multiplier, norm and schedule of everything that has one budget."""

    epsilon: float
    batch_rate: float
    noise_multiplier: float
    clipping_norm: float
    schedule: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class RecordTraining:
    """What all parties of a plan for records have in common.

    Attributes:
        batch_rate: q; the mean over parties or groups of records where rates differ, as long as the noise
            follows from it; the largest one where the noise is given.
        clipping_norm: C; the mean where norms differ.
        schedule: tau of every round in which a client takes part.
        noise_multiplier: sigma; None for the least that the budgets allow.
        heterogeneous: what differs where budgets do.
        work: dp_sgd, noise on every client's own steps; gradient_sum, one noise on the sum of all clients.
        whole_rounds: a client takes all steps of a round or none; so it is where clients are sampled.
    """

    batch_rate: float
    clipping_norm: float
    schedule: tuple[int, ...]
    noise_multiplier: float | None = None
    heterogeneous: Heterogeneous = "rate"
    work: Work = "dp_sgd"
    whole_rounds: bool = False

    def __post_init__(self) -> None:
        require_rate("batch_rate", self.batch_rate)
        require_positive("clipping_norm", self.clipping_norm)
        require_choice("heterogeneous", self.heterogeneous, get_args(Heterogeneous))
        require_choice("work", self.work, STEP_WORKS)
        for steps in self.schedule:
            require_count("a round's steps", steps, at_least=0)
        if not any(self.schedule):
            raise PrivacyError("the schedule has no step: the budget admits none; take less of it a step")
        if self.noise_multiplier is not None:
            require_positive("noise_multiplier", self.noise_multiplier)


def most_rounds(num_rounds: int, sampling_rate: float) -> int:
    """Return in how many rounds a client takes part at most: 99 of 100 clients are drawn no more often.

    Who is drawn more often is left out. Sampling of clients amplifies nothing here: the server knows it.
    """
    return participations_quantile(num_rounds, sampling_rate)


def record_plan(
    *,
    groups: Sequence[Group],
    num_rounds: int,
    training: RecordTraining,
    delta: float | None = None,
    accountant: str = "pld",
    renyi_orders: RenyiOrders = "fine",
    sampling: Sampling = "poisson",
    sampling_rate: float = 1.0,
    record_budgets: Sequence[tuple[float, float]] | None = None,
    sums_hidden: bool = True,
    most_records: int | None = None,
    minimum_cohort: int = 1,
) -> PrivacyPlan:
    """Return the plan under which every record of every client stays within its budget.

    `groups` are clients by budget. With `record_budgets`, pairs of epsilon and a share, they are one group:
    then so large a share of every client's records has that budget. Clients are drawn at `sampling_rate`,
    which is not accounted. `most_records`, the largest D_i, bounds what a client sends for a sum of
    gradients, see `contribution_norm`. Training ends for all when fewer than `minimum_cohort` clients have
    steps left.

    Raises PrivacyError for input that is out of range, and where no valid accounting exists.
    """
    if accountant == "theorem1":
        raise PrivacyError("theorem1 is about sums over sampled clients, not records; use pld or rdp")
    delta = require_delta(DEFAULT_DELTA if delta is None else delta)
    check_disjoint(groups)
    if len(training.schedule) != most_rounds(num_rounds, sampling_rate):
        raise PrivacyError(
            f"the schedule has {len(training.schedule)} rounds; a client takes part in "
            f"{most_rounds(num_rounds, sampling_rate)}"
        )
    bound = make_accountant(accountant, renyi_orders)
    parts = list(groups) if record_budgets is None else _as_parts(groups, record_budgets)
    budgeted = _within_budgets(bound, parts, training, delta)
    if sampling_rate < 1 and any(len({*each.schedule} - {0}) != 1 for each in budgeted):
        raise PrivacyError(
            f"sampling_rate {sampling_rate:g} leaves open in which rounds a client takes part, so all its "
            "rounds must have equally many steps: use sampling_rate 1, or a schedule of one number"
        )
    if record_budgets is None and sampling_rate == 1.0:
        budgeted = _ended_below(minimum_cohort, budgeted, [group.size for group in groups])
    if training.work == "dp_sgd":
        norm = math.inf
    else:
        norm = contribution_norm(budgeted, require_count("most_records", most_records))
    shared: list[Sequence[tuple[_Budgeted, float]]] = [[(each, 1.0)] for each in budgeted]
    if record_budgets is not None:
        shared = [[(each, share) for each, (_, share) in zip(budgeted, record_budgets, strict=True)]]
    law = sampling_law(sampling)
    planned = [
        _group_plan(
            bound,
            each,
            delta,
            clients=group.clients,
            rounds=(num_rounds, law.drawn_rate(sampling_rate, group.size)),
            training=training,
            norm=norm,
            sums_hidden=sums_hidden,
        )
        for each, group in zip(shared, groups, strict=True)
    ]
    return PrivacyPlan(
        groups=tuple(group for group, _ in planned),
        num_rounds=num_rounds,
        delta=delta,
        mechanism=RecordSums(
            sampling=sampling,
            works=(training.work,),
            one_sum=True,
            records=tuple(records for _, records in planned),
        ),
        accountant=bound.name,
        clipping_norm=training.clipping_norm,
        sampling_rate=float(sampling_rate),
        renyi_orders=bound.renyi_orders,
        sums_hidden=sums_hidden,
    )


def _ended_below(least: int, budgeted: Sequence[_Budgeted], sizes: Sequence[int]) -> list[_Budgeted]:
    """The schedules without rounds in which too few clients have steps left, unless none has enough."""
    active = [
        sum(size for each, size in zip(budgeted, sizes, strict=True) if each.schedule[index])
        for index in range(len(budgeted[0].schedule))
    ]
    if max(active) < least:
        return list(budgeted)
    kept = [count >= least for count in active]
    return [
        replace(each, schedule=tuple(steps * keep for steps, keep in zip(each.schedule, kept, strict=True)))
        for each in budgeted
    ]


def contribution_norm(budgeted: Sequence[_Budgeted], most_records: int) -> float:
    """Return C times a batch that is hardly ever exceeded: to this a client's sum is held.

    It has no part in the accounting: a projection moves two sums no further apart, and one record moves a
    sum by C at most.
    """

    def largest(each: _Budgeted) -> float:
        batch = each.batch_rate * most_records
        return each.clipping_norm * min(most_records, batch + BATCH_TAIL * (math.sqrt(batch) + 1))

    return max(largest(each) for each in budgeted)


def _as_parts(groups: Sequence[Group], budgets: Sequence[tuple[float, float]]) -> list[Group]:
    """Groups whose sizes are the shares, for rates whose mean is over records."""
    if len(groups) != 1:
        raise PrivacyError(f"{len(groups)} groups of clients have budgets by record; make them one group")
    shares = [require_positive("a share of the records", share) for _, share in budgets]
    if abs(math.fsum(shares) - 1) > SHARES_TOLERANCE:
        raise PrivacyError(f"the shares of the records {shares} sum to {math.fsum(shares):.6g}; not to one")
    ends = [round(SHARE_UNITS * math.fsum(shares[:m])) for m in range(len(shares) + 1)]
    return [
        Group(epsilon, range(start, end))
        for (epsilon, _), start, end in zip(budgets, ends[:-1], ends[1:], strict=True)
    ]


def _within_budgets(
    accountant: Accountant, parts: Sequence[Group], training: RecordTraining, delta: float
) -> list[_Budgeted]:
    """Rate, noise, norm and schedule of every budget."""
    makers = {"rate": _own_rates, "scale": _own_norms, "steps": _own_steps}
    return makers[training.heterogeneous](accountant, parts, training, delta)


def _own_rates(
    accountant: Accountant, parts: Sequence[Group], training: RecordTraining, delta: float
) -> list[_Budgeted]:
    """One noise and one schedule: strict budgets have small batches, and all are spent together."""
    total, sigma = sum(training.schedule), training.noise_multiplier
    if sigma is not None:
        rates: Sequence[float] = [
            largest_batch_rate(
                accountant,
                epsilon=part.epsilon,
                delta=delta,
                noise_multiplier=sigma,
                num_steps=total,
                at_most=training.batch_rate,
            )
            for part in parts
        ]
    else:
        rates = shared_noise_sampling_rates(
            accountant,
            parts,
            sampling="poisson",
            sampling_rate=training.batch_rate,
            num_rounds=total,
            delta=delta,
        )
        sigma = max(
            step_noise(accountant, epsilon=part.epsilon, delta=delta, batch_rate=rate, num_steps=total)
            for part, rate in zip(parts, rates, strict=True)
        )
    return [
        _Budgeted(
            epsilon=part.epsilon,
            batch_rate=rate,
            noise_multiplier=sigma,
            clipping_norm=training.clipping_norm,
            schedule=training.schedule,
        )
        for part, rate in zip(parts, rates, strict=True)
    ]


def _own_norms(
    accountant: Accountant, parts: Sequence[Group], training: RecordTraining, delta: float
) -> list[_Budgeted]:
    """One rate and one schedule: strict budgets have small norms, under noise of one standard deviation."""
    if training.noise_multiplier is not None:
        raise PrivacyError(
            f"noise_multiplier {training.noise_multiplier:g} leaves heterogeneous=scale nothing to choose: "
            "leave it out, or use heterogeneous=rate or steps"
        )
    total = sum(training.schedule)
    sigmas = [
        step_noise(
            accountant, epsilon=part.epsilon, delta=delta, batch_rate=training.batch_rate, num_steps=total
        )
        for part in parts
    ]
    norms = scaled_clipping_norms(sigmas, [part.size for part in parts], training.clipping_norm)
    return [
        _Budgeted(
            epsilon=part.epsilon,
            batch_rate=training.batch_rate,
            noise_multiplier=sigma,
            clipping_norm=norm,
            schedule=training.schedule,
        )
        for part, sigma, norm in zip(parts, sigmas, norms, strict=True)
    ]


def _own_steps(
    accountant: Accountant, parts: Sequence[Group], training: RecordTraining, delta: float
) -> list[_Budgeted]:
    """One rate and one noise: who has spent the budget stops. Free noise lets the largest budget finish."""
    rate, sigma = training.batch_rate, training.noise_multiplier
    if sigma is None:
        largest = max(part.epsilon for part in parts)
        total = sum(training.schedule)
        sigma = step_noise(accountant, epsilon=largest, delta=delta, batch_rate=rate, num_steps=total)
    budgeted = []
    for part in parts:
        allowed = steps_allowed(
            accountant, epsilon=part.epsilon, delta=delta, batch_rate=rate, noise_multiplier=sigma
        )
        schedule = _cut(training.schedule, allowed, whole_rounds=training.whole_rounds)
        if not any(schedule):
            raise PrivacyError(
                f"epsilon {part.epsilon:g} admits {allowed} steps, not those of one round, at batch rate "
                f"{rate:g} and noise multiplier {sigma:.4g}: use more noise, a smaller batch rate, or "
                "heterogeneous=rate"
            )
        budgeted.append(
            _Budgeted(
                epsilon=part.epsilon,
                batch_rate=rate,
                noise_multiplier=sigma,
                clipping_norm=training.clipping_norm,
                schedule=schedule,
            )
        )
    return budgeted


def _cut(schedule: Sequence[int], allowed: int, *, whole_rounds: bool) -> tuple[int, ...]:
    """The schedule up to so many steps: the round that reaches them has what is left or, if it must, none."""
    kept, left = [], allowed
    for steps in schedule:
        kept.append(0 if whole_rounds and steps > left else min(steps, left))
        left -= kept[-1]
    return tuple(kept)


def _group_plan(
    accountant: Accountant,
    shared: Sequence[tuple[_Budgeted, float]],
    delta: float,
    *,
    clients: Sequence[int],
    rounds: tuple[int, float],
    training: RecordTraining,
    norm: float,
    sums_hidden: bool,
) -> tuple[GroupPlan, RecordPlan]:
    """The plan of clients whose records have these budgets, by share, and that of their records."""
    first, (num_rounds, sampling_rate) = shared[0][0], rounds
    if any(
        (each.noise_multiplier, each.schedule) != (first.noise_multiplier, first.schedule)
        for each, _ in shared
    ):
        raise PrivacyError("records of one client share its noise and its steps: use heterogeneous=rate")
    total, rounds_in = sum(first.schedule), sum(steps > 0 for steps in first.schedule)
    every_round = sampling_rate == 1.0
    record_groups = tuple(
        RecordGroup(
            epsilon=each.epsilon,
            epsilon_accounted=steps_epsilon(
                accountant,
                batch_rate=each.batch_rate,
                noise_multiplier=each.noise_multiplier,
                num_steps=total,
                delta=delta,
            ),
            share=share,
            batch_rate=each.batch_rate,
        )
        for each, share in shared
    )
    allowed = min(
        steps_allowed(
            accountant,
            epsilon=each.epsilon,
            delta=delta,
            batch_rate=each.batch_rate,
            noise_multiplier=each.noise_multiplier,
            at_least=total,
        )
        for each, _ in shared
    )
    noised = training.work == "gradient_sum"
    noise_stddev = first.noise_multiplier * first.clipping_norm if noised else 0.0
    accounted = record_groups[0].epsilon_accounted
    group = GroupPlan(
        epsilon=record_groups[0].epsilon,
        epsilon_accounted=accounted,
        epsilon_against_server=accounted if sums_hidden or not noised else math.inf,
        participations_p99=rounds_in,
        clients=clients,
        stretches=_stretches(
            first.schedule if every_round else (first.schedule[0],) * num_rounds,
            sampling_rate,
            norm,
            noise_stddev / norm,
        ),
    )
    records = RecordPlan(
        groups=record_groups,
        clipping_norm=first.clipping_norm,
        noise_multiplier=first.noise_multiplier,
        steps_allowed=allowed,
        most_rounds=rounds_in,
    )
    return group, records


def _stretches(
    schedule: Sequence[int], sampling_rate: float, norm: float, noise_multiplier: float
) -> tuple[Stretch, ...]:
    return tuple(
        Stretch(
            num_rounds=len(list(alike)),
            sampling_rate=sampling_rate,
            clipping_norm=norm,
            noise_multiplier=noise_multiplier,
            record_steps=steps,
        )
        for steps, alike in groupby(schedule)
    )
