"""Tests of a lying server: with as many colluders as a run tolerates, it learns no more than was charged.

Each attack is a run in which the server tells one to three kinds of lies, drawn by lot. What it learns is
computed from the noise in the sums that nodes let it have, and compared with their ledgers. So these tests
need not know what nodes check.
"""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest

from conf.load import load
from gdpfed.clients.configured import order_of, task_of
from gdpfed.clients.messages import RoundOfRun
from gdpfed.clients.order import TrainingOrder
from gdpfed.errors import PrivacyError
from gdpfed.federation.node import budget, sum_stages
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.methods import make_method
from gdpfed.privacy.correlated_noise import densest_turns
from gdpfed.privacy.ledgers.terms import terms_of
from gdpfed.privacy.mechanisms.scheduled.mechanism import ScheduledSums
from gdpfed.privacy.mechanisms.scheduled.terms import ScheduledTerms
from gdpfed.privacy.mechanisms.scheduled.turns import TurnSchedule
from secagg import SumParameters
from testing.gaussian_dp import mu_of
from testing.lying_server import AskedSum, LyingServer

CLIENTS, ROUNDS, PERIOD, DELTA = 15, 6, 3, 1e-3
# The run's tolerance, and colluders of whom no round's members have more than that.
COLLUDERS = ((0.0, ()), (0.1, (4,)), (0.2, (0, 1, 2)), (0.2, (3, 7)), (0.4, (0, 3, 1, 4, 2, 5)))
LIES = (
    *("other noise", "other rounds", "other taps", "other tolerance", "other schedule", "fewer turns"),
    *(
        "colluders uncounted",
        "colluders who correct",
        "a stranger",
        "less noise",
        "a larger norm",
        "later taps",
    ),
    *("twice", "out of order", "no digest", "another round", "a split sum", "back again", "a low threshold"),
    *("members held back", "members lost", "more may be lost", "begun again"),
)


@cache
def honest(tolerance: float) -> tuple[ScheduledTerms, TurnSchedule, TrainingOrder, int]:
    """Return the terms, schedule, training order and number of parameters that an honest server states."""
    config = load(
        [
            *("dataset=digits", f"dataset.num_clients={CLIENTS}", "method=dp_fedavg", "privacy.budgets=[8]"),
            *("privacy.against=everyone", f"run.num_rounds={ROUNDS}", f"privacy.sampling_rate={1 / PERIOD}"),
        ]
    )
    method, task = make_method(config), task_of(config)
    schedule, order = (
        method.plan.made_by(ScheduledSums).schedule(0, method.plan.groups),
        order_of(config, task),
    )
    terms = terms_of(
        method.plan,
        0,
        "run",
        dropout_tolerance=0.2,
        corrupt_tolerance=tolerance,
        schedule=schedule.to_text(),
        task=order.task.digest,
    )
    assert isinstance(terms, ScheduledTerms)
    assert any(terms.noise_taps)
    return terms, schedule, order, task.dimension


def other_terms(terms: ScheduledTerms, lies: Collection[str], lot: Random) -> ScheduledTerms:
    """Return the terms with the changes that `lies` names; changes that make them invalid are left out."""
    event = terms.event
    try:
        if "other noise" in lies:
            scale = lot.choice((0.001, 0.1, 100.0))
            event = replace(
                event, noise_stddev=event.noise_stddev * scale, clipping_norm=event.clipping_norm * scale
            )
        if "other taps" in lies:
            event = replace(event, taps=lot.choice(((0.9,), (0.3,), (0.5, 0.2), (0.0, 0.6), ())))
        if "other rounds" in lies:
            rounds = lot.choice((4, 5, 9))
            turns = densest_turns(terms.most_turns, terms.separation, rounds)
            event = replace(event, num_rounds=rounds, turns=turns)
        if "other tolerance" in lies:
            terms = replace(terms, corrupt_tolerance=lot.choice((0.0, 0.1, 0.5)))
        if "other schedule" in lies:
            first = lot.randrange(1, CLIENTS)
            shifted = f"[[{PERIOD}, 1, [[{first}, {CLIENTS - 1}, 1], [0, {first - 1}, 1]]]]"
            terms = replace(terms, schedule=TurnSchedule.from_text(shifted).to_text())
        charge = terms.charges[0]
        if "fewer turns" in lies:
            one = replace(charge, event=replace(event, turns=event.turns[:1]))
            return replace(terms, most_turns=1, charges=(one,))
        return replace(terms, charges=(replace(charge, event=event),))
    except PrivacyError:
        return terms


@dataclass
class Attack:
    """One run of a server that tells the lies in `lies`, each in about half of the rounds.

    `agreed`: the terms of each honest node that has begun the run. `took`: rounds with the clients whose
    updates went into them.
    """

    server: LyingServer
    lies: frozenset[str]
    lot: Random
    tolerance: float
    feared: float
    agreed: dict[int, ScheduledTerms] = field(default_factory=dict)
    lie: ScheduledTerms = field(init=False)
    took: set[tuple[int, int]] = field(default_factory=set)

    def tells(self, lie: str) -> bool:
        return lie in self.lies and self.lot.random() < 0.5

    def run(self) -> None:
        truth = honest(self.tolerance)[0]
        self.lie = lie = other_terms(truth, self.lies, self.lot)
        by_turn = [lie if self.lot.random() < 0.5 else truth for _ in range(PERIOD)]
        for client in self.server.nodes:
            if self.server.begin(client, by_turn[client % PERIOD]):
                self.agreed[client] = by_turn[client % PERIOD]
        rounds = list(range(max(each.num_rounds for each in by_turn)))
        if "out of order" in self.lies:
            first = self.lot.randrange(len(rounds) - 1)
            rounds[first], rounds[first + 1] = rounds[first + 1], rounds[first]
        if "twice" in self.lies:
            again = self.lot.randrange(1, len(rounds))
            rounds.insert(again, rounds[again - 1])
        for index in rounds:
            for updates, correctors in self.members(index):
                self.ask(index, updates, correctors)

    def members(self, index: int) -> Iterator[tuple[list[int], list[int]]]:
        """Yield each sum of a round: the members with an update, and those that only remove earlier noise."""
        schedule, lot = honest(self.tolerance)[1], self.lot
        updates = sorted(schedule.due(index))
        if self.tells("a stranger"):
            updates[0] = lot.choice(sorted(set(range(CLIENTS)) - set(updates)))
        if self.tells("members held back"):
            updates = [client for client in updates if client not in self.server.nodes or lot.random() < 0.5]
        correctors = set(schedule.due(index - 1))
        if self.tells("back again"):
            correctors |= schedule.due(index - 2)
        correctors = {
            each
            for each in correctors
            if each not in self.server.nodes or {(index - 1, each), (index - 2, each)} & self.took
        }
        if self.tells("colluders who correct"):
            correctors |= set(range(CLIENTS)) - self.server.nodes.keys()
        others = sorted(correctors - set(updates))
        if not self.tells("a split sum"):
            yield updates, others
            return
        lot.shuffle(updates)
        for part in range(2):
            yield updates[part::2], others if self.tells("back again") else others[part::2]

    def ask(self, index: int, updates: list[int], correctors: list[int]) -> None:
        """Ask for one sum with the least noise that its members' terms allow, and with some of the lies."""
        truth, schedule, order, dimension = honest(self.tolerance)
        theirs = [self.agreed[each] for each in (*updates, *correctors) if each in self.agreed]
        if not theirs or len(updates) < 2:
            return
        terms, members = theirs[0], len(updates) + len(correctors)
        with_update = [self.agreed[each] for each in updates if each in self.agreed] or theirs
        again = dict.fromkeys(self.agreed.keys() & updates, self.lie) if self.tells("begun again") else {}
        norm = min(each.event.clipping_norm for each in (*with_update, *again.values()))
        stddev = max(each.event.noise_stddev for each in theirs)
        told = max(0, index - 1) if self.tells("another round") else index
        corrupt = ceil(terms.corrupt_tolerance * max(members, schedule.members(index, terms.noise_taps)))
        if self.tells("colluders uncounted"):
            corrupt = max(0, corrupt - self.lot.choice((1, 2, 9)))
        threshold = (members + max(corrupt, ceil(self.feared * members))) // 2 + 1
        if self.tells("a low threshold"):
            threshold = max(members // 2 + 1, threshold - 1)
        dropouts = min(members - 1 - threshold, len(updates) // 5, len(updates) - max(1, corrupt) - 1)
        dropouts = max(0, dropouts) + self.tells("more may be lost")
        stddev *= 0.3 if self.tells("less noise") else 1
        norm *= 3 if self.tells("a larger norm") else 1
        back = max((*terms.noise_taps, 0.0)) * 4 * max(stddev, truth.event.noise_stddev) / norm
        agreed = terms.stream
        label = f"run/1/round {index if self.tells('another round') else told}/all"
        label += f"/agreed {agreed.digest}" if agreed and not self.tells("no digest") else ""
        try:
            parameters = SumParameters(
                label=label,
                num_clients=members,
                threshold=threshold,
                dropout_tolerance=dropouts,
                corrupt_tolerance=corrupt,
                dimension=dimension,
                clipping_norm=norm,
                noise_multiplier=stddev / norm,
                mode="active",
                num_correctors=len(correctors),
                correction_multiplier=back if correctors or told else 0.0,
            )
        except ValueError:
            return
        taps = (0.1,) if self.tells("later taps") else terms.noise_taps
        lags = (1, 2) if self.tells("back again") else tuple(range(1, len(terms.noise_taps) + 1))
        sent = self.server.ask(
            AskedSum(
                RoundOfRun("run", told),
                parameters,
                dict.fromkeys(updates, replace(order, round_index=told, taps=taps, clipping_norm=norm)),
                correctors,
                {
                    each: [told - lag for lag in lags if (told - lag, each) in self.took]
                    for each in (*updates, *correctors)
                },
                updates[:1] if self.tells("members lost") else (),
                begun_again=again,
            )
        )
        self.took |= {(told, client) for client, each in sent.items() if each.norm}
        for client in self.agreed.keys() & set(updates):
            # A node that forgot the run may have refused to begin it on other terms.
            del self.agreed[client]
            if isinstance(now := self.server.agreed(client, "run"), ScheduledTerms):
                self.agreed[client] = now


def attack(folder: Path, seed: int, lies: Collection[str] = ()) -> tuple[float, bool]:
    """Run an attack; return the largest ratio of mu learned to mu charged, and whether colluders unmask sums.

    Only honest clients count whose terms tolerate as many colluders as there are.
    """
    folder.mkdir(exist_ok=True)
    lot = Random(seed)
    tolerance, colluders = lot.choice(COLLUDERS)
    feared = tolerance if lot.random() < 0.5 else 0.0
    lies = lies or lot.sample(LIES, lot.choice((1, 2, 3)))
    told = Attack(server_in(folder, colluders, feared), frozenset(lies), lot, tolerance, feared)
    told.run()
    return learned(told)


def server_in(folder: Path, colluders: Collection[int] = (), feared: float = 0.0) -> LyingServer:
    own = {"epsilon": 40.0, "delta": DELTA, "minimum-cohort": 3, "corrupt-fraction": feared}
    return LyingServer(folder, CLIENTS, colluders, own)


def learned(told: Attack) -> tuple[float, bool]:
    """Return the two values that `attack` returns, for an attack that has already run."""
    tolerance = told.tolerance
    promised = [client for client, terms in told.agreed.items() if terms.corrupt_tolerance >= tolerance]
    ratios = [0.0]
    for client in promised:
        with locked_ledger(*budget.places_of(told.server.nodes[client].settings.budgets)) as file:
            if any(run.rounds for run in file.ledger.runs):
                paid = mu_of(file.ledger.epsilon_against_server(DELTA), DELTA)
                # Without colluders a member still knows its own noise, and sees what is released.
                one = [()] if tolerance else [(other,) for other in told.agreed if other != client]
                ratios.append(max(told.server.mu(client, known) for known in one) / paid)
    return max(ratios), any(sent.keys() & set(promised) for sent in told.server.opened)


ACCOUNTING = 1.005
"""A ledger's epsilon is computed on a grid of losses, and up to this factor from the closed form."""


def is_held(folder: Path, seed: int, lies: Collection[str] = ()) -> bool:
    ratio, opened = attack(folder, seed, lies)
    return ratio <= ACCOUNTING and not opened


@pytest.mark.parametrize("seed", range(int(os.environ.get("LYING_SERVERS", "8"))))
def test_a_server_that_lies_learns_no_more_than_its_nodes_have_charged(tmp_path, seed):
    assert is_held(tmp_path, seed)


def test_a_server_without_any_sum_learns_nothing(tmp_path):
    assert server_in(tmp_path).mu(0) == 0.0


REMOVED = {
    "terms of all members": (sum_stages, "check_agreed", 0, "other noise"),
    "schedule": (sum_stages, "check_schedule", 7, "colluders who correct"),
    "noise": (budget, "_broken_term", 0, "less noise"),
    "norm": (ScheduledTerms, "broken_by", 0, "a larger norm"),
}


@pytest.mark.parametrize("check", REMOVED)
def test_without_a_check_of_the_nodes_such_servers_are_found(tmp_path, check):
    place, name, seed, lie = REMOVED[check]
    assert is_held(tmp_path / "with", seed, [lie])
    with patch.object(place, name, lambda *arguments: ""):
        assert not is_held(tmp_path / "without", seed, [lie])


class Always(Random):
    """A random generator that always returns 0, and therefore always chooses the first element."""

    def random(self) -> float:
        return 0.0


def test_terms_do_not_change_between_two_stages_of_a_sum(tmp_path):
    """A server that offers other terms between two stages of a sum learns no more than nodes are charged.

    Without the check the clients of round 0 are charged mu 0.5, and a server learns 100 of it: those of
    round 1 send keys under the terms of all, and their noise back in a sum with 1,000 times less of it.
    """
    truth, schedule, *_ = honest(0.0)
    weak = other_terms(truth, ["other noise"], Always())
    told = Attack(server_in(tmp_path), frozenset(["begun again"]), Always(), 0.0, 0.0)
    told.lie = weak
    told.agreed = {client: weak if client in schedule.due(2) else truth for client in range(CLIENTS)}
    assert all(told.server.begin(client, agreed) for client, agreed in told.agreed.items())
    for index in range(PERIOD):
        told.lies = frozenset(["begun again"] if index == 1 else [])
        for updates, correctors in told.members(index):
            told.ask(index, updates, correctors)
    assert len(told.server.sums) >= 1
    ratio, opened = learned(told)
    assert ratio <= ACCOUNTING
    assert not opened
