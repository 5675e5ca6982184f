"""``gdpfed reproduce``: a table or figure of the paper, from what is there and what is missing."""

import argparse
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from conf.experiment import experiments, load_experiment
from conf.schema import Config
from gdpfed.child_process import can_fork
from gdpfed.cli.command import Command, add_overrides, make_console
from gdpfed.errors import ExperimentError
from gdpfed.experiments.crew import Alone, Crew, Observe
from gdpfed.experiments.forked import Forked
from gdpfed.experiments.reproduce import Reproduction, reproduce
from gdpfed.experiments.setting import Setting
from gdpfed.report.table import Table

OUTPUT = Path("runs/reproduce")
EXAMPLES = """\
gdpfed reproduce --list                           all tables and figures
gdpfed reproduce table5                           computed from plans, in seconds
gdpfed reproduce table2 --datasets cifar10 --seeds 3
gdpfed reproduce table2 --datasets cifar10 --scale 0.1 --rounds 20 dataset.path=/data/cifar10
gdpfed reproduce table2 --datasets digits         a data set of your own, as conf/dataset/ names it"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help=", ".join(experiments()))
    add_overrides(parser, "dataset.model=cnn2, for every cell")
    parser.add_argument("--list", action="store_true", help="list tables and figures, and end")
    parser.add_argument("--datasets", default="", metavar="A,B", help="in place of the experiment's own")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="runs a cell (default 3)")
    parser.add_argument("--rounds", type=int, metavar="N", help="in place of every data set's own")
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        metavar="F",
        help="share of the clients, rates unchanged (default 1)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="runs at a time, one core each (default: one a core; on a GPU 1, which then has every core)",
    )
    parser.add_argument(
        "--output", type=Path, default=OUTPUT, metavar="DIR", help=f"for runs and tables (default {OUTPUT})"
    )


def _execute(options: argparse.Namespace) -> int:
    if options.list or options.experiment is None:
        make_console().print(_list().to_rich())
        return 0
    _check_jobs(options.jobs)
    setting = Setting(
        datasets=tuple(filter(None, options.datasets.split(","))),
        overrides=tuple(options.overrides),
        num_rounds=options.rounds,
        client_factor=options.scale,
    )
    request = Reproduction(
        experiment=load_experiment(options.experiment),
        setting=setting,
        num_seeds=options.seeds,
        output=options.output.absolute(),
        command=options.command_line,
    )
    complete = reproduce(request, partial(hire, options.jobs), make_console())
    return 0 if complete else 1


def _check_jobs(num_jobs: int | None) -> None:
    if num_jobs is not None and num_jobs < 1:
        raise ExperimentError(f"--jobs {num_jobs} must be at least 1")
    if (num_jobs or 1) > 1 and not can_fork():
        raise ExperimentError(f"--jobs {num_jobs} cannot be had on {sys.platform}: leave it out")


def hire(num_jobs: int | None, num_missing: int) -> Crew:
    """Who trains what is missing; a single run, or one on a GPU, gets this process and all cores.

    torch takes seconds to import, so this happens only where something is trained.
    """
    if num_missing > 1 and num_jobs is None:
        import torch

        num_jobs = 1 if torch.cuda.is_available() or not can_fork() else len(os.sched_getaffinity(0))
    jobs = min(num_jobs or 1, num_missing)
    return Alone(_train) if jobs <= 1 else Forked(_train_on_one_core, _load, jobs)


def _train(config: Config, *, observe: Observe | None = None) -> Path:
    from gdpfed.simulation import simulate

    return simulate(config, observe=observe)


def _train_on_one_core(config: Config, *, observe: Observe | None = None) -> Path:
    """For a process of its own; a number of workers that was asked for is kept."""
    import torch

    torch.set_num_threads(1)
    workers = config.simulation.workers or 1
    return _train(replace(config, simulation=replace(config.simulation, workers=workers)), observe=observe)


def _load(config: Config) -> None:
    """The data, and the modules that would otherwise take every forked process seconds to import."""
    import gdpfed.simulation  # noqa: F401
    from gdpfed.rounds.run import task_of

    task_of(config).load()


def _list() -> Table:
    chosen = [load_experiment(name) for name in experiments()]
    rows = [
        [
            each.name,
            each.title.partition(": ")[2],
            "trained" if each.trained else "computed",
            ", ".join(each.datasets),
        ]
        for each in chosen
    ]
    return Table("Experiments", ("name", "shows", "by", "data sets"), rows)


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
