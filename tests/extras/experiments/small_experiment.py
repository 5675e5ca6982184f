"""A small experiment, and a stub trainer that writes made-up accuracies instead of training."""

import csv
import io
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

from matplotlib.figure import Figure
from rich.console import Console

from conf.schema import Config
from gdpfed.errors import LearningError, RunError
from gdpfed.extras.experiments.cells import Setting
from gdpfed.extras.experiments.definitions import Choice, Experiment, Published
from gdpfed.extras.experiments.reproduction import Reproduction, reproduce
from gdpfed.extras.experiments.run_training import Processes, Trainer
from gdpfed.runs.round_log import RoundLogEntry, read_rounds
from testing.written_runs import append_record, begin_run, finish_run

EXPERIMENT = Experiment(
    name="small",
    title="Small: two methods",
    quantity="accuracy",
    text=["A paragraph."],
    datasets=["digits"],
    rows={
        "dp": Choice(label="DP", overrides=["method=dp_fedavg"]),
        "step": Choice(label="DP, step", overrides=["method=dp_fedavg"], effective_step_of="gdpfed_plus"),
        "plus": Choice(label="Plus", overrides=["method=gdpfed_plus"]),
    },
    overrides=["privacy.accountant=rdp"],
    published=Published(accuracy={"dp": {"digits": 44.5}}),
)
SWEEP = replace(
    EXPERIMENT,
    name="sweep",
    columns={
        "half": Choice(label="0.5", scale={"privacy.budgets": 0.5}),
        "one": Choice(label="1", scale={"privacy.budgets": [1, 1, 1]}),
    },
    column_heading="budgets times",
    published=Published(),
)
ROUNDS = 2

Observe = Callable[[RoundLogEntry], None] | None


def final_accuracy(config: Config) -> float:
    """Return a made-up accuracy that depends on the method's name, the seed and the smallest budget."""
    method: str = config.method.name
    smallest: float = config.privacy.budgets[0]
    return 0.3 + len(method) / 100 + config.run.seed / 50 + smallest / 1000


@dataclass
class StubTrainer:
    """A trainer that writes the files of runs without training.

    Attributes:
        interrupt_after: rounds over all runs until a Ctrl-C; None for never.
        absent: data sets that cannot be loaded.
        loaded, trained: configurations asked for, in order.
    """

    interrupt_after: int | None = None
    absent: tuple[str, ...] = ()
    loaded: list[Config] = field(default_factory=list)
    trained: list[Config] = field(default_factory=list)

    def load_data(self, config: Config) -> None:
        """Record the configuration, and raise LearningError if its data set is one of `absent`."""
        self.loaded.append(config)
        if config.dataset.name in self.absent:
            raise LearningError(f"dataset.path: {config.dataset.name} is not there")

    def train(self, config: Config, *, observe: Observe = None) -> None:
        """Write made-up results of the rounds that a run lacks, and then the run's model."""
        self.trained.append(config)
        if config.run.resume is None:
            begin_run(config)
        directory = Path(config.run.resume or config.run.directory or "")
        for _ in range(len(read_rounds(directory)), config.run.num_rounds):
            if self.interrupt_after == 0:
                raise KeyboardInterrupt
            if self.interrupt_after is not None:
                self.interrupt_after -= 1
            append_record(config, final_accuracy(config), observe=observe)
        finish_run(config)


def fail_after_a_round(config: Config, *, observe: Observe = None) -> None:
    """Train, but fail after one round if the method is FedAvg. Worker processes import this function."""
    most = 1 if config.method.name == "fedavg" else None
    try:
        StubTrainer(interrupt_after=most).train(config, observe=observe)
    except KeyboardInterrupt:
        raise RunError("the disk is full") from None


def run_it(
    output: Path,
    trainer: StubTrainer | Trainer,
    *,
    experiment: Experiment = EXPERIMENT,
    seeds: int = 2,
    jobs: int | None = 1,
    setting: Setting | None = None,
    pictures: bool = False,
) -> tuple[bool, str]:
    """Carry out an experiment; returns whether it is complete, and what it printed.

    Without ``pictures`` their files are empty: to draw one takes longer than the rest.
    """
    shown = io.StringIO()
    command = f"gdpfed reproduce {experiment.name}"
    setting = replace(setting or Setting(), num_rounds=ROUNDS)
    request = Reproduction(experiment, setting, seeds, output, command, Processes(jobs))
    functions = Trainer(trainer.load_data, trainer.train)
    undrawn = patch.object(Figure, "savefig", lambda figure, file, **options: None)
    with nullcontext() if pictures else undrawn:
        complete = reproduce(request, Console(file=shown, width=200), functions)
    return complete, shown.getvalue()


def figures(output: Path, name: str = "small") -> dict[tuple[str, str, str], dict[str, str]]:
    """Return the rows of an experiment's CSV file by data set, table row and table column."""
    with (output / name / "figures.csv").open() as file:
        return {(row["dataset"], row["row"], row["column"]): row for row in csv.DictReader(file)}
