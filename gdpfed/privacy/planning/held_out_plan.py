"""Plans that also pay for what a model gets right on records that clients hold out."""

from dataclasses import replace

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.gaussian import gaussian_epsilon, gaussian_sigma
from gdpfed.privacy.held_out import RECORD_MOVES, HeldOutCounts
from gdpfed.privacy.plan import PrivacyPlan

SLACK = 1e-9
"""The noise is larger by this share, so that rounding leaves epsilon within the budget."""


def with_held_out(plan: PrivacyPlan) -> PrivacyPlan:
    """Return the plan that pays for counts over records that are held out.

    Where records are protected, one sum follows the last round. A record that is held out pays for it alone,
    up to the least budget of the plan. Where clients are protected, the last round of the plan does not
    train: clients send shares of their records in place of updates, of the same norm, under the same noise,
    so the round costs what it would.

    Raises PrivacyError for mechanisms by which neither is proved.
    """
    if plan.unit == "record" and plan.mechanism.kind == "record_sums":
        if not plan.sums_hidden:
            raise PrivacyError(
                "run.evaluation=nodes promises that counts are seen in one sum, and secagg=off shows those "
                "of each client: use secagg=pairwise, or run.evaluation=server"
            )
        budget = min(
            each.epsilon for m in range(len(plan.groups)) for each in plan.mechanism.record_groups(m)
        )
        sigma = gaussian_sigma(budget, plan.delta) * (1 + SLACK)
        counts = HeldOutCounts(epsilon=gaussian_epsilon(sigma, plan.delta), noise_stddev=sigma * RECORD_MOVES)
        return replace(plan, held_out=counts)
    if plan.mechanism.kind == "sampled_sums" and plan.adaptive_clipping is None and plan.num_rounds > 1:
        works = (*plan.works, "held_out_rates")
        return replace(plan, mechanism=replace(plan.mechanism, works=works))
    raise PrivacyError(
        f"run.evaluation=nodes is proved for sums over sampled clients with clipping=fixed and two rounds or "
        f"more, and for steps on records, and this plan has the mechanism {plan.mechanism.kind}, "
        f"{plan.num_rounds} rounds: use run.evaluation=server"
    )
