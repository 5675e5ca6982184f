"""Tests of measurements of an honest program: measured epsilon is near the stated one, and never above."""

import numpy as np
import pytest

from gdpfed.errors import ConfigError
from gdpfed.extras.canaries.canary import Canaries, DenseDirections, DiracDirections, random_directions
from gdpfed.extras.canaries.measure import Settings
from gdpfed.privacy.events import Adjacency
from tests.extras.canaries.small_measurements import FEW, MANY, STREAM, by_view, measured

EVERYTHING = {
    "gdpfed_plus": ("method=gdpfed_plus",),
    "gdpfed_op, signed": ("method=gdpfed_op", "secagg.mode=active", "secagg.identities=first_seen"),
    "gdpfed, fixed size": ("method=gdpfed", "privacy.sampling=fixed_size"),
    "idp_fedavg_scale": ("method=idp_fedavg_scale",),
    "idp_fedavg_sample": ("method=idp_fedavg_sample", "secagg=off"),
    "pfa": ("method=pfa", "method.history=2", "method.subspace_dimension=1", "secagg=off"),
    "dp_fedavg, replace one": (
        "method=dp_fedavg",
        "privacy.adjacency=replace_one",
        "privacy.sampling=fixed_size",
        "secagg=off",
    ),
    "replace one, poisson": (
        "method=dp_fedavg",
        "privacy.adjacency=replace_one",
        "privacy.accountant=pld",
        "secagg=off",
    ),
    "discrete noise": ("method=dp_fedavg", "privacy.noise=discrete_gaussian", "secagg=off"),
    "noise in levels": ("method=dp_fedavg", "privacy.noise=discrete_gaussian", "secagg.noise_levels=4"),
    "one client after the other": ("method=dp_fedavg", "simulation.engine=sequential"),
    "adaptive clipping": (
        "method=gdpfed_star",
        "privacy.clipping=adaptive",
        "privacy.clipping_noise=0.3",
        "secagg=off",
    ),
}


@pytest.mark.parametrize("overrides", EVERYTHING.values(), ids=EVERYTHING.keys())
def test_no_more_is_measured_than_is_stated(overrides):
    measurement = measured([*FEW, *overrides], runs=1)
    assert measurement.passed
    assert measurement.sums_revealed > 0
    # A group of whom nobody was drawn shows nothing to the server.
    assert {figure.view for figure in measurement.final} == {"sums", "server", "model"}
    for group, budget in enumerate(measurement.budgets):
        assert by_view(measurement, group)["sums"].stated <= budget


@pytest.mark.parametrize(("epsilon", "runs"), [(1, 19), (3, 16), (6, 16)])
def test_what_is_measured_is_within_a_factor_of_two_of_what_is_stated(epsilon, runs):
    measurement = measured([*MANY, f"privacy.budgets=[{epsilon}]"], runs=runs, confidence=0.95)
    views = by_view(measurement)
    for view in ("sums", "server") if epsilon > 1 else ("server",):
        assert 0.5 * views[view].stated < views[view].measured
    assert all(figure.measured < 1.1 * figure.stated for figure in measurement.final)


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
def test_against_everyone_one_figure_is_stated_and_what_is_measured_is_near_it(adjacency):
    measurement = measured([*MANY, *STREAM, f"privacy.adjacency={adjacency}"], runs=7, confidence=0.95)
    views = by_view(measurement)
    assert views.keys() == {"everyone", "model"}
    assert views["everyone"].stated == views["model"].stated == pytest.approx(3.0)
    assert 0.5 * 3.0 < views["everyone"].measured < 1.1 * 3.0
    assert views["everyone"].estimate == pytest.approx(3.0, rel=0.3)


def test_against_everyone_in_masked_sums_no_more_is_measured_than_is_stated():
    few = ["method=dp_fedavg", "dataset.num_clients=24", "dataset.num_rounds=4", "privacy.budgets=[3]"]
    measurement = measured([*FEW, *few, *STREAM], runs=1)
    assert measurement.passed
    assert measurement.sums_revealed == 4
    assert by_view(measurement).keys() == {"everyone", "model"}


def test_vectors_among_clients_that_train():
    for kind in ("random", "crafted"):
        measurement = measured([*FEW, "method=gdpfed", "secagg=off"], runs=1, kind=kind)
        assert measurement.passed
        assert {figure.num_canaries for figure in measurement.final if figure.view == "sums"} == {5}
        assert all(figure.estimate is not None for figure in measurement.final if figure.view == "model")


def test_crafted_vectors_have_nothing_of_what_others_send():
    others = np.random.default_rng(1).standard_normal((5, 40))
    directions = random_directions(3, 40, np.random.default_rng(2), others)
    assert np.abs(directions.vectors(np.arange(3)) @ others.T).max() < 1e-4
    assert np.linalg.norm(directions.vectors(np.arange(3)), axis=1) == pytest.approx(np.ones(3), rel=1e-5)


def test_a_canary_sends_more_than_it_may_or_what_its_neighbour_would():
    directions = DiracDirections(np.array([4, 2]), 6)
    present = np.array([True, False])
    cases: list[tuple[Adjacency, float]] = [("zero_out", 0.0), ("replace_one", -6.0)]
    for adjacency, absent in cases:
        canaries = Canaries(np.array([7, 9]), np.zeros(2, dtype=np.int64), present, directions, adjacency)
        sent = canaries.updates([9, 7], [2.0, 1.0])
        assert sent[0].tolist() == [0, 0, absent, 0, 0, 0]
        assert sent[1].tolist() == [0, 0, 0, 0, 3.0, 0]


def test_projections_are_inner_products():
    total = np.arange(6.0)
    assert DiracDirections(np.array([4, 2]), 6).project(total).tolist() == [4.0, 2.0]
    rows = np.random.default_rng(3).standard_normal((2, 6)).astype(np.float32)
    dense = DenseDirections(rows)
    assert dense.project(total) == pytest.approx(dense.vectors(np.arange(2)) @ total, rel=1e-5)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["method=fedavg"], "promises no privacy"),
        (["run.resume=runs/somewhere"], "cannot be measured"),
    ],
)
def test_what_cannot_be_measured_is_refused(overrides, reason):
    with pytest.raises(ConfigError, match=reason):
        measured([*FEW, *overrides], runs=1)


@pytest.mark.parametrize(
    "settings", [{"kind": "loud"}, {"num_runs": 0}, {"confidence": 1.0}, {"confidence": 0.2}, {"share": 0.0}]
)
def test_settings_that_measure_nothing_are_refused(settings):
    with pytest.raises(ConfigError):
        Settings(**settings)
