"""The cells of an experiment's table: one configuration for each data set, row and column."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from conf.load import load, options
from conf.schema import Config
from gdpfed.errors import ConfigError, ExperimentError, not_known
from gdpfed.extras.experiments.definitions import Choice, Experiment
from gdpfed.methods import make_method, resolve
from gdpfed.privacy.planning.groups import paper_delta
from gdpfed.runs.resume import CARRYING_OUT

NO_COLUMN = Choice(label="")
CHOSEN_BY_EXPERIMENT = {"dataset": "--datasets", "run.seed": "--seeds", "run.num_rounds": "--rounds"}
OF_EVERY_RUN = ("run.directory", "run.resume", "run.stop_after_round", "simulation.backend")


@dataclass(frozen=True)
class Setting:
    """Settings that a user changes in all cells of an experiment's table.

    `datasets`: in place of the experiment's own; empty: those. `overrides`: as on the command line, after
    those of row and column. `num_rounds`: in place of every data set's own; None: those. `client_factor`:
    multiplies the number of clients.
    """

    datasets: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    num_rounds: int | None = None
    client_factor: float = 1.0

    def check(self) -> None:
        """Raise ExperimentError if a setting is invalid, or is one that only the experiment may choose."""
        if not 0 < self.client_factor <= 1:
            raise ExperimentError(f"--scale {self.client_factor:g} must be in (0, 1]")
        if self.num_rounds is not None and self.num_rounds < 1:
            raise ExperimentError(f"--rounds {self.num_rounds} must be at least 1")
        for name in self.datasets:
            if name not in options("dataset"):
                raise ExperimentError(not_known(f"--datasets {name}", options("dataset")))
        for override in self.overrides:
            key = override.partition("=")[0]
            if key in CHOSEN_BY_EXPERIMENT:
                raise ExperimentError(f"'{override}': use {CHOSEN_BY_EXPERIMENT[key]}")
            if key == "method" or key in OF_EVERY_RUN:
                raise ExperimentError(f"'{override}' is chosen by the experiment: leave it out")

    def datasets_of(self, experiment: Experiment) -> tuple[str, ...]:
        """Return the data sets of an experiment that are trained and shown."""
        return self.datasets or tuple(experiment.datasets)

    @property
    def final_overrides(self) -> tuple[str, ...]:
        """The settings (key=value) that take effect after those of the table's row and column."""
        rounds = () if self.num_rounds is None else (f"run.num_rounds={self.num_rounds}",)
        return (*self.overrides, *rounds)

    @property
    def final_scale(self) -> dict[str, Any]:
        """The factors by which settings are multiplied after all key=value settings have taken effect."""
        return {} if self.client_factor == 1 else {"dataset.num_clients": self.client_factor}

    def changes(self, configs: list[Config]) -> str:
        """Say in words how the cells differ from the paper's setting; return "" if they do not."""
        parts = []
        for override in self.overrides:
            # Neither the path of data nor how a run is carried out changes results.
            section, _, name = override.partition("=")[0].partition(".")
            if (section, name) != ("dataset", "path") and name not in CARRYING_OUT.get(section, ()):
                parts.append(f"`{override}`")
        if self.client_factor != 1:
            clients = _by_dataset(configs, lambda config: config.dataset.num_clients)
            parts.append(f"clients times {self.client_factor:g} ({clients})")
        if self.num_rounds is not None:
            full = _by_dataset(configs, lambda config: config.dataset.num_rounds)
            parts.append(f"{self.num_rounds} rounds in place of {full}")
        return "; ".join(parts)


@dataclass(frozen=True, eq=False)
class Cell:
    """One cell of an experiment's table: its configuration, data set, row and column.

    `dataset`, `row`, `column`: names; ``column`` is empty where the data sets are the columns. `overrides`:
    all of them; :func:`conf.load.load` makes ``config`` from them. `label`: the place in the table's words.
    """

    dataset: str
    row: str
    column: str
    overrides: tuple[str, ...]
    config: Config
    label: str

    @property
    def place(self) -> tuple[str, str, str]:
        """The data set, row and column to which the table cell belongs."""
        return self.dataset, self.row, self.column


def cells_of(experiment: Experiment, setting: Setting) -> list[Cell]:
    """Return all cells of an experiment's table, ordered by data set.

    Raises ConfigError, PrivacyError, ExperimentError: an override that fits no configuration; one line.
    """
    setting.check()
    cells = []
    for dataset in setting.datasets_of(experiment):
        start = (f"dataset={dataset}", *experiment.overrides, *experiment.of_dataset.get(dataset, ()))
        for column_name, column in (experiment.columns or {"": NO_COLUMN}).items():
            own = start
            if experiment.paper_delta:
                scaled = _overrides(start, NO_COLUMN, column, setting)
                delta = paper_delta(_configuration(scaled).dataset.num_clients)
                own = (*start, f"privacy.delta={delta!r}")
            for row_name, row in experiment.rows.items():
                overrides = _overrides(own, row, column, setting)
                label = ", ".join(filter(None, [dataset, row.label, *_words(column, experiment.columns)]))
                config = _configuration(overrides)
                cells.append(Cell(dataset, row_name, column_name, overrides, config, label))
    return cells


def _words(column: Choice, columns: Mapping[str, Choice]) -> list[str]:
    """Return a column's label and, if others have the same, the settings by which it differs from them."""
    alike = [each.overrides for each in columns.values() if each.label == column.label]
    return [column.label, *(word for word in column.overrides if any(word not in each for each in alike))]


def _overrides(start: tuple[str, ...], row: Choice, column: Choice, setting: Setting) -> tuple[str, ...]:
    overrides = (*start, *row.overrides, *column.overrides, *setting.final_overrides)
    for scale in (row.scale, column.scale, setting.final_scale):
        if scale:
            config = _configuration(overrides)
            scaled = [
                f"{key}={_product(key, _value_of_setting(config, key), factor)}"
                for key, factor in scale.items()
            ]
            overrides = (*overrides, *scaled)
    if row.effective_step_of is not None:
        # The step of another method: the sum over groups of update weight times expected cohort size.
        reference = Choice(label=row.effective_step_of, overrides=[f"method={row.effective_step_of}"])
        step = _planned_step(_overrides(start, reference, column, setting))
        overrides = (*overrides, f"method.server_learning_rate={step:.6g}")
    return overrides


@lru_cache(maxsize=64)
def _planned_step(overrides: tuple[str, ...]) -> float:
    planned = make_method(_configuration(overrides))
    return planned.weighting.effective_step(planned.plan)


@lru_cache(maxsize=256)
def _configuration(overrides: tuple[str, ...]) -> Config:
    """Compose and resolve the configuration of these settings (key=value); cached, since it is slow."""
    return resolve(load(overrides))


def _value_of_setting(config: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    try:
        return getattr(getattr(config, section), name)
    except AttributeError:
        raise ConfigError(f"scale: setting '{key}' is not known; 'gdpfed settings' lists all") from None


def _product(key: str, value: Any, factor: Any) -> str:
    """Multiply a setting's value by a factor and write it as text; integers stay integers."""
    if isinstance(value, list):
        factors = factor if isinstance(factor, list) else [factor] * len(value)
        if len(factors) != len(value):
            raise ConfigError(f"scale: {key}={value} needs {len(value)} factors, not {len(factors)}")
        return "[" + ",".join(_product(key, *each) for each in zip(value, factors, strict=True)) + "]"
    if isinstance(value, int):
        return str(max(1, round(value * factor)))
    if isinstance(value, float):
        return f"{value * factor:.12g}"
    raise ConfigError(f"scale: {key}={value} is not a number that can be multiplied")


def _by_dataset(configs: list[Config], value: Any) -> str:
    return ", ".join(
        f"{name} {number}" for name, number in {c.dataset.name: value(c) for c in configs}.items()
    )
