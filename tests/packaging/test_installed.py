"""Tests of where the project is installed from, and of what messages say of a missing package."""

import json
import re
import shlex
import tomllib
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest

from gdpfed import installed
from gdpfed.errors import InputError
from gdpfed.late_import import packages_needed
from testing.project import PROJECT

EXTRAS = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
OF_A_WHEEL = ["numpy>=2", "onnx>=1.19; extra == 'onnx'", 'scikit-learn>=1.6 ; extra == "train"']
OF_A_WHEEL += ["torch>=2.14; extra == 'train'", "pywin32; sys_platform == 'win32'"]
OF_A_WHEEL = [
    f"{each}; extra == 'all'" for each in ("onnx>=1.19", "scikit-learn>=1.6", "torch>=2.14")
] + OF_A_WHEEL


@pytest.fixture
def as_a_wheel(tmp_path, monkeypatch):
    monkeypatch.setattr(installed, "SOURCES", tmp_path)
    monkeypatch.setattr(installed, "requires", lambda name: OF_A_WHEEL)
    monkeypatch.setattr(installed, "find_spec", lambda name: object())


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_checkout_names_the_packages_of_its_extras(extra, monkeypatch):
    monkeypatch.setattr(installed, "find_spec", lambda name: None)
    assert shlex.split(installed.how_to_install(extra)) == ["uv", "pip", "install", *EXTRAS[extra]]
    for package in EXTRAS[extra]:
        module = re.split("[>=]", package)[0].replace("-", "_")
        assert installed.how_to_get(module) == installed.how_to_install(extra)


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("onnx", "pip install 'onnx>=1.19'"),
        ("sklearn", "pip install 'scikit-learn>=1.6' 'torch>=2.14'"),
        ("torch", "pip install 'scikit-learn>=1.6' 'torch>=2.14'"),
        ("numpy", "pip install 'numpy>=2'"),
        ("of_someone_else", "pip install of-someone-else"),
    ],
)
def test_a_wheel_names_the_packages_of_the_extra_that_brings_what_is_missing(as_a_wheel, module, command):
    assert installed.how_to_get(module) == command
    missing = f"^this needs the package {module}, which is not installed: {re.escape(command)}$"
    with pytest.raises(InputError, match=missing), packages_needed():
        raise ModuleNotFoundError(f"No module named '{module}'", name=module)
    with pytest.raises(InputError, match=missing), packages_needed():
        raise ModuleNotFoundError(f"No module named '{module}.part'", name=f"{module}.part")


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"url": "{root}", "dir_info": {"editable": True}}, True),
        ({"url": "{root}", "dir_info": {}}, False),
        ({"url": "{root}/gone", "dir_info": {"editable": True}}, False),
        ({"url": "{root}/gdpfed.whl", "archive_info": {}}, False),
        (None, False),
    ],
)
def test_a_checkout_is_what_is_installed_editable(tmp_path, monkeypatch, said, found):
    root = tmp_path / "a checkout"
    root.mkdir()
    text = None if said is None else json.dumps(said).replace("{root}", root.as_uri())
    monkeypatch.setattr(installed, "distribution", lambda name: SimpleNamespace(read_text=lambda file: text))
    assert installed.checkout() == (root if found else None)


def test_where_nothing_is_installed_there_is_no_checkout(monkeypatch):
    def nothing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(installed, "distribution", nothing)
    assert installed.checkout() is None


def test_no_message_and_no_page_names_the_project_as_a_package_of_an_index():
    """No file of code or documentation tells users to run `pip install gdpfed`."""
    folders = ("client_app", "conf", "deploy", "docs", "fastgrad", "gdpfed", "secagg", "server_app")
    files = [file for folder in folders for file in (PROJECT / folder).rglob("*")]
    named = re.compile(r"pip install [^\n`]*(?<![\w./-])gdpfed\b(?!\.)")
    texts = {
        file: file.read_text("utf-8") for file in files if file.suffix in (".py", ".md", ".yaml", ".html")
    }
    assert len(texts) > 300
    assert [file for file, text in texts.items() if named.search(text)] == []
