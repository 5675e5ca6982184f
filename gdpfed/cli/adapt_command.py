"""``gdpfed adapt``: fit a trained model to the rows of one data owner (party), without sending any row."""

import argparse

from gdpfed.cli.command import TABLES, Command, cli_path
from gdpfed.cli.compare_command import DEFAULT_PULL
from gdpfed.decimal_numbers import decimal_number

EXAMPLES = """\
gdpfed adapt runs/mine/model own.csv --output own-model
gdpfed adapt model own.csv --parameters '*.bias' --pull 0 --output own-model"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=cli_path, metavar="MODEL", help="the folder 'model' of a finished run")
    parser.add_argument("table", type=cli_path, metavar="TABLE", help=f"own rows with labels: {TABLES}")
    parser.add_argument(
        "--parameters",
        default="*",
        metavar="A,B",
        help="names or patterns of what is fitted, such as training.local_parameters (default: everything)",
    )
    parser.add_argument(
        "--pull",
        type=decimal_number,
        default=DEFAULT_PULL,
        metavar="L",
        help="lambda: how much to stay near MODEL (default: %(default)s)",
    )
    parser.add_argument(
        "--output", type=cli_path, required=True, metavar="DIR", help="folder of the new model"
    )


def _execute(options: argparse.Namespace) -> int:
    from gdpfed.errors import ConfigError
    from gdpfed.learning.adapted_model import adapt

    if not 0 <= options.pull < float("inf"):
        raise ConfigError(f"--pull {options.pull:g} must be 0, for no pull, or more")
    rows = adapt(
        options.model, options.table, options.output, tuple(options.parameters.split(",")), options.pull
    )
    print(
        f"fitted to {rows} rows without noise: {options.output} is as private as they are, "
        "and so is what it predicts; keep it with you"
    )
    return 0


COMMAND = Command(
    name="adapt",
    help="fit a finished model to own rows, which stay here",
    description=(
        "Fit parameters of a finished model to the rows of one party, near the values that they have: all, "
        "or those that were not trained together (training.local_parameters). Nothing is sent and nothing "
        "is noised, so no budget is spent; the new model must not leave the party."
    ),
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
