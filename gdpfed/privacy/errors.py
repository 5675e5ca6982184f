"""Errors of the privacy core: each is one line that names the value and the remedy."""


class PrivacyError(ValueError):
    """A request that has no valid privacy accounting, or whose input is wrong."""


class BudgetExhausted(PrivacyError):  # noqa: N818 - the state is the news, not the error
    """The next round would take a group beyond its budget, so it must not run."""
