"""Make a copy of the project's app whose clients can send faulty masked updates."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from testing.project import PROJECT

FOLDERS = ("client_app", "conf", "fastgrad", "gdpfed", "secagg", "server_app")
FILES = ("LICENSE", "README.md", "pyproject.toml")
HONEST_APP = 'clientapp = "client_app.app:app"'
FAULTY_APP = 'clientapp = "client_app.rule_breaker:app"\n\n[tool.flwr.app.config]\nfaults = "{}"'


def copy_of_project(directory: Path, folders: Iterable[str], files: Iterable[str]) -> None:
    """Copy these folders and files of the checkout into ``directory``."""
    for folder in folders:
        shutil.copytree(PROJECT / folder, directory / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in files:
        shutil.copy(PROJECT / file, directory)


def make_faulty_app(directory: Path) -> Path:
    """Copy the app into ``directory`` with a ClientApp that can break the rules; return ``directory``."""
    copy_of_project(directory, FOLDERS, FILES)
    shutil.copy(Path(__file__).with_name("rule_breaker.py"), directory / "client_app")
    text = (directory / "pyproject.toml").read_text(encoding="utf-8")
    assert HONEST_APP in text
    text = text.replace("[tool.flwr.app.config]\n", "").replace('overrides = ""\n', "")
    text = text.replace(HONEST_APP, f'{FAULTY_APP}\noverrides = ""')
    (directory / "pyproject.toml").write_text(text, encoding="utf-8")
    return directory
