"""``gdpfed status``: read from a run's directory how far the run is and how much epsilon it has spent."""

import argparse
import json
import time

from gdpfed.cli.command import Command, cli_path, make_console
from gdpfed.decimal_numbers import decimal_number
from gdpfed.errors import ConfigError

EXAMPLES = """\
gdpfed status runs                    the newest run there
gdpfed status runs/20260101-120000-digits-gdpfed_plus --watch
gdpfed status runs --json             for a script"""
WATCH_SECONDS = 5.0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", type=cli_path, metavar="RUN", help="the directory of a run, or a folder: its newest run"
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--json", action="store_true", help="print it as JSON")
    kind.add_argument(
        "--watch",
        nargs="?",
        type=decimal_number,
        const=WATCH_SECONDS,
        metavar="SECONDS",
        help="show it anew every so many seconds (5) until the run is complete or paused",
    )


def _execute(options: argparse.Namespace) -> int:
    from gdpfed.report.run_status import GOES_ON, RunStatus

    if options.watch is not None:
        if not options.watch > 0:
            raise ConfigError(f"--watch {options.watch:g} must be above 0 seconds")
        from rich.live import Live

        status = RunStatus.read(options.run)
        with Live(status.shown(), console=make_console(), auto_refresh=False) as live:
            while status.state == GOES_ON:
                time.sleep(options.watch)
                status = RunStatus.read(options.run)
                live.update(status.shown(), refresh=True)
        return 0
    status = RunStatus.read(options.run)
    if options.json:
        print(json.dumps(status.to_dict(), indent=2))
    else:
        make_console().print(status.shown())
    return 0


COMMAND = Command(
    name="status",
    help="say where a run stands, while it goes on or later",
    description=(
        "Read a run's directory and say on one screen how far it is, what it has come to, what every group "
        "has spent of its budget and against whom that holds, and which sums failed. Who was asked and how "
        "long rounds took is left out where epsilon rests on nobody knowing that."
    ),
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
