"""The commands of gdpfed as Python functions with the same settings."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Unpack

from conf.load import load
from conf.option_files import add_dataset_option
from conf.schema import Config
from gdpfed.errors import ConfigError
from gdpfed.late_import import packages_needed
from gdpfed.methods import resolve
from gdpfed.privacy.promised_loop import TrainingLoop
from gdpfed.python_objects import named
from gdpfed.python_objects.objects import Objects, given
from gdpfed.python_objects.shell import shell_command
from gdpfed.registry import Registry
from gdpfed.report.finished_run import FinishedRun, read_run
from gdpfed.report.notebook import ShownPlan
from gdpfed.report.progress import RoundLines, is_interactive, said_if_slow
from gdpfed.runs.resume import load_run
from gdpfed.runs.round_log import RoundLogEntry

# A plan needs no torch, so their modules are imported late.
_REGISTRIES = {
    "client_state": ("gdpfed.learning.training.client_states", "CLIENT_STATES"),
    "dataset": ("gdpfed.learning.data.source", "DATASETS"),
    "label_kind": ("gdpfed.learning.labels", "LABEL_KINDS"),
    "loss": ("gdpfed.learning.labels", "LOSSES"),
    "metric": ("gdpfed.learning.labels", "METRICS"),
    "model": ("gdpfed.learning.models", "MODELS"),
    "optimizer": ("gdpfed.learning.training.optimizers", "OPTIMIZERS"),
    "partition": ("gdpfed.learning.data.named_partitions", "PARTITIONS"),
    "schedule": ("gdpfed.learning.training.optimizers", "SCHEDULES"),
}

AUDITS: Registry[Callable[..., Any]] = Registry("audit", "gdpfed.audits", error=ConfigError)
"""Audits that optional parts provide, by name, such as the audit of a user's training loop."""
Observe = Callable[[RoundLogEntry], None]


def register(kind: str, name: str, item: Any, **recommended: Any) -> None:
    """Register a model, loss or other item under a name that settings can use; see docs/extending.md.

    ``register("partition", "mine", share)``, then ``simulate("dataset.partition=mine")``. A data set is an
    option, too: ``register("dataset", "mine", load, num_clients=20)``, then ``simulate("dataset=mine")``.
    `kind`: client_state, dataset, label_kind, loss, metric, model, optimizer, partition or schedule.
    `recommended`: of a data set, the settings that runs on it start from; others are those of
    ``dataset=npz``. Raises ConfigError for another kind or setting, LearningError for a name that is taken.
    """
    home = _REGISTRIES.get(kind)
    if home is None:
        raise ConfigError(f"there is nothing of kind {kind!r} to register: choose {', '.join(_REGISTRIES)}")
    if recommended and kind != "dataset":
        raise ConfigError(
            f"{', '.join(recommended)}: only a data set has recommended settings: leave them out"
        )
    with packages_needed():
        registry: Registry[Any] = getattr(import_module(home[0]), home[1])
    if kind == "dataset" and name not in registry.names():
        add_dataset_option(name, recommended)
    registry.register(name, item)


def configure(*settings: str) -> Config:
    """Return the checked configuration for settings like ``"dataset=digits"``; ``gdpfed settings`` lists all.

    Raises ConfigError: an unknown name or a value that cannot be, in one line that says what could.
    """
    return resolve(load(settings))


def plan(*settings: str, **objects: Unpack[Objects]) -> ShownPlan:
    """Return what ``gdpfed plan`` shows: sampling rates, clipping norms, noise and epsilon of every group.

    ``plan(budgets=[1, 3, 6], clients=100, rounds=50)``, or settings: ``plan("dataset=digits")``. `objects`:
    as of `simulate` (:class:`gdpfed.python_objects.objects.Objects`). A notebook shows the plan as tables.
    Raises ConfigError, PrivacyError, LearningError: what cannot be, or has no valid accounting.
    """
    asked = given(settings, objects)
    config = load_run(asked.words)
    with said_if_slow("planning ..."), asked.placed(config):
        return ShownPlan.of(resolve(config))


def simulate(*settings: str, observe: Observe | None = None, **objects: Unpack[Objects]) -> FinishedRun:
    """Train in this process, as ``gdpfed simulate`` does, and return the finished run.

    ``simulate(data=(x, y, x_test, y_test), owners=names, model=net, budgets=[1, 3])``, settings as texts, or
    both. `objects`: data, owners, columns, clients, budgets, rounds, method, model, loss, metrics, partition,
    extensions (:class:`gdpfed.python_objects.objects.Objects`). `observe` is given the record of every round.
    Without it a notebook or an interactive session is told from time to time how far the run is and how much
    time is left. Raises ConfigError, PrivacyError, LearningError: before anything is written; RunError: a
    file system that refuses, and a run without a sum.
    """
    with packages_needed():
        from gdpfed.rounds.run import PreparedRun
        from gdpfed.simulation.in_process_fleet import simulate_prepared

    asked = given(settings, objects)
    config = load_run(asked.words)
    with asked.placed(config):
        with said_if_slow("planning, and reading the data ..."):
            prepared = PreparedRun.of(config)
        if observe is None and is_interactive():
            observe = RoundLines(prepared.method.plan.num_rounds, prepared.path)
        named.USED.extend(asked.chosen.extensions)
        return read_run(simulate_prepared(prepared, observe=observe))


def command(
    *settings: str, verb: str = "simulate", files: str | Path | None = None, **objects: Unpack[Objects]
) -> str:
    """Return the shell command for a run of these settings; ``print(gdpfed.command(...))`` shows it.

    `verb`: ``simulate``, ``plan`` or ``run``. `files`: a folder into which data and owners are written, as
    the command names them; without it nothing is written. `objects`: as of `simulate`. What no shell can
    name, such as a torch module, is said in lines that begin with ``#``. Raises ConfigError, LearningError.
    """
    return shell_command(verb, settings, objects, None if files is None else Path(files))


def finished_run(path: str | Path) -> FinishedRun:
    """Read a finished run from its directory; raise ReportError if the run is unfinished or damaged."""
    return read_run(Path(path))


def audit_loop(loop: TrainingLoop, *, num_runs: int = 20, confidence: float = 0.95) -> Any:
    """Audit a user's training loop with canaries: bound epsilon from below, and test what the loop claims.

    It is ``gdpfed audit --canaries --loop``: a lower bound on epsilon for all who see what the loop releases,
    and tests of its noise, its clipping and its samples against the numbers that it promises. `num_runs`: how
    often it trains. `confidence`: a loop that keeps its promise is blamed with a probability of at most one
    minus this. Returns a measurement with `figures`, `checks`, `not_computed`, `passed` and `complete`
    (docs/library.md). Raises ConfigError: numbers that measure nothing, or a loop that releases something
    else than it says.
    """
    with packages_needed():
        audit = AUDITS.get("loop")
    return audit(loop, num_runs=num_runs, confidence=confidence)
