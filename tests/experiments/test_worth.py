"""The noise of a step that the table of FedPCS's worth shows, against every sample of a small game."""

from itertools import product

import numpy as np
import pytest

from conf.load import load
from gdpfed.errors import ConfigError
from gdpfed.experiments.games import step_variances
from gdpfed.methods import make_method
from gdpfed.methods.fedpcs import FedPCS

FIVE = (
    "dataset=digits",
    "dataset.num_clients=5",
    "privacy=record_level",
    "privacy.sampling_rate=0.6",
    "secagg=off",
    "method=fedpcs",
    "run.num_rounds=2",
)


def method_of(*overrides):
    method = make_method(load([*FIVE, *overrides]))
    assert isinstance(method, FedPCS)
    return method


def over_every_sample(method, round_index):
    """Means of the variances over all 2^5 samples, by their probabilities."""
    inclusions, weights = method.inclusions[round_index], method.client_weights(round_index)
    noise = method.spending.noise_multipliers(round_index, method.plan.distance)
    deviations = noise / method.declared.record_counts
    own = one = 0.0
    for taken in product([False, True], repeat=len(inclusions)):
        members = np.array(taken)
        chance = np.prod(np.where(members, inclusions, 1 - inclusions))
        if not members.any():
            continue
        used = weights[members]
        if method.config.method.weights == "budget":
            used = used / used.sum()
        parts = (used * deviations[members]) ** 2
        own += chance * parts.sum()
        one += chance * parts.max()
    return own, one


@pytest.mark.parametrize(
    ("overrides", "tolerance"),
    [
        (("method.weights=horvitz_thompson",), 1e-9),
        (("method.weights=paper",), 1e-9),
        (("method.client_sampling=unbiased", "method.weights=horvitz_thompson"), 1e-9),
        (("method.client_sampling=random",), 0.1),
    ],
)
def test_variances_are_those_of_all_samples(overrides, tolerance):
    method = method_of(*overrides)
    found = step_variances(method, 1, np.random.default_rng(1))
    assert found == pytest.approx(over_every_sample(method, 1), rel=tolerance)


def test_at_equal_totals_unbiased_weights_have_one_noise_however_clients_are_sampled():
    """theta^2 / pi 2 / (rho D^2) at pi rho = total / T: who is asked more often spends less each time."""
    found = []
    for sampling in ("random", "unbiased", "first_budgets"):
        own = ("method.weights=horvitz_thompson", f"method.client_sampling={sampling}")
        method = method_of(*own)
        found.append([step_variances(method, t, np.random.default_rng(0))[0] for t in range(2)])
    np.testing.assert_allclose(np.mean(found, axis=1), np.mean(found[0]), rtol=1e-6)


def test_a_posted_price_is_answered_by_each_alone():
    """rho_i = R / (2 c_i) between the bounds, the same in every round, whatever the others do."""
    aversions = [0.01, 0.2, 0.4, 0.6, 0.9]
    price = ("method.client_sampling=random", "method.spending=posted", "method.reward=5")
    method = method_of(*price, f"method.aversions={aversions}")
    expected = np.minimum(5 / (2 * np.array(aversions)), 12.0)
    np.testing.assert_allclose(method.spending.budgets, np.tile(expected, (2, 1)))
    with pytest.raises(ConfigError, match="a posted price has no race; use random"):
        load([*FIVE, "method.spending=posted"])
