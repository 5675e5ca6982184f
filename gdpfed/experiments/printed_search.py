"""The noise that the paper prints: a right accountant behind a coarse search."""

from dataclasses import replace

from gdpfed.privacy.accountants.accountant import make_accountant
from gdpfed.privacy.plan import GroupPlan, PrivacyPlan
from gdpfed.privacy.planning.make_plan import noise_magnitude

LARGEST_NOISE_MULTIPLIER = 20.0
TOLERANCE = 0.01


def as_printed(plan: PrivacyPlan) -> PrivacyPlan:
    """The plan with every sigma_m found by halving (0, 20] until epsilon is within 0.01 of the budget.

    Opacus's ``get_noise_multiplier`` searches like this. At a budget of 0.5 its stop is 2 % of the budget:
    SVHN needs sigma^2 = 12.94 and the search, like the paper, says 13.20. It ends on the safe side, so the
    plan holds.
    """
    groups = tuple(_group_as_printed(plan, index) for index in range(len(plan.groups)))
    magnitude = noise_magnitude(groups, plan.reweighting)
    return replace(plan, groups=groups, noise_magnitude=magnitude)


def _group_as_printed(plan: PrivacyPlan, index: int) -> GroupPlan:
    accountant = make_accountant(plan.accountant, plan.renyi_orders)
    mechanism, budget = plan.mechanism(index), plan.groups[index].epsilon

    def epsilon(sigma: float) -> float:
        noised = replace(mechanism, noise_stddev=sigma * mechanism.clipping_norm)
        return accountant.epsilon(noised, plan.num_rounds, plan.delta)

    low, high = 0.0, LARGEST_NOISE_MULTIPLIER
    spent = epsilon(high)
    while spent > budget:
        high *= 2
        spent = epsilon(high)
    while budget - spent > TOLERANCE:
        middle = (low + high) / 2
        at_middle = epsilon(middle)
        if at_middle < budget:
            high, spent = middle, at_middle
        else:
            low = middle
    return replace(plan.groups[index], noise_multiplier=high, epsilon_accounted=spent)
