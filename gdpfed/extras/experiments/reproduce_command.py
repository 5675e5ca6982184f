"""``gdpfed reproduce``: make a table or figure of the paper, training missing runs."""

import argparse
from pathlib import Path

from gdpfed.cli.command import Command, add_overrides, add_sweep, make_console
from gdpfed.decimal_numbers import decimal_number, whole_number

OUTPUT = Path("runs/reproduce")
EXAMPLES = """\
gdpfed reproduce --list                     all tables and figures
gdpfed reproduce table5                     computed from plans, in seconds
gdpfed reproduce table2 --datasets digits   on the bundled digits
gdpfed reproduce bench --datasets digits --seeds 10 --add my_method
gdpfed reproduce table2 --datasets cifar10 --seeds 3 --scale 0.1 --rounds 20"""


def _names(text: str) -> tuple[str, ...]:
    """Return the names of a list. One without any, as of an empty shell variable, would stand for all."""
    names = tuple(filter(None, text.split(",")))
    if not names:
        raise argparse.ArgumentTypeError(f"'{text}' names nothing: name one or more, or leave it out")
    return names


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help="one that --list names")
    add_overrides(parser, "dataset.model=cnn2, for every cell")
    parser.add_argument("--list", action="store_true", help="list tables and figures, and end")
    parser.add_argument(
        "--datasets", type=_names, default=(), metavar="A,B", help="in place of the experiment's own"
    )
    parser.add_argument(
        "--rows", "--rules", type=_names, default=(), metavar="A,B", help="in place of all rows"
    )
    parser.add_argument("--add", type=_names, default=(), metavar="A,B", help="further methods, a row each")
    parser.add_argument("--seeds", type=whole_number, default=3, metavar="N", help="runs a cell (default 3)")
    parser.add_argument("--rounds", type=whole_number, metavar="N", help="in place of every data set's own")
    parser.add_argument(
        "--scale",
        type=decimal_number,
        default=1.0,
        metavar="F",
        help="share of the clients, rates unchanged (default 1)",
    )
    add_sweep(parser, OUTPUT)


def _execute(options: argparse.Namespace) -> int:
    from gdpfed.extras.experiments.cells import Setting
    from gdpfed.extras.experiments.definitions import experiments, load_experiment
    from gdpfed.extras.experiments.reproduction import Reproduction, reproduce
    from gdpfed.extras.experiments.run_training import chosen_launch

    if options.list or options.experiment is None:
        from gdpfed.report.console import Table

        rows = [
            [
                each.name,
                each.title.partition(": ")[2] or each.title,
                "trained" if each.trained else "computed",
                ", ".join(each.datasets),
            ]
            for each in map(load_experiment, experiments())
        ]
        make_console().print(Table("Experiments", ("name", "shows", "by", "data sets"), rows).to_rich())
        return 0
    output = (options.output or OUTPUT).absolute()
    launch, overrides = chosen_launch(options.overrides, options.jobs, output)
    setting = Setting(
        datasets=options.datasets,
        overrides=tuple(overrides),
        num_rounds=options.rounds,
        client_factor=options.scale,
    )
    request = Reproduction(
        experiment=load_experiment(options.experiment)
        .with_methods(options.add)
        .with_rows((*options.rows, *options.add) if options.rows else ()),
        setting=setting,
        num_seeds=options.seeds,
        output=output,
        command=options.command_line,
        launch=launch,
    )
    return 0 if reproduce(request, make_console()) else 1


COMMAND = Command(
    name="reproduce",
    help="make a table or figure of the paper",
    description=(
        "Run what is missing of a table or figure, continue what was interrupted, reuse what is finished, "
        "and write the table (Markdown and CSV), a picture and every cell's configuration, with the paper's "
        "figures beside ours where they are known. Exit status 1: some cells are missing, the table says why."
    ),
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
