"""Tests of audits of other programs' training loops: correct loops pass, and faulty ones are found.

Each measurement but those of the false-alarm rate blames a sound loop with a probability of one in a million.
"""

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

import benchmarks.audited_loops as audited
import gdpfed
from gdpfed.cli import main
from gdpfed.errors import ConfigError, PrivacyError
from gdpfed.extras.canaries.loop_audit import audit_loop, named_loop
from testing.foreign_loops import flower_loop, plain_loop

SURELY = 1 - 1e-6
REPEATS, LEVEL = 20, 0.1
MOST_FALSE = int(stats.binom.isf(1e-6, REPEATS, LEVEL))
NUMBERS: dict[str, Any] = {
    "num_units": 4,
    "dimension": 8,
    "num_rounds": 2,
    "noise_multiplier": 1.0,
    "clipping_norm": 1.0,
    "delta": 1e-3,
}

TEXTS: Any = [["a"] * 8] * 2


def found_in(loop, runs=3):
    measured = audit_loop(loop, num_runs=runs, confidence=SURELY)
    wrong = {each.looked_at for each in measured.checks if not each.held}
    return wrong | ({"epsilon"} if not all(each.held for each in measured.figures) else set()), measured


@pytest.mark.parametrize(
    ("fault", "by"),
    [
        ("", set()),
        ("noise of two thirds", {"noise", "noise over rounds"}),
        ("weights by examples", {"longest contribution"}),
    ],
)
def test_flowers_own_strategy_is_not_blamed_and_its_faults_are_found(fault, by):
    wrong, measured = found_in(flower_loop(fault))
    assert wrong == by
    assert measured.complete
    assert {each.view for each in measured.figures} == {"sums", "server", "model"}
    assert measured.passed is not bool(by)


@pytest.mark.parametrize(
    ("fault", "by"),
    [
        ("", set()),
        ("noise of two thirds", {"noise", "noise over rounds"}),
        ("no clipping", {"contributions", "epsilon"}),
        ("every record in every step", {"samples", "epsilon"}),
        ("epsilon of half the steps", {"accounting"}),
    ],
)
def test_dp_sgd_as_opacus_does_it_is_not_blamed_and_its_faults_are_found(fault, by):
    wrong, measured = found_in(plain_loop(fault, generator=np.random.default_rng(5)), runs=4)
    assert by <= wrong <= by | {"longest contribution"} if by else not wrong
    assert measured.complete
    assert measured.passed is not bool(by)
    assert measured.sums_revealed == 4 * measured.num_rounds


def test_a_sound_loop_is_blamed_no_more_often_than_stated():
    generator = np.random.default_rng(11)
    loop = replace(plain_loop(generator=generator), num_units=40, dimension=120, delta=1e-2)
    blamed = [not audit_loop(loop, num_runs=1, confidence=1 - LEVEL).passed for _ in range(REPEATS)]
    assert sum(blamed) <= MOST_FALSE


def test_more_noise_than_promised_is_not_blamed():
    loop = plain_loop(generator=np.random.default_rng(3))
    assert found_in(replace(loop, noise_multiplier=0.8 * loop.noise_multiplier))[0] == set()


def test_a_loop_that_does_not_tell_who_was_asked_is_measured_by_its_sums():
    wrong, measured = found_in(plain_loop("no clipping", tells=False, generator=np.random.default_rng(7)), 4)
    assert wrong == {"epsilon"}
    assert {each.view for each in measured.figures} == {"sums"}
    missing = {each.view: each.remedy for each in measured.not_computed}
    assert missing.keys() == {"contributions", "samples", "longest contribution"}
    assert all("asked" in remedy for remedy in missing.values())


def test_any_other_contribution_moves_a_sum_by_twice_the_norm():
    loop = replace(plain_loop(generator=np.random.default_rng(9)), adjacency="replace_one")
    wrong, measured = found_in(loop)
    assert wrong == set()
    assert measured.figures[0].stated > found_in(replace(loop, adjacency="zero_out"), 1)[1].figures[0].stated


@pytest.mark.parametrize(
    ("released", "line"),
    [
        (np.zeros((2, 8)), "has returned ndarray: return gdpfed.Released"),
        (
            gdpfed.Released(sums=np.zeros((3, 8))),
            r"sums of shape \(3, 8\), and its numbers need shape \(2, 8\)",
        ),
        (gdpfed.Released(models=np.zeros((2, 8))), r"models of shape \(2, 8\).* need shape \(3, 8\)"),
        (gdpfed.Released(sums=np.full((2, 8), np.nan)), "sums that are not finite"),
        (gdpfed.Released(sums=TEXTS), "sums that are not an array of numbers"),
        (
            gdpfed.Released(sums=np.zeros((2, 8)), asked=np.ones((2, 3), dtype=bool)),
            r"asked of shape \(2, 3\)",
        ),
    ],
)
def test_what_is_not_as_the_numbers_say_is_refused_in_one_line(released, line):
    with pytest.raises(ConfigError, match=line):
        gdpfed.audit_loop(gdpfed.TrainingLoop(run=lambda rows: released, **NUMBERS), num_runs=1)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"num_units": 9}, "9 units have a coordinate each, and dimension is 8"),
        ({"num_units": 20_000, "dimension": 20_000}, "take a matrix of more than 200000000 values"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"sampling_rate": 1.5}, "sampling_rate"),
        ({"sampling": "scheduled"}, "sampling"),
        ({"adjacency": "another"}, "adjacency"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"run": 3}, "a loop's run is 3"),
    ],
)
def test_numbers_that_cannot_be_are_refused_in_one_line(changes, line):
    with pytest.raises(PrivacyError, match=line):
        gdpfed.TrainingLoop(**({"run": lambda rows: None} | NUMBERS | changes))


def test_a_release_is_of_sums_or_of_models():
    with pytest.raises(PrivacyError, match="both sums and models, or neither"):
        gdpfed.Released()
    with pytest.raises(PrivacyError, match="step is 0"):
        gdpfed.Released(models=np.zeros((3, 8)), step=0.0)


def test_the_command_takes_a_loop_by_its_module_and_name(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_loops.py").write_text(
        "import numpy as np\nfrom testing.foreign_loops import plain_loop\nOTHER = 3\n"
        "def sound():\n    return plain_loop(generator=np.random.default_rng(2))\n"
        "QUIET = plain_loop('noise of two thirds', generator=np.random.default_rng(2))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    words = ["audit", "--canaries", "--runs", "1", "--confidence", "0.999999", "--loop"]
    assert main([*words, "my_loops:sound"]) == 0
    assert "DP-SGD in numpy: 1 simulated run of 8 rounds" in capsys.readouterr().out
    assert main([*words, "my_loops:QUIET"]) == 1
    assert "wrong, noise of sums: less than is planned" in capsys.readouterr().out
    for name, line in (
        ("my_loops:OTHER", "is of type int: name a gdpfed.TrainingLoop"),
        ("os:system", "cannot be called: TypeError: system.* missing required argument .*: name a gdpfed.Tr"),
        ("sys:exit", "cannot be called: SystemExit: name a gdpfed.TrainingLoop, or a function without"),
        ("my_loops:nothing", "cannot be imported: module 'my_loops' has no attribute 'nothing'"),
        ("no_module:LOOP", "cannot be imported: No module named 'no_module'"),
        ("unknown", "training loop 'unknown' is not known: none is installed"),
    ):
        with pytest.raises(ConfigError, match=line):
            named_loop(name)
    assert main([*words, "my_loops:sound", "method=gdpfed"]) == 2
    assert "needs --canaries of kind dirac, and takes no overrides" in capsys.readouterr().err


def test_a_row_of_the_table_names_what_found_a_fault():
    row = audited.row("noise of two thirds", flower_loop("noise of two thirds"), 2)
    told = dict(zip(audited.HEADINGS, row, strict=True))
    assert told["found by"].startswith("noise")
    assert told["own accounting"] == "-"
    assert float(told["stated"]) > float(told["measured"])
