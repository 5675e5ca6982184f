"""``gdpfed simulate``: train in this process and show the rounds."""

import argparse
from pathlib import Path

from gdpfed.cli.command import MODES, Command, add_overrides, add_sweep, make_console
from gdpfed.errors import ConfigError

OUTPUT = Path("runs/sweep")
EXAMPLES = """\
gdpfed simulate method=dp_fedavg secagg=off   the fastest way to train
gdpfed simulate run.resume=runs/20260101-120000-digits-gdpfed_plus
gdpfed simulate --multirun method=dp_fedavg,gdpfed_star run.seed=0,1,2
gdpfed simulate --multirun run.seed=range(0,8) hydra/launcher=joblib"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_overrides(parser, "run.seed=1")
    parser.add_argument(
        "-m", "--multirun", action="store_true", help="train every combination of the values that are listed"
    )
    add_sweep(parser, OUTPUT)


def _execute(options: argparse.Namespace) -> int:
    if options.multirun:
        output = (options.output or OUTPUT).absolute()
        sweep = MODES.get("simulate --multirun")
        complete = sweep(
            options.overrides, output, make_console(), options.command_line, num_jobs=options.jobs
        )
        return 0 if complete else 1
    if options.jobs or options.output:
        raise ConfigError("--jobs and --output are for several runs: say --multirun, or leave them out")
    from gdpfed.cli.simulated_run import train
    from gdpfed.report.ending import show_ending

    console = make_console()
    show_ending(console, train(console, options.overrides))
    return 0


COMMAND = Command(
    name="simulate",
    help="train in this process, without messages",
    description="Run the same plan, method and client arithmetic as 'gdpfed run' without Flower's messages; "
    "the run directory is the same, and either command can continue what the other began.\n\n"
    "With --multirun a setting may have several values, in Hydra's words: a,b, range(0,3), glob(dp_*). Every "
    "combination is a run; one that is finished is not trained again, one that was interrupted goes on. "
    "hydra/launcher= chooses a launcher of Hydra's in place of --jobs. Exit status 1: some runs are missing.",
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
