"""Tests of `gdpfed plan --choose`, which proposes settings; the stated noise is within 25 % of the plan's."""

import json
import math
from io import StringIO

import pytest
from rich.console import Console
from scipy import stats

from conf.load import load
from gdpfed.cli import main
from gdpfed.errors import ConfigError
from gdpfed.methods import make_method
from gdpfed.methods.choose import choose
from gdpfed.privacy.accountants.gaussian import gaussian_sigma
from gdpfed.report.plan_table import choice_report

STAR = ("method=gdpfed_star", "dataset=digits")


def chosen(*overrides, most_rounds=200):
    return choose(load(overrides), overrides, most_rounds)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (1.0, 1e-3), (6.0, 1e-4), (60.0, 1e-5)])
def test_the_gaussian_parameter_spends_the_whole_delta(epsilon, delta):
    mu = 1 / gaussian_sigma(epsilon, delta)
    first, second = stats.norm.cdf([mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu])
    assert first - math.exp(epsilon) * second == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("method", ["gdpfed_star", "dp_fedavg"])
def test_the_estimate_is_near_the_exact_plan(method):
    config = load([f"method={method}", "dataset=digits", "privacy.accountant=rdp"])
    exact = make_method(config)
    (estimate,) = (each for each in choose(config, ()).candidates if each.num_rounds == 30)
    assert estimate.noise_per_step == pytest.approx(exact.weighting.noise_per_step(exact.plan), rel=0.25)


def test_the_fewest_rounds_that_pay_for_most_of_the_way_are_proposed():
    choice = chosen(*STAR)
    ways = {each.num_rounds: each.way for each in choice.candidates}
    assert list(ways.values()) == sorted(ways.values())
    assert choice.rounds == min(rounds for rounds, way in ways.items() if way >= 0.9)
    assert chosen(*STAR, most_rounds=40).rounds == 30


def test_what_is_proposed_can_be_pasted_and_what_is_named_stays():
    choice = chosen(*STAR, "run.num_rounds=25", "privacy.clipping_norm=3")
    assert choice.rounds == 25
    config = load([*STAR, "run.num_rounds=25", "privacy.clipping_norm=3", *choice.overrides])
    assert (config.run.num_rounds, config.privacy.clipping_norm) == (25, 3.0)
    assert config.privacy.clipping == "adaptive"
    assert 0 < config.method.server_learning_rate <= 1


def test_methods_of_several_sums_are_not_told_to_adapt_their_norms():
    overrides = chosen("method=gdpfed", "dataset=digits").overrides
    assert not any(each.startswith("privacy.clipping=") for each in overrides)


def test_no_data_is_looked_at(monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("data was loaded")

    monkeypatch.setattr("gdpfed.learning.task.Task.load", never)
    assert chosen(*STAR, "dataset.path=/nowhere").proposals == chosen(*STAR).proposals


@pytest.mark.parametrize(
    ("overrides", "most_rounds", "said"),
    [
        (
            ["method=fedavg"],
            200,
            "--choose is for methods that choose settings, not method=fedavg",
        ),
        (["privacy=record_level", "method=fedpcs"], 200, "with privacy.unit=record"),
        ([], 3, "--most-rounds 3 is below 10"),
    ],
)
def test_what_cannot_be_chosen_is_refused_in_one_line(overrides, most_rounds, said):
    with pytest.raises(ConfigError, match=said):
        chosen(*overrides, most_rounds=most_rounds)


def test_whom_the_budgets_hold_against_is_weakened_only_in_words():
    file = StringIO()
    console = Console(file=file, width=80)
    for overrides, weaker in ((STAR, True), ([*STAR, "privacy.against=outsiders"], False)):
        choice = chosen(*overrides)
        assert choice.weaker is weaker
        console.print(choice_report(choice))
    shown = file.getvalue()
    assert shown.startswith("Weaker than the plan without these settings")
    assert shown.count("Weaker than") == 1


def test_the_command_says_why_and_shows_the_plan(capsys):
    cheap = [*STAR, "privacy.accountant=rdp"]
    assert main(["plan", "--choose", *cheap]) == 0
    shown = capsys.readouterr().out
    assert "to paste:\nrun.num_rounds=" in shown
    assert "no data was looked at" in " ".join(shown.split())
    assert shown.index("to paste:") < shown.index("rounds compared")
    assert main(["plan", "--choose", "--json", *cheap]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["plan"]["num_rounds"] == int(said["proposals"][0]["value"])
