"""The tutorials of docs/ that have no test of their own elsewhere, run as they stand there."""

import csv

import pytest

from gdpfed.runs.round_log import read_rounds
from testing.page_examples import DOCS, PYTHON, follow
from testing.small_runs import nothing_drawn


@pytest.fixture
def said(request, tmp_path, monkeypatch, capsys):
    """What each command of a page printed, done in an empty directory."""
    page, failing = request.param
    monkeypatch.chdir(tmp_path)
    with nothing_drawn():
        text = (DOCS / page).read_text(encoding="utf-8")
        return follow(text, lambda: " ".join(capsys.readouterr().out.split()), failing)


@pytest.mark.parametrize("said", [("own_table.md", {"gdpfed check patients.csv"})], indirect=True)
def test_a_table_of_your_own(said, tmp_path):
    page = " ".join((DOCS / "own_table.md").read_text(encoding="utf-8").split())
    (fault,) = [words for words in page.split("`") if words.startswith("column 'arrival' holds")]
    assert fault in said["gdpfed check patients.csv"]
    assert all(word in said["gdpfed report stays"] for word in ("By party and by budget", "east", "west"))
    assert "Every budget held, and the files agree." in said["gdpfed audit stays"]
    assert (read_rounds(tmp_path / "stays")[-1].accuracy or 0) > 0.7
    with (tmp_path / "predicted.csv").open(newline="") as file:
        assert [row["patient"] for row in csv.DictReader(file)] == [str(each) for each in range(600, 620)]


@pytest.mark.parametrize("said", [("own_budgets.md", ())], indirect=True)
def test_budgets_that_nodes_own(said):
    assert "Every budget held, and the files agree." in said["gdpfed audit --node-ledger ledger.json"]
    refused = said[PYTHON]
    assert "refused: this run does not fit this client's own budget" in refused
    assert "refused: noise of standard deviation" in refused
    assert "a copy forgets what was spent since" in refused
