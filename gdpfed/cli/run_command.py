"""``gdpfed run``: train on Flower's simulation backend and show the rounds."""

import argparse
import re

from gdpfed.cli.command import Command, add_overrides, busy, make_console
from gdpfed.errors import LaunchError

EXAMPLES = """\
gdpfed run method=dp_fedavg run.seed=1      train and follow the rounds
gdpfed run dataset=npz dataset.path=/data/mine.npz dataset.num_clients=100
gdpfed run run.resume=runs/20260101-120000-digits-gdpfed_plus"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_overrides(parser, "run.seed=1")


def _execute(options: argparse.Namespace) -> int:
    from gdpfed.cli.simulated_run import require_path
    from gdpfed.runs.resume import load_run

    config = load_run(options.overrides)
    config.secagg.refuse_roster()
    require_path(config)
    from conf.per_client import spelled_out
    from gdpfed.cli.show_plan import show_heading
    from gdpfed.launch.flower_run import Launch
    from gdpfed.methods import make_method, resolve
    from gdpfed.privacy.sampling.cohort_sizes import refuse_skipped
    from gdpfed.report.ending import show_ending
    from gdpfed.report.progress import RunProgress
    from gdpfed.runs.file_formats import MODEL_FILE, WEAK_DATA
    from gdpfed.runs.paths import require_unused, reserved, run_path
    from gdpfed.runs.round_log import read_rounds

    resuming = config.run.resume is not None
    chosen = config.run.resume or config.run.directory
    directory = run_path(chosen, config.dataset.name, config.method.name)
    if not resuming:
        require_unused(directory)
    with busy("planning ..."):
        resolved = resolve(config)
        method = make_method(resolved)
    console = make_console()
    show_heading(console, resolved, method)
    refuse_skipped(method.plan, method.least_members(config))
    if chosen is None:
        directory = reserved(directory)
    launch = Launch.training(
        spelled_out(options.overrides, config),
        num_clients=config.dataset.num_clients,
        directory=directory,
        resuming=resuming,
        files={"dataset.path": config.dataset.path, "dataset.weights": config.dataset.weights},
        workers=config.simulation.workers,
    )
    plan, waiting = method.plan, "starting Flower and its workers ..."
    shown = RunProgress(console, plan.num_rounds, plan.budgets, waiting=waiting, against=plan.against)
    with launch, shown as progress:
        progress.go_on_after(read_rounds(directory))
        while launch.running():
            progress.update(read_rounds(directory))
        log = launch.check()
        progress.update(done := read_rounds(directory))
    if len(done) < (last := resolved.run.last_round) and not (directory / MODEL_FILE).is_file():
        # On a busy machine Flower's log can end before the line that says why.
        raise LaunchError(
            f"Flower's run ended after {len(done)} of {last} rounds, and its log does not say why: end other "
            f"programs here, and continue with run.resume={directory}, or begin again if no round was done"
        )
    for line in re.findall(WEAK_DATA.format(r"(.+)"), log):
        console.print(line)
    show_ending(console, directory)
    return 0


COMMAND = Command(
    name="run",
    help="train on Flower's simulation backend and follow it",
    description="Start Flower in a folder of its own, train, show the rounds, and end all its processes.",
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
