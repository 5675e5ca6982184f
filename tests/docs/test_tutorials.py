"""Tests of the tutorials in docs/ that no other test covers: their commands run as printed."""

import csv
import re
from itertools import combinations, pairwise

import pytest

from gdpfed.runs.round_log import read_rounds
from testing.page_examples import FAILING, PYTHON, Block, blocks_of, commands_of, follow, with_outputs
from testing.project import DOCS
from testing.small_runs import nothing_drawn


@pytest.fixture
def said(request, tmp_path, monkeypatch, capsys):
    """Run the commands of a page in an empty directory; return what each command printed."""
    monkeypatch.chdir(tmp_path)
    with nothing_drawn():
        text = (DOCS / request.param).read_text(encoding="utf-8")
        return follow(text, lambda: " ".join(capsys.readouterr().out.split()), FAILING.get(request.param, ()))


@pytest.mark.parametrize("said", ["own_table.md"], indirect=True)
def test_a_table_of_your_own(said, tmp_path):
    page = " ".join((DOCS / "own_table.md").read_text(encoding="utf-8").split())
    (fault,) = [words for words in page.split("`") if words.startswith("column 'arrival' holds")]
    assert fault in said["gdpfed check patients.csv"]
    assert all(word in said["gdpfed report stays"] for word in ("By party and by budget", "east", "west"))
    assert "Every budget held, and the files agree." in said["gdpfed audit stays"]
    assert (read_rounds(tmp_path / "stays")[-1].accuracy or 0) > 0.7
    with (tmp_path / "predicted.csv").open(newline="") as file:
        assert [row["patient"] for row in csv.DictReader(file)] == [str(each) for each in range(600, 620)]


def test_databases_of_hospitals(tmp_path, monkeypatch, capsys):
    """The commands of docs/omop.md before its section on a model run as printed and find no fault."""
    pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "omop.md").read_text(encoding="utf-8").partition("## A model")[0]
    checked = follow(text, lambda: capsys.readouterr().out)["gdpfed check sites"]
    for name in ("east", "north", "west"):
        assert re.search(rf"^sites/{name}.sql: 4\d\d rows, no fault$", checked, re.MULTILINE)
    assert "not read" not in checked.replace("not declared, and not read: visit", "")


@pytest.mark.parametrize("said", ["own_budgets.md"], indirect=True)
def test_budgets_that_nodes_own(said):
    assert "Every budget held, and the files agree." in said["gdpfed audit --node-ledger ledger.json"]
    refused = said[PYTHON]
    assert "refused: this run does not fit this client's own budget" in refused
    assert "refused: noise of standard deviation" in refused
    assert "and lacks what was spent since" in refused


def files_of(page):
    """Return the names of the files that a tutorial writes, directly or by its commands."""
    blocks = blocks_of((DOCS / page).read_text(encoding="utf-8"))
    commands = [
        command.split() for block in blocks if block.kind == "commands" for command in commands_of(block)
    ]
    written = {after for words in commands for word, after in pairwise(words) if word == "--output"}
    return written | {block.name for block in blocks if block.kind == "file"}


def test_tutorials_can_be_followed_in_one_folder():
    pages = ("own_table.md", "hospitals.md", "own_budgets.md", "omop.md")
    table, hospitals, budgets, databases = map(files_of, pages)
    assert {"sites/west.sql", "long_stays.csv"} <= databases
    assert {"columns.yaml", "predicted.csv"} <= table
    assert {"tables/columns.yaml", "diagnoses.csv"} <= hospitals
    assert not any(one & other for one, other in combinations((table, hospitals, budgets, databases), 2))


def test_outputs_take_the_place_of_earlier_ones():
    page = "Look:\n\n    gdpfed settings\n\nText.\n"
    (command,) = (block for block in blocks_of(page) if block.kind == "commands")
    once = with_outputs(page, [(command, "    indented\n")])
    assert once == "Look:\n\n    gdpfed settings\n\n<!-- printed -->\n\n```text\n    indented\n```\n\nText.\n"
    shown = blocks_of(once)
    assert Block("printed", "    indented\n", end=shown[2].end) == shown[2]
    assert with_outputs(once, [(shown[1], "other\n")]) == once.replace("    indented", "other")
