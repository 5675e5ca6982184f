"""The product from Python: what its commands do, as functions of the same settings."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from conf.load import load
from conf.schema import Config
from gdpfed.errors import ConfigError
from gdpfed.late_import import packages_needed
from gdpfed.methods import make_method, resolve
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.promised_loop import TrainingLoop
from gdpfed.registry import Registry
from gdpfed.report.finished_run import FinishedRun, read_run
from gdpfed.report.progress import RoundLines, is_interactive, said_if_slow
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
"""What extras measure, by name."""
Observe = Callable[[RoundLogEntry], None]


def register(kind: str, name: str, item: Any) -> None:
    """Add to this process what settings then choose by name; docs/extending.md says what each kind is.

    ``register("partition", "mine", share)``, then ``simulate("dataset.partition=mine")``. `kind`:
    client_state, dataset, label_kind, loss, metric, model, optimizer, partition or schedule. Raises
    ConfigError for another kind, LearningError for a name that is taken.
    """
    home = _REGISTRIES.get(kind)
    if home is None:
        raise ConfigError(f"there is nothing of kind {kind!r} to register: choose {', '.join(_REGISTRIES)}")
    with packages_needed():
        registry: Registry[Any] = getattr(import_module(home[0]), home[1])
    registry.register(name, item)


def configure(*settings: str) -> Config:
    """Return the checked configuration of settings, as ``gdpfed settings`` lists them: ``"dataset=digits"``.

    Raises ConfigError: an unknown name or a value that cannot be, in one line that says what could.
    """
    return resolve(load(settings))


def plan(*settings: str) -> PrivacyPlan:
    """Return what ``gdpfed plan`` shows: rates, norms and noise of every group, and the epsilon they cost.

    Raises ConfigError, PrivacyError: settings that cannot be, or that have no valid accounting.
    """
    with said_if_slow("planning ..."):
        return make_method(load(settings)).plan


def simulate(*settings: str, observe: Observe | None = None) -> FinishedRun:
    """Train in this process, as ``gdpfed simulate`` does, and return the run that is in its directory.

    `observe` is given the record of every round. Without it a notebook or an interactive session is told from
    time to time how far the run is and how much time is left. Raises ConfigError, PrivacyError,
    LearningError: before anything is written; RunError: a file system that refuses, and a run without a sum.
    """
    with packages_needed():
        from gdpfed.rounds.run import PreparedRun
        from gdpfed.simulation.in_process_fleet import simulate_prepared

    with said_if_slow("planning, and reading the data ..."):
        prepared = PreparedRun.of(load(settings))
    if observe is None and is_interactive():
        observe = RoundLines(prepared.method.plan.num_rounds, prepared.path)
    return read_run(simulate_prepared(prepared, observe=observe))


def finished_run(path: str | Path) -> FinishedRun:
    """Return a finished run, read from its directory; ReportError for an unfinished or a damaged one."""
    return read_run(Path(path))


def audit_loop(loop: TrainingLoop, *, num_runs: int = 20, confidence: float = 0.95) -> Any:
    """Run a training loop of your own with canaries, and return what its sums and models gave away.

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
