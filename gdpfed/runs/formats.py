"""The format version of a run directory; files of any other version are refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gdpfed.errors import RunError

FORMAT_VERSION = 2
"""Written into plan.json, assignment.json, every line of rounds.jsonl, and the checkpoint's metadata."""
VERSION_KEY = "version"
UNVERSIONED = 1
"""The format of the first runs, whose files name no version."""


def versioned(values: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON form of a file of a run, its version first."""
    return {VERSION_KEY: FORMAT_VERSION, **values}


def check_version(path: Path, found: object) -> None:
    """Refuse a file of another format.

    Args:
        path: the file.
        found: the version that it names; None where it names none.

    Raises:
        RunError: the version is another than :data:`FORMAT_VERSION`, older or newer.
    """
    if found is None:
        found = UNVERSIONED
    if found != FORMAT_VERSION:
        raise RunError(
            f"{path} has format version {found}, and this gdpfed reads version {FORMAT_VERSION}: "
            "use the gdpfed that wrote the run, or start a new run"
        )


def check_json_file(path: Path) -> None:
    """Refuse a JSON file of another format; one that cannot be read passes, for its reader to judge.

    Raises:
        RunError: as :func:`check_version`.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if isinstance(content, dict):
        check_version(path, content.get(VERSION_KEY))
