"""Tests of a private vote over settings: its cost, the budget left for rounds, and refused votes."""

import math
from dataclasses import replace
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from conf.load import load
from gdpfed.errors import ConfigError, InputError, PrivacyError
from gdpfed.methods import make_method
from gdpfed.methods.base import SumRequest
from gdpfed.methods.vote import chance_of_agreement, settings_of, vote_request
from gdpfed.privacy.ledgers.client import ClientLedger
from gdpfed.privacy.ledgers.server import Ledger
from gdpfed.privacy.ledgers.terms import Terms, terms_of
from gdpfed.privacy.mechanism_options import record_groups
from gdpfed.privacy.sums_once import RECORD_MOVES, Vote
from gdpfed.record_steps import RecordSteps

GRID = "training.vote={learning_rate:[0.1,0.3,1]}"
RUN = (
    *("dataset=breast_cancer", "dataset.num_clients=4", "privacy=record_level", "method=dp_sum"),
    *("run.num_rounds=5", "privacy.batch_rate=0.2", "privacy.client_records=[90,90,90,90]"),
)
BUDGETS = ("privacy.budgets=[1,3]", "privacy.group_shares=[0.5,0.5]")


ABOUT_CLIENTS = (
    *(GRID, "dataset=digits", "dataset.num_clients=60", "privacy=client_level", "privacy.batch_rate=0.05"),
    *("privacy.client_records=null", "method=gdpfed_star", "training.learning_rate_decay=1"),
)


def method_of(*overrides):
    told = {each.partition("=")[0]: each for each in (*RUN, *overrides)}
    return make_method(load([*told.values()]))


METHOD: Any = method_of(*BUDGETS, GRID)
PLAN = METHOD.plan
KINDS = (SumRequest, RecordSteps)


def request(**changes):
    asked = vote_request(METHOD, np.zeros(62, np.float32), range(4), METHOD.config)
    return replace(asked, **changes)


def terms(run, plan=PLAN):
    return terms_of(plan, 0, run, dropout_tolerance=0.1, corrupt_tolerance=0.0)


def test_the_vote_costs_its_share_of_the_least_budget():
    # delta(epsilon) of one Gaussian release (Balle and Wang, 2018), of which mu^2 / 10 is paid.
    mu = math.sqrt(10) * RECORD_MOVES / PLAN.vote.noise_stddev
    tail = [0.5 * math.erfc((1.0 / mu + sign * mu / 2) / math.sqrt(2)) for sign in (-1, 1)]
    assert tail[0] - math.e * tail[1] == pytest.approx(1e-5, rel=1e-4)
    assert Vote.moved("client", "zero_out") == 1
    assert Vote.moved("client", "replace_one") == Vote.moved("record", "zero_out") == RECORD_MOVES


@pytest.mark.parametrize("rate", [0.2, 1.0])
@pytest.mark.parametrize("budgets", [BUDGETS, ("privacy.budgets=[1,3]", "privacy.budgets_of=records")])
def test_vote_and_steps_together_spend_every_budget_by_another_librarys_composition(rate, budgets):
    shares = ("privacy.group_shares=[0.5,0.5]",)
    plan = method_of(*budgets, *shares, GRID, f"privacy.batch_rate={rate}").plan
    assert plan.vote is not None
    for index in range(len(plan.groups)):
        for number, own in enumerate(record_groups(plan.mechanism, index)):
            sigma = plan.mechanism.records[index].noise_multiplier
            step = privacy_loss_distribution.from_gaussian_mechanism(
                sigma, sampling_prob=own.batch_rate, value_discretization_interval=1e-4
            )
            vote = privacy_loss_distribution.from_gaussian_mechanism(
                plan.vote.noise_stddev / math.sqrt(2), value_discretization_interval=1e-4
            )
            spent = step.self_compose(5).compose(vote).get_epsilon_for_delta(plan.delta)
            assert spent <= own.epsilon * 1.002
            if own.batch_rate < 1 and (rate < 1 or own.epsilon == 1):
                assert spent > own.epsilon * 0.97
            assert plan.epsilon_after(index, 5, number) == pytest.approx(own.epsilon_accounted, rel=1e-6)
    # Where everybody is in every step, all is one Gaussian: the squares of mu add up, exactly.
    if rate == 1 and len(plan.groups) == 2:
        sigma = plan.mechanism.records[0].noise_multiplier
        together = math.hypot(math.sqrt(5) / sigma, math.sqrt(2) / plan.vote.noise_stddev)
        assert dp.get_epsilon_gaussian(1 / together, plan.delta) == pytest.approx(1, rel=2e-3)
        assert plan.groups[0].epsilon_against_server == plan.groups[0].epsilon_accounted


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
@pytest.mark.parametrize(
    "words",
    [("method=dp_fedavg", "privacy.against=outsiders"), ("method=gdpfed", "privacy.against=everyone")],
)
def test_vote_and_rounds_of_clients_spend_every_budget(adjacency, words):
    """The vote and the rounds together spend each group's budget, by dp-accounting's composition."""
    plan = method_of(*ABOUT_CLIENTS, *words, f"privacy.adjacency={adjacency}").plan
    distance = 1.0 if adjacency == "zero_out" else 2.0
    voted = (1.0 if adjacency == "zero_out" else math.sqrt(2)) / plan.vote.noise_stddev
    vote = privacy_loss_distribution.from_gaussian_mechanism(1 / voted, value_discretization_interval=1e-4)
    relation = {"zero_out": "REPLACE_SPECIAL", "replace_one": "REPLACE_ONE"}[adjacency]
    for index, group in enumerate(plan.groups):
        if plan.against == "everyone":
            (charge,) = plan.charges(index)
            turns = distance * charge.event.sensitivity * group.clipping_norm / group.noise_stddev
            spent = dp.get_epsilon_gaussian(1 / math.hypot(turns, voted), plan.delta)
        else:
            rounds = privacy_loss_distribution.from_gaussian_mechanism(
                group.noise_multiplier,
                sampling_prob=group.sampling_rate,
                neighboring_relation=dp.NeighboringRelation[relation],
                value_discretization_interval=1e-4,
            )
            spent = rounds.self_compose(plan.num_rounds).compose(vote).get_epsilon_for_delta(plan.delta)
            turns = distance * math.sqrt(group.participations_p99) / group.noise_multiplier
            seen = math.hypot(turns, voted)
            assert group.epsilon_against_server == pytest.approx(
                dp.get_epsilon_gaussian(1 / seen, plan.delta), rel=1e-4
            )
        assert group.epsilon * 0.99 < spent <= group.epsilon * 1.002
        assert plan.epsilon_after(index, plan.num_rounds) == pytest.approx(group.epsilon_accounted, rel=1e-6)


def test_a_vote_takes_its_part_from_the_rounds_and_from_what_is_shown():
    without: Any = method_of(*BUDGETS).plan
    assert PLAN.mechanism.records[0].noise_multiplier > without.mechanism.records[0].noise_multiplier
    assert PLAN.fingerprint() != without.fingerprint()
    assert PLAN.epsilon_after(0, 0) == pytest.approx(PLAN.vote.epsilon)
    assert PLAN.epsilon_against_members(0, 0) == pytest.approx(PLAN.vote.epsilon)
    bounds = [plan.inference_bound(0, 0).accuracy_at_even_odds for plan in (without, PLAN)]
    assert bounds[0] == 0.5 < bounds[1]


def test_a_ledger_charges_the_vote_once_and_no_round_before_it():
    ledger, cohorts = Ledger(PLAN, kinds=KINDS), [np.arange(2), np.arange(2, 4)]
    with pytest.raises(PrivacyError, match="voted on first"):
        ledger.open_round(0, cohorts)
    for changes, words in (
        ({"noise_multiplier": 0.1}, "below the plan's"),
        ({"clients": np.array([0, 1, 2, 9])}, "not in the plan"),
        ({"client_weights": np.array([1.0, 1.0, 1.0, 9.0])}, "count alike"),
        ({"unit": "client"}, "settings are voted on"),
    ):
        with pytest.raises(PrivacyError, match=words):
            ledger.charge_once(request(**changes))
    ledger.charge_once(request())
    again = Ledger.from_dict(PLAN, ledger.to_dict(), kinds=KINDS)
    with pytest.raises(PrivacyError, match="once"):
        again.charge_once(request())
    again.open_round(0, cohorts)
    with pytest.raises(PrivacyError, match="once"):
        Ledger(method_of(*BUDGETS).plan, kinds=KINDS).charge_once(request())


def test_a_node_pays_for_vote_and_rounds_and_votes_once():
    ledger, first = ClientLedger(), terms("one")
    assert Terms.from_scalars(first.to_scalars()) == first
    cost = ledger.epsilon(1e-5, unit="record", also=first)
    assert cost == pytest.approx(1.0, rel=0.02)
    without = replace(first, vote=())
    assert ledger.epsilon(1e-5, unit="record", also=without) < 0.97 * cost
    ledger.begin(first, epsilons=[1.0], delta=1e-5)
    assert ledger.epsilon_against_server(1e-5, unit="record") == 0
    seen = ledger.epsilon_against_server(1e-5, unit="record", one_more_in=("one", Vote.index(5)))
    ledger.charge("one", Vote.index(5))
    with pytest.raises(PrivacyError, match="has had its vote already"):
        ledger.charge("one", Vote.index(5))
    assert ledger.epsilon_against_server(1e-5, unit="record") == pytest.approx(seen)
    assert seen == pytest.approx(PLAN.vote.epsilon)
    kept = ClientLedger.from_dict(ledger.to_dict())
    assert kept.run("one").sent == {"vote"}
    assert kept.epsilon(1e-5, unit="record") == pytest.approx(cost)
    # Two runs with a vote cost more than one, and each more than without.
    assert kept.epsilon(1e-5, unit="record", also=terms("two")) > kept.epsilon(
        1e-5, unit="record", also=replace(terms("two"), vote=())
    )


def test_terms_with_a_cheaper_vote_are_refused():
    (charge,) = terms("one").vote
    for wrong in (
        replace(charge, count=2),
        replace(charge, event=replace(charge.event, clipping_norm=1.0)),
        replace(charge, event=replace(charge.event, noise_stddev=0.0)),
    ):
        with pytest.raises(PrivacyError, match="vote is not one noised sum"):
            replace(terms("one"), vote=(wrong,))
    # A node says so of its own columns; at several parties a person would turn several votes.
    with pytest.raises(PrivacyError, match="a record is a person"):
        replace(terms("one"), record_is="person")


def test_a_vote_on_persons_is_refused(tmp_path):
    (tmp_path / "columns.yaml").write_text(
        "label: {column: ill, classes: [no, yes]}\nnumeric: {age: [0, 100]}\nperson: name\n"
    )
    table = [f"{'yes' if age > 50 else 'no'},{age},{age // 2}" for age in range(10, 90)]
    (tmp_path / "all.csv").write_text("\n".join(["ill,age,name", *table, ""]))
    words = (
        "dataset=csv",
        f"dataset.path={tmp_path}",
        "dataset.partition=iid",
        "privacy.client_records=null",
    )
    with pytest.raises(ConfigError, match="name persons: leave training.vote out"):
        method_of(*words, GRID)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["training.vote={local_steps:[1,2]}"], "learning_rate, momentum, learning_rate_decay"),
        (["training.vote={learning_rate:[0.1]}"], "has 1 settings: vote on 2 to 16"),
        (["training.vote={learning_rate:[0.1,0.1]}"], "different numbers"),
        (["training.vote={learning_rate:[0.1,-1]}"], "training.learning_rate=-1.0 must be"),
        (["training.vote={learning_rate:[1,2,3,4,5],momentum:[0,0.1,0.2,0.3]}"], "has 20 settings"),
        ([GRID, "method=ali_dpfl"], "does not go with method=ali_dpfl"),
        ([GRID, "method.server_learning_rate=2"], "server_learning_rate=2 is another"),
        ([*ABOUT_CLIENTS, "method=gdpfed_plus"], "does not go with method=gdpfed_plus"),
        ([*ABOUT_CLIENTS, "privacy.noise=discrete_gaussian"], "privacy.noise=discrete_gaussian has no proof"),
        ([*ABOUT_CLIENTS, "privacy.accountant=theorem1"], "privacy.accountant=theorem1 has no proof"),
        ([GRID, "secagg=off"], "secagg=off shows each"),
        ([GRID, "training.learning_rate_decay=0.9"], "learning_rate_decay=0.9: use 1"),
        ([GRID, "run.mailbox=/tmp/box"], "does not go with run.mailbox"),
        ([GRID, "dataset.num_clients=2", "privacy.client_records=[9,9]"], "secagg.minimum_cohort=3"),
        ([GRID, "privacy.vote_share=1"], "privacy.vote_share=1.0 must be in"),
    ],
)
def test_a_vote_that_is_not_proved_is_refused_in_one_line(overrides, words):
    with pytest.raises((ConfigError, InputError), match=words) as error:
        method_of(*overrides)
    assert "\n" not in str(error.value)


def test_settings_are_every_combination():
    config = load([*RUN, "training.vote={learning_rate:[0.1,1],momentum:[0,0.5]}"])
    assert settings_of(config) == ((0.1, 0.0, 1.0), (0.1, 0.5, 1.0), (1.0, 0.0, 1.0), (1.0, 0.5, 1.0))


def test_the_chance_that_all_agree_and_win_is_that_of_drawn_noise():
    drawn = np.random.default_rng(1).normal(0, 3.0, (40_000, 4)) + np.array([4.0, 0, 0, 0])
    share = float(np.mean(drawn.argmax(axis=1) == 0))
    # Four standard deviations of a share of 40,000 draws are 0.01.
    assert chance_of_agreement(4, 3.0, 4) == pytest.approx(share, abs=0.01)
