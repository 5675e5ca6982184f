"""How gdpfed is installed: from which source folder, and which packages its optional features need.

An environment holds the project from a wheel or, editable, from a checkout. Flower unpacks the app without
installing it. Of what is missing, the packages are named and never the project: it may be on no index.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

NAME, PROJECT_FILE = "gdpfed", "pyproject.toml"
SOURCES = Path(__file__).resolve().parents[1]
"""What holds the package: a checkout, an app that Flower has unpacked, or site-packages."""
_OF_EXTRA = re.compile(r"^(?P<package>[^;]+?)\s*;.*\bextra\s*==\s*['\"](?P<extra>[\w-]+)['\"]")
_PACKAGE = re.compile(r"[A-Za-z0-9._-]+")
_PACKAGES = {
    "PIL": "pillow",
    "google": "protobuf",
    "hydra": "hydra-core",
    "markdown_it": "markdown-it-py",
    "mlflow": "mlflow-skinny",
    "ray": "flwr",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""The package of each module whose package has another name."""


def project_version() -> str:
    """Return the version of gdpfed, which only pyproject.toml states."""
    try:
        return version(NAME)
    except PackageNotFoundError:
        # A bundle that Flower has unpacked is not installed, and has the file itself.
        return str(_project()["version"])


def checkout() -> Path | None:
    """Return the source folder that this environment has installed as editable; None if there is none."""
    try:
        said = json.loads(distribution(NAME).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return None
    folder = Path(unquote(urlsplit(said.get("url", "")).path))
    return folder if said.get("dir_info", {}).get("editable") and folder.is_dir() else None


def how_to_install(extra: str) -> str:
    """Return the command that installs the packages of one extra (an optional group of packages).

    Raises KeyError: there is no such extra.
    """
    return _command(_requirements()[1][extra])


def how_to_get(module: str) -> str:
    """Return the command that installs a missing module, through the smallest extra that has it."""
    package = _plain(_PACKAGES.get(module, module))
    always, extras = _requirements()
    groups = [*([alway] for alway in always), *extras.values()]
    having = sorted((group for group in groups if package in map(_package_name_in, group)), key=len)
    return _command(having[0] if having else [package])


def _requirements() -> tuple[list[str], dict[str, list[str]]]:
    """Return the packages that gdpfed always needs, and those of each extra (optional group)."""
    if (SOURCES / PROJECT_FILE).is_file():
        project = _project()
        return list(project["dependencies"]), dict(project["optional-dependencies"])
    always: list[str] = []
    extras: dict[str, list[str]] = {}
    for line in requires(NAME) or ():
        of_extra = _OF_EXTRA.match(line)
        (extras.setdefault(of_extra["extra"], []) if of_extra else always).append(
            line.partition(";")[0].strip()
        )
    return always, extras


def _project() -> dict[str, Any]:
    text = (SOURCES / PROJECT_FILE).read_text(encoding="utf-8")
    return dict(tomllib.loads(text)["project"])


def _command(packages: Iterable[str]) -> str:
    # An environment that uv has made has no pip.
    program = "pip install" if find_spec("pip") else "uv pip install"
    return f"{program} {shlex.join(packages)}"


def _package_name_in(requirement: str) -> str:
    """Return the package's name in a requirement such as ``torch>=2``."""
    found = _PACKAGE.match(requirement)
    return _plain(found[0]) if found else ""


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
