"""Checks that settings of several groups share."""

from conf.errors import ConfigError


def require(holds: bool, message: str) -> None:
    """Refuse a configuration with this message unless the condition holds. Raises :class:`ConfigError`."""
    if not holds:
        raise ConfigError(message)


def are_numbers(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, int | float) and not isinstance(each, bool) for each in value
    )
