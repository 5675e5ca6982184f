"""``python -m deploy.local``: the whole topology on loopback, one training, and nothing left afterwards."""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from conf.load import load
from conf.schema import ConfigError
from deploy.control import ControlError, training_words
from deploy.credentials import CredentialsError
from deploy.options import add_federation, exit_status, federation_of
from deploy.processes import LoopbackFederation
from gdpfed.cli.command import make_console
from gdpfed.flower_run import LaunchError, require_unused
from gdpfed.methods import make_method
from gdpfed.privacy.errors import PrivacyError
from gdpfed.report.plan_table import plan_table
from gdpfed.report.progress import RunProgress
from gdpfed.report.records import read_rounds, run_path

EXPECTED = (ConfigError, PrivacyError, LaunchError, ControlError, CredentialsError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 done, 2 bad input or a run that failed, 130 interrupted."""
    options = _parser().parse_args(arguments)
    try:
        return exit_status(lambda: train(options, make_console()), *EXPECTED)
    except KeyboardInterrupt:
        print("deploy: interrupted", file=sys.stderr)
        return 130


def train(options: argparse.Namespace, console: Console) -> None:
    """Check the plan, start everything, train, and keep the run's files."""
    federation = federation_of(options)
    overrides = training_words(len(federation.nodes), options.overrides)
    config = load(overrides)
    plan = make_method(config).plan
    console.print(plan_table(plan, config.method.name))
    kept = run_path(config.run.directory, config.dataset.name, config.method.name)
    require_unused(kept)
    budgets = [group["epsilon"] for group in plan.to_dict()["groups"]]
    console.print(f"starting the server and {len(federation.nodes)} nodes ...")
    with LoopbackFederation(federation) as running:
        console.print("every node is online, over TLS and under its own key")
        waiting = "training ..."
        with RunProgress(console, config.run.num_rounds, budgets, waiting=waiting) as progress:
            follow(running, overrides, kept, progress)
    console.print(f"The run's files are in {kept}", soft_wrap=True)


def follow(running: LoopbackFederation, overrides: Sequence[str], kept: Path, progress: RunProgress) -> None:
    """Train, show the rounds, and copy the run's files to ``kept``, also of a run that fails.

    Raises:
        LaunchError: the run failed; one line that says why.
    """
    files = running.runs / kept.name
    run = running.train(kept.name, overrides)
    try:
        while run.running():
            progress.update(read_rounds(files))
        run.check()
        progress.update(read_rounds(files))
    finally:
        if files.is_dir():
            shutil.copytree(files, kept, dirs_exist_ok=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deploy.local", description=__doc__)
    add_federation(parser)
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="for instance run.num_rounds=3")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
