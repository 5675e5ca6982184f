"""Predicts deaths in hospital on the eICU demo data, with models that protect persons, stays or hospitals.

Every table compares a sweep of budgets with ten seeds, as `gdpfed compare` does. Finished runs are not
repeated.

    python -m benchmarks.eicu dataset.path=patient.csv [OVERRIDE ...]
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import publish, read_options
from gdpfed.cli import main as gdpfed
from gdpfed.errors import RunError
from gdpfed.learning.data.declaration import PUBLISHED, read_columns
from gdpfed.report.class_figures import AREA
from gdpfed.report.comparison import Line
from gdpfed.report.console import Table
from gdpfed.report.finished_run import read_run
from gdpfed.report.rivals import RIVALS
from gdpfed.report.run_folders import run_paths
from gdpfed.report.worth import EVERYWHERE, Worth
from gdpfed.report.worth_answer import difference, model_of
from gdpfed.report.worth_of_lines import worth_by_line

SEEDS = "range(0,10)"
RECORDS = ("privacy=record_level", "method=dp_sum", "run.num_rounds=100", "secagg=off")
HOSPITALS = ("method=gdpfed_star", "privacy.against=everyone", "secagg=off")
BUDGETS = "privacy.budgets=[1],[3],[8]"
OF_REGION = {
    "Midwest": (59, 1),
    "Northeast": (12, 8),
    "South": (52, 3),
    "West": (38, 3),
    "none known": (13, 1),
}
"""How many hospitals there are, in the order of the declaration, and the budget of each of them."""
OWN = ("privacy.budgets=clients", "privacy.client_budgets={budgets}")
SWEEPS = {
    "eicu": ("Four regions, persons protected", ("dataset=eicu", *RECORDS, BUDGETS)),
    "eicu-stays": ("Four regions, stays protected", ("dataset=eicu-stays", *RECORDS, BUDGETS)),
    "hospitals": ("Hospitals as clients", ("dataset=eicu-hospitals", *HOSPITALS, BUDGETS)),
    "regions": ("Hospitals with budgets by region", ("dataset=eicu-hospitals", *HOSPITALS, *OWN)),
}
HEADINGS = ("", "AUC (%)", "accuracy (%)", "more AUC than each party alone", "than all rows in one place")


def write_budgets(path: Path) -> Path:
    """Write each hospital's budget, which follows from its region, into a file; return the file's path.

    Raises RunError: the declaration has other hospitals.
    """
    party = read_columns(Path(f"{PUBLISHED}eicu-hospitals")).party
    budgets = [budget for count, budget in OF_REGION.values() for _ in range(count)]
    if party is None or len(party.values) != len(budgets):
        raise RunError("the declaration of eicu-hospitals has other hospitals than the budgets here")
    path.write_text("".join(f"{each}\n" for each in budgets), encoding="utf-8")
    return path


def compared(name: str, overrides: Sequence[str], output: Path) -> list[tuple[Line, Worth]]:
    """Train a sweep's missing runs; compare all its runs with models that owners could train without a run.

    Raises RunError: a training failed.
    """
    budgets = write_budgets(output / "budgets.txt")
    words = [each.format(budgets=budgets) if each in OWN else each for each in SWEEPS[name][1]]
    folder = output / name
    asked = ["simulate", "--multirun", *words, f"run.seed={SEEDS}", *overrides, "--output", str(folder)]
    if gdpfed(asked) != 0:
        raise RunError(f"a run of {folder} has failed: what it printed says why")
    return worth_by_line([read_run(path) for path in run_paths([folder])], [], None)


def rows(lines: Sequence[tuple[Line, Worth]]) -> Iterator[tuple[str, ...]]:
    """Yield the table rows of one sweep: first baseline models, then the model of each budget."""
    first = lines[0][1]
    for name in RIVALS:
        yield _row(first, name, f"{name}, {first.privacy[name]}".removesuffix(", none"))
    for line, worth in lines:
        yield _row(worth, model_of(line), worth.privacy[model_of(line)])


def _row(worth: Worth, model: str, name: str) -> tuple[str, ...]:
    figures = worth.figures[model][EVERYWHERE]
    more = [
        "" if model == other else difference(worth, model, other, AREA).text()
        for other in (RIVALS[1], RIVALS[2])
    ]
    return name, figures[AREA].text(), figures["accuracy"].text(), *more


def table(name: str, lines: Sequence[tuple[Line, Worth]]) -> Table:
    """Make the table of one sweep: models trained with several budgets and seeds."""
    worth = lines[0][1]
    seeds = max(len(line.runs) for line, _ in lines)
    count = worth.rows[EVERYWHERE]
    deaths = round(worth.prevalence[EVERYWHERE] * count)
    note = (
        f"Mean ± standard deviation of {seeds} seeds on {count} test rows with {deaths} deaths, and in "
        "brackets the 95 % interval that so many rows leave; of differences it has the chance in rows, "
        "persons and seeds."
    )
    return Table(SWEEPS[name][0], HEADINGS, list(rows(lines)), note)


def main() -> None:
    """Train models under each budget, compare them with models without privacy, and show the tables."""
    options = read_options(__doc__, overrides=True, output="runs")
    output = Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    tables = [table(name, compared(name, options.overrides, output)) for name in SWEEPS]
    publish(tables, options.write)


if __name__ == "__main__":
    main()
