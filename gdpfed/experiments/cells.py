"""The cells of an experiment: one checked configuration for every data set, row and column."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from conf.experiment import Choice, Experiment
from conf.load import load
from conf.schema import Config
from gdpfed.errors import ConfigError
from gdpfed.experiments.setting import Setting
from gdpfed.methods import make_method

NO_COLUMN = Choice(label="")


@dataclass(frozen=True, eq=False)
class Cell:
    """One configuration and its place in the table.

    Attributes:
        dataset, row, column: names; ``column`` is empty where the data sets are the columns.
        overrides: all of them; :func:`conf.load.load` makes ``config`` from them.
    """

    dataset: str
    row: str
    column: str
    overrides: tuple[str, ...]
    config: Config

    @property
    def place(self) -> tuple[str, str, str]:
        """Data set, row and column."""
        return self.dataset, self.row, self.column


def cells_of(experiment: Experiment, setting: Setting) -> list[Cell]:
    """All cells, data set by data set.

    Raises:
        ConfigError, PrivacyError, ExperimentError: an override that fits no configuration; one line.
    """
    setting.check()
    return list(_cells(experiment, setting))


def _cells(experiment: Experiment, setting: Setting) -> Iterator[Cell]:
    for dataset in setting.datasets_of(experiment):
        start = (f"dataset={dataset}", *experiment.overrides)
        for column_name, column in (experiment.columns or {"": NO_COLUMN}).items():
            for row_name, row in experiment.rows.items():
                overrides = _overrides(start, row, column, setting)
                yield Cell(dataset, row_name, column_name, overrides, load(overrides))


def _overrides(start: tuple[str, ...], row: Choice, column: Choice, setting: Setting) -> tuple[str, ...]:
    overrides = (*start, *row.overrides, *column.overrides, *setting.final_overrides)
    for scale in (row.scale, column.scale, setting.final_scale):
        overrides = (*overrides, *_scaled(overrides, scale))
    if row.effective_step_of is not None:
        step = _effective_step(start, row.effective_step_of, column, setting)
        overrides = (*overrides, f"method.server_learning_rate={step:.6g}")
    return overrides


def _effective_step(start: tuple[str, ...], method: str, column: Choice, setting: Setting) -> float:
    """sum_m omega_m r_m of a method's plan in the same setting."""
    reference = Choice(label=method, overrides=[f"method={method}"])
    return _planned_step(_overrides(start, reference, column, setting))


@lru_cache(maxsize=64)
def _planned_step(overrides: tuple[str, ...]) -> float:
    return make_method(load(overrides)).plan.effective_step


def _scaled(overrides: Sequence[str], scale: Mapping[str, Any]) -> list[str]:
    """Overrides that multiply settings as they are under ``overrides``."""
    if not scale:
        return []
    config = load(overrides)
    return [f"{key}={_product(key, _value(config, key), factor)}" for key, factor in scale.items()]


def _value(config: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    try:
        return getattr(getattr(config, section), name)
    except AttributeError:
        raise ConfigError(f"scale: there is no setting '{key}' to multiply") from None


def _product(key: str, value: Any, factor: Any) -> str:
    """In the grammar of overrides; a whole number stays one, and at least 1."""
    if isinstance(value, list):
        factors = factor if isinstance(factor, list) else [factor] * len(value)
        if len(factors) != len(value):
            raise ConfigError(f"scale: {key}={value} needs {len(value)} factors, not {len(factors)}")
        return "[" + ",".join(_product(key, *each) for each in zip(value, factors, strict=True)) + "]"
    if isinstance(value, int):
        return str(max(1, round(value * factor)))
    if isinstance(value, float):
        return f"{value * factor:.12g}"
    raise ConfigError(f"scale: {key}={value} is no number to multiply")
