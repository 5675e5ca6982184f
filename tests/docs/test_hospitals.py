"""Tests of docs/hospitals.md and docs/eicu.md: their commands run as printed, where the data exist."""

import csv
import shutil

import pytest
from sklearn.datasets import load_breast_cancer

from testing import page_examples
from testing.project import PROJECT
from testing.small_runs import nothing_drawn

HEART_DISEASE = PROJECT.parent / "shared" / "data" / "heart-disease"
PLACE = "/data/heart-disease"


def sections():
    """Return two parts of docs/hospitals.md: one that runs as it is, and one that needs data files."""
    text = (PROJECT / "docs" / "hospitals.md").read_text(encoding="utf-8")
    day, _, heart = text.partition(page_examples.NEEDS_FILES)
    return day, heart


def follow(text, capsys):
    return page_examples.follow(text, lambda: capsys.readouterr().out, page_examples.FAILING["hospitals.md"])


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with nothing_drawn():
        yield tmp_path


def test_the_day_runs_word_for_word(here, capsys):
    said = follow(sections()[0], capsys)
    assert "'malign', which is not one of" in said["gdpfed check exported.csv tables/columns.yaml"]
    assert "bonn.csv: 90 rows, no fault" in said["gdpfed check tables"]
    assert any(
        "epsilon by party: bonn: 1, fulda: 6, jena: 6" in " ".join(text.split()) for text in said.values()
    )
    card = (here / "day" / "model_card.md").read_text()
    for line in ("bonn, fulda, jena, kiel, trier and ulm have made", "| bonn | 1 | 1 |", "| ulm | 6 | 6 |"):
        assert line in card
    assert "* purpose: a second opinion on samples that a pathologist has seen" in card
    with (here / "diagnoses.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    data = load_breast_cancer()
    right = [row["predicted"] == data.target_names[data.target[int(row["sample"])]] for row in rows]
    assert len(rows) == 29
    assert sum(right) >= 22


@pytest.mark.skipif(not HEART_DISEASE.is_dir(), reason=f"needs UCI's files in {HEART_DISEASE}")
def test_the_same_runs_with_real_hospitals(here, capsys):
    said = follow(sections()[1].replace(PLACE, str(HEART_DISEASE)), capsys)
    (row,) = csv.DictReader(said["gdpfed predict heart/model patient.csv"].splitlines())
    assert row["predicted"] in ("healthy", "disease")
    assert "| switzerland | 3 | 3 |" in (here / "heart" / "model_card.md").read_text()


STAYS = page_examples.FILES["eicu.md"]["patient.csv"]


@pytest.mark.skipif(not STAYS.is_file(), reason=f"needs the eICU demo in {STAYS}")
def test_regions_and_their_stays_are_answered_as_the_page_says(here, capsys):
    shutil.copy(STAYS, here / "patient.csv")
    text = (
        (PROJECT / "docs" / "eicu.md")
        .read_text(encoding="utf-8")
        .replace("run.num_rounds=100", "run.num_rounds=2")
    )
    said = follow(text.replace("run.seed=0,1", "run.seed=0"), capsys)
    assert "Northeast" in said["gdpfed partition dataset=eicu dataset.path=patient.csv"]
    answer = " ".join(said["gdpfed compare sweep --html --output worth"].split())
    assert answer.startswith("Beside each party alone, by AUC: ")
    assert "Of 580 test rows 91.6 % are of one class" in answer
    assert (here / "worth" / "worth.html").is_file()
