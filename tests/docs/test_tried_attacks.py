"""Tests of the attacks in docs/attacks.md: each succeeds without protection, and fails with protection."""

import pytest

from testing.page_examples import examples_of, executed

RECONSTRUCTION, DIFFERENCING, MEMBERSHIP = examples_of("attacks.md")


def test_a_record_is_reconstructed_from_an_update_alone():
    names = executed("attacks.md", RECONSTRUCTION)
    assert names["alone"] == pytest.approx(1.0)
    assert names["together"] < 0.7


def test_differences_show_an_update_without_noise_alone(capsys):
    names = executed("attacks.md", DIFFERENCING)
    assert names["without_noise"] == pytest.approx(1.0)
    assert abs(names["with_noise"]) < 0.5
    assert "refused: the method, round 0, group 0" in capsys.readouterr().out


def test_membership_is_told_no_better_than_epsilon_allows():
    names = executed("attacks.md", MEMBERSHIP)
    assert names["plain"] == 1.0
    assert 0.5 < names["private"] < names["allowed"]
