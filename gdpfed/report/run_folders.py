"""Finds the runs that lie in a directory, and keeps the order of a sweep's runs."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gdpfed.errors import RunError
from gdpfed.json_files import WRONG_FORM
from gdpfed.runs.file_formats import CONFIG_FILE, PLAN_FILE, read_versioned, save_result

LEVELS = 2
"""How many folders deep runs may lie in a directory that is named: those of a demo or a sweep lie in one."""
ORDER_FILE = "sweep.json"
"""In the folder of a sweep: the names of its runs, in its order."""


def is_run(path: Path) -> bool:
    """Whether a directory has the settings of a run."""
    return (path / CONFIG_FILE).is_file()


def run_paths(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield each run's path; if a path is a folder of runs, yield the paths of the runs in it.

    Those of a sweep come in its order, others by name. Folders that may not be read are passed over.
    """
    for path in paths:
        inside = iter(()) if is_run(path) else _runs_in(path, CONFIG_FILE, LEVELS)
        yield next(inside, path)
        yield from inside


def _runs_in(folder: Path, mark: str, levels: int) -> Iterator[Path]:
    """Yield the folders with a file `mark`, and of folders without it those that such folders lie in."""
    order = sweep_order(folder)
    entries = sorted(folder.glob("*"), key=lambda path: (order.get(path.name, len(order)), path.name))
    for entry in entries:
        if next(entry.glob(mark), None) is not None:
            yield entry
        elif levels > 1:
            # Of files called config.yaml that lie deeper, many are of other programs.
            yield from _runs_in(entry, PLAN_FILE, levels - 1)


def runs_below(paths: Iterable[Path]) -> list[Path]:
    """Return folders whose runs lie one folder deeper than `LEVELS`, which `run_paths` leaves out."""
    folders = [path for path in paths if not is_run(path)]
    pattern = "*/" * (LEVELS + 1)
    return sorted({plan.parents[1] for path in folders for plan in path.glob(f"{pattern}{PLAN_FILE}")})


def sweep_order(folder: Path) -> dict[str, int]:
    """Return the place of each run of a sweep by the name of its folder; {} if no sweep wrote this folder.

    It is {}, too, if the file is damaged or another program's: an order is worth no refusal of a report.
    """
    try:
        found = list(read_versioned(folder / ORDER_FILE)["runs"])
    except (OSError, RunError, *WRONG_FORM):
        return {}
    return {str(name): place for place, name in enumerate(found)}


def save_sweep_order(folder: Path, names: Sequence[str]) -> None:
    """Write the order of a sweep's runs, by name, into its folder; runs of earlier sweeps come last."""
    save_result(folder / ORDER_FILE, {"runs": list(dict.fromkeys([*names, *sweep_order(folder)]))})
