"""Checks that settings of several groups share, and bounds outside of which a run would not finish."""

from typing import Any

from conf.errors import ConfigError

LIMITS: dict[str, tuple[float, float]] = {
    "num_clients": (1, 100_000_000),
    "num_rounds": (1, 100_000),
    "local_steps": (1, 100_000),
    "batch_size": (1, 1_000_000),
    # Beyond the largest, float32 holds no model for long.
    "learning_rate": (1e-9, 1e6),
    "server_learning_rate": (1e-9, 1e6),
    "clipping_norm": (1e-9, 1e9),
    "image_size": (1, 4096),
    "sequence_length": (1, 100_000),
    "min_characters": (1, 100_000_000),
    "test_stride": (1, 100_000_000),
    "train_stride": (1, 100_000_000),
    "vocabulary": (2, 2**31 - 1),
    # As torch takes it.
    "seed": (0, 2**63 - 1),
    "timeout_seconds": (1e-3, 1e7),
}
"""By the name of a setting, whatever its group."""


def require_limits(group: str, settings: Any) -> None:
    """Refuse a setting of a group that lies outside its limits, NaN included; one that is null has none.

    Raises ConfigError: names the setting, its value and its limits.
    """
    for key, (least, most) in LIMITS.items():
        value = getattr(settings, key, None)
        if value is not None and not least <= value <= most:
            raise ConfigError(f"{group}.{key}={value} must be from {_figure(least)} to {_figure(most)}")


def _figure(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def require(holds: bool, message: str) -> None:
    """Raise :class:`ConfigError` with ``message`` unless the condition holds."""
    if not holds:
        raise ConfigError(message)


def are_numbers(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, int | float) and not isinstance(each, bool) for each in value
    )
