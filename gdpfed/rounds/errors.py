"""Errors of this package."""


class RunError(RuntimeError):
    """A run that cannot start or go on; the message names the value and the remedy."""
