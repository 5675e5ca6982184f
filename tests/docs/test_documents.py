"""Tests of the documents: quoted paths, names and settings exist, and links lead to a page or heading."""

import re
import tomllib
from importlib import import_module

import pytest

from conf.load import load
from gdpfed.methods import make_method
from gdpfed.privacy.sampling.cohort_sizes import skipped_fractions
from testing.project import PROJECT

LAYERS = "imports point one way"
FOLDERS = ("client_app", "conf", "deploy", "fastgrad", "gdpfed", "secagg", "server_app")
QUOTED = re.compile(r"`([^`\s]+)`")
PATH = re.compile(r"[\w./-]+/[\w./-]*|[\w-]+\.(md|toml)")
ROOM = re.compile(r"^\| (\d+) \| `([^`]+)` \|", re.MULTILINE)
NAME = re.compile(r"`([A-Za-z]\w*(?:\.\w+)?)`")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
ANCHORED = re.compile(r"\]\(([^)#:\s]*)#([^)]+)\)")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
SETTING = re.compile(r"`((?:privacy|training|secagg|run|dataset)\.\w+)")
MODULES = ("clientapp.mod", "server", "server.workflow", "client.mod")
NUMBERED = re.compile(r"^(\d+)\. `", re.MULTILINE)


def text_of(name):
    return (PROJECT / name).read_text(encoding="utf-8")


def paths_in(text):
    """Return the quoted words of a text that look like paths of the repository."""
    return {
        path for path in QUOTED.findall(text) if re.fullmatch(r"[\w./-]+/[\w./-]*|[\w-]+\.(md|toml)", path)
    }


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/extending.md"])
def test_paths_that_are_quoted_exist(name):
    own_package = "my_extension/"  # The reader's, which docs/extending.md has them write.
    paths = {path for path in paths_in(text_of(name)) if not path.startswith(own_package)}
    assert paths
    assert {path for path in paths if not (PROJECT / path).exists()} == set()


def test_tests_that_the_documents_name_exist():
    named = {
        found
        for path in PROJECT.glob("docs/*.md")
        for found in TEST.findall(path.read_text(encoding="utf-8"))
    }
    assert len(named) > 30
    assert [f"{path}::{name}" for path, name in named if f"def {name}(" not in text_of(path)] == []


def test_lines_of_documents_have_up_to_120_characters():
    lines = [
        (path.name, line)
        for path in (*PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    assert [(name, line) for name, line in lines if len(line) > 120 and not line.startswith("|")] == []


@pytest.mark.parametrize(
    "path", [*PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md")], ids=lambda path: path.name
)
def test_links_between_documents_lead_somewhere(path):
    links = set(LINK.findall(path.read_text(encoding="utf-8")))
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize(
    "path", [*PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md")], ids=lambda path: path.name
)
def test_links_say_in_words_where_they_lead(path):
    assert re.findall(r"\[[\w./]+\.(?:md|cff)\]\([^)]+\)", path.read_text(encoding="utf-8")) == []


def anchors_of(path):
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "path", [*PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md")], ids=lambda path: path.name
)
def test_links_to_sections_lead_to_a_heading(path):
    links = [
        (path.parent / name if name else path, anchor)
        for name, anchor in ANCHORED.findall(path.read_text(encoding="utf-8"))
    ]
    assert [(target.name, anchor) for target, anchor in links if anchor not in anchors_of(target)] == []


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "docs/glossary.md"])
def test_names_that_are_quoted_are_in_the_code(name):
    code = "\n".join(
        path.read_text(encoding="utf-8") for folder in FOLDERS for path in (PROJECT / folder).rglob("*.py")
    )
    words = set(re.findall(r"\w+", code)) | {"gdpfed_plus", "rounds.jsonl", "pyproject.toml"}
    quoted = set(NAME.findall(text_of(name)))
    assert len(quoted) > 20
    assert {name for name in quoted - words if not set(name.split(".")) <= words} == set()


def test_words_of_the_glossary_are_used_elsewhere():
    words = re.findall(r"^\| ([a-z][^|]*) \|", text_of("docs/glossary.md"), re.MULTILINE)[1:]
    pages = [
        path for path in (*PROJECT.glob("docs/*.md"), *PROJECT.glob("*.md")) if path.name != "glossary.md"
    ]
    text = " ".join(" ".join(path.read_text(encoding="utf-8") for path in pages).lower().split())
    assert len(words) > 40
    assert [word for entry in words for word in entry.split(", ") if word not in text] == []


def test_the_readme_is_one_screen_and_leads_to_every_document():
    readme = text_of("README.md")
    assert len(readme.splitlines()) <= 120
    documents = {
        str(path.relative_to(PROJECT)) for path in (*PROJECT.glob("docs/*.md"), *PROJECT.glob("*.md"))
    }
    assert documents - {"README.md"} - set(LINK.findall(readme)) == set()


def test_the_commands_for_a_hospital_in_the_readme_plan_cohorts_that_are_summed():
    commands = re.findall(r"^ +gdpfed (?:plan|simulate) (\w+=.*)", text_of("README.md"), re.MULTILINE)
    assert len(commands) == 2
    for command in set(commands):
        config = load(command.split())
        plan = make_method(config).plan
        assert max(skipped_fractions(plan, config.secagg.minimum_cohort).sums) < 0.01, command


def test_the_readme_quotes_what_privacy_costs_as_it_was_measured():
    readme = " ".join(text_of("README.md").split())
    _, _, measured = text_of("docs/results.md").partition("python -m benchmarks.cost --seeds 40 -->")
    rows = dict(re.findall(r"^\| (\w+) \| 40 \| ([\d.]+) ± ", measured, re.MULTILINE))
    ((lost, most, least),) = re.findall(
        r"^\| gdpfed_star \| 40 \| -([\d.]+) ± .* \| -([\d.]+) to -([\d.]+) \|$", measured, re.MULTILINE
    )
    right = (
        f"{rows['gdpfed_star']} % of handwritten digits. Without privacy it is right on {rows['fedavg']} %"
    )
    assert right in readme
    assert f"privacy costs {lost} points (95 % interval {least} to {most}" in readme


@pytest.mark.parametrize("name", ["from_flower_dp", "from_opacus", "from_pfl"])
def test_settings_that_stand_for_those_of_other_libraries_exist(name):
    config = load([])
    named = {tuple(key.split(".")) for key in SETTING.findall(text_of(f"docs/{name}.md"))}
    assert len(named) > 4
    assert [key for key in named if not hasattr(getattr(config, key[0]), key[1])] == []


def test_names_of_flower_exist():
    first_column = re.findall(r"^\| (`[^|]+) \|", text_of("docs/from_flower_dp.md"), re.MULTILINE)
    named = {word for cell in first_column for word in re.findall(r"`([A-Z]\w+|\w+_mod)[`.]", cell)}
    homes = [import_module(f"flwr.{module}") for module in ("serverapp", "serverapp.strategy", *MODULES)]
    assert len(named) > 9
    assert {word for word in named if not any(hasattr(home, word) for home in homes)} == set()


def test_rooms_stand_in_the_order_of_the_import_contract():
    contracts = tomllib.loads(text_of("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["name"] == LAYERS)
    rooms = [(int(floor), path) for floor, path in ROOM.findall(text_of("ARCHITECTURE.md"))]
    assert [floor for floor, _ in rooms] == sorted((floor for floor, _ in rooms), reverse=True)
    for floor, layer in enumerate(reversed(layers)):
        named = {
            path.removesuffix(".py").rstrip("/").replace("/", ".") for own, path in rooms if own == floor
        }
        assert named == {module.strip() for module in layer.split("|")}
    assert max(floor for floor, _ in rooms) == len(layers) - 1


def test_the_way_of_theta_is_as_long_as_it_says():
    _, _, section = text_of("ARCHITECTURE.md").partition("## The way of theta")
    out, back = section.split("Back to the loop")
    back, in_process = back.split("In process, steps")
    lengths = [int(NUMBERED.findall(part)[-1]) for part in (out, back, in_process)]
    walls = [part.count("then the wall") for part in (out, back)]
    stated = " ".join(section.split())
    assert re.search(rf"\b{lengths[0]} files and {walls[0]} crossings? of the wall out", stated)
    assert re.search(rf"\b{lengths[1]} files and {walls[1]} crossings? back", stated)
    assert f"{lengths[2]} files in process" in stated


def test_changelog_and_citation_name_the_version_that_is_built():
    version = tomllib.loads(text_of("pyproject.toml"))["project"]["version"]
    released = re.search(r"^date-released: (\S+)$", text_of("CITATION.cff"), re.MULTILINE)
    assert f"version: {version}\n" in text_of("CITATION.cff")
    assert f"## [{version}] - {released and released.group(1)}\n" in text_of("CHANGELOG.md")
