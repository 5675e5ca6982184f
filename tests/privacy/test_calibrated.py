"""Tests of stored noise calibrations, which are used again only if they still meet the budget."""

import math

import pytest

from gdpfed.privacy.accountants import calibrated, calibration
from gdpfed.privacy.accountants.accountant import make_accountant
from gdpfed.privacy.accountants.calibration import solve_falling
from gdpfed.privacy.events import SampledGaussian


def calibrate():
    """Calibrate noise with cleared caches, as in a new process."""
    calibrated._entries.cache_clear()
    calibration._calibrate_by_search.cache_clear()
    return calibration.calibrate_noise_multiplier(
        make_accountant("rdp"),
        SampledGaussian(
            sampling="poisson", sampling_rate=0.21, group_size=50, noise_stddev=1.0, clipping_norm=1.0
        ),
        target_epsilon=2.5,
        num_rounds=7,
        delta=1e-4,
    )


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("GDPFED_CACHE_DIR", str(tmp_path / "cache"))
    yield tmp_path / "cache" / "calibrated_noise.txt"
    calibrated._entries.cache_clear()
    calibration._calibrate_by_search.cache_clear()


@pytest.fixture
def searches(monkeypatch):
    """Return a list that gets an entry at each search for a noise multiplier."""
    seen = []

    def search(*given):
        seen.append(given)
        return solve_falling(*given)

    monkeypatch.setattr(calibration, "solve_falling", search)
    return seen


def test_the_next_process_searches_no_more_and_has_the_same_noise(file, searches):
    noise = calibrate()
    assert len(searches) == 1
    assert calibrate() == noise
    assert len(searches) == 1
    assert file.read_text().count("\n") == 1


@pytest.mark.parametrize("factor", [0.5, 0.999, 1.01, 1e6])
def test_noise_that_does_not_meet_the_budget_is_searched_anew(file, searches, factor):
    noise = calibrate()
    digest = file.read_text().split()[0]
    file.write_text(f"{digest} {noise * factor!r}\n")
    assert calibrate() == noise
    assert len(searches) == 2


@pytest.mark.parametrize("text", ["", "inf", "nan", "-1", "0", "1 2", "x", "\x00\xff"])
def test_a_damaged_line_is_no_line(file, searches, text):
    noise = calibrate()
    digest = file.read_text().split()[0]
    file.write_text(f"\n{digest} {text}\nnothing\n")
    assert calibrate() == noise
    assert len(searches) == 2


def test_a_large_file_is_begun_anew(file, monkeypatch):
    monkeypatch.setattr(calibrated, "LARGEST_FILE", 10)
    file.parent.mkdir()
    file.write_text("x" * 11)
    calibrate()
    assert file.stat().st_size < 100


def test_without_a_place_for_the_file_there_is_noise_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file where a directory should be")
    monkeypatch.setenv("GDPFED_CACHE_DIR", str(tmp_path / "cache"))
    assert math.isfinite(calibrate())


def test_the_file_lies_where_users_keep_such_files(monkeypatch, tmp_path):
    monkeypatch.delenv("GDPFED_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert calibrated._path() == tmp_path / "gdpfed" / "calibrated_noise.txt"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert calibrated._path() == tmp_path / ".cache" / "gdpfed" / "calibrated_noise.txt"
