"""``gdpfed simulate`` beside flwr run, apple's pfl, a plain loop, and what the machine can do.

All is measured one after the other in this one call: rounds of DP-FedAvg on pictures of Fashion-MNIST's form
(random pixels) with its setting, 6,000 clients with 10 examples each, 120 of them a round, 5 steps of 10
examples. Seconds are those of a round without evaluation; each contender's first round is left out. Pictures
of the growth with cohort and population go to docs/.

    python -m benchmarks.simulation [--parts race limit growth] [--against pfl loop flower] [--rounds 10]
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.simulation import drawn_pictures, growth, tables
from benchmarks.simulation.contenders import flower, pfl, plain_loop, simulate
from benchmarks.simulation.work import PROJECT, Measured, Work, run_alone

PARTS = ("race", "limit", "growth")
OTHERS = ("pfl", "loop", "flower")
RESNET = {"model": "resnet18", "num_clients": 600, "cohort": 60}


def race(work: Work, others: Sequence[str], console: Console) -> list[Measured]:
    """``gdpfed simulate`` and the others; on a CPU pfl and the loop both ways that use all cores."""
    cores = len(os.sched_getaffinity(0)) if work.device == "cpu" else 1
    spread = cores > 1
    ways = {
        "pfl": [partial(pfl, work, 1, cores), *[partial(pfl, work, cores, 1)] * spread],
        "loop": [partial(plain_loop, work, cores), *[partial(plain_loop, work, 1)] * spread],
        "flower": [partial(flower, work)] * (work.model == "cnn2"),
    }
    measured = []
    for way in [partial(simulate, work), *(way for name in others for way in ways[name])]:
        with console.status("measuring ..."):
            measured.append(way())
        each = measured[-1]
        console.print(f"{each.name}: {each.median:.3f} s a round, load average {os.getloadavg()[0]:.1f}")
    return measured


def grow(work: Work, console: Console) -> None:
    """Measure and draw both curves."""
    docs = PROJECT / "docs"
    with console.status("measuring growth ..."):
        cohorts, populations = growth.over_cohorts(work), growth.over_populations(work)
    console.print(tables.growth_table("clients a round, of 6,000", cohorts))
    console.print(tables.growth_table("population, 120 clients a round", populations))
    growth.draw(cohorts, "clients a round", docs / "simulation_cohort.png")
    growth.draw(populations, "population", docs / "simulation_population.png")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--against", nargs="+", choices=OTHERS, default=OTHERS, help="whom to race")
    parser.add_argument("--rounds", type=int, default=10, help="measured rounds of each contender")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cpu, and cuda where there is one")
    options = parser.parse_args()
    devices = [options.device] if options.device else ["cpu", *["cuda"] * torch.cuda.is_available()]
    console = Console()
    with tempfile.TemporaryDirectory() as directory:
        drawn_pictures.draw(Path(directory))
        for device in devices:
            work = Work(directory, rounds=options.rounds, device=device)
            console.rule(torch.cuda.get_device_name() if device == "cuda" else f"{os.cpu_count()} CPU cores")
            if "race" in options.parts:
                console.print(tables.race_table(race(work, options.against, console), work))
            if "race" in options.parts and device == "cuda":
                resnet = replace(work, **RESNET)
                console.print(tables.race_table(race(resnet, options.against, console), resnet))
            if "limit" in options.parts:
                console.print(tables.limit_table(run_alone("limits", vars(work))))
            if "growth" in options.parts:
                grow(work, console)
    if "cuda" not in devices:
        console.print("No GPU was at hand: nothing was measured on one.")


if __name__ == "__main__":
    main()
