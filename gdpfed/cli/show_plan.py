"""Print a plan on the terminal, with a warning for whatever is weak in it."""

from rich.console import Console

from conf.schema import Config
from gdpfed.methods.base import Method
from gdpfed.report.plan_table import plan_table
from gdpfed.report.plan_warnings import plan_warnings


def show_plan(console: Console, config: Config, method: Method) -> None:
    """Print the table, and below it a line for everything that is weak in the plan."""
    console.print(plan_table(method))
    for line in plan_warnings(method.plan, config.secagg.minimum_cohort):
        console.print(line)
