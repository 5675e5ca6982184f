"""Plans that protect records: every party's steps of DP-SGD, within budgets that differ.

Source: the events of Abadi et al., "Deep Learning with Differential Privacy", CCS 2016; rates and norms that
fit one noise are those of Boenisch et al., arXiv:2303.17046 (Sample and Scale).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import Accountant, RenyiOrders, make_accountant
from gdpfed.privacy.accountants.server_view import participations_quantile
from gdpfed.privacy.events import Sampling
from gdpfed.privacy.group_plan import GroupPlan, Stretch
from gdpfed.privacy.mechanism import RecordGroup
from gdpfed.privacy.mechanisms.record_sums import RecordPlan, RecordSums
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import Group, check_disjoint
from gdpfed.privacy.planning.record_budgets import Budgeted, RecordTraining, as_parts, within_budgets
from gdpfed.privacy.planning.record_steps import (
    steps_allowed,
    steps_epsilon,
)
from gdpfed.privacy.sampling.laws import sampling_law
from gdpfed.privacy.validation import (
    require_count,
    require_delta,
)

DEFAULT_DELTA = 1e-5
BATCH_TAIL = 6.0


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
    parts = list(groups) if record_budgets is None else as_parts(groups, record_budgets)
    budgeted = within_budgets(bound, parts, training, delta)
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
    shared: list[Sequence[tuple[Budgeted, float]]] = [[(each, 1.0)] for each in budgeted]
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


def _ended_below(least: int, budgeted: Sequence[Budgeted], sizes: Sequence[int]) -> list[Budgeted]:
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


def contribution_norm(budgeted: Sequence[Budgeted], most_records: int) -> float:
    """Return C times a batch that is hardly ever exceeded: to this a client's sum is held.

    It has no part in the accounting: a projection moves two sums no further apart, and one record moves a
    sum by C at most.
    """

    def largest(each: Budgeted) -> float:
        batch = each.batch_rate * most_records
        return each.clipping_norm * min(most_records, batch + BATCH_TAIL * (math.sqrt(batch) + 1))

    return max(largest(each) for each in budgeted)


def _group_plan(
    accountant: Accountant,
    shared: Sequence[tuple[Budgeted, float]],
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
