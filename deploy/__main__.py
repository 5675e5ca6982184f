"""``python -m deploy``: print the Compose file of a federation, or of the host of one party.

python -m deploy                                          docker-compose.yml: six nodes on one host
python -m deploy --nodes 12 > federation.yml              twelve; docker compose -f federation.yml up
python -m deploy --party server > server.yml              the server's host
python -m deploy --party node-3 --superlink fl.example.org > node-3.yml
python -m deploy --cuda > federation.yml                  on NVIDIA GPUs
"""

import argparse
import sys
from collections.abc import Sequence

from deploy.compose import compose_file, to_text
from deploy.options import add_federation, exit_status, federation_of, host, port
from deploy.placements import SUPERLINK_PORT, Containers
from deploy.topology import SUPERLINK

HEADER = """\
Made by: python -m deploy{words}
Change deploy/topology.py or the words above, not this file. How to use it: docs/deployment.md"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the file; return the exit status: 0 done, 2 bad input."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(words)
    return exit_status(lambda: print(text_of(options, words), end=""))


def text_of(options: argparse.Namespace, words: Sequence[str]) -> str:
    """Return the Compose file that the options describe."""
    place = Containers(options.superlink, options.port)
    tree = compose_file(federation_of(options), party=options.party, place=place, cuda=options.cuda)
    return to_text(tree, HEADER.format(words="".join(f" {word}" for word in words)))


def default_text() -> str:
    """Return the text of ``docker-compose.yml``: the file for no options."""
    return text_of(_parser().parse_args([]), [])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_federation(parser)
    parser.add_argument("--party", help="print the services of this party only: server or node-<i>")
    parser.add_argument(
        "--superlink",
        type=host,
        default=SUPERLINK,
        metavar="HOST",
        help="host name of the SuperLink, for the nodes",
    )
    parser.add_argument("--port", type=port, default=SUPERLINK_PORT, help="port of the SuperLink")
    parser.add_argument("--cuda", action="store_true", help="run the app on NVIDIA GPUs")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
