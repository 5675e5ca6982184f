"""Tests of `gdpfed report RUN --html`: the page loads nothing, and shows nothing of secret samples."""

import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from conf.load import load
from gdpfed.audit.run_audit import audit_run
from gdpfed.cli import main
from gdpfed.report.run_page import HIDDEN
from gdpfed.runs.file_formats import PAGE_FILE
from gdpfed.simulation import simulate
from testing.forged import edit_json
from testing.small_runs import nothing_drawn

EVERYONE = ("method=gdpfed_star", "privacy.against=everyone", "privacy.accountant=pld")
SECRET = ("method=dp_fedavg", "privacy.against=outsiders", "privacy.accountant=rdp")


class Page(HTMLParser):
    """Parser of a page that collects its tags, its texts, and the addresses that it loads."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.loads, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loads += [value for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """Simulate a run that is private against everyone and one with secret samples; return their folder."""
    directory, words = tmp_path_factory.mktemp("pages"), ("run.num_rounds=3", "privacy.sampling_rate=0.4")
    few = ("dataset=digits", "dataset.num_clients=15", "privacy.budgets=[1,3]", "simulation.workers=1")
    for name, options in {"everyone": EVERYONE, "secret": SECRET}.items():
        simulate(load([*few, *words, *options, f"run.directory={directory / name}"]))
    return directory


@pytest.fixture
def runs(simulated, tmp_path):
    shutil.copytree(simulated, tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def undrawn():
    """Replace pictures by empty files, because other tests check what is drawn."""
    with nothing_drawn():
        yield


def page_of(run, capsys, status=0):
    assert main(["report", str(run), "--html"]) == status
    assert str(run / PAGE_FILE) in capsys.readouterr().out
    return (run / PAGE_FILE).read_text()


def test_the_page_has_all_of_a_run_and_loads_nothing(runs, capsys):
    text = page_of(runs / "everyone", capsys)
    page, shown = Page(text), " ".join(re.sub(r"<style>.*?</style>", "", text, flags=re.S).split())
    assert not {"script", "link", "iframe", "object", "form"} & set(page.tags)
    assert len(page.loads) == page.tags.count("img") == 4
    assert all(each.startswith("data:image/png;base64,") for each in page.loads)
    assert "default-src 'none'" in text
    last = json.loads((runs / "everyone" / "rounds.jsonl").read_text().splitlines()[-1])
    assert f"<b>accuracy {100 * last['accuracy']:.1f} %</b>" in shown
    budgets = " ".join(
        f"{each:.2f}/{budget}" for each, budget in zip(last["spent_epsilon"], (1, 3), strict=True)
    )
    assert f"<b>{budgets}</b><small>spent/budget against everyone</small>" in shown
    assert "Every budget held, and the files agree." in page.words
    assert {"What is promised", "What is not covered"} <= set(page.words)
    assert "num_clients: 15" in text
    assert main(["audit", str(runs / "everyone")]) == 0


def test_a_page_names_a_folder_whose_name_no_text_can_hold(runs, undrawn, tmp_path):
    run = (runs / "everyone").rename(tmp_path / os.fsdecode(b"a\xff"))
    assert main(["report", str(run), "--html"]) == 0
    assert "run a </p>" in (run / PAGE_FILE).read_text()


def test_what_went_wrong_in_a_round_is_on_the_page_where_it_may_be_shown(runs, undrawn, capsys):
    for name, said in (("everyone", True), ("secret", False)):
        edit_json(
            runs / name / "rounds.jsonl", lambda rounds: rounds[1].update(failures={"group 0": "no reply"})
        )
        text = page_of(runs / name, capsys, 1)
        assert ("round 2, group 0: no reply" in text) == said
        assert ("Whose turn it was, and when noise is taken back" in text) == said


def test_what_depends_on_a_secret_sample_is_not_on_the_page(runs, undrawn, capsys):
    text = page_of(runs / "secret", capsys)
    assert len(Page(text).loads) == 2
    assert HIDDEN in text
    assert HIDDEN not in page_of(runs / "everyone", capsys)


def test_files_that_do_not_fit_are_said_on_the_page_and_in_a_line(runs, undrawn, capsys):
    run = runs / "everyone"
    edit_json(run / "ledger.json", lambda ledger: ledger["participations"][0].clear())
    assert main(["report", str(run), "--html"]) == 1
    error = capsys.readouterr().err
    assert "does not pass its audit, and the page says so: ledger.json is not the file that" in error
    assert error.count("\n") == 1
    page = Page((run / PAGE_FILE).read_text())
    assert {"The statement does NOT hold.", "unproved"} <= set(page.words)
    assert any(each.startswith("wrong: ") for each in page.words)
    (run / "ledger.json").write_text("{}")
    assert any("The audit cannot be made" in each for each in Page(page_of(run, capsys, 1)).words)


@pytest.mark.parametrize(
    "wrong", [{"taken_back": 3}, {"seconds": {"train": ""}}, {"groups_in_sums": [[1e3]]}]
)
def test_files_that_no_page_can_show_are_said_in_a_line(runs, undrawn, capsys, wrong):
    run = runs / "everyone"
    edit_json(run / "rounds.jsonl", lambda rounds: rounds[-1].update(wrong))
    assert main(["report", str(run), "--html"]) == 2
    error = capsys.readouterr().err
    assert "has damaged files, of which no page can be made: " in error
    assert error.count("\n") == 1
    assert not (run / PAGE_FILE).exists()


@pytest.mark.parametrize("form", [[], ["--markdown"], ["--latex"], ["--output", "there"]])
def test_no_table_shows_figures_of_files_that_were_changed(runs, undrawn, tmp_path, capsys, form):
    run, form = runs / "everyone", [each.replace("there", str(tmp_path / "out")) for each in form]
    assert main(["report", str(run), *form]) == 0
    capsys.readouterr()
    edit_json(run / "rounds.jsonl", lambda rounds: rounds[-1].update(spent_epsilon=[0.01, 0.01]))
    assert main(["report", str(run), *form]) == 2
    shown = capsys.readouterr()
    assert "rounds.jsonl is not the file that the run wrote" in shown.err
    assert (shown.out, shown.err.count("\n")) == ("", 1)


def test_a_page_is_sealed_with_the_run_that_it_shows(runs, undrawn, capsys):
    run = runs / "everyone"
    before = audit_run(run).seal
    page = page_of(run, capsys)
    assert audit_run(run).passed
    assert audit_run(run).seal == before
    (run / PAGE_FILE).write_text(page.replace("1.00/1", "0.01/1"))
    assert any("report.html is not the page that was written" in each for each in audit_run(run).findings)
    (run / PAGE_FILE).write_text(page)
    edit_json(run / "report_seal.json", lambda seal: seal["sha256"].update({"seal.json": "0" * 64}))
    assert any("report.html was made of other files" in each for each in audit_run(run).findings)
    (run / "report_seal.json").unlink()
    assert any("no report_seal.json with its hash" in each for each in audit_run(run).findings)
    page_of(run, capsys)
    assert audit_run(run).passed


def test_no_text_of_a_run_becomes_part_of_the_page(runs, undrawn, capsys):
    run = runs / "secret"
    for name in ("config.yaml", "model_card.md"):
        text = (run / name).read_text()
        (run / name).write_text(f"{text}\n# <script>alert(1)</script> <img src=https://example.org/x>\n")
    page = Page(page_of(run, capsys, 1))
    assert "script" not in page.tags
    assert all(each.startswith("data:") for each in page.loads)


def test_several_runs_are_side_by_side_on_one_page(runs, undrawn, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(runs), "--html"]) == 0
    assert str(Path("comparison") / PAGE_FILE) in capsys.readouterr().out
    text = (tmp_path / "comparison" / PAGE_FILE).read_text()
    page = Page(text)
    assert not {"script", "link", "iframe", "object", "form"} & set(page.tags)
    assert all(each.startswith("data:image/png;base64,") for each in page.loads)
    headings = re.findall("<h2>(.*?)</h2>", text)
    first = ["What privacy costs", "Accuracy and cost", "Privacy budgets", "Budgets, run after run"]
    assert headings == [*first, "Over the rounds", "Noise, traffic and time"]
    for wrong in (["--markdown"], ["--latex"]):
        assert main(["report", str(runs), "--html", *wrong]) == 2
        assert "choose one" in capsys.readouterr().err


def test_a_page_is_of_a_finished_run(runs, undrawn, capsys):
    assert main(["report", str(runs / "secret"), "--html", "--output", "there"]) == 2
    assert "leave out --output, or name several runs" in capsys.readouterr().err
    (runs / "secret" / "accuracy.png").unlink()
    assert main(["report", str(runs / "secret"), "--html"]) == 2
    assert "accuracy.png, which the page shows, cannot be read" in capsys.readouterr().err
    assert not (runs / "secret" / PAGE_FILE).exists()
