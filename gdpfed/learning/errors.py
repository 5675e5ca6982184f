"""Errors of this package."""


class LearningError(ValueError):
    """Data or a model that cannot be used; the message names the value and the remedy."""
