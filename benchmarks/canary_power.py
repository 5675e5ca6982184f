"""Measures how many canaries and seconds an audit needs to find each planted fault, with and without masks.

The number of runs is doubled until `gdpfed audit --canaries` finds the fault, or a measurement would take
longer than allowed. A fault counts as found only if a check that looks for this kind of fault finds it. The
last column says whether the bounds on epsilon find it in the same runs, without these checks of the program.

    python -m benchmarks.canary_power [--seconds 300] [--write docs/privacy.md]
"""

from collections.abc import Iterator, Sequence

from rich.progress import track

from benchmarks.harness import CONSOLE, noted, publish, read_options, three
from conf.load import load
from conf.schema import Config
from gdpfed.extras.canaries.measure import Measurement, Settings, measure
from gdpfed.report.console import Table
from testing.planted_faults import PLANTED_FAULTS, PlantedFault, planted

SMALL = (
    "method=gdpfed_star",
    "dataset=digits",
    "run.num_rounds=8",
    "privacy.sampling_rate=0.25",
    "privacy.budgets=[1,3]",
)
# Sessions of masked sums cost most of the time, so fewer clients have them.
CLIENTS, MASKED_CLIENTS = 150, 60
MOST_RUNS = 256
NOTHING_RUNS = 8
HEADINGS = ("what is wrong", "masked", "runs", "canaries", "seconds", "found by", "bounds alone")


def population(against: str, *, masked: bool) -> Config:
    """Return the configuration of the simulated runs in which faults are planted."""
    clients = MASKED_CLIENTS if masked else CLIENTS
    words = [*SMALL, f"privacy.against={against}", f"dataset.num_clients={clients}"]
    return load(words if masked else [*words, "secagg=off"])


def finders(measurement: Measurement, fault: PlantedFault) -> list[str]:
    """Return the names of the checks that look for this kind of fault and have found it."""
    wrong = {check.looked_at for check in measurement.checks if not check.held}
    return [each for each in fault.looked_at if each in wrong]


def fault_row(fault: PlantedFault, seconds: float, most_runs: int, *, masked: bool) -> tuple[str, ...]:
    """Audit 1, 2, 4, ... runs until a planted fault is found or a limit is reached; return a table row."""
    config, runs, times = population(fault.against, masked=masked), 1, list[float]()
    while True:
        with planted(fault, masked=masked), noted(times):
            measurement = measure(config, Settings(num_runs=runs))
        if (by := finders(measurement, fault)) or 2 * times[-1] > seconds or 2 * runs > most_runs:
            break
        runs *= 2
    return _row(fault.name, measurement, times[-1], ", ".join(by) or "not found", masked=masked)


def sound_row(against: str, runs: int, *, masked: bool) -> tuple[str, ...]:
    """Return a table row for a program without a fault, in which the checks should find nothing."""
    times = list[float]()
    with noted(times):
        measurement = measure(population(against, masked=masked), Settings(num_runs=runs))
    wrong = [check.looked_at for check in measurement.checks if not check.held]
    name = f"nothing, against {against}"
    return _row(name, measurement, times[-1], ", ".join(wrong) or "not found", masked=masked)


def _row(name: str, measurement: Measurement, seconds: float, by: str, *, masked: bool) -> tuple[str, ...]:
    runs = measurement.settings.num_runs
    bounds = "not found" if all(figure.held for figure in measurement.final) else "found"
    canaries = str(runs * (MASKED_CLIENTS if masked else CLIENTS))
    CONSOLE.print(f"{name}, {'masked' if masked else 'not masked'}, {runs} runs: {by}", soft_wrap=True)
    return name, "yes" if masked else "no", str(runs), canaries, three(seconds), by, bounds


def rows(
    faults: Sequence[PlantedFault], seconds: float, most_runs: int, sound_runs: int
) -> Iterator[tuple[str, ...]]:
    """Yield table rows: first for the program without a fault, then for every planted fault."""
    for masked in (False, True):
        for against in ("everyone", "outsiders"):
            yield sound_row(against, sound_runs, masked=masked)
    for fault in faults:
        for masked in (False, True):
            yield fault_row(fault, seconds, most_runs, masked=masked)


def power_table(
    faults: Sequence[PlantedFault], seconds: float, most_runs: int = MOST_RUNS, sound_runs: int = NOTHING_RUNS
) -> Table:
    """Make the table of how many runs and seconds it takes to find each planted fault."""
    all_rows = rows(faults, seconds, most_runs, sound_runs)
    count = 4 + 2 * len(faults)
    return Table(
        f"Faults, and in how many runs of {CLIENTS} clients, or {MASKED_CLIENTS} masked ones, they are found",
        HEADINGS,
        list(track(all_rows, "faults", console=CONSOLE, total=count)),
        note=(
            "Runs are 1, 2, 4 and so on. Seconds are those of the last measurement. Bounds alone: whether "
            "the measured epsilon is above the stated one in as many runs."
        ),
    )


def main() -> None:
    """Plant each fault, audit more and more runs until canaries find it, and show the table."""
    options = read_options(__doc__, overrides=False, seconds=300.0)
    publish([power_table(PLANTED_FAULTS, options.seconds)], options.write)


if __name__ == "__main__":
    main()
