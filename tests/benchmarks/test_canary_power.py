"""Tests, at tiny size, of the benchmark that measures how many runs canaries need to find a fault."""

import benchmarks.canary_power as power
from benchmarks.canary_power import HEADINGS, fault_row, power_table
from testing.planted_faults import PLANTED_FAULTS


def test_every_row_says_in_how_many_runs_a_fault_is_found(monkeypatch):
    monkeypatch.setattr(power, "MASKED_CLIENTS", 12)
    monkeypatch.setattr(power, "CLIENTS", 60)
    monkeypatch.setattr(power, "SMALL", (*power.SMALL, "run.num_rounds=4"))
    (keys,) = [each for each in PLANTED_FAULTS if each.name == "a key of noise twice"]
    table = power_table([keys], seconds=60.0, most_runs=2, sound_runs=1)
    assert table.headings == HEADINGS
    rows = [dict(zip(HEADINGS, row, strict=True)) for row in table.rows]
    assert [row["what is wrong"] for row in rows[:4]] == [
        "nothing, against everyone",
        "nothing, against outsiders",
    ] * 2
    for row in rows[4:]:
        assert row["found by"].startswith("noise twice")
        assert int(row["canaries"]) == int(row["runs"]) * (12 if row["masked"] == "yes" else 60)
        assert float(row["seconds"]) > 0


def test_a_fault_that_is_not_found_in_the_runs_allowed_is_said(monkeypatch):
    monkeypatch.setattr(power, "CLIENTS", 60)
    monkeypatch.setattr(power, "SMALL", (*power.SMALL, "run.num_rounds=4"))
    monkeypatch.setattr(power, "finders", lambda measurement, fault: [])
    row = dict(zip(HEADINGS, fault_row(PLANTED_FAULTS[0], 60.0, 1, masked=False), strict=True))
    assert (row["runs"], row["found by"]) == ("1", "not found")
