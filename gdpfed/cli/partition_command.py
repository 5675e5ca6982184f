"""``gdpfed partition``: show how many examples of each class every client holds."""

import argparse
from pathlib import Path

from gdpfed.cli.command import Command, add_overrides, check_picture, cli_path, make_console

EXAMPLES = """\
gdpfed partition                        the bundled digits, as a table
gdpfed partition dataset.num_clients=60 --output labels.png
gdpfed partition dataset.partition=dirichlet dataset.dirichlet_alpha=0.3"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_overrides(parser, "dataset=fmnist")
    parser.add_argument(
        "--output", type=cli_path, metavar="FILE.png", help="also draw the labels of each client"
    )


def _execute(options: argparse.Namespace) -> int:
    # Imported here, since torch takes seconds and the other commands leave it to the run's own processes.
    import gdpfed.methods  # noqa: F401 - hands the methods to conf
    from conf.load import load
    from gdpfed.clients.configured import task_of
    from gdpfed.learning.data_warnings import data_warnings
    from gdpfed.report.partition import draw_partition, holdings, parties_table, partition_table

    picture: Path | None = options.output
    if picture is not None:
        check_picture(picture)
    task = task_of(load(options.overrides))
    held = holdings(task)
    console = make_console()
    console.print(partition_table(held))
    if (by_party := parties_table(held)) is not None:
        console.print(by_party)
    for line in data_warnings(task):
        console.print(line)
    if picture is not None:
        draw_partition(held, picture)
        console.print(f"The picture is in {picture}", soft_wrap=True)
    return 0


COMMAND = Command(
    name="partition",
    help="show which client holds how much of what",
    description="Share out a data set as a run would, and show what the clients hold.",
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
