"""The base of all errors of this project that are meant for users, and the error for configurations.

They are here because `conf` stands below `gdpfed`, which has the other errors: :mod:`gdpfed.errors`.
"""


class GDPFedError(Exception):
    """Base of every error of this project that is meant for its user."""


class InputError(GDPFedError, ValueError):
    """Input that cannot be used; nothing has been written or charged for it."""


class ConfigError(InputError):
    """A configuration that cannot be used."""
