"""Settings of tests, of which each may be said once."""

from collections.abc import Iterable


def last_of_each(settings: Iterable[str]) -> list[str]:
    """These settings; of one that stands there twice the last, as a command takes no second."""
    return list({setting.partition("=")[0]: setting for setting in settings}.values())
