"""Tests of a node that removes parts of its noise in later rounds: each part once, even after crashes."""

import json
import os
import shutil
import time
from dataclasses import replace
from typing import Any

import pytest

from conf.load import load
from gdpfed.audit.node_audit import node_entry
from gdpfed.clients.keyed_noise import KeyedNoise, NoiseShare
from gdpfed.clients.messages import RoundOfRun
from gdpfed.errors import PrivacyError
from gdpfed.federation.node import budget
from gdpfed.federation.node.budget import BudgetRefusedError
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.federation.node.node_settings import Node, NodeSettings
from gdpfed.federation.node.noise_shares import (
    NO_CORRECTION,
    Correction,
    check_correction,
    forget_shares,
    keep_share,
    take_back,
    taken_back,
)
from gdpfed.methods import make_method
from gdpfed.privacy.ledgers.client import ClientLedger
from gdpfed.privacy.ledgers.terms import terms_of
from gdpfed.privacy.mechanisms.scheduled.terms import ScheduledTerms
from secagg import RemoteProtocolError
from testing.secagg_sums import make_parameters

PLAN = make_method(
    load(
        [
            *("dataset=digits", "method=dp_fedavg", "privacy.against=everyone", "privacy.budgets=[2]"),
            *("run.num_rounds=6", "privacy.sampling_rate=0.34", "privacy.noise_taps=2"),
        ]
    )
).plan
TERMS = terms_of(PLAN, 0, "run", dropout_tolerance=0.0, corrupt_tolerance=0.0)
assert isinstance(TERMS, ScheduledTerms)
APART, TAPS = 3, TERMS.noise_taps
NORM = PLAN.groups[0].clipping_norm
SUM = make_parameters(
    12,
    clipping_norm=NORM,
    noise_multiplier=PLAN.groups[0].noise_stddev / NORM,
    dropout_tolerance=0,
    num_correctors=5,
    correction_multiplier=PLAN.groups[0].noise_stddev / NORM,
)


def at(index, run="run"):
    return RoundOfRun(run, index)


@pytest.fixture(params=["session file", "state"])
def node(request, tmp_path):
    files = {"ledger": str(tmp_path / "ledger.json")} if request.param == "session file" else {}
    own = {"epsilon": 2.0, "delta": 1e-2, **files} if files else {}
    return Node(NodeSettings({"partition-id": 0, **own}), {}, "1")


def with_turn(node, index=0):
    """Record that a node began the run and sent in one round; return the noise that the node stores."""
    own = node.settings.budgets
    if own:
        with locked_ledger(next(iter(own.values())).ledger) as file:
            file.ledger.begin(TERMS, epsilons=[2.0], delta=PLAN.delta)
            file.ledger.charge("run", index)
            file.save()
    share = KeyedNoise(os.urandom(32), SUM.client_noise_stddev(7))
    keep_share(node, at(index), share, SUM.dimension, TAPS)
    return share


def test_every_part_is_given_out_once_and_in_its_round(node):
    share = with_turn(node)
    assert share.stddev == pytest.approx(SUM.client_noise_stddev(7))
    assert taken_back(node, at(1, "another run"), [0], SUM) == []
    assert taken_back(node, at(1), [3], SUM) == []
    assert taken_back(node, at(0), [0], SUM) == []
    assert taken_back(node, at(1), [0], replace(SUM, dimension=7)) == []
    assert taken_back(node, at(1), [0], replace(SUM, correction_multiplier=1e-3)) == []
    for lag, tap in enumerate(TAPS, start=1):
        assert taken_back(node, at(lag), [0], SUM) == [KeyedNoise(share.key, tap * share.stddev)]
        assert taken_back(node, at(lag), [0], SUM) == []
    assert share.key.hex() not in kept_of(node)


def kept_of(node):
    """Return all that the node stores, as text."""
    file = node.settings.session_file
    return (file.read_text() if file is not None and file.exists() else "") + repr(node.state)


def test_a_share_is_erased_when_no_later_round_takes_of_it(node):
    share = with_turn(node)
    assert share.key.hex() in kept_of(node)
    for index in (1, 2):
        forget_shares(node, at(index))
        assert share.key.hex() in kept_of(node)
    forget_shares(node, at(3, "another run"))
    assert share.key.hex() in kept_of(node)
    forget_shares(node, at(3))
    assert share.key.hex() not in kept_of(node)


def test_no_share_is_older_than_a_session_may_be(node, monkeypatch):
    if node.settings.session_file is None:
        return
    with_turn(node)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 86401.0)
    assert taken_back(node, at(1), [0], SUM) == []


@pytest.fixture
def owner(tmp_path):
    config = {"partition-id": 0, "epsilon": 2.0, "delta": 1e-2, "ledger": str(tmp_path / "ledger.json")}
    return Node(NodeSettings(config), {}, "1")


def test_a_node_that_is_killed_in_between_takes_back_once_from_whatever_copy(owner):
    """A node removes its noise only once, even if the node is killed or its session file is an old copy."""
    share, own, sessions = with_turn(owner), owner.settings.budgets, owner.settings.session_file
    assert own
    assert sessions is not None
    before = sessions.with_name("copy")
    shutil.copy(sessions, before)
    anew = Node(owner.settings, {}, "2")
    take_back(own, at(1), SUM, [0])
    # Killed here, or after the next line: the part is lost, or was sent.
    assert [each.key for each in taken_back(anew, at(1), [0], SUM)] == [share.key]
    shutil.copy(before, sessions)
    assert [each.key for each in taken_back(anew, at(1), [0], SUM)] == [share.key]
    with pytest.raises(PrivacyError, match="has subtracted it already"):
        take_back(own, at(1), SUM, [0])
    with pytest.raises(BudgetRefusedError, match="has no noise to subtract in round 1"):
        check_correction(own, at(1), SUM)
    # The other part is due in its own round.
    check_correction(own, at(2), SUM)
    take_back(own, at(2), SUM, [0])
    with locked_ledger(next(iter(own.values())).ledger) as file:
        saved = file.ledger.to_dict()
    assert saved["runs"][0]["taken_back"] == [[0, 1], [0, 2]]
    assert ClientLedger.from_dict(json.loads(json.dumps(saved))).to_dict() == saved
    (entry,) = (node_entry(each) for each in saved["runs"])
    assert list(entry.check()) == []
    for odd in ([0, 1], [0, 3], [1, 2]):
        saved["runs"][0]["taken_back"] = [[0, 1], odd]
        assert "which was not due once" in " ".join(entry.check())
        with pytest.raises(PrivacyError, match="is to be subtracted in round"):
            ClientLedger.from_dict(saved)
    saved["runs"][0]["taken_back"] = [[0, "1"]]
    with pytest.raises(PrivacyError, match="does not say which noise"):
        ClientLedger.from_dict(saved)


@pytest.mark.parametrize(
    ("index", "turns", "match"),
    [
        (0, [0], "no noise of round 0 of run run is to be subtracted in round 0"),
        (1, [1], "no noise of round 1"),
        (3, [0], "the terms have no tap for it"),
        (2, [1], "did not take part in it"),
        (6, [0], "has no round 6: noise is subtracted in rounds 0 to 5"),
    ],
)
def test_a_server_that_asks_early_late_or_for_no_turn_is_refused(owner, index, turns, match):
    with_turn(owner)
    with pytest.raises(PrivacyError, match=match):
        take_back(owner.settings.budgets, at(index), SUM, turns)
    with locked_ledger(next(iter(owner.settings.budgets.values())).ledger) as file:
        assert file.ledger.run("run").taken_back == []


def test_nothing_is_taken_back_in_a_sum_without_all_its_new_noise(owner):
    with_turn(owner)
    less = replace(SUM, noise_multiplier=SUM.noise_multiplier * 0.99)
    with pytest.raises(BudgetRefusedError, match="noise of standard deviation"):
        check_correction(owner.settings.budgets, at(1), less)
    with pytest.raises(BudgetRefusedError, match="noise of standard deviation"):
        take_back(owner.settings.budgets, at(1), less, [0])
    # Members without an update do not make more dropouts tolerable, and may all the same be corrupt.
    wary = replace(TERMS, run="wary", dropout_tolerance=0.1, corrupt_tolerance=0.2)
    with locked_ledger(next(iter(owner.settings.budgets.values())).ledger) as file:
        file.ledger.begin(wary, epsilons=[2.0], delta=PLAN.delta)
        file.ledger.charge("wary", 0)
        file.save()
    for odd, match in (
        (replace(SUM, dropout_tolerance=2, corrupt_tolerance=3), "2 dropouts is above 1"),
        (replace(SUM, corrupt_tolerance=2), "2 corrupt members is below 3"),
    ):
        with pytest.raises(BudgetRefusedError, match=match):
            take_back(owner.settings.budgets, at(1, "wary"), odd, [0])
    take_back(owner.settings.budgets, at(1, "wary"), replace(SUM, corrupt_tolerance=3), [0])


def test_other_parts_than_those_of_the_terms_are_refused_at_the_turn(owner):
    with_turn(owner)
    order: Any = _Order(taps=(TAPS[0] / 2, TAPS[1]))
    with pytest.raises(BudgetRefusedError, match="would subtract other parts of this noise than the terms"):
        budget.charge(owner.settings.budgets, at(APART), SUM, order)
    order.taps = TAPS
    budget.charge(owner.settings.budgets, at(APART), SUM, order)


class _Task:
    digest = TERMS.task


class _Order:
    """The fields of a training instruction that a node compares with the run's terms."""

    records, work, noise, weight, announced, task = None, "update", "gaussian", 1.0, "", _Task
    clipping_norm, fills, may_fill = NORM, False, False
    record_groups = ((), 0)

    def __init__(self, taps):
        self.taps = taps


@pytest.mark.parametrize(
    "said",
    [
        {"turns": [2]},
        {"turns": [3]},
        {"turns": [-1]},
        {"turns": [1, 0]},
        {"turns": [0, 0]},
        {"turns": "0"},
        {"turns": [0.5]},
        {"context": b"short"},
        {"context": "word"},
    ],
)
def test_a_record_that_says_nothing_sensible_is_refused(said):
    with pytest.raises(RemoteProtocolError):
        Correction.of(said, 2)
    assert Correction.of({}, 2) == NO_CORRECTION
    assert Correction.of({"turns": [0, 1], "context": bytes(32)}, 2).turns == (0, 1)


def test_a_share_reads_as_it_was_written():
    share = NoiseShare("run", 3, KeyedNoise(bytes(range(32)), 0.25), 7, (0.5, 0.2), 1.5, (1,))
    assert NoiseShare.from_dict(json.loads(json.dumps(share.to_dict()))) == share
    of_chacha = replace(share, noise=replace(share.noise, suite="chacha20"))
    assert NoiseShare.from_dict(json.loads(json.dumps(of_chacha.to_dict()))) == of_chacha
    assert of_chacha.part(5, 7, 1.0) == KeyedNoise(share.noise.key, 0.05, "chacha20")
    with pytest.raises(ValueError, match="hexadecimal"):
        bytes.fromhex(of_chacha.to_dict()["key"])
    for odd in ({"key": "00"}, {"stddev": 0.0}, {"key": "zz"}):
        with pytest.raises(ValueError, match=r"needs a key|hexadecimal"):
            NoiseShare.from_dict(share.to_dict() | odd)
