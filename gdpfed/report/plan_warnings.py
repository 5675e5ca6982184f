"""Warnings about a plan, one line each: a large delta, cohorts that are often too small to be summed."""

from collections.abc import Iterator

from conf.schema import Config
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import default_delta
from gdpfed.privacy.sampling.cohorts import skipped_fractions
from gdpfed.report.mechanism_reports import report_of

TOLERATED_FRACTION = 0.05


def plan_warnings(plan: PrivacyPlan, config: Config) -> Iterator[str]:
    """Lines for a large delta, clients chosen by their data, sums that a twentieth of rounds go without."""
    minimum_cohort = config.secagg.minimum_cohort
    yield from large_delta_lines(plan)
    if plan.private:
        yield from chosen_by_data_lines(config)
        yield from report_of(plan).warnings(plan)
    skipped = skipped_fractions(plan, minimum_cohort)
    if plan.one_sum:
        if skipped.rounds > TOLERATED_FRACTION:
            expected = sum(group.expected_cohort_size for group in plan.groups)
            yield (
                f"with {expected:.1f} clients of all groups expected a round, {100 * skipped.rounds:.0f} % "
                f"of the cohorts are below secagg.minimum_cohort={minimum_cohort}; those rounds are charged "
                "and nothing is summed. Raise privacy.sampling_rate"
            )
        return
    for index, (group, fraction) in enumerate(zip(plan.groups, skipped.sums, strict=True)):
        if fraction > TOLERATED_FRACTION:
            yield (
                f"group {index}: with {group.expected_cohort_size:.1f} clients expected a round, "
                f"{100 * fraction:.0f} % of its cohorts are below secagg.minimum_cohort={minimum_cohort}; "
                "those rounds are charged and go without it. Raise privacy.sampling_rate or "
                "privacy.min_sampling_rate"
            )
    if len(plan.groups) > 1 and skipped.rounds > TOLERATED_FRACTION:
        yield f"{100 * skipped.rounds:.0f} % of the rounds go without any sum, and are charged all the same"


def chosen_by_data_lines(config: Config) -> Iterator[str]:
    """One line where what clients hold decides which of them there are, which no noise hides."""
    least = config.dataset.min_characters
    if least is not None:
        yield (
            f"which clients there are follows from their data: roles with fewer than {least} characters "
            "(dataset.min_characters) are left out, with fewer clients than roles those that say least, and "
            "no epsilon covers that"
        )


def large_delta_lines(plan: PrivacyPlan) -> Iterator[str]:
    """One line for a delta above the default for so many clients; delta is the part that nothing bounds."""
    usual = default_delta(plan.num_clients)
    if plan.private and plan.delta > usual:
        yield (
            f"delta {plan.delta:.3g} is large for {plan.num_clients} clients: up to that probability a "
            f"client may be exposed altogether, whatever its epsilon. The default is {usual:.3g}: leave "
            "privacy.delta out, or choose a smaller one"
        )
