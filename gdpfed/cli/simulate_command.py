"""``gdpfed simulate``: train in this process and follow the rounds."""

import argparse
import sys

from gdpfed.cli.command import Command, add_overrides, make_console, planning

EXAMPLES = """\
gdpfed simulate method=dp_fedavg secagg=off   the fastest way to train
gdpfed simulate run.resume=runs/20260101-120000-digits-gdpfed_plus"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_overrides(parser, "run.seed=1")


def _execute(options: argparse.Namespace) -> int:
    from gdpfed.cli.show_plan import show_plan
    from gdpfed.learning.task import data_warnings
    from gdpfed.report.progress import RunProgress
    from gdpfed.rounds.run import PreparedRun
    from gdpfed.runs.checkpoint import CHECKPOINT_FILE
    from gdpfed.runs.resume import load_run
    from gdpfed.runs.round_log import RoundLogEntry, read_rounds
    from gdpfed.simulation.in_process_fleet import simulate_prepared

    config = load_run(options.overrides)
    with planning():
        prepared = PreparedRun.of(config)
    console, method = make_console(), prepared.method
    show_plan(console, prepared.config, method)
    for line in data_warnings(prepared.task):
        console.print(line)
    plan, waiting = method.plan, "training the first round ..."
    try:
        with RunProgress(
            console, plan.num_rounds, plan.budgets, waiting=waiting, against=plan.against
        ) as progress:

            def show(record: RoundLogEntry) -> None:
                progress.update(read_rounds(prepared.path))

            simulate_prepared(prepared, observe=show, announce=console.print)
    except KeyboardInterrupt:
        if not (prepared.path / CHECKPOINT_FILE).exists():
            raise
        print(f"gdpfed: interrupted; continue with run.resume={prepared.path}", file=sys.stderr)
        return 130
    console.print(f"The run's files are in {prepared.path}", soft_wrap=True)
    return 0


COMMAND = Command(
    name="simulate",
    help="train in this process, without messages",
    description="Run the same plan, method and client arithmetic as 'gdpfed run' without Flower's messages; "
    "the run directory is the same, and either command can continue what the other began.",
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
