"""Entry point: choose the command, and turn its errors into one line and an exit status."""

import argparse
import shlex
import sys
from collections.abc import Sequence

from gdpfed.cli import audit, partition, plan, report, reproduce, run, simulate
from gdpfed.cli.command import OVERRIDES_NOTE, Command
from gdpfed.errors import FailedError, InputError

COMMANDS = (
    plan.COMMAND,
    partition.COMMAND,
    run.COMMAND,
    simulate.COMMAND,
    audit.COMMAND,
    report.COMMAND,
    reproduce.COMMAND,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 done, 1 a run that failed, 2 bad input, 130 interrupted."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    command: Command = options.command
    try:
        return command.execute(options)
    except InputError as error:
        print(f"gdpfed: {error}", file=sys.stderr)
        return 2
    except FailedError as error:
        print(f"gdpfed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        print(f"gdpfed: {str(interrupt) or 'interrupted'}", file=sys.stderr)
        return 130


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line in which overrides may also stand between and after the options."""
    parser = _parser()
    options, further = parser.parse_known_args(arguments)
    if not hasattr(options, "overrides") or any(word.startswith("-") for word in further):
        parser.parse_args(arguments)
    else:
        options.overrides += further
    options.command_line = shlex.join(["gdpfed", *arguments])
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gdpfed",
        description="Federated learning with a privacy budget of each client's own.",
        epilog=_epilog("\n".join(command.examples for command in COMMANDS)) + f"\n\n{OVERRIDES_NOTE}",
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
    return f"examples:\n{lines}"
