"""Tests that random settings cause the errors in a saved file, which `random_settings.py --write` makes."""

from collections import Counter
from typing import Annotated

import pytest

from conf.schema.ranges import at_least, between, one_of, plain, within
from tests.conf.random_settings import GOLDEN, drawn, lines, of_each


def test_random_settings_are_judged_as_they_were():
    known = GOLDEN.read_text(encoding="utf-8").splitlines()
    assert list(lines(of_each())) == known, "if so meant, run python -m tests.conf.random_settings --write"
    accepted = Counter('"said": ""' in line for line in known)
    assert min(accepted[True], accepted[False]) > len(known) / 4
    assert not any("Error: " in line for line in known)


def test_what_is_drawn_is_the_same_each_time_and_judged_in_one_line():
    """The same settings are drawn each time, and a refused configuration causes a one-line error."""
    few = list(drawn(8))
    assert str(few) == str(list(drawn(8)))
    assert len({str(settings) for settings, _ in few}) == 8
    assert not [said for _, said in few if "\n" in said or "Error: " in said]


@pytest.mark.parametrize(
    ("stated", "inside", "outside", "words"),
    [
        (within("[0.5, 1)"), (0.5, 0.999), (0.499, 1.0, float("nan")), "must be in [0.5, 1)"),
        (within("(0, 1]"), (1e-300, 1.0), (0.0, 1.001), "must be in (0, 1]"),
        (between(1e-9, 16), (1e-9, 16), (0.0, 17, float("inf")), "must be from 1e-09 to 16"),
        (
            at_least(2, ": a sum of one client hides nothing"),
            (2, 9),
            (1,),
            "must be at least 2: a sum of one client hides nothing",
        ),
        (one_of("on", "off"), ("on",), ("", "ON"), "is not known: use on or off"),
    ],
)
def test_a_range_says_what_is_outside(stated, inside, outside, words):
    assert [stated.broken_by(value) for value in inside] == [None] * len(inside)
    assert [stated.broken_by(value) for value in outside] == [words] * len(outside)


def test_an_interval_that_is_none_is_refused_where_it_is_written():
    with pytest.raises(ValueError, match="'0 to 1' is not an interval"):
        within("0 to 1")
    assert plain(Annotated[int, at_least(1)]) is int
