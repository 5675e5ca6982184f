"""Tests of results by party: the number of cases and an interval, or "too few" in place of the result."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gdpfed.learning.labels.intervals import FEWEST
from gdpfed.learning.training.held_out_counts import held_out_counts, judged
from gdpfed.report.class_figures import figures_of
from gdpfed.report.model_card import held_out_by_client
from gdpfed.report.parts import Part, Parts, parts_table
from gdpfed.report.worth import EVERYWHERE, Worth
from gdpfed.report.worth_shown import shown_tables, small_parties
from gdpfed.rounds.extensions.held_out import HeldOutResult, PartyCounts


def part(name, examples, value, ends):
    return Part(name, examples, {"auc": value}, {"auc": ends})


def test_parts_have_intervals_or_are_too_few_in_tables_and_files(tmp_path):
    few = part("small", FEWEST - 1, 0.972, (0.8, 0.996))
    enough = part("large", FEWEST, 0.497, (0.32, 0.67))
    parts = Parts([few, enough], [])
    table = parts_table([("run", parts)], "auc")
    assert table.headings[-2:] == ("test AUC (%)", "95 % interval")
    assert table.rows[0][1:] == ["small", "29", "too few", "–"]
    assert table.rows[1][1:] == ["large", "30", "49.7", "32.0 to 67.0"]
    assert f"Of fewer than {FEWEST} examples nothing is shown" in table.note
    (tmp_path / "parts.json").write_text(parts.to_json())
    read = Parts.read(tmp_path)
    assert read is not None
    assert [(each.examples, list(each.intervals["auc"] or ())) for each in read.parties] == [
        (29, [0.8, 0.996]),
        (30, [0.32, 0.67]),
    ]


def test_many_parties_with_few_examples_share_a_row():
    parties = [part(str(number), 3 + number % 2, 0.9, (0.8, 0.99)) for number in range(21)]
    large, budget = part("large", 40, 0.7, (0.6, 0.8)), part("budget 8 (group 0)", 114, 0.8, (0.7, 0.9))
    rows = parts_table([("run", Parts([*parties, large], [budget]))], "auc").rows
    assert [row[1:4] for row in rows] == [
        ["large", "40", "70.0"],
        ["21 parties", "up to 4", "too few"],
        ["budget 8 (group 0)", "114", "80.0"],
    ]
    assert len(parts_table([("run", Parts(parties[:20], [budget]))], "auc").rows) == 21


def counted(records, seed, noise):
    """Return noised counts of some records, of which four in five are classified correctly."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, records)
    right = rng.random(records) < 0.8
    outputs = np.zeros((records, 2))
    outputs[np.arange(records), np.where(right, labels, 1 - labels)] = 1.0
    counts = held_out_counts(outputs, labels)
    return counts + rng.normal(0, noise, len(counts))


def test_the_card_says_how_many_records_noised_counts_are_of():
    counts = [counted(400, 1, 2.0), counted(12, 2, 2.0)]
    total = np.sum(counts, axis=0)
    parties = [PartyCounts(k, each.tolist(), judged(each, 2, 2.0)) for k, each in enumerate(counts)]
    noise = 2.0 * np.sqrt(2)
    found = HeldOutResult(2, "records", noise, total.tolist(), judged(total, 2, noise), parties)
    cases = [float(each[:4].sum()) for each in counts]
    assert [each.cases for each in parties] == pytest.approx(cases)
    assert found.cases == pytest.approx(sum(cases))
    subject: Any = SimpleNamespace(parties=("north", "south"))
    rows = [line for line in held_out_by_client(subject, found) if line.startswith("| ")]
    assert rows[1].startswith(f"| north | {cases[0]:.0f} | ")
    assert "too few" not in rows[1]
    assert rows[2].startswith(f"| south | {cases[1]:.0f} | too few | too few")
    low, high = parties[0].metrics["accuracy"].low, parties[0].metrics["accuracy"].high
    quiet = judged(counts[0], 2, 0.0)["accuracy"]
    # The noise of the counts is in the interval.
    assert None not in (low, high, quiet.low, quiet.high)
    assert (high or 0) - (low or 0) > (quiet.high or 0) - (quiet.low or 0)


def test_a_comparison_shows_no_figure_of_a_small_party():
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(80, 2)), rng.integers(0, 2, 80)
    rows = {EVERYWHERE: 80, "large": 53, "small": 27}
    masks = {EVERYWHERE: slice(None), "large": slice(53), "small": slice(53, None)}
    own = {name: figures_of(scores[mask], labels[mask]) for name, mask in masks.items()}
    worth = Worth("a run", "class 1", rows, dict.fromkeys(rows, 0.5), {"model": own}, {"model": "epsilon 1"})
    by_party = [table for table in worth.tables() if table.title.endswith("by party")]
    assert [table.title for table in by_party] == ["a run: accuracy by party", "a run: AUC by party"]
    for table in by_party:
        assert table.rows[0] == ["test rows", "53", "27"]
        assert table.rows[-1][-1] == "too few"
        assert "[" in table.rows[-1][1]
        assert "fewer than 30 test rows" in table.note
    overall, large = shown_tables(worth)
    assert overall.title == "a run: all: 80 test rows, 50.0 % of them class 1"
    assert large.title == "large: 53 test rows, 50.0 % of them class 1"
    assert large.rows == [["model", own["large"]["accuracy"].text(), own["large"]["AUC"].text()]]
    assert small_parties(worth) == ["small"]
