"""Measures the cost of subnets (groups of devices): an H2FDP round with J sums against J DP-FedAvg rounds.

H2FDP with noise on updates (J windows of 5 steps) beside DP-FedAvg over the same devices, all of them in
every round, with 5 steps a round, on pictures of Fashion-MNIST's form (random pixels), sums in clear. Seconds
are those of J rounds without evaluation; the first ones of each are left out. Then rounds are
measured with up to 1,000 subnets of 10 devices.

python -m benchmarks.subnets [--subnets 60] [--growth 10 100 1000] [--rounds 5]
"""

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.harness import Measured, comparison, measure, publish, read_options, three
from benchmarks.simulation.random_data import draw_pictures
from benchmarks.simulation.work import run_alone
from gdpfed.report.console import Table

DEVICES, WINDOWS, STEPS = 10, 4, 5
GROWTH = ("10", "100", "1000")


def common(data: str, subnets: int, rounds: int) -> list[str]:
    """Return the settings that rounds with and without subnets share."""
    return [
        "dataset=fmnist",
        f"dataset.path={data}",
        "dataset.model=softmax",
        f"dataset.num_clients={subnets * DEVICES}",
        "privacy.accountant=rdp",
        "privacy.delta=1e-6",
        "secagg=off",
        f"run.num_rounds={rounds}",
        "simulation.workers=1",
    ]


def with_subnets(data: str, subnets: int, rounds: int, *, watched: bool = False) -> Measured:
    """Measure the seconds per round of the method H2FDP, whose devices are grouped into subnets."""
    overrides = [
        *common(data, subnets, rounds + 1),
        "method=h2fdp",
        f"method.num_subnets={subnets}",
        f"method.local_aggregations={WINDOWS}",
        f"training.local_steps={WINDOWS * STEPS}",
    ]
    result = run_alone("simulated", {"overrides": overrides, "watched": watched, "more": []})
    name = f"{subnets} subnets of {DEVICES}, a round of {WINDOWS} windows"
    return Measured(name, result["seconds"], (str(rounds),), result["peak_mb"])


def without(data: str, subnets: int, rounds: int) -> Measured:
    """Measure DP-FedAvg without subnets: seconds of all rounds that do the work of one H2FDP round."""
    overrides = [
        *common(data, subnets, (rounds + 1) * WINDOWS),
        "method=dp_fedavg",
        "privacy.sampling=fixed_size",
        "privacy.sampling_rate=1",
        f"training.local_steps={STEPS}",
    ]
    result = run_alone("simulated", {"overrides": overrides, "watched": False, "more": []})
    each = result["seconds"][WINDOWS - 1 :]
    together = [sum(each[at : at + WINDOWS]) for at in range(0, len(each), WINDOWS)]
    return Measured(f"without subnets, {WINDOWS} rounds", together, (str(len(together)),))


def growth(data: str, sizes: Sequence[int], rounds: int) -> Table:
    """Make a table of seconds per round and peak memory by the number of subnets."""
    measured = measure(partial(with_subnets, data, size, rounds, watched=True) for size in sizes)
    rows = [
        (f"{size:,}", f"{size * DEVICES:,}", three(each.median), f"{each.peak_mb:,.0f}")
        for size, each in zip(sizes, measured, strict=True)
    ]
    return Table("Growth", ("subnets", "devices", "seconds a round", "peak memory, MB"), rows)


def main() -> None:
    """Measure rounds with and without subnets, and with growing numbers of subnets; show both tables."""
    options = read_options(__doc__, overrides=False, subnets=60, growth=GROWTH, rounds=5)
    with tempfile.TemporaryDirectory() as directory:
        draw_pictures(Path(directory))
        ways = [partial(way, directory, options.subnets, options.rounds) for way in (without, with_subnets)]
        measured = measure(ways)
        title = f"{options.subnets * DEVICES} devices, all in every round"
        headings = ("measured", "seconds: median (least, most)", "times without subnets")
        race = comparison(title, measured, lambda _: measured[0], *headings)
        grown = growth(directory, [int(size) for size in options.growth], options.rounds)
    publish([race, grown], options.write)


if __name__ == "__main__":
    main()
