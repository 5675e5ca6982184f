"""Refuses pipes and devices in place of files: a program that opens a pipe waits for a writer."""

from pathlib import Path

from gdpfed.errors import LearningError


def refuse_pipe(path: Path, place: str, remedy: str) -> None:
    """Raise LearningError if a path leads to a pipe, a socket or a device.

    `place`: what the error calls it. `remedy`: what to do in its place.
    """
    if not path.is_file() and not path.is_dir() and path.exists():
        raise LearningError(f"{place} is a pipe or a device: {remedy}")
