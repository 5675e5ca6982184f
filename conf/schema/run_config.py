"""The groups ``run``, ``simulation`` and ``method``; each method extends the last one beside its class."""

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from conf.schema.checks import require, require_limits

AUTO, LOCAL, RAY = "auto", "local", "ray"
BACKENDS = (LOCAL, RAY)
DEVICES = ("auto", "cpu", "cuda")
ENGINES = ("auto", "batched", "sequential")
EVALUATIONS = ("server", "nodes", "both")
PRECISIONS = ("float32", "tf32", "bf16")


@dataclass
class RunConfig:
    """One training run: how long, where its files go, how it is resumed."""

    num_rounds: int = MISSING
    seed: int = 0
    directory: str | None = None
    resume: str | None = None
    stop_after_round: int | None = None
    timeout_seconds: float = 600.0
    minimum_nodes: int | None = None
    device: str = "auto"
    mlflow: str | None = None
    show_cohorts: bool = False
    mailbox: str | None = None
    evaluation: str = "server"
    evaluation_by_party: bool = False
    extensions: Any = None

    @property
    def last_round(self) -> int:
        """The round after which a process stops."""
        return min(self.num_rounds, self.stop_after_round or self.num_rounds)

    def validate(self) -> None:
        require_limits("run", self)
        least = self.minimum_nodes
        require(least is None or least >= 1, f"run.minimum_nodes={least} must be at least 1")
        stop = self.stop_after_round
        require(stop is None or stop >= 1, f"run.stop_after_round={stop} must be at least 1")
        require(self.device in DEVICES, f"run.device={self.device} is none of {', '.join(DEVICES)}")
        require(
            self.evaluation in EVALUATIONS,
            f"run.evaluation={self.evaluation} is none of {', '.join(EVALUATIONS)}",
        )
        require(
            not self.evaluation_by_party or self.evaluation != "server",
            "run.evaluation_by_party=true has nodes count, each for itself: set run.evaluation=nodes or both",
        )
        named = self.extensions or {}
        require(
            isinstance(named, dict) and all(isinstance(options, dict) for options in named.values()),
            f"run.extensions={named} must name extensions with their options, as "
            "{early_stop: {patience: 5}}",
        )
        require(
            self.resume is None or self.directory is None,
            f"run.resume={self.resume} continues in its own directory: leave out run.directory",
        )


@dataclass
class SimulationConfig:
    """How ``gdpfed simulate`` trains a cohort; of it ``gdpfed run`` takes the workers, nodes nothing."""

    engine: str = "auto"
    workers: int | None = None
    clients_at_once: int | None = None
    precision: str = "float32"
    backend: str = LOCAL
    ray_address: str = AUTO

    def validate(self) -> None:
        require(
            self.backend in BACKENDS, f"simulation.backend={self.backend} is none of {', '.join(BACKENDS)}"
        )
        host, _, port = self.ray_address.rpartition(":")
        require(
            self.ray_address in (AUTO, LOCAL)
            or (bool(host) and "/" not in host and port.isascii() and port.isdecimal()),
            f"simulation.ray_address={self.ray_address} is none of auto, local, or HOST:PORT as 'ray start' "
            "prints it",
        )
        require(self.engine in ENGINES, f"simulation.engine={self.engine} is none of {', '.join(ENGINES)}")
        for key in ("workers", "clients_at_once"):
            value = getattr(self, key)
            require(
                value is None or value >= 1,
                f"simulation.{key}={value} must be at least 1, or null to let the engine choose",
            )
        require(
            self.precision in PRECISIONS,
            f"simulation.precision={self.precision} is none of {', '.join(PRECISIONS)}",
        )
        require(
            self.precision == "float32" or self.engine != "sequential",
            f"simulation.precision={self.precision} needs simulation.engine=batched: one client after the "
            "other trains as a node does, in float32",
        )


AVERAGES = ("auto", "none", "polynomial")
CHOOSABLE = (
    *("run.num_rounds", "privacy.batch_rate", "privacy.clipping_norm", "training.local_steps"),
    *("training.learning_rate", "training.learning_rate_decay", "training.momentum"),
)
"""Settings that a method for records chooses from public numbers, in this order, where nobody sets them."""


@dataclass
class MethodConfig:
    """The options of every method; a method with its own options extends it beside its class."""

    name: str = MISSING
    server_learning_rate: float = 1.0
    average: str = "auto"

    def validate(self) -> None:
        """Check the options; a class that adds some extends this.

        Raises ConfigError: one line that names the value and the remedy.
        """
        require_limits("method", self)
        require(self.average in AVERAGES, f"method.average={self.average} is none of {', '.join(AVERAGES)}")
