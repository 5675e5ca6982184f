"""Tests of a node's check that it is asked no more often than the run's agreed sampling rates allow."""

import json
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from math import comb, inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from client_app.carried import settings_of
from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.clients.messages import RoundOfRun
from gdpfed.errors import AuditError, PrivacyError
from gdpfed.federation.node import budget
from gdpfed.federation.node.budget import BudgetRefusedError
from gdpfed.federation.node.ledger_file import larger_spend, locked_ledger
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import Gaussian, SampledGaussian
from gdpfed.privacy.ledgers.client import ClientLedger
from gdpfed.privacy.mechanisms.sampled.terms import SumTerms
from gdpfed.privacy.sums_once import ONCE
from secagg import SumParameters
from testing.local_grid import make_context

MILLION = 1e-6


def charge(rate, count, *, noise=2.0, sampling="poisson"):
    event = SampledGaussian(
        sampling=sampling, sampling_rate=rate, group_size=10**9, noise_stddev=noise, clipping_norm=1.0
    )
    return Charge(event=event, count=count)


def terms_with(*charges, run="run", first_round=0):
    return SumTerms(
        run=run,
        group=0,
        epsilon=1.0,
        delta=1e-5,
        accountant="rdp",
        charges=charges,
        sums_hidden=True,
        first_round=first_round,
    )


def ledger_with(*runs):
    ledger = ClientLedger()
    for terms, rounds in runs:
        ledger.begin(terms, epsilons=[1.0], delta=1e-5)
        for index in rounds:
            ledger.charge(terms.run, index)
    return ledger


def tail(least, trials, rate):
    return sum(comb(trials, k) * rate**k * (1 - rate) ** (trials - k) for k in range(least, trials + 1))


def parameters_of(terms):
    return SumParameters(
        label="sum",
        num_clients=3,
        threshold=2,
        dropout_tolerance=0,
        dimension=9,
        clipping_norm=1.0,
        noise_multiplier=terms.event(0).noise_multiplier,
    )


def order_to(*, fill=False, may_fill=True) -> Any:
    return SimpleNamespace(
        **{"records": None, "clipping_norm": inf, "noise": "gaussian", "work": "update", "announced": ""},
        **{"weight": 1.0, "taps": (), "fills": fill, "may_fill": may_fill},
    )


def asked_in_turn(node, terms, indices, *, fill=False):
    """Begin a run, ask for an update (or zeros, if `fill`) in each round, and return the answered rounds."""
    answered, parameters = [], parameters_of(terms)
    order = order_to(fill=fill, may_fill=terms.event(0).sampling == "poisson")
    budget.begin(node, terms)
    for index in indices:
        with suppress(PrivacyError):
            budget.check_sum(node, RoundOfRun(terms.run, index), parameters)
            budget.charge(node, RoundOfRun(terms.run, index), parameters, order)
            answered.append(index)
    return answered


def node_with(tmp_path, **own):
    told = {name.replace("_", "-"): value for name, value in own.items()}
    ledger = {"epsilon": 1.0, "ledger": str(tmp_path / "ledger.json")}
    return settings_of(make_context(0, ledger | told)).budgets


@pytest.fixture
def node(tmp_path):
    return node_with(tmp_path)


@pytest.mark.parametrize("sampling", ["poisson", "fixed_size"])
def test_a_node_that_is_asked_in_every_round_of_a_low_rate_answers_few(node, sampling, caplog):
    """A node whose terms state a sampling rate of 1e-6 answers only once if it is asked in all 100 rounds."""
    answered = asked_in_turn(node, terms_with(charge(1e-6, 100, sampling=sampling)), range(100))
    assert answered == [0]
    assert "asked so often at the sampling rates of the terms" in caplog.text
    with locked_ledger(next(iter(node.values())).ledger) as file:
        assert file.ledger.epsilon_against_server(1e-5) < 3.0


def test_the_order_of_the_rounds_makes_no_room(node):
    answered = asked_in_turn(node, terms_with(charge(0.01, 100)), range(99, -1, -1))
    assert len(answered) == 8
    assert tail(8, 100, 0.01) > MILLION > tail(9, 100, 0.01)


def test_many_runs_of_few_rounds_make_no_room(node):
    """A node that is asked in nine runs of one round at rate 1e-5 answers in the first run only."""
    answered = [asked_in_turn(node, terms_with(charge(1e-5, 1), run=f"run {k}"), [0]) for k in range(9)]
    assert answered == [[0]] + 8 * [[]]


@pytest.mark.parametrize("step", [-0.1, 0.1])
def test_nor_do_runs_of_other_noise(step):
    runs = [(terms_with(charge(1e-4, 1, noise=2 + step * k), run=f"run {k}"), [0]) for k in range(2)]
    last = terms_with(charge(1e-4, 1, noise=2 + 2 * step), run="last")
    assert ledger_with(*runs, (last, [])).chance_of_round("last", 0) < MILLION


def test_rounds_that_are_cheap_by_their_noise_make_no_room_for_others():
    quiet = terms_with(charge(1.0, 10**6, noise=1e6), run="quiet")
    loud = terms_with(charge(1e-4, 10), run="loud")
    assert ledger_with((quiet, []), (loud, [0])).chance_of_round("loud", 1) < MILLION


def test_the_chance_is_the_binomial_tail_of_the_rounds_so_far():
    terms = terms_with(charge(0.2, 50))
    ledger = ledger_with((terms, [0, 3, 4, 7]))
    assert ledger.chance_of_round("run", 11) == pytest.approx(tail(5, 12, 0.2), rel=1e-9)
    late = replace(terms, first_round=10)
    chance = ledger_with((late, [10, 11])).chance_of_round("run", 14)
    assert chance == pytest.approx(tail(3, 5, 0.2), rel=1e-9)


def test_the_chance_is_not_below_that_of_rates_that_differ():
    rates = [0.02, 0.3, 0.3, 0.05, 0.05, 0.05]
    ledger = ledger_with((terms_with(charge(0.02, 1), charge(0.3, 2), charge(0.05, 3)), [1, 2, 3, 4]))
    exact = np.ones(1)
    for rate in rates:
        exact = np.convolve(exact, [1 - rate, rate])
    assert exact[5:].sum() <= ledger.chance_of_round("run", 5) < 10 * exact[5:].sum()


@pytest.mark.parametrize("rate", [0.002, 0.1, 0.5, 1.0])
def test_a_node_that_is_drawn_at_the_rate_is_not_refused(rate):
    """In 200 simulated runs of 40 rounds, a node that is sampled at its terms' rate is never refused."""
    generator, terms = np.random.default_rng(7), terms_with(charge(rate, 40))
    for _ in range(200):
        drawn = np.flatnonzero(generator.random(40) < rate).tolist()
        for k, index in enumerate(drawn):
            assert ledger_with((terms, drawn[:k])).chance_of_round("run", index) >= MILLION


@pytest.mark.parametrize("sampling", ["poisson", "fixed_size"])
@pytest.mark.parametrize("rate", [0.05, 1.0])
@pytest.mark.parametrize("fill", [True, False])
def test_others_may_send_zeros_only_where_clients_are_drawn_by_poisson_sampling(node, sampling, rate, fill):
    """A node refuses sums whose members may send zeros, unless clients are sampled by Poisson sampling."""
    terms = terms_with(charge(rate, 4, noise=9.0, sampling=sampling))
    budget.begin(node, terms)
    ask = partial(budget.charge, node, RoundOfRun("run", 0), parameters_of(terms))
    if sampling == "poisson":
        ask(order_to(fill=fill))
        return
    with pytest.raises(BudgetRefusedError, match="members may send zeros in a sum without secret Poisson"):
        ask(order_to(fill=fill))
    ask(order_to(may_fill=False))


def test_nor_in_a_sum_beside_the_rounds(node):
    vote = Charge(event=Gaussian(noise_stddev=50.0, clipping_norm=1.0), count=1, unit="client")
    terms = replace(terms_with(charge(0.05, 4, noise=9.0)), vote=(vote,))
    budget.begin(node, terms)
    once = ONCE["vote"].index(terms.num_rounds)
    parameters = replace(parameters_of(terms), noise_multiplier=50.0)
    order = order_to()
    order.work = "vote"
    with pytest.raises(BudgetRefusedError, match="members may send zeros"):
        budget.charge(node, RoundOfRun("run", once), parameters, order)
    order.may_fill = False
    budget.charge(node, RoundOfRun("run", once), parameters, order)


@pytest.mark.parametrize(
    ("rate", "limit"),
    [
        (1e-4, {}),
        (0.05, {"max_participations": 1}),
        (0.05, {"min_separation": 6}),
        (0.05, {"max_epsilon_against_server": 1.0}),
    ],
)
def test_who_was_drawn_as_often_as_it_may_be_still_fills_and_is_asked_for_keys(tmp_path, rate, limit):
    """A node that refuses further updates still sends zeros ("fills") and still answers requests for keys."""
    node = node_with(tmp_path, **limit)
    terms = terms_with(charge(rate, 20, noise=6.0))
    assert asked_in_turn(node, terms, [4, 6, 7], fill=True) == [4, 6, 7]
    assert asked_in_turn(node, terms, [5]) == [5]
    assert asked_in_turn(node, terms, [0, 1, 2, 3, 8, 9], fill=True) == [0, 1, 2, 3, 8, 9]
    answered = asked_in_turn(node, terms, range(10, 16))
    refused = set(range(10, 16)).difference(answered)
    assert 10 in refused or limit.keys() & {"max_epsilon_against_server"}
    assert refused
    for index in refused:
        budget.check_sum(node, RoundOfRun("run", index), parameters_of(terms))
    assert asked_in_turn(node, terms, sorted(refused), fill=True) == sorted(refused)
    with locked_ledger(next(iter(node.values())).ledger) as file:
        assert file.ledger.runs[0].drawn_in == [5, *answered]


@pytest.mark.parametrize("filled", [[0, 0], [1], [0.0], ["0"], [True], {"0": 1}, "0", 0, None])
def test_a_ledger_has_only_rounds_of_its_own_in_which_zeros_were_sent(tmp_path, filled):
    ledger = ClientLedger()
    ledger.begin(terms_with(charge(0.05, 4, noise=9.0)), epsilons=[9.0], delta=1e-5)
    ledger.charge("run", 0, fills=True)
    body = ledger.to_dict()
    assert body["runs"][0]["filled"] == [0]
    assert (
        larger_spend([body, body])["runs"] == body["runs"] == ClientLedger.from_dict(body).to_dict()["runs"]
    )
    body["runs"][0]["filled"] = filled
    with pytest.raises(PrivacyError, match="sent zeros"):
        ClientLedger.from_dict(body)
    with pytest.raises(PrivacyError, match="sent zeros"):
        larger_spend([body, body])
    path = tmp_path / "ledger.json"
    digest = sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({"ledger": body, "sha256": digest}))
    with suppress(AuditError):
        (finding,) = audit_node_ledger(path).findings
        assert "filled" in finding
