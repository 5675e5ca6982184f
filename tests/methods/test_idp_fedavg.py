"""Tests of IDP-FedAvg and GDPFed*, whose rounds have one sum with one noise for clients of all groups."""

import numpy as np
import pytest

from conf.load import load
from gdpfed.errors import ConfigError, PrivacyError
from gdpfed.methods import ClientSum, SumRequest, make_method
from gdpfed.privacy.planning.groups import paper_delta
from gdpfed.privacy.release import NoiseAt
from gdpfed.privacy.sampling.cohorts import draw_cohorts
from gdpfed.rounds.state import new_ledger

ALL = pytest.mark.parametrize("name", ["idp_fedavg_scale", "idp_fedavg_sample", "gdpfed_star"])
RDP = "privacy.accountant=rdp"
# The rates of idp_fedavg_sample are searched for: by the accountant that takes least time.
SMALL = [
    *("privacy.delta=1e-3", "dataset.num_clients=60", "privacy.sampling_rate=0.3"),
    *(RDP, "privacy.renyi_orders=whole"),
]


def method_of(name, *overrides):
    return make_method(load([f"method={name}", "privacy.against=outsiders", *SMALL, *overrides]))


def test_clipping_norms_on_fmnist():
    """The groups' clipping norms are 1.007, 1.545 and 1.948; the paper's code gives 1.15, 1.51 and 2.12."""
    delta = f"privacy.delta={paper_delta(6000)}"
    plan = make_method(load(["dataset=fmnist", "method=idp_fedavg_scale", delta])).plan
    assert [group.clipping_norm for group in plan.groups] == pytest.approx([1.007, 1.545, 1.948], abs=2e-3)
    assert np.mean([group.clipping_norm for group in plan.groups]) == pytest.approx(1.5)
    assert {group.sampling_rate for group in plan.groups} == {0.02}


@ALL
def test_a_round_is_one_sum_of_everybody_at_the_plans_noise(name):
    method = method_of(name)
    cohorts = [np.array([3, 5]), np.array([22]), np.array([44, 45, 59])]
    (request,) = method.requests(np.zeros(4, np.float32), 0, cohorts)
    assert request.clients.tolist() == [3, 5, 22, 44, 45, 59]
    assert request.noise_at is NoiseAt.CLIENT
    bounds = [group.clipping_norm for group in method.plan.groups]
    assert request.client_clipping_norms.tolist() == [bounds[m] for m in (0, 0, 1, 2, 2, 2)]
    stddev = request.clipping_norm * request.noise_multiplier
    for group in method.plan.groups:
        assert stddev / group.clipping_norm == pytest.approx(group.noise_multiplier, rel=1e-12)


@ALL
def test_step_is_the_sum_over_the_mean_cohort(name):
    method = method_of(name, "method.server_learning_rate=0.5")
    total = np.array([1.0, -2.0, 4.0])
    theta = np.ones(3, dtype=np.float32)
    moved = method.step(theta, [ClientSum("all groups", total, 9)])
    np.testing.assert_allclose(moved, 1 + 0.5 * total / (0.3 * 60), rtol=1e-6)
    lost = method.step(theta, [ClientSum("all groups", None, 0, "too few")])
    np.testing.assert_array_equal(lost, theta)


@ALL
def test_the_ledger_charges_every_client_by_its_group(name):
    method = method_of(name)
    ledger = new_ledger(method)
    ledger.open_round(0, draw_cohorts(method.plan, 0, bytes(32)))
    for index, spent in enumerate(ledger.spent()):
        assert spent == method.plan.epsilon_after(index, 1)
    assert len(set(ledger.spent())) == 3


def test_by_clipping_fixed_size_sampling_is_accounted_for():
    fixed = method_of("idp_fedavg_scale", "privacy.sampling=fixed_size")
    assert {group.expected_cohort_size for group in fixed.plan.groups} == {6.0}
    poisson = method_of("idp_fedavg_scale")
    assert fixed.weighting.noise_magnitude(fixed.plan) > poisson.weighting.noise_magnitude(poisson.plan)


@pytest.mark.parametrize(
    ("name", "overrides", "error", "message"),
    [
        ("idp_fedavg_sample", ["privacy.sampling=fixed_size"], PrivacyError, "use privacy.sampling=poisson"),
        ("idp_fedavg_sample", ["privacy.accountant=theorem1"], PrivacyError, "theorem1 needs"),
        ("idp_fedavg_scale", ["privacy.accountant=theorem1"], PrivacyError, "theorem1 needs"),
        (
            "idp_fedavg_scale",
            ["privacy.accountant=pld", "privacy.sampling=fixed_size"],
            PrivacyError,
            "no bound",
        ),
        ("idp_fedavg_sample", ["privacy.adjacency=replace_one", RDP], PrivacyError, "has no bound"),
        ("idp_fedavg_scale", ["privacy.sampling_rates=[0.1,0.2,0.3]"], ConfigError, "does not go with"),
        (
            "idp_fedavg_scale",
            ["method.reweighting=uniform"],
            ConfigError,
            "setting 'method.reweighting' is not known",
        ),
    ],
)
def test_what_has_no_valid_accounting_is_refused_in_one_line(name, overrides, error, message):
    with pytest.raises(error) as raised:
        make_method(load([f"method={name}", *overrides]))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("norms", "weights", "words"),
    [
        ([1.0], None, "client_clipping_norms must be 2 finite numbers above 0"),
        ([1.0, 0.0], None, "client_clipping_norms must be 2 finite numbers above 0"),
        ([1.0, float("nan")], None, "client_clipping_norms must be 2 finite numbers above 0"),
        (None, [1.0, float("inf")], "client_weights must be 2 finite numbers above 0"),
    ],
)
def test_bounds_that_a_sum_cannot_hold_are_refused(norms, weights, words):
    with pytest.raises(PrivacyError, match=words):
        SumRequest(
            name="sum",
            clients=np.arange(2),
            clipping_norm=2.0,
            noise_multiplier=1.0,
            noise_at=NoiseAt.CLIENT,
            client_clipping_norms=None if norms is None else np.array(norms),
            client_weights=None if weights is None else np.array(weights),
            start=np.zeros(3, np.float32),
        )
