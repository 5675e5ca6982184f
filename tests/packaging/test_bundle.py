"""Tests of the app's bundle for Flower's nodes: Flower's own code builds it and checks it for its hub."""

import tomllib
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import pytest
from flwr.cli.app_cmd.publish import _validate_app_name, _validate_description, _validate_files
from flwr.cli.build import build_fab_from_disk, get_fab_filename
from flwr.cli.config_utils import get_fab_metadata, load_and_validate
from flwr.cli.utils import build_pathspec, filter_paths_for_publish
from flwr.common.constant import FAB_MAX_SIZE
from flwr.supercore.fab_format_version import normalize_and_validate_fab_format

from gdpfed.launch.flower_run import copy_app
from testing.project import PROJECT

APP = {"client_app", "conf", "fastgrad", "gdpfed", "secagg", "server_app"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return build_fab_from_disk(copy_app(PROJECT, tmp_path_factory.mktemp("checkout") / "app"))


def test_flower_has_nothing_to_say_about_the_apps_settings():
    config, warnings = load_and_validate(PROJECT / "pyproject.toml")
    assert warnings == []
    _validate_description(config["project"]["description"])
    _validate_app_name(config["project"]["name"], "name")
    format_of_bundle = normalize_and_validate_fab_format(config)
    assert format_of_bundle.fab_format_version == 1
    assert format_of_bundle.flwr_version_min == "1.41"
    # What it is made for is what the lock installs.
    assert format_of_bundle.flwr_version_target == locked("flwr")


def test_what_flower_makes_in_a_checkout_is_nothing_that_git_sees():
    built = get_fab_filename(
        tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8")), "0" * 64
    )
    made = [built, "app.fab", "app.fab.signature", "dist/gdpfed-0.1.0.tar.gz"]
    made += ["build/wheel/pyproject.toml", ".flwr/config.toml"]
    ignored = build_pathspec((PROJECT / ".gitignore").read_text(encoding="utf-8").splitlines())
    assert [name for name in made if not ignored.match_file(name)] == []


def locked(name):
    packages = tomllib.loads((PROJECT / "uv.lock").read_text(encoding="utf-8"))["package"]
    (found,) = (each["version"] for each in packages if each["name"] == name)
    return found


def test_the_bundle_has_the_app_with_its_licence_and_nothing_else(bundle):
    files = {name for name in ZipFile(BytesIO(bundle)).namelist() if name != ".info/CONTENT"}
    assert {name for name in files if "/" not in name} == {"LICENSE", "README.md", "pyproject.toml"}
    assert {name.partition("/")[0] for name in files if "/" in name} == APP
    assert {Path(name).suffix for name in files if "/" in name} == {".py", ".yaml"}
    expected = {str(path.relative_to(PROJECT)) for room in APP for path in (PROJECT / room).rglob("*.py")}
    assert expected <= files
    # Flower refuses a larger one; half of it leaves room.
    assert len(bundle) < FAB_MAX_SIZE / 2
    stated = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    assert get_fab_metadata(bundle) == (
        f"{stated['tool']['flwr']['app']['publisher']}/{stated['project']['name']}",
        stated["project"]["version"],
    )


def test_flowers_hub_would_take_the_files_of_the_app(tmp_path, capsys):
    """Flower's checks for its hub accept the number, sizes, depth and encoding of the app's files."""
    copied = copy_app(PROJECT, tmp_path / "app")
    tracked = {str(path.relative_to(copied)): path for path in copied.rglob("*") if path.is_file()}
    taken = filter_paths_for_publish(tracked)
    assert {"LICENSE", "README.md", "pyproject.toml"} <= taken.keys()
    _validate_files([tracked[name] for name in taken])
    assert "Validation passed" in capsys.readouterr().out
