"""Combines settings for tests: a later one replaces an earlier one of the same name."""

from collections.abc import Iterable


def last_of_each(settings: Iterable[str]) -> list[str]:
    """Return the settings without those that a later one repeats; commands refuse a repeated setting."""
    return list({setting.partition("=")[0]: setting for setting in settings}.values())
