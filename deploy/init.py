"""``python -m deploy.init``: make the credentials of the parties that this host operates."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from deploy.credentials import RENEWABLE, Store
from deploy.demo_data import provide_demo_data
from deploy.options import add_federation, exit_status, federation_of, host
from deploy.placements import Containers
from deploy.topology import services, services_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the credentials; return the exit status: 0 done, 2 bad input."""
    options = parser().parse_args(arguments)
    return exit_status(lambda: print(provide(options)))


def provide(options: argparse.Namespace) -> str:
    """Make what is missing for the chosen parties, or for all if none is named; say what is awaited."""
    every = services(federation_of(options), Containers())
    mine = services_of(every, options.party)
    store = Store(options.directory, options.owner, signs_roster=not options.party)
    for kind in options.renew:
        store.renew(kind, mine)
    store.provide(mine, options.host)
    if options.demo_data:
        provide_demo_data(options.directory, federation_of(options))
    made = f"credentials of {', '.join(service.name for service in mine)} are in {options.directory}"
    return "".join([made, *(f"\n{words}" for words in store.awaited(mine))])


def parser() -> argparse.ArgumentParser:
    """The options of this command."""
    made = argparse.ArgumentParser(prog="python -m deploy.init", description=__doc__)
    add_federation(made)
    made.add_argument(
        "--directory", type=Path, required=True, help="where the credentials are written; existing files stay"
    )
    made.add_argument(
        "--party", action="append", default=[], help="server or node-<i>; repeat it for several; default: all"
    )
    made.add_argument(
        "--host",
        type=host,
        action="append",
        default=[],
        help="a name or address under which nodes reach the SuperLink; repeat it for several",
    )
    made.add_argument(
        "--renew",
        action="append",
        choices=RENEWABLE,
        default=[],
        help="remove these first, so that they are made anew; repeat it for several",
    )
    made.add_argument(
        "--demo-data",
        action="store_true",
        help="give every node without data a part of the bundled digits",
    )
    made.add_argument("--owner", type=int, help="user id that the services run as")
    return made


if __name__ == "__main__":
    raise SystemExit(main())
