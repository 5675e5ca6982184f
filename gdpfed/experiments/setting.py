"""What the command line changes in every cell of an experiment, and how a table says so."""

from dataclasses import dataclass
from typing import Any

from conf.experiment import Experiment
from conf.load import options
from conf.schema import Config
from gdpfed.errors import ExperimentError
from gdpfed.runs.directory import CARRYING_OUT

CHOSEN_BY_EXPERIMENT = {"dataset": "--datasets", "run.seed": "--seeds", "run.num_rounds": "--rounds"}
OF_EVERY_RUN = ("run.directory", "run.resume", "run.stop_after_round")


@dataclass(frozen=True)
class Setting:
    """Changes to all cells alike.

    Attributes:
        datasets: in place of the experiment's own; empty: those.
        overrides: as on the command line, after those of row and column.
        num_rounds: in place of every data set's own; None: those.
        client_factor: multiplies the number of clients.
    """

    datasets: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    num_rounds: int | None = None
    client_factor: float = 1.0

    def check(self) -> None:
        """Refuse what would contradict the experiment.

        Raises:
            ExperimentError: one line that names the value and the remedy.
        """
        if not 0 < self.client_factor <= 1:
            raise ExperimentError(f"--scale {self.client_factor:g} must be in (0, 1]")
        if self.num_rounds is not None and self.num_rounds < 1:
            raise ExperimentError(f"--rounds {self.num_rounds} must be at least 1")
        for name in self.datasets:
            if name not in options("dataset"):
                raise ExperimentError(f"--datasets {name} is not one of {', '.join(options('dataset'))}")
        for override in self.overrides:
            key = override.partition("=")[0]
            if key in CHOSEN_BY_EXPERIMENT:
                raise ExperimentError(f"'{override}': use {CHOSEN_BY_EXPERIMENT[key]}")
            if key == "method" or key in OF_EVERY_RUN:
                raise ExperimentError(f"'{override}' is for the experiment to choose: leave it out")

    def datasets_of(self, experiment: Experiment) -> tuple[str, ...]:
        """The data sets to show."""
        return self.datasets or tuple(experiment.datasets)

    @property
    def final_overrides(self) -> tuple[str, ...]:
        """What comes after the overrides of row and column."""
        rounds = () if self.num_rounds is None else (f"run.num_rounds={self.num_rounds}",)
        return (*self.overrides, *rounds)

    @property
    def final_scale(self) -> dict[str, Any]:
        """What is multiplied once everything else is set."""
        return {} if self.client_factor == 1 else {"dataset.num_clients": self.client_factor}

    def changes(self, configs: list[Config]) -> str:
        """What differs from the paper's setting, in words; empty if nothing does."""
        parts = [f"`{override}`" for override in self.overrides if _changes_results(override)]
        if self.client_factor != 1:
            clients = _by_dataset(configs, lambda config: config.dataset.num_clients)
            parts.append(f"clients times {self.client_factor:g} ({clients})")
        if self.num_rounds is not None:
            full = _by_dataset(configs, lambda config: config.dataset.num_rounds)
            parts.append(f"{self.num_rounds} rounds in place of {full}")
        return "; ".join(parts)


def _changes_results(override: str) -> bool:
    """Whether results may follow from it: not from where the data lie, nor from how a run is carried out."""
    section, _, name = override.partition("=")[0].partition(".")
    return (section, name) != ("dataset", "path") and name not in CARRYING_OUT.get(section, ())


def _by_dataset(configs: list[Config], value: Any) -> str:
    return ", ".join(
        f"{name} {number}" for name, number in {c.dataset.name: value(c) for c in configs}.items()
    )
