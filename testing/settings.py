"""Combines settings for tests: a later one replaces an earlier one of the same name."""

from collections.abc import Iterable


def last_of_each(settings: Iterable[str]) -> list[str]:
    """Return settings (key=value) without repeated keys; the last value of each key is kept."""
    return list({setting.partition("=")[0]: setting for setting in settings}.values())
