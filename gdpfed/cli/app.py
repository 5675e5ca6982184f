"""Entry point: it chooses the command, and turns errors into one line and an exit status."""

import argparse
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

import gdpfed
from gdpfed.cli import INTERRUPTED, ended_as_interrupted, quiet_interrupt
from gdpfed.cli.command import OVERRIDES_NOTE, Command, add_parser, epilog_of
from gdpfed.errors import FailedError, InputError, line_of
from gdpfed.extras_table import EXTRAS
from gdpfed.late_import import packages_needed
from gdpfed.registry import Registry

EXTRA_COMMANDS: Registry[Command] = Registry("command", "gdpfed.commands", error=InputError)
"""Commands of extras and of other packages: each is a `Command`."""

OWN = (
    *("settings", "columns", "check", "partition", "plan", "run", "simulate", "predict"),
    *("audit", "report", "compare", "adapt", "identity", "status", "node", "metrics"),
)
"""The commands, each in a module ``<name>_command``; only the one that is asked for is imported."""

COMMANDS = (*OWN, *EXTRAS["gdpfed.commands"])
"""Those that the help lists; commands of other packages are found when they are asked for."""

NOBODY_READS = 141
"""The exit status of a program that SIGPIPE ends, as a shell tells it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status.

    It is 0 for done, 1 for a run that failed, 2 for bad input, 130 for interrupted, and 141 where whatever
    reads the output, such as ``head``, has closed it: the command then ends without a word.
    """
    if arguments is None:
        # A command draws into files, and what a notebook's environment names may not be installed here.
        os.environ["MPLBACKEND"] = "agg"
        if not sys.warnoptions:
            # What concerns a user is a line of ours. PYTHONWARNINGS shows those of the libraries.
            warnings.simplefilter("ignore")
    try:
        try:
            with quiet_interrupt():
                options = _parse(sys.argv[1:] if arguments is None else arguments)
            return _run(options)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # What is left in the buffer is written at the end of the process: to nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS


def _run(options: argparse.Namespace) -> int:
    command: Command = options.command
    try:
        if overrides := getattr(options, "overrides", ()):
            from conf.load import refuse_twice

            refuse_twice(overrides)
        with ended_as_interrupted(), packages_needed():
            return command.execute(options)
    except InputError as error:
        print(f"gdpfed: {line_of(error)}", file=sys.stderr)
        return 2
    except FailedError as error:
        print(f"gdpfed: {line_of(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        print(f"gdpfed: {str(interrupt) or 'interrupted'}", file=sys.stderr)
        return INTERRUPTED


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line in which overrides may also stand between and after the options."""
    first = arguments[0] if arguments else ""
    alone = first in COMMANDS or (not first.startswith("-") and first in EXTRA_COMMANDS.names())
    parser = _parser([first] if alone else COMMANDS)
    options, further = parser.parse_known_args(arguments)
    if not hasattr(options, "overrides") or any(word.startswith("-") for word in further):
        parser.parse_args(arguments)
    else:
        options.overrides += further
    options.command_line = shlex.join(["gdpfed", *arguments])
    return options


def load_command(name: str) -> Command:
    """Import a command's words and arguments; what carries it out is imported when it is executed."""
    if name not in OWN:
        return EXTRA_COMMANDS.get(name)
    command: Command = import_module(f"gdpfed.cli.{name}_command").COMMAND
    return command


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    loaded = [load_command(name) for name in names]
    parser = argparse.ArgumentParser(
        prog="gdpfed",
        description="Federated learning with a privacy budget of each client's own.",
        epilog=epilog_of("\n".join(command.examples for command in loaded)) + f"\n\n{OVERRIDES_NOTE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version, and end")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in loaded:
        own = add_parser(
            commands,
            command.name,
            words=command.help,
            description=command.description,
            examples=command.examples,
        )
        command.add_arguments(own)
        own.set_defaults(command=command)
    return parser


class _Version(argparse.Action):
    """Prints the version, which is looked up in the installed packages only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *unused: object) -> None:
        print(f"gdpfed {gdpfed.__version__}")
        parser.exit()
