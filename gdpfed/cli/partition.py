"""``gdpfed partition``: show how many examples of which class each client holds."""

import argparse
import os
from pathlib import Path

from gdpfed.cli.command import Command, add_overrides, make_console, user_path
from gdpfed.errors import ConfigError

EXAMPLES = """\
gdpfed partition                        the bundled digits, as a table
gdpfed partition dataset.num_clients=60 --output labels.png
gdpfed partition dataset.partition=dirichlet dataset.dirichlet_alpha=0.3"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_overrides(parser, "dataset=fmnist")
    parser.add_argument(
        "--output", type=user_path, metavar="FILE.png", help="also draw the labels of each client"
    )


def _execute(options: argparse.Namespace) -> int:
    # Imported here, since torch takes seconds and the other commands leave it to the run's own processes.
    from conf.load import load
    from gdpfed.clients.configured import task_of
    from gdpfed.learning.weak_data import data_warnings
    from gdpfed.report.partition import draw_partition, holdings, partition_table

    picture: Path | None = options.output
    if picture is not None:
        _check_picture(picture)
    task = task_of(load(options.overrides))
    held = holdings(task)
    console = make_console()
    console.print(partition_table(held))
    for line in data_warnings(task):
        console.print(line)
    if picture is not None:
        draw_partition(held, picture)
        console.print(f"The picture is in {picture}", soft_wrap=True)
    return 0


def _check_picture(path: Path) -> None:
    """Refuse a picture that cannot be written, before the data is shared out.

    Raises:
        ConfigError: names the path.
    """
    if path.suffix != ".png" or path.is_dir() or not path.absolute().parent.is_dir():
        raise ConfigError(f"--output={path} must be a .png file in a directory that exists")
    if not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        raise ConfigError(f"--output={path}: {path.absolute().parent} is not yours to write in")


COMMAND = Command(
    name="partition",
    help="show which client holds how much of what",
    description="Share out a data set as a run would, and show what the clients hold.",
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
