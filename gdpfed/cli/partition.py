"""``gdpfed partition``: show how many examples of which class each client holds."""

import argparse
from pathlib import Path

from conf.load import load
from gdpfed.cli.command import Command, add_overrides, make_console
from gdpfed.errors import ConfigError

EXAMPLES = """\
gdpfed partition                                  the bundled digits, as a table
gdpfed partition dataset.partition=dirichlet dataset.dirichlet_alpha=0.3 --output labels.png"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_overrides(parser, "dataset=fmnist")
    parser.add_argument("--output", type=Path, metavar="FILE.png", help="also draw the labels of each client")


def _execute(options: argparse.Namespace) -> int:
    # Imported here, since torch takes seconds and the other commands leave it to the run's own processes.
    from gdpfed.report.partition import draw_partition, holdings, partition_table
    from gdpfed.rounds.run import task_of

    picture: Path | None = options.output
    if picture is not None and (picture.suffix != ".png" or not picture.absolute().parent.is_dir()):
        raise ConfigError(f"--output={picture} must be a .png file in a directory that exists")
    held = holdings(task_of(load(options.overrides)))
    console = make_console()
    console.print(partition_table(held))
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
