"""Makes privacy plans for sums over sampled clients: computes the noise that meets each group's budget."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import Accountant, accountant_for
from gdpfed.privacy.accountants.calibration import calibrate_noise_multiplier, calibrate_scale
from gdpfed.privacy.accountants.composition import AfterRelease, compose, compose_against_server
from gdpfed.privacy.accountants.discrete import refuse_unaccountable
from gdpfed.privacy.accountants.gaussian import participations_quantile, server_epsilon
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import Adjacency, Gaussian, NoiseLaw, SampledGaussian, Sampling
from gdpfed.privacy.group_plan import GroupPlan, RoundRange
from gdpfed.privacy.mechanisms.sampled.mechanism import SampledSums
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import Group, check_disjoint, default_delta
from gdpfed.privacy.planning.plan_options import RelativeRounds, SumOptions
from gdpfed.privacy.sampling.laws import SamplingLaw, sampling_law
from gdpfed.privacy.sums_once import SumOnce
from gdpfed.privacy.validation import (
    require_count,
    require_delta,
    require_length,
    require_positive,
    require_rate,
)


@dataclass(frozen=True, kw_only=True)
class _Common:
    """Settings that all groups in a plan with sampled clients share: rounds, delta, sampling, accountant."""

    accountant: Accountant
    noise: NoiseLaw
    law: SamplingLaw
    adjacency: Adjacency
    delta: float
    sums_hidden: bool
    sums_per_round: int
    schedule: tuple[RelativeRounds, ...]
    first: SumOnce | None

    @property
    def num_rounds(self) -> int:
        return sum(rounds.num_rounds for rounds in self.schedule)

    @property
    def paid_first(self) -> list[Charge]:
        """The privacy cost of the one-time sum before the first round, if there is one."""
        return [] if self.first is None else [self.first.charge]

    @property
    def is_constant(self) -> bool:
        """Whether all rounds have the same sampling rate, clipping norm and noise.

        Also require that a client is in only one sum of a round.
        """
        return self.sums_per_round == 1 and all(
            (each.sampling_rate, each.clipping_norm, each.noise_multiplier) == (1.0, 1.0, 1.0)
            for each in self.schedule
        )

    def ranges(self, group: Group, rate: float, norm: float, sigma: float) -> tuple[RoundRange, ...]:
        """Return a group's sampling rate, norm and noise for each range of rounds with equal values."""
        if self.is_constant:
            return (_round_range(self.num_rounds, rate, norm, sigma),)
        return tuple(
            _round_range(
                each.num_rounds,
                self.law.drawn_rate(require_rate("a round's rate", rate * each.sampling_rate), group.size),
                norm * each.clipping_norm,
                sigma * each.noise_multiplier,
            )
            for each in self.schedule
        )

    def charges(self, group: Group, ranges: Sequence[RoundRange]) -> list[Charge]:
        return [
            Charge(
                event=self.law.event(
                    rate=round_range.sampling_rate,
                    group_size=group.size,
                    noise_stddev=round_range.noise_stddev,
                    clipping_norm=round_range.clipping_norm,
                    adjacency=self.adjacency,
                    noise=self.noise,
                    num_sums=self.sums_per_round,
                ),
                count=round_range.num_rounds,
            )
            for round_range in ranges
        ]

    def epsilon(self, group: Group, ranges: Sequence[RoundRange]) -> float:
        charges = [*self.paid_first, *self.charges(group, ranges)]
        return compose(charges, self.delta, schedule="fixed", accountant=self.accountant).epsilon

    def epsilon_against_server(self, sigma: float, sums: int) -> float:
        """Return epsilon against the server for a client in `sums` sums, including any sum before round 1."""
        if self.first is None:
            return server_epsilon(self.noise, sigma, sums, self.delta, self.adjacency)
        event = Gaussian(noise_stddev=sigma, clipping_norm=1.0, adjacency=self.adjacency)
        turns = [Charge(event=event, count=sums)] if sums else []
        return compose_against_server([*self.paid_first, *turns], self.delta)


def make_plan(
    *,
    groups: Sequence[Group],
    num_rounds: int,
    sampling_rate: float,
    clipping_norm: float,
    **options: Unpack[SumOptions],
) -> PrivacyPlan:
    """Make a privacy plan with sampled clients, with each group's noise calibrated to its budget.

    Under fixed_size sampling a group's rate becomes that of the whole cohort it draws. Raises PrivacyError
    for input that is out of range, and where no valid accounting exists.
    """
    common = _common_settings(groups, num_rounds, options)
    rates = _drawn_rates(groups, sampling_rate, common.law, options.get("group_sampling_rates"))
    clipping_norm = require_positive("clipping_norm", clipping_norm)
    norms = options.get("group_clipping_norms")
    if norms is None:
        norms = (clipping_norm,) * len(groups)
    else:
        require_length("group_clipping_norms", norms, len(groups))
        norms = tuple(require_positive("a group's clipping_norm", norm) for norm in norms)
    sigmas = [
        _calibrated_noise(common, group, rate, norm)
        for group, rate, norm in zip(groups, rates, norms, strict=True)
    ]
    # If all groups share one sum, all get the largest noise.
    one_sum = options.get("one_sum", False)
    if one_sum:
        stddev = max(sigma * norm for sigma, norm in zip(sigmas, norms, strict=True))
        sigmas = [max(sigma, stddev / norm) for sigma, norm in zip(sigmas, norms, strict=True)]
    planned = []
    for group, rate, norm, sigma in zip(groups, rates, norms, sigmas, strict=True):
        ranges = common.ranges(group, rate, norm, sigma)
        # Above the largest rate nobody takes part more often.
        largest = max(round_range.sampling_rate for round_range in ranges)
        participations = participations_quantile(common.num_rounds, largest)
        least = min(round_range.noise_multiplier for round_range in ranges)
        against_server = common.epsilon_against_server(least, participations * common.sums_per_round)
        planned.append(
            GroupPlan(
                epsilon=group.epsilon,
                epsilon_accounted=common.epsilon(group, ranges),
                epsilon_against_server=against_server if common.sums_hidden else math.inf,
                participations_p99=participations,
                clients=group.clients,
                ranges=ranges,
            )
        )
    return PrivacyPlan(
        groups=tuple(planned),
        num_rounds=num_rounds,
        delta=common.delta,
        mechanism=SampledSums(
            sampling=common.law.name,
            adjacency=common.adjacency,
            noise=common.noise,
            sums_per_round=common.sums_per_round,
            one_sum=one_sum,
        ),
        accountant=common.accountant.name,
        clipping_norm=clipping_norm,
        sampling_rate=float(sampling_rate),
        renyi_orders=common.accountant.renyi_orders,
        sums_hidden=common.sums_hidden,
        first=common.first,
    )


def _common_settings(groups: Sequence[Group], num_rounds: int, options: SumOptions) -> _Common:
    noise, first = options.get("noise", "gaussian"), options.get("first")
    accountant = accountant_for(noise, options.get("accountant", "pld"), options.get("renyi_orders", "fine"))
    delta = _checked(groups, num_rounds, options.get("delta"))
    law = sampling_law(options.get("sampling", "poisson"))
    sums_per_round = require_count("sums_per_round", options.get("sums_per_round", 1))
    schedule = options.get("schedule")
    if schedule is None:
        schedule = (RelativeRounds(num_rounds=num_rounds),)
    total = sum(rounds.num_rounds for rounds in schedule)
    if total != num_rounds:
        raise PrivacyError(f"the schedule has {total} rounds for num_rounds {num_rounds}; make them equal")
    return _Common(
        delta=delta,
        accountant=accountant if first is None else AfterRelease(accountant, first.charge),
        first=first,
        noise=noise,
        law=law,
        adjacency=options.get("adjacency", "zero_out"),
        sums_hidden=options.get("sums_hidden", True),
        sums_per_round=sums_per_round,
        schedule=tuple(schedule),
    )


def plain_plan(
    *,
    groups: Sequence[Group],
    num_rounds: int,
    sampling_rate: float,
    delta: float | None = None,
    sampling: Sampling = "poisson",
    group_sampling_rates: Sequence[float] | None = None,
    sums_per_round: int = 1,
) -> PrivacyPlan:
    """Make the plan of training without privacy (plain FedAvg): no clipping, no noise, every epsilon inf.

    Nothing is guaranteed, so every epsilon is inf, the groups' budgets included.
    """
    delta = _checked(groups, num_rounds, delta)
    rates = _drawn_rates(groups, sampling_rate, sampling_law(sampling), group_sampling_rates)
    planned = (
        GroupPlan(
            epsilon=math.inf,
            epsilon_accounted=math.inf,
            epsilon_against_server=math.inf,
            participations_p99=participations_quantile(num_rounds, rate),
            clients=group.clients,
            ranges=(_round_range(num_rounds, rate, math.inf, 0.0),),
        )
        for group, rate in zip(groups, rates, strict=True)
    )
    return PrivacyPlan(
        groups=tuple(planned),
        num_rounds=num_rounds,
        delta=delta,
        mechanism=SampledSums(
            sampling=sampling, sums_per_round=require_count("sums_per_round", sums_per_round)
        ),
        accountant="none",
        clipping_norm=math.inf,
        sampling_rate=float(sampling_rate),
        private=False,
    )


def _round_range(num_rounds: int, rate: float, clipping_norm: float, sigma: float) -> RoundRange:
    return RoundRange(
        num_rounds=num_rounds, sampling_rate=rate, clipping_norm=clipping_norm, noise_multiplier=sigma
    )


def _calibrated_noise(common: _Common, group: Group, rate: float, clipping_norm: float) -> float:
    """Calibrate one group's noise multiplier, with a second search if rounds differ in their settings."""
    refuse_unaccountable(common.noise, group.epsilon)
    sigma = calibrate_noise_multiplier(
        common.accountant,
        SampledGaussian(
            sampling=common.law.name,
            sampling_rate=rate,
            group_size=group.size,
            noise_stddev=clipping_norm,
            clipping_norm=clipping_norm,
            adjacency=common.adjacency,
        ),
        target_epsilon=group.epsilon,
        num_rounds=common.num_rounds,
        delta=common.delta,
    )
    if common.is_constant:
        return sigma
    return calibrate_scale(
        lambda scale: common.epsilon(group, common.ranges(group, rate, clipping_norm, scale)),
        target_epsilon=group.epsilon,
        guess=sigma,
    )


def _checked(groups: Sequence[Group], num_rounds: int, delta: float | None) -> float:
    """Check the numbers that every plan needs; return delta or, if delta is None, the default delta."""
    if not groups:
        raise PrivacyError("groups is empty; give at least one group")
    for group in groups:
        if not isinstance(group, Group):
            raise PrivacyError(f"groups has {group!r}; give each as gdpfed.Group(epsilon, clients)")
    check_disjoint(groups)
    require_count("num_rounds", num_rounds)
    return require_delta(default_delta(sum(group.size for group in groups)) if delta is None else delta)


def _drawn_rates(
    groups: Sequence[Group],
    sampling_rate: float,
    law: SamplingLaw,
    group_sampling_rates: Sequence[float] | None,
) -> tuple[float, ...]:
    """Return each group's real sampling rate; fixed_size sampling draws a whole number of clients."""
    require_rate("sampling_rate", sampling_rate)
    if group_sampling_rates is None:
        group_sampling_rates = (sampling_rate,) * len(groups)
    require_length("group_sampling_rates", group_sampling_rates, len(groups))
    rates = [require_rate("a group's sampling rate", rate) for rate in group_sampling_rates]
    return tuple(law.drawn_rate(rate, group.size) for rate, group in zip(rates, groups, strict=True))
