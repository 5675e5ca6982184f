"""Tests of benchmarks.worth, which computes what parts of FedPCS contribute: noise, bias and welfare."""

from itertools import product

import numpy as np
import pytest

from benchmarks.worth import HEADINGS, SETTING, posted, row, steps_of
from conf.load import load
from gdpfed.extras.fedpcs.fedpcs import FedPCS

SMALL = [*SETTING, "dataset.num_clients=8", "privacy.sampling_rate=0.4", "run.num_rounds=3"]


@pytest.mark.parametrize("sampling", ["budgets", "first_budgets", "unbiased"])
@pytest.mark.parametrize("weights", ["budget", "horvitz_thompson", "paper"])
def test_noise_and_lean_of_a_step_are_those_of_all_cohorts(sampling, weights):
    words = [*SMALL, f"method.client_sampling={sampling}", f"method.weights={weights}"]
    method = FedPCS.from_config(load(words))
    counts, spending = method.declared.record_counts, method.spending
    for t, step in enumerate(steps_of(method)):
        # One of D records is replaced: rho = (2 / D)^2 / (2 sigma^2).
        variances = 2 / (counts**2 * spending.budgets[t])
        chances, weight = method.inclusions[t], method.client_weights(t)
        variance, means = 0.0, np.zeros(8)
        for cohort in product((0, 1), repeat=8):
            inside = np.array(cohort, dtype=bool)
            chance = np.prod(np.where(inside, chances, 1 - chances))
            taken = np.where(inside, weight, 0.0)
            if weights == "budget" and inside.any():
                taken = taken / taken.sum()
            variance += chance * (taken**2 @ variances)
            means += chance * taken
        assert step.variance == pytest.approx(variance, rel=1e-4)
        assert step.weights == pytest.approx(means, rel=1e-4)
        if weights == "horvitz_thompson":
            assert means == pytest.approx(method.declared.shares)
            assert step.lean(method.declared.shares) == pytest.approx(0, abs=1e-12)


def test_a_posted_price_is_worth_more_than_the_race():
    cells = dict(zip(HEADINGS, row("game", SMALL), strict=True))
    answered, _, scaled, _ = (dict(zip(HEADINGS, each, strict=True)) for each in posted(SMALL))
    assert float(answered["welfare a round"]) > float(cells["welfare a round"])
    assert scaled["expected zCDP"] == cells["expected zCDP"]
    assert scaled["lean (%)"] == "0.0"
