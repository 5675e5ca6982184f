"""Makes a virtual environment with a wheel; its dependencies are links to packages of this environment."""

import venv
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def linked_environment(
    folder: Path, wheel: Path, extras: Iterable[str] = (), also: Iterable[str] = ()
) -> Path:
    """Make a virtual environment in `folder` with a wheel installed; return the path of its Python.

    Args:
        folder: that becomes the environment.
        wheel: of this project, pure Python.
        extras: of the wheel.
        also: further packages, with what they need.
    """
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    with ZipFile(wheel) as archive:
        archive.extractall(site)
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode("utf-8").splitlines()
    asked = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")]
    needed = {each for line in asked for each in _wanted(line, {"", *extras})}
    for package in _closure([*needed, *(Requirement(each) for each in also)]):
        _link(package, site)
    return folder / "bin" / "python"


def _wanted(line: str, extras: Iterable[str]) -> list[Requirement]:
    requirement = Requirement(line)
    marker = requirement.marker
    return [requirement] if not marker or any(marker.evaluate({"extra": extra}) for extra in extras) else []


def _closure(requirements: Iterable[Requirement]) -> set[str]:
    """Return the names of these packages and of all their dependencies that are installed here."""
    left, seen = list(requirements), set[tuple[str, frozenset[str]]]()
    while left:
        requirement = left.pop()
        key = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if key in seen:
            continue
        try:
            found = distribution(requirement.name)
        except PackageNotFoundError:
            continue  # of another platform, or an accelerator's that this environment was made without
        seen.add(key)
        for line in found.requires or ():
            left += _wanted(line, {"", *requirement.extras})
    return {name for name, _ in seen}


def _link(package: str, site: Path) -> None:
    found = distribution(package)
    for top in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
        source = Path(str(found.locate_file(top)))
        if source.exists() and not (site / top).exists():
            (site / top).symlink_to(source)
