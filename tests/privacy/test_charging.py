"""Tests of how a server's ledger charges requests for sums: only requests that were charged are summed."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from gdpfed.errors import PrivacyError
from gdpfed.privacy.ledgers.charged import ChargedSum, ExpectedSum, PlainCopies
from gdpfed.privacy.ledgers.server import Ledger
from gdpfed.privacy.mechanisms.sampled.planner import make_plan, plain_plan
from gdpfed.privacy.planning.groups import groups_from_shares
from gdpfed.privacy.release import NoiseAt, Release

GROUPS = groups_from_shares(20, (1.0, 3.0))
SETTINGS: dict[str, Any] = {"groups": GROUPS, "num_rounds": 2, "sampling_rate": 0.5}
ONE = make_plan(**SETTINGS, clipping_norm=1.0, accountant="rdp", delta=1e-2, renyi_orders="whole")
TWO = make_plan(
    **SETTINGS, clipping_norm=1.0, accountant="rdp", delta=1e-2, renyi_orders="whole", sums_per_round=2
)
OPEN = plain_plan(**SETTINGS)
COHORTS = [np.arange(5), np.arange(GROUPS[1].clients[0], GROUPS[1].clients[0] + 5)]


def test_a_sample_is_a_secret_where_epsilon_rests_on_it():
    assert ONE.sample_is_secret
    assert not OPEN.sample_is_secret
    everybody = make_plan(
        **SETTINGS | {"sampling_rate": 1.0},
        clipping_norm=1.0,
        accountant="rdp",
        delta=1e-2,
        renyi_orders="whole",
    )
    assert not everybody.sample_is_secret


def ledger_of(plan=ONE):
    ledger = Ledger(plan, "method mine")
    ledger.open_round(0, COHORTS)
    return ledger


def request(group=0, plan=ONE, **changes):
    round_range = plan.groups[group].ranges[0]
    values = {
        "name": f"group {group}",
        "clients": COHORTS[group],
        "clipping_norm": round_range.clipping_norm,
        "noise_multiplier": round_range.noise_multiplier,
        "noise_at": NoiseAt.CLIENT if plan.private else NoiseAt.NOWHERE,
    }
    return Release(**values | changes)


def names(charged):
    return [each.take().name for each in charged]


def test_what_is_charged_comes_in_order_and_is_taken_once():
    charged = ledger_of().charge(0, [request(1), request(0)])
    assert [each.round_index for each in charged] == [0, 0]
    assert names(charged) == ["group 1", "group 0"]
    with pytest.raises(PrivacyError, match="round 0: group 1 has been summed already; it was charged once"):
        charged[0].take()


@pytest.mark.parametrize("made", [ChargedSum, ExpectedSum])
def test_nobody_else_makes_them(made):
    with pytest.raises(PrivacyError, match="group 0: a .* a ledger: take"):
        made(object(), request(), 0)


def test_one_refusal_charges_nothing_of_a_list():
    ledger = ledger_of()
    with pytest.raises(PrivacyError, match="method mine, round 0, group 1: noise of standard deviation"):
        ledger.charge(0, [request(0), request(1, noise_multiplier=0.1)])
    assert names(ledger.charge(0, [request(0), request(1)])) == ["group 0", "group 1"]


def test_requests_are_read_once():
    """The ledger reads requests only once, so that what it checks is what it charges."""

    class Changing(list[None]):
        def __iter__(self):
            yield from ([request(0)] if not self else [request(0, noise_multiplier=0.0)])
            self.append(None)

    (charged,) = ledger_of().charge(0, Changing())
    assert charged.take().noise_multiplier == ONE.groups[0].noise_multiplier
    assert names(ledger_of().charge(0, (each for each in [request(0)]))) == ["group 0"]


@pytest.mark.parametrize("when", ["never opened", "another", "closed", "restored"])
def test_a_sum_is_charged_in_an_open_round_only(when):
    ledger = Ledger(ONE, "method mine") if when == "never opened" else ledger_of()
    if when == "closed":
        ledger.close_round()
    if when == "restored":
        ledger = Ledger.from_dict(ONE, ledger.to_dict(), "method mine")
    index = 1 if when == "another" else 0
    with pytest.raises(
        PrivacyError, match=f"method mine, round {index}, group 0, more: the round is not open"
    ):
        ledger.charge(index, [request(), request(name="more")])


def test_a_plan_of_two_sums_has_two_and_no_third():
    ledger = ledger_of(TWO)
    assert TWO.groups[0].noise_multiplier > 1.3 * ONE.groups[0].noise_multiplier
    with pytest.raises(PrivacyError, match="noise of standard deviation"):
        ledger.charge(0, [request(0)])
    first, second = (request(0, TWO, name=name) for name in ("first", "second"))
    assert names(ledger.charge(0, [first]) + ledger.charge(0, [second])) == ["first", "second"]
    with pytest.raises(PrivacyError, match="third: client 4 is in 2 sums of this round already"):
        ledger.charge(0, [request(0, TWO, name="third", clients=np.array([4]))])


def test_parts_of_a_cohort_and_groups_together_are_what_was_drawn():
    ledger = ledger_of()
    strictest = ONE.groups[0].noise_multiplier
    both = np.concatenate([COHORTS[0][:2], COHORTS[1]])
    together = request(0, name="both", clients=both, noise_multiplier=strictest)
    assert names(ledger.charge(0, [together])) == ["both"]
    assert names(ledger.charge(0, [request(0, clients=COHORTS[0][2:])])) == ["group 0"]
    weaker = replace(together, noise_multiplier=ONE.groups[1].noise_multiplier)
    with pytest.raises(PrivacyError, match="both: noise of standard deviation"):
        ledger_of().charge(0, [weaker])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clipping_norm": nan}, "clipping_norm is nan; it must be above 0"),
        ({"clipping_norm": 0.0}, "clipping_norm is 0.0; it must be above 0"),
        ({"noise_multiplier": nan}, "noise_multiplier is nan; it must be finite and not negative"),
        ({"noise_multiplier": inf}, "noise_multiplier is inf; it must be finite"),
        ({"noise_multiplier": -9.0}, "noise_multiplier is -9.0"),
        ({"clipping_norm": inf}, "without a clipping_norm; noise needs a finite one"),
        ({"clipping_norm": inf, "noise_multiplier": 0.0}, "may contribute a norm of inf, above the plan's 1"),
        ({"client_weights": np.full(5, 1.01)}, "a norm of 1.01, above the sum's clipping_norm of 1"),
        ({"client_clipping_norms": np.full(5, 3.0)}, "a norm of 3, above the sum's clipping_norm of 1"),
        (
            {"client_clipping_norms": np.full(5, 0.9), "client_weights": np.full(5, 1.5)},
            "a norm of 1.35, above the sum's clipping_norm of 1",
        ),
    ],
)
def test_numbers_that_bound_nothing_are_refused(changes, words):
    with pytest.raises(PrivacyError, match=f"method mine, round 0, group 0: .*{words}"):
        ledger_of().charge(0, [request(**changes)])


@pytest.mark.parametrize(
    "changes",
    [
        {"client_weights": np.linspace(0.1, 1.0, 5)},
        {"client_weights": np.full(5, 2.0), "client_clipping_norms": np.full(5, 0.5)},
        {"client_weights": np.full(5, 3.0), "client_clipping_norms": np.full(5, 1 / 3) + 1e-17},
        {"clipping_norm": 0.5, "noise_multiplier": 2 * ONE.groups[0].noise_multiplier},
        {"noise_multiplier": 9.0},
    ],
)
def test_what_moves_the_sum_no_further_than_planned_is_charged(changes):
    assert names(ledger_of().charge(0, [request(**changes)])) == ["group 0"]


@pytest.mark.parametrize("weights", [np.ones(4), np.zeros(5), -np.ones(5), np.full(5, nan), np.full(5, inf)])
def test_weights_are_one_a_client_and_positive(weights):
    with pytest.raises(PrivacyError, match="group 0: client_weights must be 5 finite numbers above 0"):
        request(client_weights=weights)


def test_without_privacy_norms_are_free_and_counts_are_not():
    free = request(0, OPEN, client_weights=np.full(5, 7.0))
    ledger = ledger_of(OPEN)
    assert names(ledger.charge(0, [free])) == ["group 0"]
    with pytest.raises(PrivacyError, match="again: client 0 is in 1 sums of this round already"):
        ledger.charge(0, [replace(free, name="again")])
    with pytest.raises(PrivacyError, match="client 7 was not drawn"):
        ledger.charge(0, [request(0, OPEN, name="other", clients=np.array([7]))])
    with pytest.raises(PrivacyError, match="the plan charges update, not statistics"):
        ledger_of(OPEN).charge(0, [replace(free, work="statistics")])


def test_what_is_expected_is_checked_and_not_charged():
    ledger = ledger_of()
    before = ledger.to_dict()
    (expected,) = ledger.expect(1, COHORTS, [request(0)])
    assert (expected.request.name, expected.round_index) == ("group 0", 1)
    assert not hasattr(expected, "take")
    with pytest.raises(PrivacyError, match="method mine, round 1, group 0: client 9 was not drawn"):
        ledger.expect(1, COHORTS, [request(0, clients=np.array([9]))])
    with pytest.raises(PrivacyError, match="round 2 cannot be summed now; the next round is 1"):
        ledger.expect(2, COHORTS, [request(0)])
    with pytest.raises(PrivacyError, match="client 12 is not in group 0"):
        ledger.expect(1, [np.array([12]), COHORTS[1]], [request(0)])
    assert ledger.to_dict() == before
    assert names(ledger.charge(0, [request(0)])) == ["group 0"]


class Loud(float):
    """A float whose product with any number is 1,000."""

    def __mul__(self, other):
        return 1e3

    __rmul__ = __mul__


class Listed(np.ndarray):
    """An array of clients whose `tolist` returns other clients than the array holds."""

    def tolist(self):
        return COHORTS[0].tolist()


def test_no_subclass_of_a_request_is_charged():
    """The ledger refuses a subclass of a request, which could state a noise that it does not have."""

    class Claims(Release):
        noise_stddev = property(lambda self: 1e3)

    quiet = ONE.groups[0].noise_multiplier / 50
    values = vars(request(0, noise_multiplier=quiet))
    with pytest.raises(
        PrivacyError, match="a Claims is not a request for a sum; make a Release, not a subclass"
    ):
        ledger_of().charge(0, [Claims(**values)])


def test_what_is_stored_is_checked_and_not_what_it_says():
    quiet = Loud(ONE.groups[0].noise_multiplier / 50)
    with pytest.raises(PrivacyError, match="noise of standard deviation .* is below the plan's"):
        ledger_of().charge(0, [request(noise_multiplier=quiet)])
    with pytest.raises(PrivacyError, match="was not drawn in this round"):
        ledger_of().charge(0, [request(clients=np.arange(5, 10).view(Listed))])


def test_what_is_summed_is_a_copy_of_exact_types_that_nobody_can_change():
    norms = np.full(5, ONE.groups[0].clipping_norm)
    asked = request(clients=COHORTS[0].copy(), client_clipping_norms=norms, noise_multiplier=Loud(1e3))
    (charged,) = ledger_of().charge(0, [asked])
    norms *= 100
    asked.clients[:] = 9
    paid = charged.take()
    assert paid.contribution_norms.tolist() == [ONE.groups[0].clipping_norm] * 5
    assert paid.clients.tolist() == COHORTS[0].tolist()
    assert type(paid.noise_multiplier) is float
    for array in (paid.clients, paid.client_clipping_norms):
        assert type(array) is np.ndarray
        assert not array.flags.writeable


@pytest.mark.parametrize("value", [object(), np.array([object()]), {"a": 1}])
def test_a_value_without_a_plain_form_is_refused(value):
    with pytest.raises(PrivacyError, match=r"request 0.least_norm is a \w+: give a number"):
        PlainCopies(Release).of(value, "request 0.least_norm")


def test_a_fleet_compares_what_it_is_about_to_sum_with_the_charge():
    (charged,) = ledger_of().charge(0, [request()])
    norms, noise = charged.request.contribution_norms, charged.request.noise_stddev
    charged.check(range(5), norms, noise)
    for clients, bounds, stddev, said in (
        (range(6), norms, noise, "over other clients"),
        (range(5), 2 * norms, noise, "with norms up to"),
        (range(5), norms * nan, noise, "with norms up to"),
        (range(5), norms, noise / 2, "with noise of standard deviation"),
        (range(5), norms, nan, "with noise of standard deviation"),
    ):
        with pytest.raises(PrivacyError, match=said):
            charged.check(clients, bounds, stddev)
