"""Test of docs/statistics.md: its commands run as printed."""

from gdpfed.extras.statistics.result import Statistics
from gdpfed.learning.data.declaration import read_columns
from testing.page_examples import follow
from testing.project import DOCS
from testing.small_runs import nothing_drawn


def statistics_in(directory):
    return Statistics.read(directory)


def test_statistics_before_a_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "statistics.md").read_text(encoding="utf-8")
    with nothing_drawn():
        said = follow(text, lambda: " ".join(capsys.readouterr().out.split()))
    filled = read_columns(tmp_path / "ranges.yaml")
    age, creatinine = filled.numeric
    assert 0 <= age.low <= 20
    assert age.high >= 100
    # Noise in an empty bin may leave one end far out, but hardly both.
    assert age.high <= 500 or creatinine.high <= 1000
    assert "epsilon 1" in (tmp_path / "ranges.yaml").read_text()
    found = statistics_in(tmp_path / "counted")
    # A fifth of 8,000 is for testing; the interval is of 1.96 standard deviations.
    assert abs(found.n.value - 6400) < 3 * (found.n.high - found.n.value)
    ages = next(each for each in found.columns if (each.name, each.group) == ("age", "female"))
    assert 55 < ages.figures["mean"].value < 69
    assert (tmp_path / "counted" / "statistics.html").read_text().count("<svg") == len(found.columns)
    assert "Every budget held, and the files agree." in said["gdpfed audit counted"]
