"""Tests of README and docs/privacy.md: the privacy figures that they state are computed again."""

import math

import pytest

from conf.load import load
from gdpfed.methods import make_method
from gdpfed.privacy.accountants.gaussian import gaussian_epsilon, gaussian_sigma
from gdpfed.privacy.planning.groups import default_delta, exposure, paper_delta
from gdpfed.privacy.replacement import replacement_bound
from testing.project import PROJECT

PRIVACY = " ".join((PROJECT / "docs" / "privacy.md").read_text().split())
README = " ".join((PROJECT / "README.md").read_text().split())


@pytest.fixture(scope="module")
def plan():
    return make_method(load(["method=gdpfed_star"])).plan


def row(words, figures, form):
    return f"| {words} | {' | '.join(format(each, form) for each in figures)} |"


def test_what_delta_allows():
    assert f"one may be exposed with {100 * exposure(360, default_delta(360)):.1f} %" in PRIVACY
    assert f"that one of 360 is exposed with {100 * exposure(360, paper_delta(360)):.0f} %" in PRIVACY
    for clients in (360, 6000):
        assert f"{clients * paper_delta(clients):.2f} / n for {clients:,}" in PRIVACY
    assert "from 35,112 clients on" in PRIVACY
    assert default_delta(35_111) == 1e-5 > default_delta(35_112)


def test_two_data_sets_of_one_client(plan):
    found = [replacement_bound(plan, index).epsilon for index in range(3)]
    shown = [f"{each:#.3g}" for each in found]
    assert f"1, 3 and 6 are {', '.join(shown)}" in README
    assert f"| epsilon between two data sets of one client | {' | '.join(shown)} |" in PRIVACY


def test_membership_inference_of_the_demo(plan):
    bounds = [plan.inference_bound(index) for index in range(3)]
    tpr = [100 * each.tpr_at_1_percent_fpr for each in bounds]
    accuracy = [100 * each.accuracy_at_even_odds for each in bounds]
    assert row("TPR at 1 % FPR, from models, sums and turns (%)", tpr, ".1f") in PRIVACY
    assert row("accuracy at even odds, from models, sums and turns (%)", accuracy, ".1f") in PRIVACY
    of_epsilon = [
        100 * min(math.exp(e) * 0.01 + plan.delta, 1 - math.exp(-e) * (1 - plan.delta - 0.01))
        for e in (1, 3, 6)
    ]
    assert row("TPR bound from epsilon and delta alone (%)", of_epsilon, ".1f") in PRIVACY


def test_ten_trials_and_the_run(plan):
    costs = [gaussian_epsilon(gaussian_sigma(e, plan.delta) / math.sqrt(11), plan.delta) for e in (1, 3, 6)]
    assert f"1, 3 and 6 become {costs[0]:.3g}, {costs[1]:.3g} and {costs[2]:.3g}" in PRIVACY
