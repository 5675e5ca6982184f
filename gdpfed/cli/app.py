"""Entry point: choose the command, and turn its errors into one line and an exit status."""

import argparse
import sys
from collections.abc import Sequence

from conf.schema import ConfigError
from gdpfed.cli import partition, plan, run
from gdpfed.cli.command import OVERRIDES_NOTE, Command
from gdpfed.flower_run import LaunchError
from gdpfed.learning.errors import LearningError
from gdpfed.privacy.errors import PrivacyError

COMMANDS = (plan.COMMAND, partition.COMMAND, run.COMMAND)
BAD_INPUT = (ConfigError, LearningError, PrivacyError)
FAILURES = (LaunchError,)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 done, 1 a run that failed, 2 bad input, 130 interrupted."""
    options = _parser().parse_args(arguments)
    command: Command = options.command
    try:
        return command.execute(options)
    except BAD_INPUT as error:
        print(f"gdpfed: {error}", file=sys.stderr)
        return 2
    except FAILURES as error:
        print(f"gdpfed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("gdpfed: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gdpfed",
        description="Federated learning with a privacy budget of each client's own.",
        epilog=_epilog("\n".join(command.examples for command in COMMANDS)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        own = commands.add_parser(
            command.name,
            help=command.help,
            description=command.description,
            epilog=_epilog(command.examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(own)
        own.set_defaults(command=command)
    return parser


def _epilog(examples: str) -> str:
    lines = "\n".join(f"  {line}" for line in examples.splitlines())
    return f"examples:\n{lines}\n\n{OVERRIDES_NOTE}"
