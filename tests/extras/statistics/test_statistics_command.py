"""Tests of `gdpfed stats`: the settings that it derives, the declaration that it completes, and errors."""

import json

import pytest

from gdpfed.cli import main
from gdpfed.extras.statistics.stats_command import overrides_of
from gdpfed.learning.data.declaration import read_columns
from testing.small_runs import nothing_drawn

DECLARATION = """\
label: {column: ill, classes: ['no', 'yes']}
numeric: {age: [-1000, 1000]}
categorical: {"<ward>": [x, y]}
"""


@pytest.fixture
def table(tmp_path):
    rows = [
        f"{30 + number % 40},{'xy'[number % 2]},{('no', 'yes')[number % 3 == 0]}" for number in range(3000)
    ]
    for name in ("a", "b", "c"):
        (tmp_path / "wards").mkdir(exist_ok=True)
        (tmp_path / "wards" / f"{name}.csv").write_text("\n".join(["age,<ward>,ill", *rows, ""]))
    (tmp_path / "wards" / "columns.yaml").write_text(DECLARATION)
    return tmp_path / "wards"


@pytest.mark.parametrize(
    ("words", "follow"),
    [
        (["dataset.path=t"], ["dataset=csv", "dataset.model=statistics", "method=record_statistics"]),
        (["method.by=sex"], ["dataset.model=statistics_by_group"]),
        (["method.by_party=true"], ["dataset.model=statistics_by_party", "method=record_statistics"]),
        (["method.by_party=True"], ["dataset.model=statistics_by_party"]),
        (["method.survival=yes"], ["dataset.model=statistics_survival"]),
        (
            ["method.by_party=False", "method.crossed=[]", "method.by=sex"],
            ["dataset.model=statistics_by_group"],
        ),
        (["method.crossed=[]", "method.survival=perhaps"], ["dataset.model=statistics"]),
        (["method.by=null"], ["dataset.model=statistics"]),
        (["method.by=sex", "method.crossed=[[a,b]]"], ["dataset.model=statistics_crossed"]),
        (["privacy=client_level"], ["method=client_statistics"]),
        (["privacy.unit=client"], ["method=client_statistics"]),
    ],
)
def test_model_and_method_follow_from_what_is_asked(words, follow):
    made = overrides_of(words)
    assert set(follow) <= set(made)
    assert made[-len(words) :] == words
    assert ("privacy=record_level" in made) == ("method=record_statistics" in made)


def test_counts_are_shown_and_fill_the_declaration(table, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    run, filled = tmp_path / "run", tmp_path / "filled.yaml"
    words = [f"dataset.path={table}", "dataset.num_clients=3", "privacy.budgets=[20]", f"run.directory={run}"]
    asked = [*words, "method.spacing=decades", "secagg.minimum_cohort=2"]
    with nothing_drawn():
        assert main(["stats", *asked, "--fill", str(filled)]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, (line for line in shown.splitlines() if "/" not in line))) <= 80
    assert "records at 3 parties; it cost each record epsilon 20" in shown
    assert "age: 20 to 100 (was -1000 to 1000)" in shown
    columns = read_columns(filled)
    assert (columns.numeric[0].low, columns.numeric[0].high) == (20, 100)
    assert columns.categorical == read_columns(table / "columns.yaml").categorical
    assert "epsilon 20" in filled.read_text().splitlines()[0]
    page = (run / "statistics.html").read_text()
    assert "&lt;ward&gt;" in page
    assert "<ward>" not in page
    assert page.count("<svg") == 3
    assert "script" not in page
    # Shown again from the run's files, with no second charge.
    ledger = (run / "ledger.json").read_bytes()
    assert main(["stats", str(run)]) == 0
    assert capsys.readouterr().out.splitlines()[0] in shown
    assert (run / "ledger.json").read_bytes() == ledger
    assert main(["predict", str(run), str(table / "a.csv")]) == 2
    assert "holds the counts of a run of statistics, which predict nothing" in capsys.readouterr().err
    assert main(["stats", str(run), "--fill", str(filled)]) == 2
    assert "exists: name another file" in capsys.readouterr().err


def test_what_is_no_run_of_statistics_is_refused_in_one_line(table, tmp_path, capsys):
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.yaml").write_text("{}")
    near = "method.columns: 'agee' is neither an input nor a label of the declaration"
    for words, line in (
        (["nowhere"], "nowhere is neither an override nor the directory of a run"),
        ([str(table)], f"{table} is not the directory of a run: for tables write dataset.path={table}"),
        ([str(other)], "has no statistics"),
        ([str(other), "run.seed=1"], f"{other} is a run that has counted, and run.seed=1 is given beside it"),
        ([f"dataset.path={table}", "privacy.budgets=[1]", "method.columns=[agee]"], near),
        ([f"dataset.path={table}", "privacy.budgets=[1]", "method.columns=[agee]"], "did you mean 'age'?"),
    ):
        assert main(["stats", *words]) == 2
        said = capsys.readouterr().err
        assert line in said
        assert said.count("\n") == 1
    assert json.dumps(sorted(path.name for path in tmp_path.iterdir())) == '["other", "wards"]'
