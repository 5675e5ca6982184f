"""The options of control: weights of energy, delay and noise, and the ranges of the choice."""

import math
from dataclasses import dataclass, field

from conf.schema import require
from gdpfed.systems.h2fdp.subnets import TrustConfig

CONTROLS = ("none", "planned")
NOISE_TERMS = ("planned", "printed", "corrected")
TRANSMISSIONS = ("turns", "together")


@dataclass
class ControlConfig(TrustConfig):
    """Beside the options of trust, those of intervals and participants that are chosen before training."""

    control: str = "none"
    control_weights: list[float] = field(default_factory=lambda: [1.0, 1.0, 1.0])
    control_noise: str = "planned"
    noise_scale: float | None = None
    total_steps: int | None = None
    most_local_steps: int = 40
    most_participants: int | None = None
    smoothness: float | None = None
    distance: float = 50.0
    transmission: str = "turns"

    def validate(self) -> None:
        super().validate()
        require(
            self.control != "adaptive",
            "method.control=adaptive is refused: a schedule that follows the run has no accounting for "
            "windows, and nothing that the choice depends on changes in a run: use method.control=planned",
        )
        _one_of("control", self.control, CONTROLS)
        _one_of("control_noise", self.control_noise, NOISE_TERMS)
        _one_of("transmission", self.transmission, TRANSMISSIONS)
        weights = self.control_weights
        require(
            len(weights) == 3 and all(math.isfinite(each) and each >= 0 for each in weights) and any(weights),
            f"method.control_weights={weights} must be three numbers, of energy, delay and noise, none "
            "negative and not all of them zero",
        )
        for key in ("total_steps", "most_local_steps", "most_participants"):
            value = getattr(self, key)
            require(value is None or value >= 1, f"method.{key}={value} must be at least 1")
        for key in ("noise_scale", "smoothness"):
            value = getattr(self, key)
            require(
                value is None or (math.isfinite(value) and value > 0),
                f"method.{key}={value} must be above 0, or null",
            )
        require(
            math.isfinite(self.distance) and self.distance >= 1,
            f"method.distance={self.distance} must be at least 1 metre",
        )

    @property
    def together(self) -> bool:
        """Whether devices of a subnet send at the same time."""
        return self.transmission == "together"


def _one_of(key: str, value: str, known: tuple[str, ...]) -> None:
    require(value in known, f"method.{key}={value} is none of {', '.join(known)}")
