"""Tests that the metadata for catalogues, archives and package managers agree with pyproject.toml."""

import json
import re
import subprocess
import sys
import tomllib

import pytest
import yaml

from release.published import published_project, with_links_to
from testing.project import PROJECT

APP = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
VERSION = APP["project"]["version"]
CITATION = yaml.safe_load((PROJECT / "CITATION.cff").read_text(encoding="utf-8"))
# What Zenodo takes in such a file, as far as it is used here, and the terms of CodeMeta 3.
ZENODO = {
    "title",
    "description",
    "upload_type",
    "access_right",
    "license",
    "creators",
    "keywords",
    "references",
}
CODEMETA = {"@context", "@type", "author", "dateModified", "description", "identifier", "keywords", "license"}
CODEMETA |= {"name", "programmingLanguage", "referencePublication", "runtimePlatform", "version"}


def read_json(name):
    return json.loads((PROJECT / name).read_text(encoding="utf-8"))


def test_the_citation_is_one_by_its_schema():
    words = ["--builtin-schema", "vendor.citation-file-format", str(PROJECT / "CITATION.cff")]
    checked = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", *words], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


def test_archives_are_told_what_the_citation_says():
    zenodo, codemeta = read_json(".zenodo.json"), read_json("codemeta.json")
    assert (zenodo.keys(), codemeta.keys()) == (ZENODO, CODEMETA)
    (author,) = (each["name"] for each in CITATION["authors"])
    (paper,) = CITATION["references"]
    for title, abstract, keywords, name in (
        (zenodo["title"], zenodo["description"], zenodo["keywords"], zenodo["creators"][0]["name"]),
        (codemeta["name"], codemeta["description"], codemeta["keywords"], codemeta["author"][0]["name"]),
    ):
        assert (title, abstract, keywords) == (CITATION["title"], CITATION["abstract"], CITATION["keywords"])
        assert name == author
    assert zenodo["references"] == [
        f"{', '.join(each['family-names'] for each in paper['authors'])}: {paper['title']}"
    ]
    assert [each["name"] for each in codemeta["referencePublication"]] == [paper["title"]]
    assert zenodo["upload_type"] == CITATION["type"]


def test_one_version_one_date_and_one_licence():
    codemeta, recipe = read_json("codemeta.json"), read_recipe()
    assert {CITATION["version"], codemeta["version"], recipe["context"]["version"]} == {VERSION}
    assert codemeta["dateModified"] == str(CITATION["date-released"])
    licence = published_project(APP)["project"]["license"]
    licences = (CITATION["license"], read_json(".zenodo.json")["license"], recipe["about"]["license"])
    assert {*licences, codemeta["license"].rpartition("/")[2]} == {licence}


def read_recipe():
    return yaml.safe_load((PROJECT / "recipe" / "recipe.yaml").read_text(encoding="utf-8"))


def test_the_recipe_needs_what_the_core_needs():
    recipe, made = read_recipe(), published_project(APP)["project"]
    python = f"python {made['requires-python']}"
    core = [re.sub(r"(?=[>=<])", " ", each, count=1) for each in made["dependencies"]]
    assert recipe["requirements"]["run"] == [python, *core]
    (backend,) = APP["build-system"]["requires"]
    assert recipe["requirements"]["host"] == [python, "pip", re.sub(r"(?=>)", " ", backend)]
    commands = [f"{name} = {place}" for name, place in made["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == commands
    assert recipe["source"] == {"path": "../build/wheel"}


@pytest.mark.parametrize("name", ["CITATION.cff", "codemeta.json", "recipe/recipe.yaml", "pyproject.toml"])
def test_releasing_changes_every_file_that_states_the_version(name, tmp_path):
    """The `sed` commands of RELEASING.md change the version in every file that states it."""
    lines = re.findall(
        r"^    (sed .*)$", (PROJECT / "RELEASING.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    own = [each for each in lines if each.endswith(f" {name}")]
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text((PROJECT / name).read_text(encoding="utf-8"), encoding="utf-8")
    subprocess.run(
        ["/bin/sh", "-c", "\n".join(own)],
        cwd=tmp_path,
        env={"NEW": "9.8.7", "PATH": "/usr/bin:/bin"},
        check=True,
    )
    new = (tmp_path / name).read_text(encoding="utf-8")
    assert new.count("9.8.7") == 1
    assert (
        json.loads if name.endswith("json") else tomllib.loads if name.endswith("toml") else yaml.safe_load
    )(new)


def test_links_of_the_readme_lead_to_the_repository_once_it_has_a_place():
    text = "[a](docs/a.md#b) [c](https://c) [d](#d)"
    assert (
        with_links_to("https://e/blob/v1", text)
        == "[a](https://e/blob/v1/docs/a.md#b) [c](https://c) [d](#d)"
    )
