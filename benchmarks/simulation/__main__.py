"""Compares ``gdpfed simulate`` with flwr run, Apple's pfl, a plain loop, and the machine's limits.

All is measured one after the other in this one call: rounds of DP-FedAvg on pictures of Fashion-MNIST's form
(random pixels) with its setting, 6,000 clients with 10 examples each, 120 of them a round, 5 steps of 10
examples. Seconds are those of a round without evaluation; each contender's first round is left out. Pictures
of the growth with cohort and population go to docs/.

    python -m benchmarks.simulation [--parts race limit growth] [--against pfl loop flower] [--rounds 10]
        [--cnn3 | --lstm | --resnet18] [--changes graphs=off precision=tf32 precision=bf16] [--busy]

With --cnn3, pictures have CIFAR-10's form: 1,000 clients with 10 examples each, 60 of them a round. With
--lstm, texts take the place of pictures: 200 roles, 20 of them a round, 5 steps of 4 windows of 80 random
characters; pfl and the loop have nn.LSTM. With --resnet18, 60 of 600 clients take part. --changes: settings
of `simulation` that are measured on a GPU beside the defaults. Nothing is measured if the CPUs are more than
an eighth busy before the first round; with --busy the results are marked instead.
"""

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import (
    CONSOLE,
    PROJECT,
    check_idle,
    comparison,
    draw_growth,
    measure,
    publish,
    read_options,
)
from benchmarks.simulation.contenders import check_pfl, flower, pfl, plain_loop, simulate
from benchmarks.simulation.random_data import draw_colour_pictures, draw_pictures, draw_plays
from benchmarks.simulation.work import Work, run_alone
from gdpfed.errors import InputError
from gdpfed.report.console import Table

PARTS = ("race", "limit", "growth")
ROLES, ROLES_A_ROUND, CHARACTERS_A_ROLE = 200, 20, 450
COLOUR_CLIENTS, COLOUR_CLIENTS_A_ROUND, COLOUR_EXAMPLES = 1000, 60, 10
RESNET_CLIENTS, RESNET_CLIENTS_A_ROUND = 600, 60
GPU_SETTINGS = ("graphs=off", "precision=tf32", "precision=bf16")
OTHERS = ("pfl", "loop", "flower")
COHORTS = (30, 100, 300, 1000, 3000)
POPULATIONS = (6_000, 60_000, 1_000_000)
GROWTH_ROUNDS = 3


def race(work: Work, others: Sequence[str], changes: Sequence[str]) -> Table:
    """Make a table of seconds per round of ``gdpfed simulate`` and of other programs.

    On a GPU, `gdpfed simulate` is also measured with each of the settings in `changes`.
    """
    cores = len(os.sched_getaffinity(0)) if work.device == "cpu" else 1
    spread = cores > 1
    ways = {
        "pfl": [*[partial(pfl, work, cores, 1)] * spread, partial(pfl, work, 1, cores)],
        "loop": [partial(plain_loop, work, cores), *[partial(plain_loop, work, 1)] * spread],
        "flower": [partial(flower, work)] * (work.model == "cnn2"),
    }
    settings = [partial(simulate, work, f"simulation.{each}") for each in changes]
    ours = [partial(simulate, work), *settings * (work.device == "cuda")]
    measured = measure([*ours, *(way for name in others for way in ways[name])])
    title = f"{work.model}, {work.num_clients:,} clients, {work.cohort} a round, on {_named(work.device)}"
    headings = ("rounds", "seconds a round: median (least, most)", "times `gdpfed simulate`")
    return comparison(title, measured, lambda _: measured[0], *headings)


def growth(size_name: str, works: Mapping[int, Work], picture: Path) -> Table:
    """Measure how seconds per round and memory grow with cohort or population; make a table and a picture."""
    measured = measure(partial(simulate, work, watched=True) for work in works.values())
    points = list(zip(works, measured, strict=True))
    seconds = [(float(size), each.median) for size, each in points]
    memory = [(float(size), each.peak_mb) for size, each in points]
    draw_growth(picture, size_name, {"seconds a round": {"": seconds}, "peak memory, MB": {"": memory}})
    rows = [(f"{size:,}", f"{each.median:.3f}", f"{each.peak_mb:,.0f}") for size, each in points]
    return Table("Growth", (size_name, "seconds a round", "peak memory, MB"), rows)


def growths(work: Work) -> list[Table]:
    """Measure cohorts of 30 to 3,000 clients and growing populations; make tables."""
    work = replace(work, rounds=GROWTH_ROUNDS)
    cohorts = {size: replace(work, cohort=size) for size in COHORTS}
    populations = {size: replace(work, num_clients=size) for size in POPULATIONS}
    docs = PROJECT / "docs"
    return [
        growth("clients a round, of 6,000", cohorts, docs / "simulation_cohort.png"),
        growth("population, 120 clients a round", populations, docs / "simulation_population.png"),
    ]


def limit(result: Mapping[str, Any], work: Work) -> Table:
    """Make a table that compares a training step's time with the least time that its operations need."""
    rates, steps = result["rates"], result["client_steps"]
    ms = 1e3 * result["seconds"] / steps
    mflop, mbytes = (result[key] / steps / 1e6 for key in ("flops", "bytes"))
    rows = [("the step as measured", "", "", f"{ms:.3f}", "100 %")]
    for name, amount, unit, rate_name in (
        ("its products", mflop, "MFLOP", "GFLOP/s"),
        ("its tensors, read and written in cache", mbytes, "MB", "GB/s in cache"),
        ("its tensors, read and written in memory", mbytes, "MB", "GB/s in memory"),
    ):
        least = amount / rates[rate_name]
        rate = f"{rates[rate_name]:.0f} {rate_name.split()[0]}"
        rows.append((name, f"{amount:.1f} {unit}", rate, f"{least:.3f}", f"{100 * least / ms:.0f} %"))
    shares = sorted(result["shares"].items(), key=lambda pair: -pair[1])
    note = f"Where the time goes: {', '.join(f'{name} {100 * share:.0f} %' for name, share in shares)}."
    title = f"One step of one client ({work.model}), one core or GPU of {_named(work.device)}"
    return Table(title, ("", "amount", "the core's rate", "ms", "of the step"), rows, note)


def _named(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else f"{os.cpu_count()} CPU cores"


def ready(options: argparse.Namespace) -> str:
    """Raise SystemExit if the chosen measurements cannot run here; return a remark if the machine is busy."""
    try:
        others = [name for name in ("cnn3", "lstm", "resnet18") if vars(options)[name]]
        if len(others) > 1:
            raise InputError(f"--{' and --'.join(others)} are several races: run one after the other")
        if others and "growth" in options.parts:
            raise InputError("only cnn2 has a growth: name the other parts, as in --parts race limit")
        if options.resnet18 and "pfl" in options.against:
            raise InputError("--resnet18 is torchvision's, which pfl's environment lacks: use --against loop")
        if "race" in options.parts and "pfl" in options.against:
            check_pfl()
        return check_idle(options.busy)
    except InputError as error:
        raise SystemExit(str(error)) from None


def drawn_work(directory: Path, options: argparse.Namespace) -> Work:
    """Write random data for the chosen model into a directory; return a `Work` that describes the rounds."""
    if options.cnn3:
        colours = directory / "colours.npz"
        draw_colour_pictures(colours, count=COLOUR_CLIENTS * COLOUR_EXAMPLES)
        return Work(str(colours), "cnn3", COLOUR_CLIENTS, COLOUR_CLIENTS_A_ROUND)
    if options.lstm:
        plays = directory / "plays.txt"
        draw_plays(plays, num_roles=ROLES, num_characters=CHARACTERS_A_ROLE)
        return Work(str(plays), "lstm", ROLES, ROLES_A_ROUND)
    draw_pictures(directory)
    if options.resnet18:
        return Work(str(directory), "resnet18", RESNET_CLIENTS, RESNET_CLIENTS_A_ROUND)
    return Work(str(directory))


def main() -> None:
    """Measure ``gdpfed simulate`` and other programs, and show the tables."""
    options = read_options(
        __doc__,
        overrides=False,
        parts=PARTS,
        against=OTHERS,
        changes=GPU_SETTINGS,
        rounds=10,
        device="",
        cnn3=False,
        lstm=False,
        resnet18=False,
        busy=False,
    )
    mark = ready(options)
    devices = [options.device] if options.device else ["cpu", *["cuda"] * torch.cuda.is_available()]
    tables: list[Table] = []
    with tempfile.TemporaryDirectory() as directory:
        asked = replace(drawn_work(Path(directory), options), rounds=options.rounds)
        for device in devices:
            work = replace(asked, device=device)
            if "race" in options.parts:
                tables.append(race(work, options.against, options.changes))
            if "limit" in options.parts:
                tables.append(limit(run_alone("limits", vars(work)), work))
            if "growth" in options.parts:
                tables += growths(work)
    publish(tables, options.write, mark)
    if "cuda" not in devices:
        CONSOLE.print("No GPU was at hand: nothing was measured on one.")


if __name__ == "__main__":
    main()
