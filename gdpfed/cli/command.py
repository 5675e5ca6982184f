"""A command: its help text, its arguments, and the function that runs it.

A module of a command imports what carries it out inside its functions, so that ``--help`` loads none of it.
"""

import argparse
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from gdpfed.decimal_numbers import whole_number
from gdpfed.errors import ConfigError, ReportError
from gdpfed.registry import Registry

if TYPE_CHECKING:
    from rich.console import Console

MODES: Registry[Callable[..., Any]] = Registry("way of a command", "gdpfed.command_modes", error=ConfigError)
"""What extras do for a command, by the words that ask for it, as in ``audit --attack``."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Why nothing more can be written to a disk."""
HELP_WIDTH = 78
"""Columns of a help page, so that it stays whole on a terminal of 80."""
OVERRIDES_NOTE = (
    "Overrides are Hydra's: group=option chooses a file under conf/, group.key=value\n"
    "sets one value, and mine.yaml has several of both, as 'gdpfed new' writes them.\n"
    "'gdpfed settings' lists them all."
)


@dataclass(frozen=True)
class Command:
    """One command of ``gdpfed``: its help, its arguments, and the function that runs it.

    Attributes:
        name: its word on the command line.
        help: one line for the list of commands.
        description: what it does, for its own ``--help``; paragraphs of any width.
        examples: command lines to copy, at least two, one a line of at most 78 columns; two spaces or more
            stand before what a line is for.
        add_arguments: declares its arguments.
        execute: does it; returns the exit status.
    """

    name: str
    help: str
    description: str
    examples: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    execute: Callable[[argparse.Namespace], int]


TABLES = "CSV, Parquet, Excel or a query"
"""What a table may be, as the help of a command says it."""


def cli_path(text: str) -> Path:
    """Return an option's or an argument's path, as `named_path` reads it, for argparse.

    Raises ArgumentTypeError: as in `named_path`.
    """
    try:
        return named_path(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def named_path(text: str) -> Path:
    """Return a path that a user names; a leading ``~`` is the home directory.

    Raises ConfigError: an empty text, or the home directory of a user who does not exist.
    """
    if not text:
        raise ConfigError("'' is not a path: name a file or a folder")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{text}: {error}") from None


def require_folders(paths: Sequence[Path]) -> None:
    """Raise ReportError if a path is not a directory, before the slow import of code that reads runs."""
    for path in paths:
        if not path.is_dir():
            what = "it is a file, and a run is a directory" if path.exists() else "there is no such directory"
            raise ReportError(f"{path} is not a run: {what}")


def refuse_existing(path: Path, option: str) -> None:
    """Raise ConfigError if a file that a command is to write is already there; it may be the user's own.

    `option`: of the command, which names the file.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(
            f"{path} is not an ordinary file: name a new file with {option}, or leave {option} out"
        )
    if path.exists():
        raise ConfigError(f"{path} exists: name another file with {option}, or remove it")


def check_picture(path: Path) -> None:
    """Raise ConfigError if a picture file cannot be written; called before the picture is computed."""
    if path.suffix != ".png" or path.is_dir() or not path.absolute().parent.is_dir():
        raise ConfigError(f"--output={path} must be a .png file in a directory that exists")
    if not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        raise ConfigError(
            f"--output={path}: you may not write to {path.absolute().parent}: name a file elsewhere"
        )


def add_overrides(parser: argparse.ArgumentParser, example: str) -> None:
    """Let a command take settings (key=value) as its last arguments."""
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help=f"for instance {example}")
    parser.epilog = f"{parser.epilog}\n\n{OVERRIDES_NOTE}"


def add_sweep(parser: argparse.ArgumentParser, output: Path) -> None:
    """Add the options ``--jobs`` (how many runs train at the same time) and ``--output`` (their folder)."""
    parser.add_argument(
        "--jobs",
        type=whole_number,
        metavar="N",
        help="runs at a time, one core each (default: one a core; on a GPU 1, which then has every core)",
    )
    parser.add_argument(
        "--output", type=cli_path, metavar="DIR", help=f"for runs and tables (default {output})"
    )


def add_watching(parser: argparse.ArgumentParser, port: int) -> None:
    """Add the options of a metrics server: address, host names, and certificates whose expiry it reports."""
    parser.add_argument(
        "--listen",
        default=str(port),
        metavar="[HOST:]PORT",
        help=f"where to serve ({port}); on 127.0.0.1 unless a host is said",
    )
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="HOST",
        help="a name by which it may be asked, beside this host's own and addresses; may be repeated",
    )
    parser.add_argument(
        "--certificate",
        type=cli_path,
        action="append",
        default=[],
        metavar="FILE",
        help="a certificate whose end is to be watched, too; may be repeated",
    )


def add_parser(
    commands: "argparse._SubParsersAction[Any]",
    name: str,
    *,
    words: str,
    description: str,
    examples: str,
) -> argparse.ArgumentParser:
    """Add a parser for a command, or for an action of a command; its help ends with these examples."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=words,
        description=paragraphs(description),
        epilog=epilog_of(examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def paragraphs(text: str) -> str:
    """Wrap text for a help page, with an empty line between paragraphs."""
    return "\n\n".join(fill(paragraph, HELP_WIDTH) for paragraph in text.split("\n\n"))


def epilog_of(examples: str) -> str:
    """Return the end of a command's help page: its examples."""
    lines = "\n".join(f"  {line}" for line in examples.splitlines())
    return f"examples:\n{lines}"


@contextmanager
def busy(words: str) -> Iterator[None]:
    """Show ``words`` while the ``with`` block runs; without a terminal, print them only if the block is slow.

    It goes to standard error, so what a command prints can go through a pipe.
    """
    from gdpfed.report.console import OutputConsole
    from gdpfed.report.progress import said_after

    console = OutputConsole(stderr=True)
    with console.status(words) if console.is_terminal else said_after(console.print, words):
        yield


def make_console() -> "Console":
    """Return the console for standard output, as wide as the terminal or $COLUMNS."""
    from gdpfed.report.console import OutputConsole

    return OutputConsole()
