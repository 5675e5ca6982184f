"""``python -m deploy.init``: make keys, certificates and secrets for the parties on this host."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import gdpfed.methods  # noqa: F401 - hands the methods to conf
from conf.load import load
from deploy.credentials import RENEWABLE, Store
from deploy.edges import CLOUD, add_layers, layers_of
from deploy.federation import EXAMPLES_FILE, Federation, TopologyError
from deploy.options import add_federation, exit_status, federation_of, host
from deploy.services import services, services_of
from deploy.stored_app import provide_signature
from deploy.topology import APP_SIGNATURE, DATA, PUBLIC, SERVER, SERVER_SUPEREXEC, Service
from gdpfed.clients.configured import task_of
from gdpfed.decimal_numbers import whole_number


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the credentials of this host's parties; return the exit status: 0 done, 2 bad input."""
    options = parser().parse_args(arguments)
    return exit_status(lambda: print(provide(options)))


def provide(options: argparse.Namespace) -> str:
    """Make missing credentials for the chosen parties (default: all); return a message for the operator."""
    if (options.edges is None) != (options.host is None):
        raise TopologyError("--edges and --host go together: name both, as in --edges 3 --host edge-1")
    edge_client: list[Service] = []
    if options.edges is None:
        federation = federation_of(options)
    else:
        layers = layers_of(options)
        if options.host == CLOUD:
            federation = layers.cloud
        else:
            client_name = layers.edge_client(options.host).name
            edge_client = services_of(services(layers.cloud), [client_name])
            federation = layers.edges[options.host]
    # The edge client is operated by who operates the edge's server.
    parties = [*options.party, *(service.party for service in edge_client if SERVER in options.party)]
    mine = services_of([*services(federation), *edge_client], parties)
    own, above = ([each for each in mine if (each in edge_client) is of_cloud] for of_cloud in (False, True))
    stores = [
        (store, operated)
        for store, operated in (
            (Store(options.directory, options.owner, signs_roster=not parties), own),
            (Store(options.directory / CLOUD, options.owner, signs_roster=False), above),
        )
        if operated
    ]
    for store, operated in stores:
        for kind in options.renew:
            store.renew(kind, operated)
        store.provide(operated, options.superlink_host)
        if federation.signed_apps and store.signs_roster:
            provide_signature(store)
    if options.demo_data:
        provide_demo_data(options.directory, federation)
    made = f"credentials of {', '.join(service.name for service in mine)} are in {options.directory}"
    waits = [words for store, operated in stores for words in store.awaited(operated)]
    signature = options.directory / PUBLIC / APP_SIGNATURE
    if (
        federation.signed_apps
        and any(each.name == SERVER_SUPEREXEC for each in own)
        and not signature.exists()
    ):
        waits.append(
            f"put the consortium's {signature.name} into {signature.parent}: nodes run signed apps alone"
        )
    return "".join([made, *(f"\n{words}" for words in waits)])


def provide_demo_data(root: Path, federation: Federation) -> None:
    """Write a demo data file for every node whose data folder is empty; existing files stay.

    Args:
        root: holds one directory a service, see `deploy.credentials`.
        federation: its nodes share the data set, as in a simulation of as many clients.
    """
    missing = [
        node
        for node in federation.nodes
        if (folder := root / node.superexec / DATA).is_dir() and not any(folder.iterdir())
    ]
    if not missing:
        return
    task = task_of(load(["dataset=digits", f"dataset.num_clients={len(federation.nodes)}"]))
    for node in missing:
        examples = task.client_data(node.client_id)
        folder = root / node.superexec / DATA
        np.savez(folder / EXAMPLES_FILE, x_train=examples.x, y_train=examples.y)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command-line options of ``deploy.init``."""
    made = argparse.ArgumentParser(prog="python -m deploy.init", description=__doc__)
    add_federation(made)
    add_layers(made)
    made.add_argument(
        "--directory", type=Path, required=True, help="where the credentials are written; existing files stay"
    )
    made.add_argument(
        "--party", action="append", default=[], help="server or node-<i>; repeat it for several; default: all"
    )
    made.add_argument(
        "--superlink-host",
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
    made.add_argument("--owner", type=whole_number, help="user id that the services run as")
    return made


if __name__ == "__main__":
    raise SystemExit(main())
