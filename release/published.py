"""The sources of the published project: the app's packages, and a pyproject.toml made for publishing.

A Flower app's pyproject.toml lists what its nodes install: Flower reads ``project.dependencies`` as it stands
and no extra, and a bundle of format 1 must name flwr there. So whoever only plans, audits or sums would
install PyTorch and Ray. What is published has a pyproject.toml of its own, made of the app's: the same names,
versions and bounds, with a core and extras.
"""

import re
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gdpfed.errors import ConfigError
from gdpfed.installed import PROJECT_FILE

LICENCE = "Apache-2.0"
README = "README.md"
FILES = ("CHANGELOG.md", "CITATION.cff", "LICENSE", README, "SECURITY.md")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc")
ALL = "all"


def published_project(app: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of the published pyproject.toml, made from the content of the app's pyproject.toml.

    Raises ConfigError: an extra of the wheel names what the app does not depend on, or what another one has.
    """
    project = dict(app["project"])
    by_name = {canonicalize_name(Requirement(each).name): each for each in project["dependencies"]}
    extras: dict[str, list[str]] = {}
    for extra, names in app["tool"]["gdpfed"]["wheel-extras"].items():
        unknown = [name for name in names if canonicalize_name(name) not in by_name]
        if unknown:
            raise ConfigError(
                f"extra {extra} of the wheel names {unknown[0]}: list it under dependencies, once"
            )
        extras[extra] = [by_name.pop(canonicalize_name(name)) for name in names]
    extras |= project["optional-dependencies"]
    project["dependencies"] = list(by_name.values())
    project["optional-dependencies"] = extras | {
        ALL: sorted({each for own in extras.values() for each in own})
    }
    project |= {"license": LICENCE, "license-files": ["LICENSE"]}
    return {
        "build-system": app["build-system"],
        "project": project,
        "tool": {
            "hatch": {"build": {"targets": {"wheel": app["tool"]["hatch"]["build"]["targets"]["wheel"]}}}
        },
    }


def with_links_to(place: str, text: str) -> str:
    """Return Markdown in which links to files of the checkout lead to a web address instead."""
    return re.sub(r"\]\((?!https?:|#)([^)\s]+)\)", rf"]({place}/\1)", text)


def write_published(checkout: Path, folder: Path) -> None:
    """Write the published files of a checkout into a folder, and remove the folder's earlier content.

    Raises ConfigError: the folder holds something else.
    """
    app = tomllib.loads((checkout / PROJECT_FILE).read_text(encoding="utf-8"))
    made = published_project(app)
    if folder.exists() and any(folder.iterdir()) and not (folder / PROJECT_FILE).is_file():
        raise ConfigError(f"{folder} holds other files: name a new folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for package in app["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        shutil.copytree(checkout / package, folder / package, ignore=LEFT_OUT)
    for name in FILES:
        shutil.copy(checkout / name, folder / name)
    repository = made["project"].get("urls", {}).get("Repository")
    if repository is not None:
        readme = (checkout / README).read_text(encoding="utf-8")
        tag = f"v{made['project']['version']}"
        (folder / README).write_text(with_links_to(f"{repository}/blob/{tag}", readme), encoding="utf-8")
    (folder / PROJECT_FILE).write_text(tomli_w.dumps(made), encoding="utf-8")
