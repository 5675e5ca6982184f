"""The command-line options that describe a federation, the same for every command of this package."""

import argparse
import sys
from collections.abc import Callable

from deploy.topology import DEFAULT_BUDGETS, DEFAULT_NODES, Federation, TopologyError


def add_federation(parser: argparse.ArgumentParser) -> None:
    """Declare how many nodes there are and what they may spend."""
    parser.add_argument("--nodes", type=int, default=DEFAULT_NODES, help="number of nodes")
    parser.add_argument(
        "--budgets",
        type=_numbers,
        default=DEFAULT_BUDGETS,
        metavar="E,E,...",
        help="epsilon of each group of nodes, which are of equal size (default: 1,3,6)",
    )


def federation_of(options: argparse.Namespace) -> Federation:
    """The federation that the options describe.

    Raises:
        TopologyError: one that cannot be built.
    """
    return Federation.of(options.nodes, options.budgets)


def federation_words(federation: Federation) -> tuple[str, ...]:
    """Inverse of :func:`federation_of`, as words of a command line."""
    budgets = ",".join(f"{epsilon:g}" for epsilon in federation.budgets)
    return ("--nodes", str(len(federation.nodes)), "--budgets", budgets)


def exit_status(command: Callable[[], None], *errors: type[Exception]) -> int:
    """Run a command; one of these errors, or a federation that cannot be, becomes one line and status 2."""
    expected: tuple[type[Exception], ...] = (TopologyError, *errors)
    try:
        command()
    except expected as error:
        print(f"deploy: {error}", file=sys.stderr)
        return 2
    return 0


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(word) for word in text.split(","))
