"""Makes plans with random allocation: the blocks of rounds, and the noise that meets each group's budget."""

import math
from collections.abc import Sequence

from gdpfed.privacy.accountants.accountant import make_accountant
from gdpfed.privacy.accountants.calibration import calibrate_scale
from gdpfed.privacy.accountants.composition import compose
from gdpfed.privacy.accountants.gaussian import gaussian_sigma, server_epsilon
from gdpfed.privacy.group_plan import GroupPlan, RoundRange
from gdpfed.privacy.mechanisms.allocated.mechanism import AllocatedSums, charges_of_blocks
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import Group, check_disjoint
from gdpfed.privacy.validation import (
    require_count,
    require_delta,
    require_length,
    require_positive,
    require_rate,
)


def make_allocated_plan(
    *,
    groups: Sequence[Group],
    num_rounds: int,
    sampling_rate: float,
    clipping_norm: float,
    delta: float,
    group_sampling_rates: Sequence[float],
    group_clipping_norms: Sequence[float] | None = None,
    one_sum: bool = False,
    sums_hidden: bool = True,
) -> PrivacyPlan:
    """Make a plan with random allocation: a client of group m is in q_m T rounds (rounded, at least 1).

    Raises PrivacyError for input that is out of range, and for budgets that no noise can reach.
    """
    check_disjoint(groups)
    require_count("num_rounds", num_rounds)
    require_delta(delta)
    norm = require_positive("clipping_norm", clipping_norm)
    require_length("group_sampling_rates", group_sampling_rates, len(groups))
    norms = (norm,) * len(groups) if group_clipping_norms is None else tuple(group_clipping_norms)
    require_length("group_clipping_norms", norms, len(groups))
    turns = [
        max(1, round(require_rate("a group's sampling rate", rate) * num_rounds))
        for rate in group_sampling_rates
    ]
    sigmas = [
        _calibrated_noise(group.epsilon, delta, num_rounds, times)
        for group, times in zip(groups, turns, strict=True)
    ]
    if one_sum:
        stddev = max(sigma * group_norm for sigma, group_norm in zip(sigmas, norms, strict=True))
        sigmas = [max(sigma, stddev / group_norm) for sigma, group_norm in zip(sigmas, norms, strict=True)]
    planned = []
    for group, times, group_norm, sigma in zip(groups, turns, norms, sigmas, strict=True):
        ranges = blocks_of(num_rounds, times, group_norm, sigma)
        planned.append(
            GroupPlan(
                epsilon=group.epsilon,
                epsilon_accounted=_epsilon(ranges, delta),
                epsilon_against_server=server_epsilon("gaussian", sigma, times, delta, "zero_out")
                if sums_hidden
                else math.inf,
                participations_p99=times,
                clients=group.clients,
                ranges=ranges,
            )
        )
    return PrivacyPlan(
        groups=tuple(planned),
        num_rounds=num_rounds,
        delta=delta,
        mechanism=AllocatedSums(sampling="allocation", one_sum=one_sum),
        accountant="pld",
        clipping_norm=norm,
        sampling_rate=float(sampling_rate),
        sums_hidden=sums_hidden,
    )


def blocks_of(num_rounds: int, turns: int, norm: float, sigma: float) -> tuple[RoundRange, ...]:
    """Divide `num_rounds` rounds into `turns` blocks, whose lengths differ by at most one round."""
    length, longer = divmod(num_rounds, turns)
    return tuple(
        RoundRange(
            num_rounds=number * rounds,
            sampling_rate=1 / rounds,
            clipping_norm=norm,
            noise_multiplier=sigma,
        )
        for number, rounds in ((longer, length + 1), (turns - longer, length))
        if number
    )


def _epsilon(ranges: tuple[RoundRange, ...], delta: float) -> float:
    accountant = make_accountant("pld")
    return compose(charges_of_blocks(ranges), delta, schedule="fixed", accountant=accountant).epsilon


def _calibrated_noise(target: float, delta: float, num_rounds: int, turns: int) -> float:
    """Return sigma, the noise multiplier with which a group's blocks of rounds meet its budget."""
    plain = blocks_of(num_rounds, turns, 1.0, 1.0)
    chances = math.fsum(each.num_rounds * each.sampling_rate**2 for each in plain)
    mu = 1 / gaussian_sigma(target, delta)
    return calibrate_scale(
        lambda sigma: _epsilon(blocks_of(num_rounds, turns, 1.0, sigma), delta),
        target_epsilon=target,
        guess=1 / math.sqrt(math.log1p(mu**2 / chances)),
    )
