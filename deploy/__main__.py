"""``python -m deploy``: print a Compose file or Helm values for chosen nodes, one party or one host.

python -m deploy --nodes 12 > federation.yml              twelve; docker compose -f federation.yml up
python -m deploy --party server > server.yml              the server's host
python -m deploy --party node-3 --epsilon 2.5 --data /srv/study > node-3.yml
python -m deploy --cuda > federation.yml                  on NVIDIA GPUs
python -m deploy --party node-3 --helm > node-3.yaml      the same party on Kubernetes, see deploy/helm
python -m deploy --edges 3 --nodes 12                     cloud.yml, edge-0.yml, edge-1.yml, edge-2.yml
python -m deploy --edges 3 --nodes 12 --host edge-1 --superlink cloud.example.org > edge-1.yml
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.compose import (
    BUDGET,
    CLOUD_HOST,
    DATA_FOLDER,
    Containers,
    compose_file,
    host_file,
)
from deploy.description import Tree, pinned, to_text
from deploy.edges import CLOUD, add_layers, layers_of
from deploy.federation import TopologyError
from deploy.kubernetes import values_text
from deploy.options import absolute, add_federation, budget, exit_status, federation_of, host, port
from deploy.topology import GATE, SERVER, SUPERLINK_PORT
from gdpfed.decimal_numbers import whole_number

HEADER = """\
Made by: python -m deploy{words}
Change docker-compose.yml or the words above, not this file. How to use it: docs/deployment.md"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a Compose file or Helm values, or write one file per host; return the exit status, 0 or 2.

    The status 2 is that of bad input.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="python -m deploy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_federation(parser)
    add_layers(parser)
    parser.add_argument(
        "--trusted-edges",
        type=whole_number,
        default=0,
        metavar="E",
        help="nodes of the first E edges trust theirs",
    )
    parser.add_argument(
        "--into",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="where the files of cloud and edges are written if no --host is named (default: here)",
    )
    parser.add_argument("--party", help="print the services of this party only: server or node-<i>")
    parser.add_argument(
        "--epsilon",
        type=budget,
        help="this node's budget, written into its file; else a variable says it",
    )
    parser.add_argument(
        "--data",
        type=absolute,
        metavar="DIR",
        help="the folder of this node's data on its host, written into its file; else a variable says it",
    )
    parser.add_argument(
        "--superlink",
        type=host,
        metavar="HOST",
        help="host name of the server's gate, for the nodes, and of the cloud's for an edge client",
    )
    parser.add_argument("--port", type=port, default=SUPERLINK_PORT, help="port of the gate")
    parser.add_argument(
        "--helm", action="store_true", help="print a party's values for the chart deploy/helm"
    )
    parser.add_argument(
        "--production", action="store_true", help="take Flower's images by the digests that variables say"
    )
    parser.add_argument("--cuda", action="store_true", help="run the app on NVIDIA GPUs")
    options = parser.parse_args(words)
    return exit_status(lambda: _print_or_write(options, words))


def _print_or_write(options: argparse.Namespace, words: Sequence[str]) -> None:
    if options.edges is None or options.host is not None:
        print(text_of(options, words), end="")
        return
    if options.party is not None:
        raise TopologyError(
            f"--party {options.party} belongs to one edge: name the edge, as in --host edge-0"
        )
    for name in layers_of(options).hosts:
        options.host = name
        file = options.into / f"{name}.yml"
        text = text_of(options, [*words, "--host", name])
        try:
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise TopologyError(f"{file} cannot be written: {error.strerror}; name another folder") from None
        print(file)


def text_of(options: argparse.Namespace, words: Sequence[str]) -> str:
    """Return the text of the Compose file or Helm values that the command-line options describe.

    Raises TopologyError: options that describe none.
    """
    header = HEADER.format(words="".join(f" {word}" for word in words))
    tree = pinned(_tree(options), os.environ) if options.production else _tree(options)
    if not options.helm:
        return to_text(tree, header)
    if options.party is None and options.host != CLOUD:
        raise TopologyError(
            "--helm is for one party, which has its own namespace: name the party with --party"
        )
    return values_text(tree, header)


def _tree(options: argparse.Namespace) -> Tree:
    if options.edges is None:
        if options.host is not None or options.trusted_edges:
            raise TopologyError("--host and --trusted-edges need --edges: give the number of edges")
        place = _place(options, GATE)
        return compose_file(federation_of(options), party=options.party, place=place, cuda=options.cuda)
    place = _place(options, CLOUD_HOST)
    if options.host == CLOUD and options.party is not None:
        raise TopologyError(
            f"--party {options.party} is not on the cloud's host, which has no nodes: name an edge "
            "by --host, as in --host edge-0"
        )
    return host_file(layers_of(options), options.host, party=options.party, place=place, cuda=options.cuda)


def _place(options: argparse.Namespace, superlink: str) -> Containers:
    """Return where containers find the SuperLink and, if a host has one node, the node's budget and data."""
    alone = options.party if options.party not in (None, SERVER) else None
    for name in (BUDGET, DATA_FOLDER):
        if alone is None and getattr(options, name.lower()) is not None:
            raise TopologyError(f"--{name.lower()} belongs to one node: name the node, as in --party node-3")
    return Containers(
        options.superlink or superlink, options.port, alone=alone, epsilon=options.epsilon, data=options.data
    )


if __name__ == "__main__":
    raise SystemExit(main())
