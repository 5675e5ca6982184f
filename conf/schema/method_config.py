"""The group ``method``: what every method has; each extends it beside its class."""

from dataclasses import dataclass

from omegaconf import MISSING

from conf.schema.checks import require, require_limits

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

        Raises:
            ConfigError: one line that names the value and the remedy.
        """
        require_limits("method", self)
        require(
            self.average in AVERAGES,
            f"method.average={self.average} is none of {', '.join(AVERAGES)}",
        )
