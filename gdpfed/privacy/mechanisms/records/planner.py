"""Plans that protect records: DP-SGD steps at every client, within different budgets.

Source: the events of Abadi et al., "Deep Learning with Differential Privacy", CCS 2016; rates and norms that
fit one noise are those of Boenisch et al., arXiv:2303.17046 (Sample and Scale).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Unpack

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import Accountant, RenyiOrders, make_accountant
from gdpfed.privacy.accountants.composition import AfterRelease
from gdpfed.privacy.accountants.gaussian import participations_quantile
from gdpfed.privacy.group_plan import GroupPlan, RoundRange
from gdpfed.privacy.mechanism_options import RecordGroup
from gdpfed.privacy.mechanisms.records.budgets import Budgeted, RecordTraining, as_parts, within_budgets
from gdpfed.privacy.mechanisms.records.calibration import steps_allowed, steps_epsilon
from gdpfed.privacy.mechanisms.records.mechanism import RecordPlan, RecordSums
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import Group, check_disjoint
from gdpfed.privacy.planning.plan_options import PlanOptions
from gdpfed.privacy.sampling.laws import SamplingLaw, sampling_law
from gdpfed.privacy.sums_once import SumOnce
from gdpfed.privacy.validation import require_count, require_delta
from gdpfed.record_steps import kind_of

DEFAULT_DELTA = 1e-5
BATCH_TAIL = 6.0

Shares = Sequence[tuple[Budgeted, float]]
"""What the records of a client are held to, and the share of its records of which that is so."""


@dataclass(frozen=True, kw_only=True)
class _Common:
    """Settings that all groups in a plan for records share: rounds, training, delta and accountant."""

    accountant: Accountant
    law: SamplingLaw
    delta: float
    num_rounds: int
    sampling_rate: float
    training: RecordTraining
    sums_hidden: bool

    @property
    def is_noised(self) -> bool:
        """Whether noise is added once to the sum over clients, rather than by each client in every step."""
        return not kind_of(self.training.work).own_noise

    @property
    def share_of_norm(self) -> float:
        """The factor on clipping norms: 1/S if sums get noise and a person has data at S clients; else 1."""
        return 1 / self.training.parties if self.is_noised else 1.0


class RecordOptions(PlanOptions, total=False):
    """Optional arguments of plans that protect records.

    `record_budgets` are pairs of epsilon and a share: so large a share of every client's records has that
    budget, and the clients are one group. `most_records`, the largest D_i, bounds what a client sends for a
    sum of gradients, see `contribution_norm`. Training ends for all when fewer than `minimum_cohort` clients
    have steps left. `first` is paid before the first round, and rounds are planned with the rest.
    """

    first: SumOnce | None
    renyi_orders: RenyiOrders
    record_budgets: Sequence[tuple[float, float]] | None
    most_records: int | None
    minimum_cohort: int


def most_rounds(num_rounds: int, sampling_rate: float) -> int:
    """Return the number of rounds in which a sampled client takes part at most, with probability 0.99.

    Who is drawn more often is left out. Sampling of clients amplifies nothing here: the server knows it.
    """
    return participations_quantile(num_rounds, sampling_rate)


def record_accountant(options: PlanOptions, renyi_orders: RenyiOrders = "fine") -> Accountant:
    """Return the accountant of a plan for records, PLD or RDP; raise PrivacyError for theorem1."""
    name = options.get("accountant", "pld")
    if name == "theorem1":
        raise PrivacyError("theorem1 is about sums over sampled clients, not records; use pld or rdp")
    return make_accountant(name, renyi_orders)


def record_delta(options: PlanOptions) -> float:
    """Return the delta of a plan for records: the given one, or 1e-5."""
    given = options.get("delta")
    return require_delta(DEFAULT_DELTA if given is None else given)


def record_plan(
    *,
    groups: Sequence[Group],
    num_rounds: int,
    training: RecordTraining,
    sampling_rate: float = 1.0,
    **options: Unpack[RecordOptions],
) -> PrivacyPlan:
    """Make the plan under which every record of every client stays within its budget.

    `groups` are clients by budget. Clients are drawn at `sampling_rate`, which is not accounted. Raises
    PrivacyError for input that is out of range, and where no valid accounting exists.
    """
    accountant, first = record_accountant(options, options.get("renyi_orders", "fine")), options.get("first")
    common = _Common(
        accountant=accountant if first is None else AfterRelease(accountant, first.charge),
        law=sampling_law(options.get("sampling", "poisson")),
        delta=record_delta(options),
        num_rounds=num_rounds,
        sampling_rate=sampling_rate,
        training=training,
        sums_hidden=options.get("sums_hidden", True),
    )
    most = most_rounds(num_rounds, sampling_rate)
    if len(training.schedule) != most:
        raise PrivacyError(
            f"the schedule has {len(training.schedule)} rounds; a client takes part in {most}; give "
            "one number for each of these rounds"
        )
    check_disjoint(groups)
    shared = _shares_within_budgets(common, groups, options)
    if not common.is_noised:
        norm = math.inf
    else:
        budgeted = [each for shares in shared for each, _ in shares]
        norm = common.share_of_norm * contribution_norm(
            budgeted, require_count("most_records", options.get("most_records"))
        )
    records = tuple(_record_plan(common, shares) for shares in shared)
    return PrivacyPlan(
        groups=tuple(
            _group_plan(common, group, planned, shares[0][0].schedule, norm)
            for group, planned, shares in zip(groups, records, shared, strict=True)
        ),
        num_rounds=num_rounds,
        delta=common.delta,
        mechanism=RecordSums(sampling=common.law.name, works=(training.work,), one_sum=True, records=records),
        accountant=common.accountant.name,
        clipping_norm=training.clipping_norm,
        sampling_rate=float(sampling_rate),
        renyi_orders=common.accountant.renyi_orders,
        sums_hidden=common.sums_hidden,
        first=first,
    )


def _shares_within_budgets(common: _Common, groups: Sequence[Group], options: RecordOptions) -> list[Shares]:
    """Choose for every group of records its batch rate, noise, clipping norm and steps in each round."""
    record_budgets = options.get("record_budgets")
    parts = list(groups) if record_budgets is None else as_parts(groups, record_budgets)
    budgeted = within_budgets(common.accountant, parts, common.training, common.delta)
    if common.sampling_rate < 1 and any(len({*each.schedule} - {0}) != 1 for each in budgeted):
        raise PrivacyError(
            f"sampling_rate {common.sampling_rate:g} leaves open in which rounds a client takes part, so all "
            "its rounds must have equally many steps: use sampling_rate 1, or a schedule of one number"
        )
    if record_budgets is not None:
        return [[(each, share) for each, (_, share) in zip(budgeted, record_budgets, strict=True)]]
    if common.sampling_rate == 1.0:
        least = options.get("minimum_cohort", 1)
        active = [
            sum(group.size for each, group in zip(budgeted, groups, strict=True) if each.schedule[index])
            for index in range(len(budgeted[0].schedule))
        ]
        # The steps of rounds in which too few clients have any are dropped, if some round has enough.
        if max(active) >= least:
            kept = [count >= least for count in active]
            budgeted = [
                replace(
                    each,
                    schedule=tuple(steps * keep for steps, keep in zip(each.schedule, kept, strict=True)),
                )
                for each in budgeted
            ]
    return [[(each, 1.0)] for each in budgeted]


def largest_batch(batch_rate: float, most_records: int) -> float:
    """Return a number of records that a client's batch very rarely exceeds."""
    batch = batch_rate * most_records
    return min(most_records, batch + BATCH_TAIL * (math.sqrt(batch) + 1))


def contribution_norm(budgeted: Sequence[Budgeted], most_records: int) -> float:
    """Return the norm bound on what a client sends: C times a batch size that is very rarely exceeded.

    It has no part in the accounting: a projection moves two sums no further apart, and one record moves a
    sum by C at most.
    """
    return max(each.clipping_norm * largest_batch(each.batch_rate, most_records) for each in budgeted)


def _record_plan(common: _Common, shares: Shares) -> RecordPlan:
    """Make the plan for the records of one client group, from each budget and its share of the records."""
    first, accountant, delta, parties = shares[0][0], common.accountant, common.delta, common.training.parties
    noise, paid = first.noise_multiplier, sum(first.schedule) * parties
    if any((each.noise_multiplier, each.schedule) != (noise, first.schedule) for each, _ in shares):
        raise PrivacyError("records of one client share its noise and its steps: use heterogeneous=rate")
    return RecordPlan(
        groups=tuple(
            RecordGroup(
                epsilon=each.epsilon,
                epsilon_accounted=steps_epsilon(
                    accountant,
                    batch_rate=each.batch_rate,
                    noise_multiplier=noise,
                    num_steps=paid,
                    delta=delta,
                ),
                share=share,
                batch_rate=each.batch_rate,
            )
            for each, share in shares
        ),
        clipping_norm=first.clipping_norm * common.share_of_norm,
        noise_multiplier=noise,
        steps_allowed=min(
            steps_allowed(
                accountant,
                epsilon=each.epsilon,
                delta=delta,
                batch_rate=each.batch_rate,
                noise_multiplier=noise,
                at_least=paid,
            )
            // parties
            for each, _ in shares
        ),
        most_rounds=sum(steps > 0 for steps in first.schedule),
        parties=parties,
    )


def _group_plan(
    common: _Common, group: Group, records: RecordPlan, schedule: Sequence[int], norm: float
) -> GroupPlan:
    """Make the plan of a group of clients from the plan of their records."""
    rate = common.law.drawn_rate(common.sampling_rate, group.size)
    if rate != 1.0:
        schedule = (schedule[0],) * common.num_rounds
    stddev = records.sum_noise * records.clipping_norm if common.is_noised else 0.0
    accounted = records.groups[0].epsilon_accounted
    return GroupPlan(
        epsilon=records.groups[0].epsilon,
        epsilon_accounted=accounted,
        epsilon_against_server=accounted if common.sums_hidden or not common.is_noised else math.inf,
        participations_p99=records.most_rounds,
        clients=group.clients,
        ranges=tuple(
            RoundRange(
                num_rounds=len(list(alike)),
                sampling_rate=rate,
                clipping_norm=norm,
                noise_multiplier=stddev / norm,
                record_steps=steps,
            )
            for steps, alike in groupby(schedule)
        ),
    )
