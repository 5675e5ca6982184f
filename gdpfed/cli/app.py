"""Entry point of ``gdpfed``: chooses the command, and turns errors into one line and an exit status."""

import argparse
import errno
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper

import gdpfed
from gdpfed.cli import INTERRUPTED, ended_as_interrupted, quiet_interrupt
from gdpfed.cli.command import FULL, OVERRIDES_NOTE, Command, add_parser, epilog_of
from gdpfed.cli.parser import Parser, nearest_word
from gdpfed.cli.settings_file import written_out
from gdpfed.errors import FailedError, InputError, line_of
from gdpfed.extras_table import EXTRAS
from gdpfed.late_import import packages_needed
from gdpfed.registry import Registry

EXTRA_COMMANDS: Registry[Command] = Registry("command", "gdpfed.commands", error=InputError)
"""Commands of extras and of other packages: each is a `Command`."""

OWN = (
    *("demo", "new", "plan", "simulate", "run", "report", "compare", "audit", "predict", "adapt"),
    *("settings", "columns", "check", "partition", "status", "metrics", "node", "identity"),
)
"""The commands, each in a module ``<name>_command``; only the one that is asked for is imported."""

COMMANDS = (*OWN, *EXTRAS["gdpfed.commands"])
"""Those that the help lists; commands of other packages are found when they are asked for."""

FIRST_THEN = """\
First:  gdpfed demo       train on bundled digits, and see what privacy costs
Then:   gdpfed new        five questions, and a file with settings of your own
        gdpfed plan       what these settings promise; nothing is trained
        gdpfed simulate   train here; gdpfed run does the same over Flower"""
EXAMPLES = """\
gdpfed demo
gdpfed new mine.yaml
gdpfed plan mine.yaml
gdpfed simulate mine.yaml
gdpfed report runs/* --output comparison
gdpfed plan --help            examples of this command, as of all others"""

NOBODY_READS = 141
"""The exit status of a program that SIGPIPE ends, as a shell tells it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command of ``gdpfed`` and return the exit status.

    It is 0 for done, 1 for work that failed, 2 for bad input, the command line included, 130 for interrupted,
    and 141 where whatever reads the output, such as ``head``, has closed it: the command then ends without a
    word.
    """
    if arguments is None:
        # A command draws into files, and what a notebook's environment names may not be installed here.
        os.environ["MPLBACKEND"] = "agg"
        if not sys.warnoptions:
            # What concerns a user is a line of ours. PYTHONWARNINGS shows those of the libraries.
            warnings.simplefilter("ignore")
        if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
            # A terminal that is not in UTF-8 has no bars, and perhaps not the letters of a name.
            sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            return _exit_status_of(sys.argv[1:] if arguments is None else arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _print_nowhere()
        return NOBODY_READS
    except OSError as error:
        # A file that is opened has a name in its error, and the output has none.
        if error.filename is None and error.errno == errno.ENOENT:
            remedy = "free space, or set TMPDIR to a folder with room; if this folder was removed, leave it"
            print(f"gdpfed: {error.strerror}: {remedy}", file=sys.stderr)
            return 1
        if error.filename is not None or error.errno not in FULL:
            raise
        _print_nowhere()
        print(f"gdpfed: the output cannot be written: {error.strerror}; make room there", file=sys.stderr)
        return 1


def _print_nowhere() -> None:
    """Discard what is left in the buffer of standard output when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _exit_status_of(arguments: Sequence[str]) -> int:
    try:
        with quiet_interrupt():
            options = _parse(arguments)
        command: Command = options.command
        with ended_as_interrupted(), packages_needed():
            return command.execute(options)
    except PermissionError as error:
        if error.filename is None:
            raise
        reason = f"{error.filename} cannot be used: {error.strerror}; let this user read or write it"
        print(f"gdpfed: {reason}", file=sys.stderr)
        return 2
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
    """Parse the command line of ``gdpfed``; settings (key=value) may stand between or after the options."""
    first = arguments[0] if arguments else "--help"
    named = not first.startswith("-")
    if named and first not in (*COMMANDS, *EXTRA_COMMANDS.names()):
        near = nearest_word(first, COMMANDS)
        meant = f"did you mean {near}?" if near else "'gdpfed --help' lists all"
        raise InputError(f"command {first} is not known; {meant}")
    # Only the command that is asked for is imported; all are for the help that lists them.
    loaded = [load_command(name) for name in ([first] if named else COMMANDS)]
    alone = len(loaded) == 1
    parser: argparse.ArgumentParser = Parser(
        prog="gdpfed",
        description=f"Federated learning with a privacy budget of each client's own.\n\n{FIRST_THEN}",
        epilog=f"{epilog_of(loaded[0].examples if alone else EXAMPLES)}\n\n{OVERRIDES_NOTE}",
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
    options, further = parser.parse_known_args(arguments or [first])
    if further and not hasattr(options, "overrides"):
        raise InputError(f"gdpfed {first} takes no {further[0]}; 'gdpfed {first} --help' shows what it takes")
    if hasattr(options, "overrides"):
        words = [*options.overrides, *further]
        if words:
            from conf.load import refuse_twice

            refuse_twice([word for word in words if "=" in word])
        options.overrides = written_out(words)
    options.command_line = shlex.join(["gdpfed", *arguments])
    return options


def load_command(name: str) -> Command:
    """Return a command with its help and arguments; the code that carries it out is imported only later."""
    if name not in OWN:
        return EXTRA_COMMANDS.get(name)
    command: Command = import_module(f"gdpfed.cli.{name}_command").COMMAND
    return command


class _Version(argparse.Action):
    """The option ``--version``; the version is looked up only if the option is given."""

    def __call__(self, parser: argparse.ArgumentParser, *unused: object) -> None:
        print(f"gdpfed {gdpfed.__version__}")
        parser.exit()
