"""A plan on the terminal, with what a run of it should be warned of."""

from rich.console import Console

from conf.schema import Config
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.report.plan_table import plan_table
from gdpfed.report.small_cohorts import small_cohort_lines


def show_plan(console: Console, config: Config, plan: PrivacyPlan) -> None:
    """Print the table, and below it a line for every group that will often be too small to be summed."""
    console.print(plan_table(plan, config.method.name))
    for line in small_cohort_lines(plan, config.secagg.minimum_cohort):
        console.print(line)
