"""Tests of a private histogram of update norms: its cost, the budget left for rounds, and refusals."""

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
from gdpfed.methods.norm_histogram import norm_request
from gdpfed.privacy.ledgers.client import ClientLedger
from gdpfed.privacy.ledgers.server import Ledger
from gdpfed.privacy.ledgers.terms import Terms, terms_of
from gdpfed.privacy.sums_once import NormHistogram, Vote
from gdpfed.record_steps import RecordSteps
from gdpfed.report.plan_lines import norm_lines
from gdpfed.rounds.extensions.norms_result import UpdateNorms, shares_within

SHARE = "privacy.norm_histogram_share=0.1"
RUN = (
    *("dataset=digits", "dataset.num_clients=60", "method=dp_fedavg", "run.num_rounds=5"),
    *("privacy.against=outsiders", "privacy.sampling_rate=1", "privacy.budgets=[1,3]"),
)
KINDS = (SumRequest, RecordSteps)


def method_of(*overrides):
    told = {each.partition("=")[0]: each for each in (*RUN, *overrides)}
    return make_method(load([*told.values()]))


METHOD: Any = method_of(SHARE)
PLAN = METHOD.plan
COHORTS = [np.asarray(group.clients) for group in PLAN.groups]


def request(**changes):
    return replace(norm_request(METHOD, np.zeros(650, np.float32), range(60)), **changes)


def terms(run, plan=PLAN):
    return terms_of(plan, 0, run, dropout_tolerance=0.1, corrupt_tolerance=0.0)


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
@pytest.mark.parametrize(
    "words", [("privacy.sampling_rate=0.2",), ("method=gdpfed", "privacy.against=everyone")]
)
def test_norms_and_rounds_spend_every_budget_by_another_librarys_composition(words, adjacency):
    """The histogram of norms and the rounds together spend each budget, by dp-accounting's composition."""
    plan = method_of(SHARE, *words, f"privacy.adjacency={adjacency}").plan
    distance = 1.0 if adjacency == "zero_out" else 2.0
    moved = (1.0 if adjacency == "zero_out" else math.sqrt(2)) / plan.first.noise_stddev
    relation = {"zero_out": "REPLACE_SPECIAL", "replace_one": "REPLACE_ONE"}[adjacency]
    norms = privacy_loss_distribution.from_gaussian_mechanism(1 / moved, value_discretization_interval=1e-3)
    assert plan.first.epsilon == pytest.approx(dp.get_epsilon_gaussian(1 / moved, plan.delta), rel=1e-4)
    for index, group in enumerate(plan.groups):
        if plan.against == "everyone":
            (charge,) = plan.charges(index)
            turns = distance * charge.event.sensitivity * group.clipping_norm / group.noise_stddev
            spent = dp.get_epsilon_gaussian(1 / math.hypot(turns, moved), plan.delta)
        else:
            rounds = privacy_loss_distribution.from_gaussian_mechanism(
                group.noise_multiplier,
                sampling_prob=group.sampling_rate,
                neighboring_relation=dp.NeighboringRelation[relation],
                value_discretization_interval=1e-3,
            )
            spent = rounds.self_compose(plan.num_rounds).compose(norms).get_epsilon_for_delta(plan.delta)
        assert group.epsilon * 0.98 < spent <= group.epsilon * 1.005
        assert plan.epsilon_after(index, plan.num_rounds) == pytest.approx(group.epsilon_accounted, rel=1e-6)


def test_the_histogram_takes_its_part_from_the_rounds_and_from_what_is_shown():
    without: Any = method_of().plan
    # All is one Gaussian here, of whose mu^2 the least budget gives a tenth.
    ratio = without.groups[0].noise_multiplier / PLAN.groups[0].noise_multiplier
    assert ratio**2 == pytest.approx(0.9, rel=1e-3)
    assert PLAN.epsilon_after(0, 0) == PLAN.epsilon_against_members(0, 0) == pytest.approx(PLAN.first.epsilon)
    assert PLAN.fingerprint() != without.fingerprint()
    assert without.to_dict().keys() == PLAN.to_dict().keys() - {"norm_histogram"}
    (line,) = norm_lines(PLAN)
    assert f"epsilon {PLAN.first.epsilon:.3g} by itself" in line
    # 1.96 s sqrt(3 * 2 / 5) / n, in points.
    assert f"up to {214.7 * PLAN.first.noise_stddev / 60:.2g} points" in line


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_against_members_the_histogram_and_turns_are_one_gaussian_whatever_accounts_the_rounds(accountant):
    """Against members, the histogram of norms and a client's sums are charged as one Gaussian release."""
    plan = method_of(SHARE, "privacy.sampling_rate=0.2", f"privacy.accountant={accountant}").plan
    for index, group in enumerate(plan.groups):
        turns = group.participations_p99
        mu = math.hypot(1 / plan.first.noise_stddev, math.sqrt(turns) / group.noise_multiplier)
        exact = dp.get_epsilon_gaussian(1 / mu, plan.delta)
        assert plan.epsilon_against_members(index, turns) == pytest.approx(exact, rel=1e-4)
        assert group.epsilon_against_server == pytest.approx(exact, rel=1e-4)


def test_a_ledger_charges_the_histogram_once_and_no_round_before_it():
    ledger = Ledger(PLAN, kinds=KINDS)
    with pytest.raises(PrivacyError, match="norms of updates are counted first, and were not"):
        ledger.open_round(0, COHORTS)
    for changes, words in (
        ({"noise_multiplier": PLAN.first.noise_stddev / 2}, "below the plan's"),
        ({"clients": np.arange(1, 61)}, "not in the plan"),
        ({"client_weights": np.full(60, 2.0)}, "count alike"),
        ({"work": "vote_by_rounds"}, "vote on settings once"),
        ({"work": "update"}, "or never"),
    ):
        with pytest.raises(PrivacyError, match=words):
            ledger.charge_once(request(**changes))
    ledger.charge_once(request())
    for again in (ledger, Ledger.from_dict(PLAN, ledger.to_dict(), kinds=KINDS)):
        with pytest.raises(PrivacyError, match="counted once, before its first round, or never"):
            again.charge_once(request())
    ledger.open_round(0, COHORTS)
    with pytest.raises(PrivacyError, match="or never"):
        ledger.charge_once(request())
    with pytest.raises(PrivacyError, match="the plan charges update, not norm_histogram"):
        ledger.charge(0, [request()])
    with pytest.raises(PrivacyError, match="or never"):
        Ledger(method_of().plan, kinds=KINDS).charge_once(request())


def test_a_node_pays_for_norms_and_rounds_and_says_its_norm_once():
    ledger, first = ClientLedger(), terms("one")
    assert Terms.from_scalars(first.to_scalars()) == first
    cost, delta = ledger.epsilon(PLAN.delta, also=first), PLAN.delta
    assert cost == pytest.approx(1.0, rel=0.02)
    assert ledger.epsilon(delta, also=replace(first, norm_histogram=())) < 0.97 * cost
    ledger.begin(first, epsilons=[1.0], delta=delta)
    index = NormHistogram.index(5)
    assert index not in (*range(5), Vote.index(5))
    seen = ledger.epsilon_against_server(delta, one_more_in=("one", index))
    ledger.charge("one", index)
    with pytest.raises(PrivacyError, match="has had its norm counted already"):
        ledger.charge("one", index)
    with pytest.raises(PrivacyError, match="beyond the 5 of its terms"):
        ledger.charge("one", Vote.index(5))
    assert ledger.epsilon_against_server(delta) == pytest.approx(seen) == pytest.approx(PLAN.first.epsilon)
    kept = ClientLedger.from_dict(ledger.to_dict())
    assert kept.run("one").sent == {"norm_histogram"}
    assert kept.epsilon(delta) == pytest.approx(cost)


def test_terms_with_a_cheaper_histogram_are_refused():
    (charge,) = terms("one").norm_histogram
    for wrong in (
        replace(charge, count=2),
        replace(charge, event=replace(charge.event, clipping_norm=0.5)),
        replace(charge, event=replace(charge.event, noise_stddev=0.0)),
    ):
        with pytest.raises(PrivacyError, match="norm_histogram is not one noised sum"):
            replace(terms("one"), norm_histogram=(wrong,))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["privacy=record_level", "method=dp_sum"], "privacy.unit=record clips gradients"),
        (["privacy.clipping=adaptive"], "privacy.clipping=adaptive, which follows the norms by itself"),
        (["training.vote={learning_rate:[0.1,1]}"], "chooses the step"),
        (["method=fedavg"], "does not go with method=fedavg"),
        (["privacy.sampling=allocation", "privacy.sampling_rate=0.2"], "privacy.sampling=allocation"),
        (["secagg=off"], "bins of norms are seen in one sum, and secagg=off shows each"),
        (["privacy.noise=discrete_gaussian"], "privacy.noise=discrete_gaussian has no proof"),
        (["privacy.accountant=theorem1"], "privacy.accountant=theorem1 has no proof"),
        (["run.mailbox=/tmp/box"], "does not go with run.mailbox"),
        (["privacy.norm_histogram_share=1"], "privacy.norm_histogram_share=1.0 must be in"),
    ],
)
def test_a_histogram_that_is_not_proved_is_refused_in_one_line(overrides, words):
    with pytest.raises((ConfigError, InputError), match=words) as error:
        method_of(SHARE, *overrides)
    assert "\n" not in str(error.value)


def test_intervals_hold_as_often_as_they_say_and_shares_are_exact_without_noise():
    true, clients, noise = np.array([90.0, 60.0, 30.0, 15.0, 5.0]), 200, 10.0
    shares = np.cumsum(true)[:-1] / clients
    exact = np.array(shares_within(true.tolist(), 0.0, clients))
    assert exact == pytest.approx(np.repeat(shares[:, None], 3, axis=1))
    drawn = true + np.random.default_rng(1).normal(0, noise, (2000, 5))
    found = np.array([shares_within(each.tolist(), noise, clients) for each in drawn])
    held = ((found[..., 1] <= shares) & (shares <= found[..., 2])).mean(axis=0)
    # Five standard deviations of a share of 2000 draws are 0.024; cutting to [0, 1] loses none.
    assert (abs(held - 0.95) < 0.024).all()
    assert found[..., 0].mean(axis=0) == pytest.approx(shares, abs=0.01)


@pytest.mark.parametrize(
    ("counts", "noise", "words"),
    [
        ([10, 20, 160, 5, 5], 1.0, "95 % (94 to 96) of 200 clients' first updates are within half of"),
        ([0, 190, 5, 3, 2], 1.0, "privacy.clipping_norm=0.5 has a quarter of it under the same promise"),
        ([10, 20, 160, 5, 5], 40.0, "nobody knows whether it is too large"),
        ([5, 5, 10, 90, 90], 1.0, "it is not too large for them"),
    ],
)
def test_what_is_said_follows_from_what_is_known(counts, noise, words):
    within = shares_within(counts, noise, 200)
    found = UpdateNorms(200, noise, 2.0, (1 / 8, 1 / 4, 1 / 2, 1.0), counts, within)
    assert words in found.summary
    assert (found.advice != "") == (found.fitting is not None) == ("has" in found.summary)
