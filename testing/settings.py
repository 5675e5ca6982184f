"""Combines settings for tests: a later one replaces an earlier one of the same name."""

from collections.abc import Iterable


def last_of_each(settings: Iterable[str]) -> list[str]:
    """Return settings (key=value) with only the last of each key, as commands refuse a repeated key."""
    return list({setting.partition("=")[0]: setting for setting in settings}.values())
