"""Groups that are often too small to be summed."""

from collections.abc import Iterator

from gdpfed.privacy.plan import PrivacyPlan

TOLERATED_FRACTION = 0.05


def small_cohort_lines(plan: PrivacyPlan, minimum_cohort: int) -> Iterator[str]:
    """One line for every group whose cohort is below the minimum in more than a twentieth of rounds.

    Such a cohort is not summed, and charged all the same: it is drawn, and that it was small is seen.
    """
    if plan.one_sum:
        return
    for index, group in enumerate(plan.groups):
        fraction = plan.law.fraction_below(minimum_cohort, group.sampling_rate, len(group.clients))
        if fraction > TOLERATED_FRACTION:
            yield (
                f"group {index}: with {group.expected_cohort_size:.1f} clients expected a round, "
                f"{100 * fraction:.0f} % of its cohorts are below secagg.minimum_cohort={minimum_cohort}; "
                "those rounds are charged and go without it. Raise privacy.sampling_rate or "
                "privacy.min_sampling_rate"
            )
