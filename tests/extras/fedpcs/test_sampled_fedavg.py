"""Tests of AOCS, Fed-CBS and DELTA: their sampling probabilities, and rounds without privacy."""

import json

import numpy as np
import pytest

from conf.load import load
from gdpfed.errors import InputError, PrivacyError, RunError
from gdpfed.extras.fedpcs.client_choice import (
    aocs_chances,
    balanced_sample,
    class_imbalance,
    delta_chances,
)
from gdpfed.extras.fedpcs.sampled_fedavg import SampledFedAvg
from gdpfed.methods import ClientSum, make_method
from gdpfed.rounds.fleet import NO_SINGLE_UPDATES
from gdpfed.rounds.state import new_ledger
from gdpfed.simulation import simulate
from testing.small_runs import run

TWELVE = (
    "dataset=digits",
    "dataset.num_clients=12",
    "privacy.sampling_rate=0.5",
    "method=sampled_fedavg",
    "secagg=off",
    "simulation.workers=1",
    "run.num_rounds=2",
)


def exact(lengths, size):
    """Return the optimal sampling probabilities of AOCS, by the closed formula of its paper."""
    n, order = len(lengths), np.argsort(lengths)
    ascending = lengths[order]
    sums = np.cumsum(ascending)
    last = max(k for k in range(1, n + 1) if 0 < size + k - n <= sums[k - 1] / ascending[k - 1])
    chances = np.ones(n)
    chances[order[:last]] = (size + last - n) * ascending[:last] / sums[last - 1]
    return chances


@pytest.mark.parametrize("seed", range(5))
def test_aocs_tends_to_the_optimum(seed):
    lengths = np.random.default_rng(seed).pareto(0.8, 30)
    best = exact(lengths, 10)
    assert best.sum() == pytest.approx(10)
    assert aocs_chances(lengths, 10, rescalings=30) == pytest.approx(best)
    # It only ever grows, and stops early from below.
    few = aocs_chances(lengths, 10)
    assert np.all(few <= best + 1e-12)
    assert aocs_chances(lengths, 10, rescalings=0).sum() <= few.sum() <= 10 + 1e-9


def test_aocs_of_updates_that_are_nothing_is_uniform():
    assert aocs_chances(np.zeros(4), 2) == pytest.approx(0.5)
    assert aocs_chances(np.array([0.0, 1, 1, 1]), 2) == pytest.approx([0, 2 / 3, 2 / 3, 2 / 3])
    assert aocs_chances(np.array([0.0, 1, 1]), 3) == pytest.approx([0, 1, 1])


def test_delta_prefers_who_is_far_from_the_mean():
    updates = np.array([[1.0, 0], [1, 0], [1, 0], [-3, 0]])
    chances = delta_chances(updates, np.full(4, 0.25), 2)
    # Distances 1, 1, 1, 3 of a sum of 6, times two: the last is certain, and the others share one.
    assert chances == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1])
    assert delta_chances(np.ones((4, 2)), np.array([0.4, 0.2, 0.2, 0.2]), 1) == pytest.approx(
        [0.4, 0.2, 0.2, 0.2]
    )


def test_imbalance_is_the_papers_sum_of_inner_products():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 9, (5, 4)).astype(float) + 1
    own = counts / counts.sum(axis=1, keepdims=True)
    shares = counts.sum(axis=1) / counts.sum()
    printed = sum(((shares @ own[:, b]) - 1 / 4) ** 2 for b in range(4))
    assert class_imbalance(counts.sum(axis=0)) == pytest.approx(printed)


def test_fed_cbs_draws_one_after_the_other_by_what_the_classes_become():
    counts, taken, rng = np.array([[8.0, 2], [1, 9], [5, 4]]), np.array([0, 1, 4]), np.random.default_rng(0)

    def uneven(*members):
        share = counts[list(members)].sum(axis=0) / counts[list(members)].sum()
        return float(((share - 0.5) ** 2).sum())

    first = [1 / uneven(i) + 10 * np.sqrt(3 * np.log(3) / (2 * max(taken[i], 1))) for i in range(3)]
    chances: dict[tuple[int, ...], float] = {}
    for i in range(3):
        others = [j for j in range(3) if j != i]
        then = {j: uneven(i, j) ** -2 for j in others}
        for j in others:
            pair = tuple(sorted((i, j)))
            own = first[i] / sum(first) * then[j] / sum(then.values())
            chances[pair] = chances.get(pair, 0) + own
    found = [tuple(balanced_sample(counts, 2, taken, 3, rng).tolist()) for _ in range(4000)]
    for pair, chance in chances.items():
        assert found.count(pair) / 4000 == pytest.approx(chance, abs=4 * np.sqrt(chance / 4000))


@pytest.mark.parametrize("by", ["random", "aocs", "fed_cbs", "delta"])
def test_steps_are_the_weighed_updates(by):
    method = make_method(load([*TWELVE, f"method.client_sampling={by}", "method.server_learning_rate=0.5"]))
    assert isinstance(method, SampledFedAvg)
    cohort, shares = np.arange(12), method.shares
    updates = np.random.default_rng(1).normal(size=(12, 5))
    asked = []

    def sum_updates(requests):
        asked.extend(requests)
        return [
            ClientSum(each.name, each.weights @ updates[each.clients], 1, members=each.clients.tolist())
            for each in requests
        ]

    theta, _ = method.round(np.zeros(5, np.float32), 0, [cohort], sum_updates)
    if by == "random":
        expected = shares @ updates / 0.5
    elif by == "fed_cbs":
        sample = method.balanced.sample(0)
        assert len(sample) == 6
        expected = shares[sample] @ updates[sample] / shares[sample].sum()
    else:
        assert [each.clients.tolist() for each in asked] == [[client] for client in range(12)]
        lengths = shares * np.linalg.norm(updates, axis=1)
        chances = aocs_chances(lengths, 6) if by == "aocs" else delta_chances(updates, shares, 6)
        drawn = np.random.default_rng([0, 0]).random(12) < chances
        expected = (shares * drawn / chances) @ updates
    assert theta == pytest.approx(0.5 * expected, rel=1e-5)


@pytest.mark.parametrize("by", ["aocs", "fed_cbs", "delta"])
def test_rounds_are_run_and_can_be_run_again(tmp_path, by):
    def accuracies(name):
        config = load([*TWELVE, f"method.client_sampling={by}", f"run.directory={tmp_path / name}"])
        simulate(config)
        lines = (tmp_path / name / "rounds.jsonl").read_text().splitlines()
        return [json.loads(line)["accuracy"] for line in lines]

    first = accuracies("first")
    assert first[-1] > 0.4
    assert accuracies("second") == first


def test_nobodys_update_is_read_alone_where_something_is_promised():
    private = make_method(load(["method=dp_fedavg", "dataset.num_clients=12", "privacy.sampling_rate=1"]))
    method = make_method(load([*TWELVE, "method.client_sampling=aocs"]))
    cohort = np.arange(12)
    ledger = new_ledger(private)
    ledger.open_round(0, [cohort])
    with pytest.raises(PrivacyError, match="one client's update, to be read in clear"):
        ledger.charge(0, method.requests(np.zeros(5, np.float32), 0, [cohort])[:1])


def test_nodes_do_not_answer_alone(tmp_path):
    with pytest.raises(RunError, match=NO_SINGLE_UPDATES[:30]):
        run(tmp_path / "run", [*TWELVE, "dataset.num_clients=15", "method.client_sampling=delta"])


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["method.client_sampling=best"], "method.client_sampling=best is not known: use random, aocs"),
        (
            ["method.client_sampling=aocs", "secagg=pairwise"],
            "which secure aggregation hides: set",
        ),
        (["method.client_sampling=fed_cbs", "privacy.sampling_rate=0.01"], "is less than one client a round"),
    ],
)
def test_what_cannot_be_had_is_refused_in_one_line(overrides, reason):
    with pytest.raises(InputError, match=reason) as refused:
        make_method(load([*TWELVE, *overrides]))
    assert "\n" not in str(refused.value)
