"""Definitions of experiments: a YAML file for each table or figure, and their dataclasses.

The files lie beside the option groups, not among them: a run's configuration has no experiment in it. An
experiment says which configurations to compare (data sets by rows by columns), what of them to show, and
what the paper printed there.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from conf.errors import ConfigError, not_known, words_of
from conf.option_files import OWN_DIRECTORY
from conf.schema import require
from gdpfed.methods import METHODS
from gdpfed.registry import Registry

EXPERIMENT_DIRECTORY = OWN_DIRECTORY / "experiment"
METHOD_ROWS = EXPERIMENT_DIRECTORY / "rows" / "methods.yaml"
# Final accuracy, accuracy over the rounds, or all that a benchmark records of a run; all other quantities are
# computed from plans alone.
BENCHMARK = "benchmark"
TRAINED = ("accuracy", "convergence", BENCHMARK)
WITH_PAPER_DELTA = (
    "delta is the paper's, n^-1.1 for n clients, which is not far below 1 / n; `gdpfed plan` takes 1e-5."
)
WITHOUT_MASKS = (
    "Sums are computed without masks (secagg=off): nobody drops out or colludes, so no noise is added for "
    "them."
)

QUANTITIES: Registry[Any] = Registry(
    "quantity of experiments",
    "gdpfed.experiments",
    error=ConfigError,
)
"""What experiments show that needs no training: functions of an experiment, its data sets and its cells."""


@dataclass
class Choice:
    """A row or column of an experiment's table: its heading, and the settings it changes.

    `label`: its heading. `overrides`: what it sets, as on the command line. `scale`: settings that it
    multiplies, by one factor or by one a group. `effective_step_of`: a method whose effective step, sum_m
    omega_m r_m of its plan in the same setting, becomes the server's learning rate.
    """

    label: str = MISSING
    overrides: list[str] = field(default_factory=list)
    scale: dict[str, Any] = field(default_factory=dict)
    effective_step_of: str | None = None


@dataclass
class Catalogue:
    """Table rows that several experiments share."""

    rows: dict[str, Choice] = MISSING


@dataclass
class Published:
    """The results that the paper printed, by table row and data set.

    `accuracy`: final test accuracy in percent. `variances`: sigma_m^2, one a group. `magnitude`: Lambda.
    """

    accuracy: dict[str, dict[str, float]] = field(default_factory=dict)
    variances: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    magnitude: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass
class Experiment:
    """The definition of an experiment: a table or figure of the GDPFed paper, or one beyond the paper.

    Attributes:
        title: what it shows, one line.
        quantity: one of ``TRAINED``, or of `QUANTITIES`.
        text: what must be known to read it, a paragraph an entry.
        datasets: options of the group ``dataset``.
        row_heading, column_heading: what the rows and the columns are.
        methods: rows by their names in ``rows/methods.yaml``; others are methods as they come.
        rows, columns: more choices by name; without columns the data sets are the columns.
        overrides: settings of all of them.
        of_dataset: settings of all cells of one data set, by its option.
        masks: whether sums are computed under masks; without them the text says so.
        paper_delta: whether delta is the paper's, n**-1.1 for n clients, in place of the default.
        best_of_columns: whether a last column has every row's best accuracy.
        compared_with: a row to which all others get their differences, seed by seed, in each column, or of
            the best columns where these are shown; empty: none.
        compared_column: a column to which the others get the differences of each row; empty: none.
        traffic: whether a second picture has the accuracies over what clients received and sent.
        published: what the paper printed.
    """

    name: str = MISSING
    title: str = MISSING
    quantity: str = MISSING
    text: list[str] = field(default_factory=list)
    datasets: list[str] = MISSING
    row_heading: str = "method"
    column_heading: str = ""
    methods: list[str] = field(default_factory=list)
    rows: dict[str, Choice] = field(default_factory=dict)
    columns: dict[str, Choice] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)
    of_dataset: dict[str, list[str]] = field(default_factory=dict)
    masks: bool = True
    paper_delta: bool = False
    best_of_columns: bool = False
    compared_with: str = ""
    compared_column: str = ""
    traffic: bool = False
    published: Published = field(default_factory=Published)

    @property
    def trained(self) -> bool:
        """Whether the experiment trains runs; if not, its numbers follow from privacy plans alone."""
        return self.quantity in TRAINED

    def with_rows(self, names: Sequence[str]) -> "Experiment":
        """Return the experiment with only some rows, chosen by their names or by the beginnings of names.

        Raises ConfigError: no row of that name.
        """
        kept: dict[str, Choice] = {}
        for name in names:
            meant = [row for row in self.rows if row == name] or [
                row for row in self.rows if row.startswith(name)
            ]
            require(bool(meant), f"{self.name} has no row '{name}': it has {', '.join(self.rows)}")
            kept |= {row: self.rows[row] for row in meant}
        with_it = self.compared_with if self.compared_with in kept else ""
        return replace(self, rows=kept, compared_with=with_it) if kept else self

    def with_methods(self, names: Sequence[str]) -> "Experiment":
        """Return the experiment with these methods as additional rows.

        Raises ConfigError: no such method, or one that has a row already.
        """
        for name in names:
            known = not_known(f"--add {name}", METHODS.names())
            require(name in METHODS.names(), f"{known}, or install the package that has it")
            require(name not in self.rows, f"--add {name}: {self.name} has this row already")
        return replace(self, rows=self.rows | {name: _method_row(name) for name in names})

    def validate(self) -> None:
        """Raise ConfigError if values are invalid in a way that types cannot express."""
        known = (*TRAINED, *QUANTITIES.names())
        require(self.quantity in known, not_known(f"{self.name}: quantity={self.quantity}", known))
        require(bool(self.rows and self.datasets), f"{self.name}: give at least one row and one data set")
        for choice in (*self.rows.values(), *self.columns.values()):
            method = choice.effective_step_of
            require(
                method is None or method in METHODS.names(),
                not_known(f"{self.name}: effective_step_of={method}", METHODS.names()),
            )
        require(
            self.compared_with in ("", *self.rows),
            f"{self.name}: compared_with={self.compared_with} is not a row: it has {', '.join(self.rows)}",
        )
        require(
            self.compared_column in ("", *self.columns),
            f"{self.name}: compared_column={self.compared_column} is not a column: it has "
            f"{', '.join(self.columns) or 'none'}",
        )
        published = self.published
        for row in (*published.accuracy, *published.variances, *published.magnitude):
            require(row in self.rows, f"{self.name}: published figures for '{row}', which is not a row")


def experiments() -> list[str]:
    """Return the names of all experiments: the paper's tables and figures first."""

    def place(name: str) -> tuple[bool, bool, int, str]:
        return not name.startswith(("table", "figure")), not name.startswith("table"), len(name), name

    return sorted((path.stem for path in EXPERIMENT_DIRECTORY.glob("*.yaml")), key=place)


def load_experiment(name: str) -> Experiment:
    """Load the experiment with this name.

    Raises ConfigError: no such experiment, or a file that does not fit the schema; one line.
    """
    known = experiments()
    if name not in known:
        raise ConfigError(not_known(f"experiment {name!r}", known))
    experiment = cast("Experiment", _read(Experiment(name=name), EXPERIMENT_DIRECTORY / f"{name}.yaml"))
    experiment.rows = {name: _method_row(name) for name in experiment.methods} | experiment.rows
    if experiment.paper_delta:
        experiment.text.append(WITH_PAPER_DELTA)
    if not experiment.masks:
        experiment.text.append(WITHOUT_MASKS)
        experiment.overrides.append("secagg=off")
    experiment.validate()
    return experiment


def _method_row(name: str) -> Choice:
    label = METHODS.get(name).label if name in METHODS.names() else ""
    own = Choice(label=label or name, overrides=[f"method={name}"])
    return deepcopy(_catalogue().rows.get(name, own))


@lru_cache(maxsize=1)
def _catalogue() -> Catalogue:
    return cast("Catalogue", _read(Catalogue(), METHOD_ROWS))


def _read(schema: Any, path: Path) -> object:
    try:
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), OmegaConf.load(path)))
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(f"{path}: {words_of(error)}") from None
