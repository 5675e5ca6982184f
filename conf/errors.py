"""The base of all errors of this project that are meant for its user, and the error of a configuration.

They are here because `conf` stands below `gdpfed`, which has the other errors: :mod:`gdpfed.errors`.
"""


class GDPFedError(Exception):
    """Every error of this project that is meant for its user."""


class InputError(GDPFedError, ValueError):
    """Input that cannot be used; nothing has been written or charged for it."""


class ConfigError(InputError):
    """A configuration that cannot be used."""
