"""Tests of PFA (projected federated averaging): its projection, against a plain SVD, and its saved state."""

import numpy as np
import pytest

from conf.load import load
from gdpfed.errors import ConfigError
from gdpfed.methods import ClientSum, make_method
from gdpfed.methods import pfa as subspace_module
from gdpfed.methods.pfa import project_on_principal_subspace

DIMENSION = 40


def method_of(*overrides):
    return make_method(load(["method=pfa", "privacy.accountant=rdp", *overrides]))


def sums_of(totals):
    return [ClientSum(f"group {m}", total, 5) for m, total in enumerate(totals)]


def plain_projection(vector, history, rank):
    _, _, directions = np.linalg.svd(history, full_matrices=False)
    basis = directions[:rank].T
    return basis @ (basis.T @ vector)


@pytest.mark.parametrize("block", [7, 2**20])
@pytest.mark.parametrize(("rows", "rank"), [(1, 1), (5, 2), (6, 6), (3, 9)])
def test_projection_is_that_of_the_singular_vectors(rows, rank, block, monkeypatch):
    monkeypatch.setattr(subspace_module, "BLOCK", block)
    rng = np.random.default_rng(rows)
    history = rng.normal(size=(rows, DIMENSION)).astype(np.float32)
    vector = rng.normal(size=DIMENSION)
    projected = project_on_principal_subspace(vector, history, rank)
    np.testing.assert_allclose(projected, plain_projection(vector, history, rank), atol=1e-5)
    again = project_on_principal_subspace(projected, history, rank)
    np.testing.assert_allclose(again, projected, atol=1e-5)


def test_repeated_rows_span_one_direction():
    row = np.random.default_rng(0).normal(size=DIMENSION).astype(np.float32)
    vector = np.random.default_rng(1).normal(size=DIMENSION)
    projected = project_on_principal_subspace(vector, np.stack([row, row, row]), 2)
    np.testing.assert_allclose(projected, row * (row @ vector) / (row @ row), rtol=1e-4)


def test_steps_are_those_of_a_plain_derivation():
    method = method_of("method.history=3", "method.subspace_dimension=2", "method.server_learning_rate=0.7")
    weights = method.weighting.group_weights
    rng = np.random.default_rng(3)
    theta = np.zeros(DIMENSION, dtype=np.float32)
    public_sums = []
    for _ in range(5):
        totals = [rng.normal(size=DIMENSION) for _ in range(3)]
        public_sums.append(totals[2])
        strict = totals[0]
        if len(public_sums) >= 2:
            strict = plain_projection(strict, np.stack(public_sums[-3:]), 2)
        update = weights[0] * strict + weights[1] * totals[1] + weights[2] * totals[2]
        moved = method.step(theta, sums_of(totals))
        np.testing.assert_allclose(moved, theta + 0.7 * update, atol=1e-6)
        theta = moved
    assert method.state_dict()["public_sums"].shape == (3, DIMENSION)


def test_a_missing_sum_leaves_the_history_as_it_is():
    method = method_of("method.subspace_dimension=1")
    rng = np.random.default_rng(4)
    theta = np.zeros(DIMENSION, dtype=np.float32)
    totals = [rng.normal(size=DIMENSION) for _ in range(3)]
    lost = ClientSum("group 2", None, 0, "too few")
    untouched = method.step(theta, [*sums_of(totals)[:2], lost])
    assert method.state_dict() == {}
    weights = method.weighting.group_weights
    np.testing.assert_allclose(untouched, weights[0] * totals[0] + weights[1] * totals[1], atol=1e-6)
    method.step(theta, sums_of(totals))
    method.step(theta, [*sums_of(totals)[:2], lost])
    assert len(method.state_dict()["public_sums"]) == 1


def test_state_goes_on_where_it_was():
    first, second = method_of("method.subspace_dimension=2"), method_of("method.subspace_dimension=2")
    rng = np.random.default_rng(5)
    rounds = [[rng.normal(size=DIMENSION) for _ in range(3)] for _ in range(4)]
    theta = np.zeros(DIMENSION, dtype=np.float32)
    for totals in rounds[:3]:
        theta = first.step(theta, sums_of(totals))
    second.load_state_dict(first.state_dict())
    expected, fresh = first.step(theta, sums_of(rounds[3])), method_of("method.subspace_dimension=2")
    np.testing.assert_array_equal(second.step(theta, sums_of(rounds[3])), expected)
    assert np.abs(fresh.step(theta, sums_of(rounds[3])) - expected).max() > 1e-3


@pytest.mark.parametrize(
    "state",
    [
        {"other": np.zeros((1, 4), np.float32)},
        {"public_sums": np.zeros((1, 4))},
        {"public_sums": np.zeros(4, np.float32)},
        {"public_sums": np.zeros((11, 4), np.float32)},
    ],
)
def test_a_state_of_something_else_is_refused(state):
    with pytest.raises(ValueError, match="pfa must find up to 10 public sums"):
        method_of().load_state_dict(state)


def test_a_method_without_state_refuses_one():
    method = make_method(load(["method=gdpfed", "privacy.accountant=rdp"]))
    assert method.state_dict() == {}
    method.load_state_dict({})
    with pytest.raises(ValueError, match="gdpfed keeps no state in a checkpoint, but found public_sums"):
        method.load_state_dict({"public_sums": np.zeros((1, 4), np.float32)})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["privacy.budgets=[1.0]"], "is one group, but method=pfa projects one on another"),
        (["method.history=0"], "method.history=0 must be at least 1"),
        (
            ["method.subspace_dimension=11"],
            "method.subspace_dimension=11 must be from 1 to",
        ),
        (["privacy.sampling_rates=[0.1,0.2,0.3]"], "does not go with method=pfa"),
    ],
)
def test_bad_options_are_told_in_one_line(overrides, message):
    with pytest.raises(ConfigError, match=message):
        method_of(*overrides)
