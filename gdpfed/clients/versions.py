"""Versions of the software in a run: model cards name them, and server and nodes compare them.

Messages have a version of their own, ``WIRE_VERSION``: sides with different ones cannot understand each
other. All else that differs is said in one line, and the run goes on.
"""

import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from gdpfed.clients.messages import VERSIONS, WIRE, WIRE_VERSION, one_line
from gdpfed.installed import project_version

PACKAGES = ("flwr", "torch", "dp-accounting")


@cache
def versions_here() -> str:
    """Return the versions of packages and Python as text, as in "flwr 1.41.0, Python 3.11.7"."""
    said = [f"gdpfed {project_version()}"]
    for name in PACKAGES:
        try:
            said.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            said.append(f"{name} (not installed as a package)")
    return ", ".join([*said, f"Python {platform.python_version()}"])


def said_here() -> dict[str, str | int]:
    """Return the package and message versions that a server or node states when a node joins."""
    return {WIRE: WIRE_VERSION, VERSIONS: versions_here()}


def foreign_wire(said: Mapping[str, object]) -> str | None:
    """Return why the messages of a server or node with these versions cannot be read; None if they can."""
    theirs = said.get(WIRE, WIRE_VERSION)
    if theirs == WIRE_VERSION:
        return None
    return (
        f"messages of version {one_line(theirs)} are not understood here, where they have version "
        f"{WIRE_VERSION}: install one version of gdpfed on both sides"
    )


def differences(said: Mapping[int, str]) -> str | None:
    """Return which clients have other package versions than the server, or None if all have the same.

    Args:
        said: what each client says, by its number.
    """
    here, others = set(versions_here().split(", ")), dict[str, list[int]]()
    for client, words in sorted(said.items()):
        for word in set(words.split(", ")) - here:
            others.setdefault(one_line(word), []).append(client)
    if not others:
        return None
    parts = [f"{word} at {', '.join(map(str, clients))}" for word, clients in sorted(others.items())]
    return one_line(f"clients have other versions than the server ({versions_here()}): {'; '.join(parts)}")
