"""``gdpfed metrics``: serve metrics of a run, for monitoring by Prometheus."""

import argparse
import sys
from functools import partial

from gdpfed.cli.command import Command, add_watching, cli_path

EXAMPLES = """\
gdpfed metrics runs                      of the newest run there, at any time
gdpfed metrics runs --listen 0.0.0.0:9470    not for this machine alone"""
RUN_PORT = 9470


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", type=cli_path, metavar="RUN", help="the directory of a run, or a folder: its newest run"
    )
    add_watching(parser, RUN_PORT)


def _execute(options: argparse.Namespace) -> int:
    from gdpfed.report.exported import Source, certificate_sources, run_figures
    from gdpfed.report.figures_server import serve

    if not options.run.exists():
        print(f"gdpfed: {options.run} is not there yet: figures are served once it is", file=sys.stderr)
    run = Source(str(options.run), partial(run_figures, options.run))
    serve([run, *certificate_sources(options.certificate)], options.listen, names=options.name)
    return 0


COMMAND = Command(
    name="metrics",
    help="serve a run's figures to Prometheus; of a node: gdpfed node metrics",
    description=(
        "Serve how far a run is, which sums failed, and what every group has spent of its budget, at "
        "http://127.0.0.1:9470/metrics, while the run goes on or later; / is a page with them. Times, "
        "survivors and who is in reach are served only where epsilon does not rest on nobody knowing who was "
        "drawn. It needs the extra metrics."
    ),
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
