"""Building a plan: from groups and budgets to noise, weights and what is guaranteed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import Accountant, RenyiOrders
from gdpfed.privacy.accountants.calibration import calibrate_noise_multiplier
from gdpfed.privacy.accountants.noise_law import (
    NoiseLaw,
    accountant_for,
    refuse_unaccountable,
    server_epsilon,
)
from gdpfed.privacy.accountants.server_view import participations_quantile
from gdpfed.privacy.events import Adjacency, SampledGaussian, Sampling, fixed_cohort_size
from gdpfed.privacy.plan import GroupPlan, PrivacyPlan, Reweighting
from gdpfed.privacy.planning.groups import Group, check_disjoint, default_delta
from gdpfed.privacy.validation import (
    require_choice,
    require_count,
    require_delta,
    require_length,
    require_number,
    require_positive,
    require_rate,
)

__all__ = [
    "GroupPlan",
    "PrivacyPlan",
    "Reweighting",
    "group_weights",
    "make_plan",
    "noise_magnitude",
    "plain_plan",
]


@dataclass(frozen=True, kw_only=True)
class _Terms:
    """What all groups of a private plan have in common."""

    accountant: Accountant
    noise: NoiseLaw
    sampling: Sampling
    adjacency: Adjacency
    num_rounds: int
    delta: float
    sums_hidden: bool


def make_plan(
    *,
    groups: Sequence[Group],
    num_rounds: int,
    sampling_rate: float,
    clipping_norm: float,
    delta: float | None = None,
    accountant: str = "pld",
    renyi_orders: RenyiOrders = "fine",
    noise: NoiseLaw = "gaussian",
    sampling: Sampling = "poisson",
    adjacency: Adjacency = "zero_out",
    group_sampling_rates: Sequence[float] | None = None,
    reweighting: Reweighting = "uniform",
    keep_fractions: Sequence[float] | None = None,
    group_clipping_norms: Sequence[float] | None = None,
    one_sum: bool = False,
    sums_hidden: bool = True,
) -> PrivacyPlan:
    """Return the plan that calibrates every group's noise to its own budget.

    `delta` None means n**-1.1; `group_sampling_rates` None means `sampling_rate` in each group,
    and given ones are used as they are; `keep_fractions` None keeps everything;
    `group_clipping_norms` None means `clipping_norm` in each group. Under fixed_size sampling a
    group's rate becomes that of the whole cohort it draws. With `one_sum` all cohorts are one sum
    under one noise, the largest sigma_m C_m that a group needs. `sums_hidden` False says that the
    server sees single updates, against which no epsilon holds.

    Raises PrivacyError for input that is out of range, and where no valid accounting exists.
    """
    delta = _checked(groups, num_rounds, delta)
    rates = _drawn_rates(groups, sampling_rate, sampling, group_sampling_rates)
    weights = _weights(groups, rates, sampling_rate, reweighting)
    terms = _Terms(
        accountant=accountant_for(noise, accountant, renyi_orders),
        noise=noise,
        sampling=sampling,
        adjacency=adjacency,
        num_rounds=num_rounds,
        delta=delta,
        sums_hidden=sums_hidden,
    )
    clipping_norm = require_positive("clipping_norm", clipping_norm)
    norms = _checked_clipping_norms(group_clipping_norms, clipping_norm, len(groups))
    keep = _checked_keep_fractions(keep_fractions, len(groups))
    if one_sum:
        _check_one_sum(reweighting, keep)
    sigmas = _calibrated(terms, groups, rates, norms, one_sum)
    planned = tuple(
        map(lambda *each: _private_group(terms, *each), groups, rates, norms, sigmas, keep, weights)
    )
    return PrivacyPlan(
        groups=planned,
        num_rounds=num_rounds,
        delta=delta,
        accountant=terms.accountant.name,
        sampling=sampling,
        adjacency=adjacency,
        clipping_norm=clipping_norm,
        noise_magnitude=noise_magnitude(planned, reweighting),
        sampling_rate=float(sampling_rate),
        reweighting=reweighting,
        renyi_orders=terms.accountant.renyi_orders,
        noise=noise,
        sums_hidden=sums_hidden,
        one_sum=one_sum,
    )


def plain_plan(
    *,
    groups: Sequence[Group],
    num_rounds: int,
    sampling_rate: float,
    delta: float | None = None,
    sampling: Sampling = "poisson",
) -> PrivacyPlan:
    """Return the plan of training without privacy (plain FedAvg): no clipping bound, no noise.

    Nothing is guaranteed, so every epsilon is inf, the groups' budgets included.
    """
    delta = _checked(groups, num_rounds, delta)
    rates = _drawn_rates(groups, sampling_rate, sampling, None)
    weights = _weights(groups, rates, sampling_rate, "uniform")
    planned = (
        GroupPlan(
            epsilon=math.inf,
            epsilon_accounted=math.inf,
            epsilon_against_server=math.inf,
            participations_p99=participations_quantile(num_rounds, rate),
            clients=group.clients,
            sampling_rate=rate,
            expected_cohort_size=rate * group.size,
            clipping_norm=math.inf,
            noise_multiplier=0.0,
            keep_fraction=1.0,
            group_weight=weight,
        )
        for group, rate, weight in zip(groups, rates, weights, strict=True)
    )
    return PrivacyPlan(
        groups=tuple(planned),
        num_rounds=num_rounds,
        delta=delta,
        accountant="none",
        sampling=sampling,
        adjacency="zero_out",
        clipping_norm=math.inf,
        noise_magnitude=0.0,
        sampling_rate=float(sampling_rate),
        reweighting="uniform",
        private=False,
    )


def group_weights(
    expected_cohort_sizes: Sequence[float], mean_cohort_size: float, reweighting: Reweighting
) -> tuple[float, ...]:
    """Return omega_m, the weight of group m's summed update.

    omega_m = 1 / (q n) for `uniform`, omega_m = r_m^2 / (q n sum_j r_j^2) for
    `squared_participation`, with r_m = `expected_cohort_sizes` and q n = `mean_cohort_size`.
    """
    require_choice("reweighting", reweighting, get_args(Reweighting))
    if reweighting == "uniform":
        return (1 / mean_cohort_size,) * len(expected_cohort_sizes)
    squares = math.fsum(size**2 for size in expected_cohort_sizes)
    return tuple(size**2 / (mean_cohort_size * squares) for size in expected_cohort_sizes)


def noise_magnitude(groups: Sequence[GroupPlan], reweighting: Reweighting) -> float:
    """Return Lambda = (1 / M) sum_m (k_m / d) v_m C_m^2 sigma_m^2, per parameter (paper, Table 5).

    v_m = 1 under `uniform`, v_m = r_m^2 / sum_j r_j^2 under `squared_participation`. The paper has
    C_m = C. Where all groups are one sum, every term is the variance of its noise, and so is Lambda,
    which is how the paper counts DP-FedAvg.
    """
    squares = math.fsum(group.expected_cohort_size**2 for group in groups)
    total = math.fsum(
        group.keep_fraction
        * (1.0 if reweighting == "uniform" else group.expected_cohort_size**2 / squares)
        * group.noise_stddev**2
        for group in groups
    )
    return total / len(groups)


def _calibrated(
    terms: _Terms,
    groups: Sequence[Group],
    rates: Sequence[float],
    clipping_norms: Sequence[float],
    one_sum: bool,
) -> tuple[float, ...]:
    """Return sigma_m of every group; where they share one noise, what it is in units of their C_m."""
    sigmas = [
        _calibrated_group(terms, group, rate, norm)
        for group, rate, norm in zip(groups, rates, clipping_norms, strict=True)
    ]
    if not one_sum:
        return tuple(sigmas)
    stddev = max(sigma * norm for sigma, norm in zip(sigmas, clipping_norms, strict=True))
    return tuple(max(sigma, stddev / norm) for sigma, norm in zip(sigmas, clipping_norms, strict=True))


def _calibrated_group(terms: _Terms, group: Group, rate: float, clipping_norm: float) -> float:
    refuse_unaccountable(terms.noise, group.epsilon)
    return calibrate_noise_multiplier(
        terms.accountant,
        sampling=terms.sampling,
        sampling_rate=rate,
        group_size=group.size,
        target_epsilon=group.epsilon,
        num_rounds=terms.num_rounds,
        delta=terms.delta,
        adjacency=terms.adjacency,
        clipping_norm=clipping_norm,
    )


def _private_group(
    terms: _Terms,
    group: Group,
    rate: float,
    clipping_norm: float,
    sigma: float,
    keep_fraction: float,
    weight: float,
) -> GroupPlan:
    mechanism = SampledGaussian(
        sampling=terms.sampling,
        sampling_rate=rate,
        group_size=group.size,
        noise_stddev=sigma * clipping_norm,
        clipping_norm=clipping_norm,
        adjacency=terms.adjacency,
    )
    participations = participations_quantile(terms.num_rounds, rate)
    against_server = server_epsilon(terms.noise, sigma, participations, terms.delta, terms.adjacency)
    return GroupPlan(
        epsilon=group.epsilon,
        epsilon_accounted=terms.accountant.epsilon(mechanism, terms.num_rounds, terms.delta),
        epsilon_against_server=against_server if terms.sums_hidden else math.inf,
        participations_p99=participations,
        clients=group.clients,
        sampling_rate=rate,
        expected_cohort_size=rate * group.size,
        clipping_norm=clipping_norm,
        noise_multiplier=sigma,
        keep_fraction=keep_fraction,
        group_weight=weight,
    )


def _checked(groups: Sequence[Group], num_rounds: int, delta: float | None) -> float:
    """Check what every plan has, and return its delta."""
    if not groups:
        raise PrivacyError("groups is empty; give at least one group")
    check_disjoint(groups)
    require_count("num_rounds", num_rounds)
    return require_delta(default_delta(_num_clients(groups)) if delta is None else delta)


def _num_clients(groups: Sequence[Group]) -> int:
    return sum(group.size for group in groups)


def _drawn_rates(
    groups: Sequence[Group],
    sampling_rate: float,
    sampling: Sampling,
    group_sampling_rates: Sequence[float] | None,
) -> tuple[float, ...]:
    """Return q_m as the sampler draws it: a whole cohort's under fixed_size sampling."""
    require_rate("sampling_rate", sampling_rate)
    require_choice("sampling", sampling, get_args(Sampling))
    if group_sampling_rates is None:
        group_sampling_rates = (sampling_rate,) * len(groups)
    require_length("group_sampling_rates", group_sampling_rates, len(groups))
    rates = tuple(require_rate("a group's sampling rate", rate) for rate in group_sampling_rates)
    if sampling == "poisson":
        return rates
    sizes = [group.size for group in groups]
    return tuple(fixed_cohort_size(rate, size) / size for rate, size in zip(rates, sizes, strict=True))


def _weights(
    groups: Sequence[Group],
    rates: Sequence[float],
    sampling_rate: float,
    reweighting: Reweighting,
) -> tuple[float, ...]:
    expected = [rate * group.size for rate, group in zip(rates, groups, strict=True)]
    return group_weights(expected, sampling_rate * _num_clients(groups), reweighting)


def _check_one_sum(reweighting: Reweighting, keep_fractions: Sequence[float]) -> None:
    """Refuse what would need the groups' sums one by one."""
    if reweighting != "uniform" or len(set(keep_fractions)) > 1:
        raise PrivacyError(
            f"reweighting {reweighting} and keep_fractions {tuple(keep_fractions)} treat groups apart; "
            "one sum of all groups has one weight, uniform, and one keep_fraction"
        )


def _checked_clipping_norms(
    clipping_norms: Sequence[float] | None, clipping_norm: float, num_groups: int
) -> tuple[float, ...]:
    if clipping_norms is None:
        return (clipping_norm,) * num_groups
    require_length("group_clipping_norms", clipping_norms, num_groups)
    return tuple(require_positive("a group's clipping_norm", norm) for norm in clipping_norms)


def _checked_keep_fractions(keep_fractions: Sequence[float] | None, num_groups: int) -> tuple[float, ...]:
    if keep_fractions is None:
        return (1.0,) * num_groups
    require_length("keep_fractions", keep_fractions, num_groups)
    for fraction in keep_fractions:
        if not 0.0 < require_number("keep_fraction", fraction) <= 1.0:
            raise PrivacyError(f"keep_fraction is {fraction}; choose it within (0, 1]")
    return tuple(float(fraction) for fraction in keep_fractions)
