"""The setting groups ``run``, ``simulation`` and ``method`` (the options that all methods have)."""

from dataclasses import dataclass
from typing import Annotated, Any

from omegaconf import MISSING

from conf.schema.checks import require
from conf.schema.ranges import LearningRate, NumRounds, Seed, at_least, between, one_of, require_ranges

AUTO, LOCAL, RAY = "auto", "local", "ray"
Count = Annotated[int, at_least(1)]
Choosable = Annotated[int, at_least(1, ", or null to let the engine choose")]


@dataclass
class RunConfig:
    """The settings of a training run: number of rounds, directory of its files, resuming, seed."""

    num_rounds: NumRounds = MISSING
    seed: Seed = 0
    directory: str | None = None
    resume: str | None = None
    stop_after_round: Count | None = None
    timeout_seconds: Annotated[float, between(1e-3, 1e7)] = 600.0
    minimum_nodes: Count | None = None
    device: Annotated[str, one_of("auto", "cpu", "cuda")] = "auto"
    mlflow: str | None = None
    show_cohorts: bool = False
    mailbox: str | None = None
    evaluation: Annotated[str, one_of("server", "nodes", "both")] = "server"
    evaluation_by_party: bool = False
    evaluate_every: Count = 1
    extensions: Any = None

    @property
    def last_round(self) -> int:
        """The last round that this process trains: the run's last round, or an earlier one if configured."""
        return min(self.num_rounds, self.stop_after_round or self.num_rounds)

    def validate(self) -> None:
        require_ranges("run", self)
        require(
            not self.evaluation_by_party or self.evaluation != "server",
            "run.evaluation_by_party=true shows counts that nodes make: set run.evaluation=nodes or both",
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
    """The settings of ``gdpfed simulate``, of which ``gdpfed run`` uses only the number of workers."""

    engine: Annotated[str, one_of("auto", "batched", "sequential")] = "auto"
    workers: Choosable | None = None
    clients_at_once: Choosable | None = None
    precision: Annotated[str, one_of("float32", "tf32", "bf16")] = "float32"
    graphs: Annotated[str, one_of("auto", "off")] = "auto"
    backend: Annotated[str, one_of(LOCAL, RAY)] = LOCAL
    ray_address: str = AUTO

    def validate(self) -> None:
        require_ranges("simulation", self)
        host, _, port = self.ray_address.rpartition(":")
        require(
            self.ray_address in (AUTO, LOCAL)
            or (bool(host) and "/" not in host and port.isascii() and port.isdecimal()),
            f"simulation.ray_address={self.ray_address} is not known: use auto, local, or HOST:PORT as "
            "'ray start' prints it",
        )
        require(
            self.precision == "float32" or self.engine != "sequential",
            f"simulation.precision={self.precision} needs simulation.engine=batched: one client after the "
            "other trains as a node does, in float32",
        )


CHOOSABLE = (
    *("run.num_rounds", "privacy.batch_rate", "privacy.clipping_norm", "training.local_steps"),
    *("training.learning_rate", "training.learning_rate_decay", "training.momentum"),
)
"""Settings that a method for record privacy chooses from public numbers if the user does not set them."""


@dataclass
class MethodConfig:
    """The options that every method has; a method with more options extends this class."""

    name: str = MISSING
    server_learning_rate: LearningRate = 1.0
    average: Annotated[str, one_of("auto", "none", "polynomial")] = "auto"

    def validate(self) -> None:
        """Check the options of a method; a subclass with more options extends this check.

        Raises ConfigError: one line that names the value and the remedy.
        """
        require_ranges("method", self)
