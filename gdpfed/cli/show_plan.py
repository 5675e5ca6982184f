"""Print a plan on the terminal, with warnings about groups that are too small."""

from rich.console import Console

from conf.schema import Config
from gdpfed.methods.base import Method
from gdpfed.report.plan_table import plan_table
from gdpfed.report.small_cohorts import small_cohort_lines


def show_plan(console: Console, config: Config, method: Method) -> None:
    """Print the table, and below it a line for every group that will often be too small to be summed."""
    console.print(plan_table(method))
    for line in small_cohort_lines(method.plan, config.secagg.minimum_cohort):
        console.print(line)
