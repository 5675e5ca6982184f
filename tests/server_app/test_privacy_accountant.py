"""Tests of our accountant in Flower's interface: costs compared with Flower's accountant, and strategies."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore.task_identity import TaskIdentity

from gdpfed.errors import BudgetExhausted, PrivacyError
from server_app.privacy_accountant import LedgerAccountant

ADD_OR_REMOVE, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
CONFIGS = {
    "all": PrivacyConfig(1e-5, 100, ADD_OR_REMOVE, SamplingMethod.NO_AMPLIFICATION),
    "poisson": PrivacyConfig(1e-5, 100, ADD_OR_REMOVE, SamplingMethod.POISSON),
    "fixed": PrivacyConfig(1e-5, 100, REPLACE, SamplingMethod.WITHOUT_REPLACEMENT),
}


def charged(accountant, *, times=1.0):
    """Charge two kinds of releases, with ``times`` as much noise, and return the accountant."""
    accountant.compose(GaussianPrivacyEvent(4.0 * times, 10, 100), 20)
    accountant.compose(GaussianPrivacyEvent(6.0 * times, 10, 100), 3)
    return accountant


def test_sampled_releases_cost_what_flower_says_and_replacing_one_twice_the_distance():
    for kind, times in (("poisson", 1.0), ("fixed", 0.5)):
        ours, theirs = (
            charged(LedgerAccountant(CONFIGS[kind])),
            charged(RdpAccountant(CONFIGS[kind]), times=times),
        )
        # Flower takes the best of all orders. That is not a filter: a release may depend on those before it.
        assert 1 < ours.get_epsilon(1e-5) / theirs.get_epsilon(1e-5) < 1.1
        assert 1 < ours.get_delta(0.4) / theirs.get_delta(0.4) < 3
        assert ours.get_epsilon(ours.get_delta(0.4)) == pytest.approx(0.4, rel=1e-6)
        assert ours.num_releases == theirs.num_releases == 23
    assert charged(LedgerAccountant(CONFIGS["fixed"])).get_epsilon(1e-5) > (
        2 * charged(RdpAccountant(CONFIGS["fixed"])).get_epsilon(1e-5)
    )


def test_releases_without_sampling_cost_their_exact_figure_which_is_less_than_flowers():
    ours, theirs = charged(LedgerAccountant(CONFIGS["all"])), charged(RdpAccountant(CONFIGS["all"]))
    sigma = (20 / 4.0**2 + 3 / 6.0**2) ** -0.5
    one = LedgerAccountant(CONFIGS["all"])
    one.compose(GaussianPrivacyEvent(sigma, 10, 100))
    assert ours.get_epsilon(1e-5) == pytest.approx(one.get_epsilon(1e-5))
    assert 0.9 < ours.get_epsilon(1e-5) / theirs.get_epsilon(1e-5) < 1
    spent = ours.get_privacy_spent()
    assert (spent.epsilon, spent.delta, spent.num_releases) == (ours.get_epsilon(1e-5), 1e-5, 23)
    assert ours.get_epsilon(ours.get_delta(2.0)) == pytest.approx(2.0, rel=1e-6)
    assert LedgerAccountant(CONFIGS["all"]).get_epsilon(1e-5) == 0
    assert ours.get_delta(100.0) == 1e-15


def test_a_smaller_delta_never_costs_less_and_one_that_is_too_small_is_one_line():
    ours = charged(LedgerAccountant(CONFIGS["poisson"]))
    deltas = [1e-100, 1e-15, 5e-9, 1e-8, 1.0000001e-8, 2e-8, 1e-5]
    found = [ours.get_epsilon(delta) for delta in deltas]
    assert found == sorted(found, reverse=True)
    assert ours.get_delta(found[2]) == pytest.approx(5e-9, rel=1e-3)
    for delta in (5e-324, 1e-101, 0.0, 1.0):
        with pytest.raises(
            PrivacyError, match=r"delta is .*; it must lie in \(0, 1\) and be at least 1e-100"
        ):
            ours.get_epsilon(delta)


def test_a_state_goes_on_where_it_was_and_no_other_is_taken():
    ours = charged(LedgerAccountant(CONFIGS["poisson"]))
    state = json.loads(json.dumps(ours.state_dict()))
    again = LedgerAccountant(CONFIGS["poisson"])
    again.load_state_dict(state)
    assert again.get_privacy_spent(1e-6) == ours.get_privacy_spent(1e-6)
    for wrong in ({}, RdpAccountant(CONFIGS["poisson"]).state_dict(), {**state, "charges": [{}]}):
        with pytest.raises(PrivacyError):
            again.load_state_dict(wrong)
    with pytest.raises(PrivacyError, match="another accountant or configuration"):
        LedgerAccountant(CONFIGS["all"]).load_state_dict(state)
    assert again.num_releases == 23


def test_what_exceeds_the_limit_or_is_of_another_population_is_not_charged():
    config = PrivacyConfig(1e-5, 100, ADD_OR_REMOVE, SamplingMethod.NO_AMPLIFICATION, max_epsilon=5.5)
    ours, event = charged(LedgerAccountant(config)), GaussianPrivacyEvent(4.0, 10, 100)
    assert not ours.would_exceed(event)
    assert ours.would_exceed(event, count=4)
    assert not ours.would_exceed(event, max_epsilon=8.0, count=4)
    with pytest.raises(BudgetExhausted, match=r"4 more of 23 releases would exceed max_epsilon=5.5"):
        ours.compose(event, 4)
    with pytest.raises(PrivacyError, match="population_size=50 of a release is not the configuration's 100"):
        ours.compose(GaussianPrivacyEvent(4.0, 10, 50))
    with pytest.raises(PrivacyError, match="count is 0"):
        ours.compose(event, 0)
    with pytest.raises(PrivacyError, match="max_epsilon is not given"):
        LedgerAccountant(CONFIGS["all"]).would_exceed(event)
    assert ours.num_releases == 23


def round_of(strategy):
    """Run a round of a strategy with four clients, each of which moves the model by (1, 1, 1)."""
    arrays, grid = ArrayRecord([np.zeros(3)]), SimpleNamespace(get_node_ids=lambda: [1, 2, 3, 4])
    content = RecordDict({"arrays": ArrayRecord([np.ones(3)]), "metrics": MetricRecord({"num-examples": 1})})
    number = strategy.accountant.num_releases + 1
    asked = list(strategy.configure_train(number, arrays, ConfigRecord(), grid))
    replies = [Message(content, reply_to=message) for message in asked]
    assert strategy.aggregate_train(number, replies)[0] is not None


def test_flowers_own_strategy_trains_and_stops_by_it():
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    config = PrivacyConfig(1e-5, 4, ADD_OR_REMOVE, SamplingMethod.NO_AMPLIFICATION, max_epsilon=2.0)
    accountant = LedgerAccountant(config)
    strategy = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(min_train_nodes=4, min_available_nodes=4),
        noise_multiplier=5.0,
        clipping_norm=1.0,
        num_sampled_clients=4,
        accountant=accountant,
    )
    for _ in range(20):
        round_of(strategy)
        if accountant.would_exceed(GaussianPrivacyEvent(5.0, 4, 4)):
            break
    with pytest.raises(PrivacyBudgetExhausted):
        round_of(strategy)
    assert 1 < accountant.num_releases < 20
    assert strategy.privacy_spent() == accountant.get_privacy_spent()
    assert 1.5 < accountant.get_epsilon(1e-5) <= 2.0
