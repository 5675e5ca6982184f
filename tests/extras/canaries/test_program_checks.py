"""Tests of checks of runs against their plan: false alarms are rare, and each planted fault is found.

Noise and samples are drawn directly, from seeds that are stated, in place of whole runs where that will do.
"""

import numpy as np
import pytest
from scipy import stats

from conf.load import load
from gdpfed.extras.canaries import noise_tests, sample_tests
from gdpfed.extras.canaries.measure import Settings, measure
from gdpfed.extras.canaries.program_check import CHECKS, CORRELATION, KEYS, NOISE
from gdpfed.extras.canaries.scores import under_measured_noise
from testing.broken_programs import broken
from testing.planted_faults import PLANTED_FAULTS, planted
from tests.extras.canaries.small_measurements import FEW, MANY, RECORDS, SURELY, measured

LEVEL = 0.1
SEEDS = 200
# More false alarms than this have a probability below one in a million where each has that of the level.
MOST_FALSE = int(stats.binom.isf(1e-6, SEEDS, LEVEL))
ROUNDS, COORDINATES, TAP = 8, 120, 0.6
TURNS = [(0, 4), (1, 5), (2, 6), (3, 7)]


def planned_root(tap=TAP):
    return np.eye(ROUNDS) - tap * np.eye(ROUNDS, k=-1)


def streams(seed, change=lambda new: planned_root() @ new, runs=2, coordinates=COORDINATES):
    """Return noise streams of some runs; ``change`` turns a run's fresh noise into the noise of its sums."""
    generator = np.random.default_rng(seed)
    drawn = [change(generator.standard_normal((ROUNDS, coordinates))) for _ in range(runs)]
    return [noise_tests.NoiseStream(tuple(range(ROUNDS)), values, planned_root()) for values in drawn]


def amount(seed, level, **how):
    return noise_tests.amount_of_noise(streams(seed, **how), level)


def over_rounds(seed, level, **how):
    return noise_tests.noise_over_rounds(streams(seed, **how), TURNS, ROUNDS, level)


def at_lags(seed, level, **how):
    return noise_tests.noise_at_lags(streams(seed, **how), ROUNDS, level)


def in_common(seed, level, **how):
    return noise_tests.noise_in_common(np.concatenate([each.white for each in streams(seed, **how)]), level)


def lengths(seed, level, mean=0.0, spread=1.0):
    expected = np.full(40, 0.8)
    beyond = spread * np.random.default_rng(seed).standard_normal(40) + mean * expected
    return noise_tests.length_of_contributions(beyond, expected, level)


def drawn_samples(seed, level, draw=None, rate=0.25):
    generator = np.random.default_rng(seed)
    samples = [generator.random(60) < rate if draw is None else draw(generator) for _ in range(10)]
    return sample_tests.law_of_samples(
        [each for each in samples if each.any()], [int(each.sum()) for each in samples], [0.25] * 10, level
    )


@pytest.mark.parametrize("test", [amount, over_rounds, at_lags, in_common, lengths, drawn_samples])
def test_a_correct_run_passes_at_the_stated_rate(test):
    """Over 200 seeds, each test of a correct run gives false alarms no more often than its level says."""
    false = sum(test(seed, LEVEL).p_value <= LEVEL for seed in range(SEEDS))
    assert false <= MOST_FALSE
    assert false >= (stats.binom.ppf(1e-6, SEEDS, LEVEL) if test in (amount, lengths) else 0)


@pytest.mark.parametrize("test", [amount, over_rounds])
def test_more_noise_than_planned_is_found_no_more_often(test):
    """More noise than planned, in all rounds or in one, raises no more alarms than planned noise does."""

    def more(new):
        return 1.1 * planned_root() @ new

    def in_one_round(new):
        return planned_root() @ new + np.random.default_rng(1).standard_normal(new.shape) * (
            np.arange(ROUNDS) == 3
        ).reshape(-1, 1)

    most = stats.binom.isf(1e-6, 100, LEVEL)
    for change in (more, in_one_round):
        assert sum(test(seed, LEVEL, change=change).p_value <= LEVEL for seed in range(100)) <= most


def key_twice(new):
    return planned_root() @ np.repeat(new[::2], 2, axis=0)


SURE = 1e-6
FAULTY = {
    "noise x 0.7": (amount, lambda new: 0.7 * planned_root() @ new, 2),
    "noise x 0.9": (amount, lambda new: 0.9 * planned_root() @ new, 8),
    "noise x 0.7, by rounds": (over_rounds, lambda new: 0.7 * planned_root() @ new, 4),
    "taps x 1.25": (over_rounds, lambda new: planned_root(1.25 * TAP) @ new, 80),
    "taken back twice": (over_rounds, lambda new: planned_root(2 * TAP) @ new, 4),
    "added, not taken": (in_common, lambda new: planned_root(-TAP) @ new, 4),
    "taps x 1.25, by lags": (at_lags, lambda new: planned_root(1.25 * TAP) @ new, 4),
    "taps x 0.9, by lags": (at_lags, lambda new: planned_root(0.9 * TAP) @ new, 16),
    "a key twice, by rounds": (over_rounds, key_twice, 4),
    "a key twice": (in_common, key_twice, 2),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_of_noise_is_found_and_its_absence_is_not(name):
    test, change, runs = FAULTY[name]
    assert test(7, SURE, runs=runs, change=change).p_value <= SURE
    assert test(7, SURE, runs=runs).p_value > SURE


def test_noise_of_one_key_in_two_runs_is_found():
    first, second = streams(3)
    again = noise_tests.noise_in_common(np.concatenate([first.white, first.white[::-1]]), SURE)
    others = noise_tests.noise_in_common(np.concatenate([first.white, second.white]), SURE)
    assert again is not None
    assert others is not None
    assert again.p_value <= SURE
    assert again.correlation == pytest.approx(1.0)
    assert again.would_find < 0.9
    assert others.p_value > SURE


def test_sums_that_are_missing_in_some_runs_are_left_out():
    whole = streams(11, runs=4)
    part = [
        noise_tests.NoiseStream((0, 2, 3, 5), each.values[[0, 2, 3, 5]], np.eye(4) * np.std(each.values))
        for each in whole[2:]
    ]
    test = noise_tests.noise_over_rounds([*whole[:2], *part], TURNS, ROUNDS, LEVEL)
    assert test is not None
    assert test.p_value > SURE
    assert test.num_values >= COORDINATES


def test_longer_contributions_are_found():
    assert lengths(5, SURE, mean=2.0).p_value <= SURE
    assert lengths(5, SURE, mean=-0.5).p_value > 0.5
    assert lengths(5, SURE, mean=2.0).length == pytest.approx(3.0, abs=0.7)


@pytest.mark.parametrize("test", [amount, lengths])
def test_what_would_be_found_is_found(test):
    """A fault of the size that a test claims to find is found in at least 85 of 100 tries."""
    would_find = np.mean([test(seed, LEVEL).would_find for seed in range(20)])
    how = (
        {"mean": would_find - 1}
        if test is lengths
        else {"change": lambda new: would_find * planned_root() @ new}
    )
    assert sum(test(seed, LEVEL, **how).p_value <= LEVEL for seed in range(100)) >= 85


def one_sample(generator):
    del generator
    return np.arange(60) % 4 == 0


def favours_one(generator):
    return (generator.random(60) < 0.2) | (np.arange(60) == 17)


@pytest.mark.parametrize(
    ("draw", "rate", "what"),
    [
        (one_sample, 0.25, "too much in common"),
        (favours_one, 0.25, "too often"),
        (None, 0.6, "rate that is too high"),
    ],
)
def test_samples_of_another_law_are_found(draw, rate, what):
    test = drawn_samples(2, 1e-3, draw, rate)
    assert test.p_value <= 1e-3
    assert what in test.unlikeliest or what == "too often"


def test_a_turn_that_breaks_a_limit_is_named():
    assert sample_tests.broken_limit({3: [0, 4], 5: [1, 5]}, 2, 4) == ""
    assert "client 5 was asked in rounds 2, 5" in sample_tests.broken_limit({3: [0, 4], 5: [1, 4]}, 2, 4)
    assert "client 3" in sample_tests.broken_limit({3: [0, 4, 8]}, 2, 4)


SMALL = (
    *("method=gdpfed_star", "dataset=digits", "dataset.model=mlp", "dataset.num_clients=150"),
    *("run.num_rounds=8", "privacy.sampling_rate=0.25", "privacy.budgets=[1,3]", "secagg=off"),
    "privacy.delta=0.004",
)
RUNS = {"noise x 0.9": 2, "no clipping": 3, "the norm of another group": 6, "taps x 1.25": 6}


@pytest.mark.parametrize("fault", PLANTED_FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found_by_its_check_and_not_without_it(fault):
    runs = RUNS.get(fault.name, 1 if fault.against == "everyone" else 3)
    with planted(fault, masked=False):
        measurement = measured([*SMALL, f"privacy.against={fault.against}"], runs=runs)
    assert not measurement.passed
    wrong = {check.looked_at for check in measurement.checks if not check.held}
    assert wrong
    assert wrong <= {*fault.looked_at}
    # What canaries tell is far from enough in so few runs, but for two faults that tell very much.
    if fault.name not in ("no clipping", "taken back twice"):
        assert all(figure.held for figure in measurement.figures)


def test_a_masked_program_with_less_noise_is_found():
    few = ["dataset.num_clients=24", "run.num_rounds=4", "secagg=pairwise"]
    with planted(PLANTED_FAULTS[0], masked=True):
        measurement = measured([*SMALL, *few], runs=1)
    assert NOISE in {check.looked_at for check in measurement.checks if not check.held}


@pytest.mark.parametrize("against", ["everyone", "outsiders"])
def test_of_a_correct_program_everything_is_computed_and_nothing_is_found(against):
    measurement = measured([*SMALL, f"privacy.against={against}"], runs=2)
    assert measurement.passed
    assert measurement.complete
    assert {check.looked_at for check in measurement.checks} == {
        *CHECKS[:4],
        "turns" if against == "everyone" else "samples",
    }
    assert all(check.measured and check.would_find for check in measurement.checks)
    views = {"everyone"} if against == "everyone" else {"sums", "server"}
    assert {figure.view for figure in measurement.final} == views | {"model"}


def test_records_have_checks_of_their_noise():
    measurement = measured([*RECORDS, "method=dp_sgd"], runs=1)
    assert measurement.passed
    assert measurement.complete
    assert [check.looked_at for check in measurement.checks] == [NOISE, KEYS]


def test_what_is_not_computed_is_said_with_what_would_compute_it():
    measurement = measured([*FEW, "method=gdpfed", "secagg=off"], runs=1, kind="random")
    missing = {each.view: each for each in measurement.not_computed}
    assert measurement.passed
    assert not measurement.complete
    assert {NOISE, CORRELATION, KEYS} <= missing.keys()
    assert "--kind dirac" in missing[NOISE].remedy


def test_few_canaries_of_a_run_are_pooled_with_those_of_other_runs(monkeypatch):
    """If a run has too few canaries to estimate a covariance, several runs' canaries are scored together."""
    seen = []

    def kept(runs, rounds):
        seen.append(under_measured_noise(runs, rounds))
        return seen[-1]

    monkeypatch.setattr("gdpfed.extras.canaries.lower_bounds.under_measured_noise", kept)
    settings = [*SMALL, "dataset.num_clients=20", "privacy.sampling_rate=0.5"]
    measure(load(settings), Settings(num_runs=3, confidence=SURELY))
    scores = np.concatenate(seen[0])
    # One in three of each group and run tells its coin, and the others have a score.
    assert np.isnan(scores).sum() == 3 * 2 * 4
    assert np.isfinite(scores).sum() == 3 * 12


def test_a_sum_that_comes_out_twice_is_said():
    with broken("charged once, summed twice"):
        measurement = measured([*MANY, "dataset.num_clients=200"], runs=1)
    assert any("came out twice" in check.wrong for check in measurement.checks)
