"""A trainer with known accuracies in place of learning, that can be interrupted between rounds."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from conf.schema import Config
from gdpfed.errors import LearningError
from gdpfed.runs.records import RoundRecord, read_rounds
from testing.written_runs import append_record, begin_run, finish_run


def final_accuracy(config: Config) -> float:
    """Made up from method, seed and budget, so that every cell has its own."""
    return 0.3 + len(config.method.name) / 100 + config.run.seed / 50 + config.privacy.budgets[0] / 1000


@dataclass
class StubTrainer:
    """Writes runs.

    Attributes:
        interrupt_after: rounds over all runs until a Ctrl-C; None for never.
        absent: data sets that cannot be had.
        trained: configurations asked for, in order.
    """

    interrupt_after: int | None = None
    absent: tuple[str, ...] = ()
    trained: list[Config] = field(default_factory=list)

    def __call__(self, config: Config, *, observe: Callable[[RoundRecord], None] | None = None) -> Path:
        self.trained.append(config)
        if config.dataset.name in self.absent:
            raise LearningError(f"dataset.path: {config.dataset.name} is not there")
        if config.run.resume is None:
            begin_run(config)
        directory = Path(config.run.resume or config.run.directory or "")
        for _ in range(len(read_rounds(directory)), config.run.num_rounds):
            if self.interrupt_after == 0:
                raise KeyboardInterrupt
            if self.interrupt_after is not None:
                self.interrupt_after -= 1
            append_record(config, final_accuracy(config), observe=observe)
        return finish_run(config)
