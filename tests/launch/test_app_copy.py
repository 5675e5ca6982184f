"""Tests of the copy that ``flwr run`` gets: the app's files, without the environment and data."""

import pytest
from flwr.cli.build import build_fab_from_disk

from gdpfed.launch.flower_run import copy_app

SETTINGS = """
[project]
name = "small"
version = "1.0.0"
description = ""
license = "Apache-2.0"

[tool.flwr.app]
publisher = "tests"
{include}

[tool.flwr.app.components]
serverapp = "rooms.app:server"
clientapp = "rooms.app:client"
"""


@pytest.fixture
def app(tmp_path):
    """Make a checkout with an app of two files, an environment and data; return its folder."""
    app = tmp_path / "checkout"
    own = ("rooms/app.py", "rooms/deep/part.py")
    for name in (*own, "rooms/notes.txt", ".venv/lib/rooms/app.py", "data/1.py"):
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text(name)
    (app / "pyproject.toml").write_text(SETTINGS.format(include='fab-include = ["rooms/**/*.py"]'))
    return app


def test_flower_makes_the_same_bundle_of_the_copy(app, tmp_path):
    copy = tmp_path / "copy"
    (copy / "rooms").mkdir(parents=True)
    (copy / "rooms" / "of_an_earlier_run.py").write_text("")
    assert copy_app(app, copy) == copy
    files = {file.relative_to(copy).as_posix() for file in copy.rglob("*") if file.is_file()}
    assert files == {"pyproject.toml", "rooms/app.py", "rooms/deep/part.py"}
    assert build_fab_from_disk(copy) == build_fab_from_disk(app)


def test_an_app_that_does_not_name_its_files_is_not_copied(app, tmp_path):
    (app / "pyproject.toml").write_text(SETTINGS.format(include=""))
    assert copy_app(app, tmp_path / "copy") == app
    assert not (tmp_path / "copy").exists()
