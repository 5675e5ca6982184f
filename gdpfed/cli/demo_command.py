"""``gdpfed demo``: train a model with DP and one without on bundled data, and compare them."""

import argparse

from gdpfed.cli.command import Command, add_overrides, make_console
from gdpfed.errors import ConfigError

EXAMPLES = """\
gdpfed demo                          the bundled digits, 360 clients
gdpfed demo privacy.budgets=[1,2,8]
gdpfed demo --private-only           without what it is compared with"""
SETTINGS = ("dataset=digits", "method=gdpfed_star", "secagg=off")
"""Masks cost most of a simulation's time and change no sum; 'gdpfed simulate' has them, as deployments do."""
FIXED = ("method", "run.directory", "run.resume")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_overrides(parser, "privacy.budgets=[1,2,8]")
    parser.add_argument(
        "--private-only", action="store_true", help="leave out the training without privacy, the second half"
    )


def _execute(options: argparse.Namespace) -> int:
    from gdpfed.cli.simulated_run import train
    from gdpfed.report.ending import show_ending
    from gdpfed.runs.paths import reserved, run_path

    for override in options.overrides:
        if override.partition("=")[0] in FIXED:
            raise ConfigError(f"{override}: the demo sets this itself; use gdpfed simulate {override}")
    console, folder = make_console(), run_path(None, "digits", "demo")
    said = {override.partition("=")[0] for override in options.overrides}
    chosen = [each for each in SETTINGS if each.partition("=")[0] not in said]
    reserved(folder)
    private = train(console, [*chosen, *options.overrides, f"run.directory={folder}/private"])
    if not options.private_only:
        console.print("The same training without privacy, to know what privacy costs:")
        without = [each for each in chosen if not each.startswith("method=")]
        others = [each for each in options.overrides if not each.startswith("privacy.")]
        path = f"run.directory={folder}/without_privacy"
        train(console, [*without, *others, "method=fedavg", path])
    show_ending(console, private)
    console.print("Next: 'gdpfed new' writes settings of your own, and 'gdpfed plan' says what they promise.")
    return 0


COMMAND = Command(
    name="demo",
    help="train a first private model on bundled digits, and see what privacy costs",
    description="Train GDPFed* on real handwritten digits of 360 clients with budgets 1, 3 and 6, then the "
    "same without privacy, and print both results with what was spent. Everything is simulated in this "
    "process: no secure aggregation, no network.",
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
