"""Tests of the benchmarks' harness, which compares programs and writes tables into documents."""

import pytest

from benchmarks import harness
from benchmarks.harness import Measured, comparison, fastest, with_tables
from gdpfed.errors import InputError
from gdpfed.report.console import Table

COMMAND = "python -m benchmarks.load --nodes 8"
PLACE = f"before\n<!-- measured by: {COMMAND} -->\n{{}}<!-- end -->\nafter\n"
OTHER = "<!-- measured by: python -m benchmarks.load -->\n| kept |\n<!-- end -->\n"


def test_a_table_replaces_the_last_one():
    text = with_tables(PLACE.format("| old |\n") + OTHER, COMMAND, ["| new |"])
    assert text == PLACE.format("\n| new |\n\n") + OTHER
    assert with_tables(text, COMMAND, ["| new |"]) == text


def test_a_mark_may_be_wrapped_and_stays_so():
    place = PLACE.replace(COMMAND, COMMAND.replace(" --nodes", "\n--nodes"))
    assert with_tables(place.format(""), COMMAND, ["| new |"]) == place.format("\n| new |\n\n")


def test_several_tables_go_to_their_places_in_order():
    text = with_tables(PLACE.format("") + OTHER + PLACE.format("| old |\n"), COMMAND, ["| 1 |", r"| \2 |"])
    assert text == PLACE.format("\n| 1 |\n\n") + OTHER + PLACE.format("\n| \\2 |\n\n")


@pytest.mark.parametrize(
    "text", ["", OTHER, PLACE.format(""), PLACE.format("") + PLACE.replace("<!-- end -->", "") + OTHER]
)
def test_a_document_without_a_place_for_each_table_is_refused(text):
    with pytest.raises(InputError, match=r"of 2 places .*put `<!-- measured by: python -m benchmarks.load"):
        with_tables(text, COMMAND, ["| 1 |", "| 2 |"])


def test_a_comparison_shows_medians_and_their_ratio_to_the_floor():
    measured = [Measured("ours", [1.0, 5.0, 2.0], ("4",)), Measured("echo", [0.5, 0.4, 0.6], ("4",))]
    table = comparison("a round", measured, lambda _: measured[1], "exchanges", "seconds", "ratio")
    assert table.headings == ("", "exchanges", "seconds", "ratio")
    assert table.rows[0] == ("ours", "4", "2.00 (1.00, 5.00)", "4.00")
    assert table.rows[1] == ("echo", "4", "0.500 (0.400, 0.600)", "1.00")


def test_contenders_run_in_turn():
    order = []
    fastest(2, first=lambda: order.append(1), second=lambda: order.append(2))
    assert order == [1, 2, 1, 2]


def test_a_long_note_is_wrapped_in_a_document(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "present_command", lambda: "command")
    document = tmp_path / "doc.md"
    document.write_text("<!-- measured by: command -->\n<!-- end -->\n")
    harness.publish([Table("T", ("a",), [("1",)], note="word " * 60)], document)
    lines = document.read_text().splitlines()
    assert max(map(len, lines)) <= harness.DOC_COLUMNS
    assert sum(line.startswith("word") for line in lines) == 3
