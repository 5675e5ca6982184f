"""The command ``gdpfed``: plan a private training, look at its data, run it in simulation."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from conf.load import load
from conf.schema import ConfigError
from gdpfed.launch import Launch, LaunchError
from gdpfed.learning.errors import LearningError
from gdpfed.methods import METHODS, make_method
from gdpfed.privacy.errors import PrivacyError
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.report.plan_table import WIDTH, comparison_table, plan_table
from gdpfed.report.progress import RunProgress
from gdpfed.report.records import read_rounds, run_path

ACCOUNTANTS = ("pld", "rdp", "theorem1")
EXAMPLES = """\
examples:
  gdpfed plan                                       the bundled digits, GDPFed+
  gdpfed plan dataset=fmnist method=gdpfed privacy.accountant=rdp
  gdpfed plan dataset=svhn --compare                every method and accountant side by side
  gdpfed plan privacy.budgets=[0.5,2,8] privacy.group_shares=[0.2,0.3,0.5] --json
  gdpfed partition dataset=cifar10 dataset.partition=dirichlet dataset.dirichlet_alpha=0.3
  gdpfed run method=dp_fedavg run.seed=1            train in simulation, with a progress bar
  gdpfed run run.resume=runs/20260101-120000-digits-gdpfed_plus

Overrides are Hydra's: group=option chooses a file under conf/, group.key=value sets one value.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gdpfed",
        description="Federated learning with a privacy budget of each client's own.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    plan = commands.add_parser(
        "plan",
        help="show noise, sampling rates and guarantees before training",
        description="Show what a run would promise every group, and the noise and rates that keep it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    plan.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="for instance dataset=fmnist")
    plan.add_argument("--json", action="store_true", help="print the plan as JSON")
    plan.add_argument(
        "--compare", action="store_true", help="all methods under all accountants, side by side"
    )
    partition = commands.add_parser(
        "partition",
        help="show which client holds how much of what",
        description="Share out a data set as a run would, and show what the clients hold.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    partition.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="for instance dataset=fmnist")
    partition.add_argument(
        "--output", type=Path, metavar="FILE.png", help="also draw the labels of each client"
    )
    run = commands.add_parser(
        "run",
        help="train on Flower's simulation backend and follow it",
        description="Start Flower in a home of its own, train, follow the rounds, and leave no process.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="for instance run.seed=1")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status: 0 done, 1 a run that failed, 2 bad input."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "run":
            return _run(options.overrides)
        if options.command == "partition":
            return _partition(options.overrides, options.output)
        return _plan(options.overrides, as_json=options.json, compare=options.compare)
    except (ConfigError, LearningError, PrivacyError) as error:
        print(f"gdpfed: {error}", file=sys.stderr)
        return 2
    except LaunchError as error:
        print(f"gdpfed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("gdpfed: interrupted", file=sys.stderr)
        return 130


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def _plan(overrides: Sequence[str], *, as_json: bool, compare: bool) -> int:
    if compare:
        rows = _comparison(overrides)
        if as_json:
            print(json.dumps([_comparison_dict(*row) for row in rows], indent=2, allow_nan=False))
        else:
            _console().print(comparison_table(rows))
        return 0
    method = make_method(load(overrides))
    if as_json:
        print(json.dumps(method.plan.to_dict(), indent=2, allow_nan=False))
    else:
        _console().print(plan_table(method.plan, method.name))
    return 0


def _comparison(overrides: Sequence[str]) -> list[tuple[str, str, PrivacyPlan | str]]:
    fixed = ("method=", "privacy.accountant=")
    common = [override for override in overrides if not override.startswith(fixed)]
    load(common)
    return [
        (
            name,
            accountant,
            _plan_or_reason([*common, f"method={name}", f"privacy.accountant={accountant}"]),
        )
        for name in METHODS
        for accountant in (ACCOUNTANTS if name != "fedavg" else ("pld",))
    ]


def _plan_or_reason(overrides: Sequence[str]) -> PrivacyPlan | str:
    try:
        return make_method(load(overrides)).plan
    except (ConfigError, PrivacyError) as error:
        return str(error)


def _comparison_dict(method: str, accountant: str, plan: PrivacyPlan | str) -> dict[str, object]:
    outcome: dict[str, object] = {"refused": plan} if isinstance(plan, str) else plan.to_dict()
    return {"method": method, "accountant": accountant, **outcome}


def _partition(overrides: Sequence[str], picture: Path | None) -> int:
    # Imported here, since torch takes seconds and the other commands leave it to the run's own processes.
    from gdpfed.report.partition import draw_partition, holdings, partition_table
    from gdpfed.tasks import task_of

    if picture is not None and (picture.suffix != ".png" or not picture.absolute().parent.is_dir()):
        raise ConfigError(f"--output={picture} must be a .png file in a directory that exists")
    held = holdings(task_of(load(overrides)))
    _console().print(partition_table(held))
    if picture is not None:
        draw_partition(held, picture)
        _console().print(f"The picture is in {picture}", soft_wrap=True)
    return 0


def _run(overrides: Sequence[str]) -> int:
    config = load(overrides)
    plan = make_method(config).plan
    console = _console()
    console.print(plan_table(plan, config.method.name))
    resuming = config.run.resume is not None
    chosen = config.run.resume or config.run.directory
    directory = run_path(chosen, config.dataset.name, config.method.name)
    launch = Launch.training(
        overrides,
        num_clients=config.dataset.num_clients,
        directory=directory,
        resuming=resuming,
        dataset_path=config.dataset.path,
    )
    budgets = [group["epsilon"] for group in plan.to_dict()["groups"]]
    with launch, RunProgress(console, config.run.num_rounds, budgets) as progress:
        while launch.running():
            progress.update(read_rounds(directory))
        launch.check()
        progress.update(read_rounds(directory))
    console.print(f"The run's files are in {directory}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
