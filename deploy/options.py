"""Command-line options that describe a federation, shared by all commands of this package."""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path, PurePosixPath
from typing import get_args

from deploy.federation import (
    DEFAULT_BUDGETS,
    DEFAULT_NODES,
    EXAMPLES_FILE,
    RESNET18_PARAMETERS,
    Federation,
    TopologyError,
)
from gdpfed.decimal_numbers import decimal_number, whole_number
from gdpfed.errors import GDPFedError, line_of
from gdpfed.learning.data.file_form import is_table
from gdpfed.privacy.events import Unit
from secagg import ACTIVE, CURIOUS

MOST_PORT = 65535
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")


def add_federation(parser: argparse.ArgumentParser) -> None:
    """Add the command-line options for the number of nodes and their budgets."""
    parser.add_argument(
        "--nodes", type=whole_number, default=DEFAULT_NODES, help="how many (default: %(default)s)"
    )
    parser.add_argument(
        "--budgets",
        type=_numbers,
        metavar="E,E,...",
        help="epsilon of each group of nodes; the groups are of equal size (default: 1,3,6)",
    )
    parser.add_argument(
        "--unit",
        choices=get_args(Unit),
        help="whose budgets these are: the nodes' own, or those of each of their records (default: client)",
    )
    parser.add_argument(
        "--examples",
        type=_file_name,
        default=EXAMPLES_FILE,
        metavar="NAME",
        help="name of the file in each node's data folder: .npz, or a table, as in data.csv.gz (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--secagg",
        choices=(CURIOUS, ACTIVE),
        help=f"what nodes ask of a sum: active withstands a server that lies (default: {ACTIVE}, and behind "
        f"edges {CURIOUS})",
    )
    for name, what in (("aversions", "aversion"), ("first-budgets", "first budget, in zCDP,")):
        parser.add_argument(
            f"--{name}",
            type=_numbers,
            default=(),
            metavar="V,V,...",
            help=f"{what} of the nodes in turn, for method.types=clients",
        )
    parser.add_argument(
        "--parameters",
        type=whole_number,
        default=RESNET18_PARAMETERS,
        metavar="D",
        help="of the largest model, for the containers' memory (default: %(default)s, ResNet-18)",
    )
    parser.add_argument(
        "--without-guard",
        action="store_true",
        help="the app that a run sends holds a node's data, ledger and identity itself",
    )
    parser.add_argument(
        "--max-participations",
        type=whole_number,
        metavar="N",
        help="rounds of a run that a node takes part in at most",
    )
    add_unsigned(parser)


def add_unsigned(parser: argparse.ArgumentParser) -> None:
    """Add the option to run Flower apps that the consortium (all parties together) has not signed."""
    what = "nodes run whatever app a run brings; else those alone that the consortium has signed"
    parser.add_argument("--unsigned-apps", action="store_true", help=what)


def federation_of(options: argparse.Namespace) -> Federation:
    """Return the federation that the options describe.

    Raises TopologyError: one that cannot be built.
    """
    if options.parameters < 1:
        raise TopologyError(f"--parameters {options.parameters} must be at least 1")
    federation = Federation.of(
        options.nodes,
        DEFAULT_BUDGETS if options.budgets is None else options.budgets,
        options.secagg or ACTIVE,
        options.unit or "client",
        options.examples,
    )
    federation = replace(
        federation,
        parameters=options.parameters,
        unguarded=options.without_guard,
        unsigned_apps=options.unsigned_apps,
    )
    return federation.playing(options.aversions, options.first_budgets, options.max_participations)


def federation_words(federation: Federation) -> tuple[str, ...]:
    """Return the command-line words that describe a federation; inverse of :func:`federation_of`."""
    budgets = ",".join(f"{epsilon:g}" for epsilon in federation.budgets)
    return (
        *("--nodes", str(len(federation.nodes))),
        *("--budgets", budgets),
        *("--secagg", federation.secagg_mode),
        *(("--unit", federation.unit) if federation.about_records else ()),
        *(
            ()
            if federation.parameters == RESNET18_PARAMETERS
            else ("--parameters", str(federation.parameters))
        ),
        *(() if federation.examples == EXAMPLES_FILE else ("--examples", federation.examples)),
        *_listed("--aversions", [node.aversion for node in federation.nodes]),
        *_listed("--first-budgets", [node.first_budget for node in federation.nodes]),
        *(() if federation.most_rounds is None else ("--max-participations", str(federation.most_rounds))),
        *unprotected_words(federation),
    )


def unprotected_words(federation: Federation) -> tuple[str, ...]:
    """Return the options for a federation without guard processes or without app signatures."""
    return (
        *(("--without-guard",) if federation.unguarded else ()),
        *(("--unsigned-apps",) if federation.unsigned_apps else ()),
    )


def _listed(option: str, values: Sequence[float | None]) -> tuple[str, ...]:
    """Return a command-line option and its value, the nodes' numbers joined by commas; () without numbers."""
    numbers = [f"{value:g}" for value in values if value is not None]
    return (option, ",".join(numbers)) if numbers else ()


def exit_status(command: Callable[[], None]) -> int:
    """Run a command; return its exit status: 0 if done, 2 after an error that it prints, 130 after Ctrl-C."""
    try:
        command()
    except GDPFedError as error:
        # The line of a command of deploy that this one has started begins so already.
        print(f"deploy: {line_of(error).removeprefix('deploy: ')}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("deploy: interrupted", file=sys.stderr)
        return 130
    return 0


def host(text: str) -> str:
    """Read a host's name or address from the command line; raise an error for a scheme, port or path."""
    if not _HOST.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a host: give a name or an address alone, as in fl.example.org"
        )
    return text


def port(text: str) -> int:
    """Read the number of a port from the command line."""
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= MOST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: give a number from 1 to {MOST_PORT}")
    return int(text)


def budget(text: str) -> float:
    """Read an epsilon from the command line: a finite number above 0."""
    try:
        epsilon = decimal_number(text)
    except ValueError:
        epsilon = 0.0
    if not 0 < epsilon < inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a budget: give a number above 0, as in 2.5")
    return epsilon


def absolute(text: str) -> str:
    """Check that a path on the command line is absolute, because it is used from another folder or host."""
    if not PurePosixPath(text).is_absolute() or "$" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not an absolute path, as in /srv/study")
    return text


def address(text: str) -> str:
    """Read a host and a port from the command line, as in fl.example.org:8000."""
    name, colon, number = text.rpartition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r} has no port: give both, as in fl.example.org:8000")
    return f"{host(name)}:{port(number)}"


def _file_name(text: str) -> str:
    known = is_table(Path(text)) or text.endswith(".npz")
    if not known or not re.fullmatch(r"[A-Za-z0-9_-]+(\.[a-z0-9]+){1,2}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a name of a file of examples, as in examples.csv")
    return text


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(decimal_number(word.strip()) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must be numbers between commas, as in 1,3,6") from None
