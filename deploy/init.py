"""``python -m deploy.init``: make the credentials of the parties that this host operates."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from deploy.credentials import CredentialsError, Store
from deploy.demo_data import provide_demo_data
from deploy.options import add_federation, exit_status, federation_of
from deploy.placements import Containers
from deploy.topology import TopologyError, services


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 done, 2 bad input."""
    options = parser().parse_args(arguments)
    return exit_status(lambda: print(provide(options)), CredentialsError)


def provide(options: argparse.Namespace) -> str:
    """Make what is missing for the chosen parties, all of the federation's if none is named; says so."""
    every = services(federation_of(options), Containers())
    parties = sorted({service.party for service in every})
    for party in options.party:
        if party not in parties:
            raise TopologyError(f"--party {party} is none of {', '.join(parties)}")
    mine = [service for service in every if service.party in (options.party or parties)]
    Store(options.directory, options.owner).provide(mine, options.host)
    if options.demo_data:
        provide_demo_data(options.directory, federation_of(options))
    return f"credentials of {', '.join(service.name for service in mine)} are in {options.directory}"


def parser() -> argparse.ArgumentParser:
    """The options of this command."""
    made = argparse.ArgumentParser(prog="python -m deploy.init", description=__doc__)
    add_federation(made)
    made.add_argument("--directory", type=Path, required=True, help="where they go; what is there stays")
    made.add_argument("--party", action="append", default=[], help="server or node-<i>; again for more")
    made.add_argument(
        "--host",
        action="append",
        default=[],
        help="a name or address under which nodes reach the SuperLink; again for more",
    )
    made.add_argument(
        "--demo-data",
        action="store_true",
        help="give every node that has brought no data a part of the bundled digits",
    )
    made.add_argument("--owner", type=int, help="user id that the services run as")
    return made


if __name__ == "__main__":
    raise SystemExit(main())
