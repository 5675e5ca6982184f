"""A command: its words for ``--help``, its arguments, and the function that runs it."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

OVERRIDES_NOTE = (
    "Overrides are Hydra's: group=option chooses a file under conf/, group.key=value sets one value."
)


@dataclass(frozen=True)
class Command:
    """One command of ``gdpfed``.

    Attributes:
        name: its word on the command line.
        help: one line for the list of commands.
        description: what it does, for its own ``--help``.
        examples: command lines to copy, one a line, each with what it is for.
        add_arguments: declares its arguments.
        execute: does it; returns the exit status.
    """

    name: str
    help: str
    description: str
    examples: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    execute: Callable[[argparse.Namespace], int]


def user_path(text: str) -> Path:
    """A path on the command line; a leading ``~`` is a home directory, also where the shell left it."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None


def add_overrides(parser: argparse.ArgumentParser, example: str) -> None:
    """Declare the trailing overrides of a configuration."""
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help=f"for instance {example}")
    parser.epilog = f"{parser.epilog}\n\n{OVERRIDES_NOTE}"


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise the error again: the entry point ends the command quietly."""
        raise BrokenPipeError


def make_console() -> Console:
    """Return standard output: as wide as the terminal, or as wide as a plan's table without one."""
    from gdpfed.report.plan_table import WIDTH

    console = _Console()
    return console if console.is_terminal else _Console(width=WIDTH)
