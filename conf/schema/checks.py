"""Functions that check settings, for use by several setting groups."""

from conf.errors import ConfigError


def require(holds: bool, message: str) -> None:
    """Raise :class:`ConfigError` with this message unless the condition holds."""
    if not holds:
        raise ConfigError(message)


def are_numbers(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, int | float) and not isinstance(each, bool) for each in value
    )
