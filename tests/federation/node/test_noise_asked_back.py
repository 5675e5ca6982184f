"""Tests of a server that asks nodes to remove their noise from a past sum: how much each attack removes.

Round 0 is over, and the clients with even numbers have added noise to its sum. In round 1 the server asks
them for what they take back, in a sum whose other members are its own: made up, or colluders with a turn.
"""

import os
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from conf.load import load
from gdpfed.clients.keyed_noise import KeyedNoise
from gdpfed.clients.messages import CONTEXT, TURNS, RoundOfRun
from gdpfed.errors import PrivacyError
from gdpfed.federation.node.agreed_terms import check_agreed, check_feared
from gdpfed.federation.node.budget import BudgetRefusedError
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.federation.node.node_settings import Node, NodeSettings
from gdpfed.federation.node.noise_shares import keep_share
from gdpfed.federation.node.schedule_checks import check_offered, check_schedule, trusted_with
from gdpfed.federation.node.sum_stages import StageRequest, answer_stage
from gdpfed.learning.training.secret_draws import gaussian_noise
from gdpfed.methods import make_method
from gdpfed.privacy.allocation import AllocatedGaussian
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import SampledGaussian
from gdpfed.privacy.ledgers.terms import terms_of
from gdpfed.privacy.mechanisms.allocated.terms import AllocatedTerms
from gdpfed.privacy.mechanisms.sampled.terms import SumTerms
from gdpfed.privacy.mechanisms.scheduled.mechanism import ScheduledSums
from secagg import (
    ClientPolicy,
    ClientSession,
    RemoteProtocolError,
    Roster,
    ServerSession,
    keystream,
    threshold_for,
)
from testing.known_identities import identity_of, keys_of, node_settings, write_files
from testing.secagg_sums import make_parameters

CLIENTS, DIMENSION = 15, 2_000
PLAN = make_method(
    load(
        [
            *("dataset=digits", f"dataset.num_clients={CLIENTS}", "method=dp_fedavg", "privacy.budgets=[8]"),
            *("privacy.against=everyone", "run.num_rounds=6", "privacy.sampling_rate=0.5"),
        ]
    )
).plan
SCHEDULE = PLAN.made_by(ScheduledSums).schedule(0, PLAN.groups)
NORM, STDDEV = PLAN.groups[0].clipping_norm, PLAN.groups[0].noise_stddev
VICTIMS = tuple(sorted(SCHEDULE.due(0)))
NEXT = tuple(sorted(SCHEDULE.due(1)))
COLLUDERS = NEXT[:3]


def terms(*, told=True, corrupt=0.2):
    said: dict[str, Any] = {"schedule": SCHEDULE.to_text()} if told else {}
    return terms_of(PLAN, 0, "run", dropout_tolerance=0.0, corrupt_tolerance=corrupt, **said)


def sum_of(members, correctors, *, mode="active", corrupt=0, label="run/1234/round 1/all clients", **changes):
    return make_parameters(
        members,
        label=label,
        mode=mode,
        dimension=DIMENSION,
        threshold=threshold_for(members, 0.5, corrupt=max(corrupt, -(-members // 5)), mode=mode),
        dropout_tolerance=0,
        corrupt_tolerance=corrupt,
        clipping_norm=NORM,
        noise_multiplier=STDDEV / NORM,
        num_correctors=correctors,
        correction_multiplier=STDDEV / NORM,
        **changes,
    )


@dataclass
class Attack:
    """Nodes that sent updates in round 0, and a server that controls all other members of a later sum."""

    nodes: dict[int, Node]
    noise: dict[int, np.ndarray]
    roster: Roster

    @classmethod
    def after_round_0(cls, folder, *, mode, own_terms, fears=0.2):
        roster_folder = write_files(folder / "roster", keys_of(CLIENTS))
        honest = sum_of(len(VICTIMS), 0, mode=mode, corrupt=2)
        nodes, noise = {}, {}
        for client in VICTIMS:
            own: dict[str, Any] = {
                "partition-id": client,
                "epsilon": 50.0,
                "delta": 1e-3,
                "minimum-cohort": 3,
            }
            own |= {"ledger": str(folder / f"{client}.json"), "secagg-mode": mode, "corrupt-fraction": fears}
            node = Node(NodeSettings(own | node_settings(roster_folder, client)), {}, "1")
            with locked_ledger(folder / f"{client}.json") as file:
                file.ledger.begin(own_terms, epsilons=[50.0], delta=1e-3)
                file.ledger.charge("run", 0)
                file.save()
            share = KeyedNoise(os.urandom(32), honest.client_noise_stddev(len(VICTIMS)))
            keep_share(node, RoundOfRun("run", 0), share, DIMENSION, own_terms.noise_taps)
            nodes[client] = node
            drawn = gaussian_noise(DIMENSION, share.stddev, keystream(share.key), device=torch.device("cpu"))
            noise[client] = drawn.numpy()
        return cls(nodes, noise, Roster(keys_of(CLIENTS)))

    def noise_left(self, parameters, own, *, tap):
        """Return the share of round 0's planned noise (by standard deviation) that nodes do not remove.

        Members of the server's own add zeros, and noise that it knows.
        """
        signs = parameters.mode == "active"
        members, lenient = [*self.nodes, *own], ClientPolicy(minimum_cohort=2, maximum_dropout_fraction=0.9)
        server = ServerSession(
            parameters, members, self.roster if signs else None, correctors=tuple(self.nodes)
        )
        mine = {
            member: ClientSession(member, lenient, identity=identity_of(member), roster=self.roster)
            if signs
            else ClientSession(member, lenient)
            for member in own
        }
        known = np.zeros(DIMENSION, np.uint32)
        while not server.done:
            stage = str(server.stage)
            if stage == "mask":
                server.bind(bytes(32))
            for member, data in server.requests().items():
                if member in self.nodes:
                    back = {TURNS: [0], CONTEXT: bytes(32)}
                    asked = StageRequest(data, RoundOfRun("run", 1), correction=back)
                    answer = answer_stage(stage, partial(replace, asked), self.nodes[member])
                elif stage == "mask":
                    count = mine[member].accept_shares(data)
                    flat = 1.01 * parameters.client_noise_stddev(count) * (1 - 2 * (np.arange(DIMENSION) % 2))
                    steps = mine[member].encoding().encode_noise(flat)
                    known += steps.astype(np.uint32)
                    answer = mine[member].mask(np.zeros(DIMENSION, np.int64), bytes(32), noise=steps)
                else:
                    answer = getattr(mine[member], stage)(data)
                server.receive(member, answer)
            server.close_stage()
        found = server.result()
        encoding = parameters.encoding(found.num_contributors)
        taken = encoding.decode((found.total - known) & np.uint32(2**parameters.modulus_bits - 1))
        return float(np.std(sum(self.noise.values()) + taken / tap)) / STDDEV


def test_in_curious_mode_a_server_that_lies_leaves_nothing_and_the_node_says_that_it_trusts_it(tmp_path):
    """In curious mode (without signatures), a dishonest server can have all noise removed; nodes say so."""
    agreed = terms(told=False, corrupt=0.0)
    attack = Attack.after_round_0(tmp_path, mode="curious", own_terms=agreed, fears=0.0)
    own = tuple(range(1_000, 1_005))
    parameters = sum_of(len(VICTIMS) + len(own), len(VICTIMS), mode="curious")
    assert attack.noise_left(parameters, own, tap=agreed.noise_taps[0]) < 1e-3
    assert "a lying server could have all of it removed" in trusted_with(agreed)
    assert trusted_with(terms()) == ""


def test_a_node_that_wants_signatures_takes_no_noise_back_among_members_that_were_made_up(tmp_path):
    attack = Attack.after_round_0(tmp_path, mode="active", own_terms=terms())
    own = tuple(range(1_000, 1_005))
    parameters = sum_of(len(VICTIMS) + len(own), len(VICTIMS), mode="curious")
    with pytest.raises(RemoteProtocolError, match="mode curious is less than active"):
        attack.noise_left(parameters, own, tap=1.0)


@pytest.mark.parametrize(
    "label",
    [
        *("run/1234/round 2/all", "run/1234/round 11/all", "another/1234/round 1/all", "all"),
        # What names two rounds is read alike by every member.
        *("run/round 2/round 1/all", "run/1234/all/round 2", "run/1234/round 1 /all"),
    ],
)
def test_members_of_one_sum_cannot_be_told_other_rounds_or_runs_than_it_is_of(tmp_path, label):
    """A node removes no noise if the label of the sum names another round or run than the node expects."""
    attack = Attack.after_round_0(tmp_path, mode="active", own_terms=terms(corrupt=0.0), fears=0.0)
    parameters = sum_of(len(VICTIMS) + len(COLLUDERS), len(VICTIMS), label=label)
    with pytest.raises(RemoteProtocolError, match="is not of round 1 of run run"):
        attack.noise_left(parameters, COLLUDERS, tap=1.0)


@pytest.mark.parametrize(
    ("fears", "tolerated", "match"),
    [
        (0.2, 0.0, "sized against 1 corrupt members, and this client assumes 3"),
        (0.0, 0.2, "1 corrupt members is below 3"),
        # Against more colluders than anybody has spoken of nothing is promised.
        (0.0, 0.0, None),
    ],
    ids=["the operator's word", "the terms", "nobody fears any"],
)
def test_colluders_who_are_all_that_bring_an_update_get_no_noise_back(tmp_path, fears, tolerated, match):
    """No node removes noise if only colluders send updates, where its operator or terms assume colluders."""
    agreed = terms(corrupt=tolerated)
    attack = Attack.after_round_0(tmp_path, mode="active", own_terms=agreed, fears=fears)
    parameters = sum_of(
        len(VICTIMS) + len(COLLUDERS),
        len(VICTIMS),
        corrupt=0 if match is None else 1,
        label=f"run/1234/round 1/all/agreed {agreed.stream.digest}",
    )
    if match is None:
        assert attack.noise_left(parameters, COLLUDERS, tap=agreed.noise_taps[0]) < 1e-3
        return
    with pytest.raises((RemoteProtocolError, BudgetRefusedError), match=match):
        attack.noise_left(parameters, COLLUDERS, tap=agreed.noise_taps[0])


@pytest.mark.parametrize(
    "changes",
    [{"num_rounds": 2}, {"noise_stddev": STDDEV / 1000}, {"taps": (0.9,)}, {"corrupt_tolerance": 0.1}, {}],
    ids=["rounds", "noise", "taps", "colluders", "none"],
)
def test_members_sign_for_no_other_terms_than_those_that_they_have_agreed_to(changes):
    """A node refuses a sum if the terms that the sum's label states are not those that the node agreed to."""
    agreed = terms().stream
    other = replace(agreed, **changes).digest if changes else ""
    for digest, own, match in (
        (agreed.digest, terms(), None),
        (agreed.digest, None, "terms that this node cannot check: give it a budget with a ledger"),
        (other, terms(), "other terms than this node has agreed to"),
    ):
        label = "/".join(["run/1234/round 1/all", *([f"agreed {digest}"] if digest else [])])
        parameters = sum_of(CLIENTS, len(VICTIMS), corrupt=3, label=label)
        if match is None:
            check_agreed(own, 1, parameters)
            continue
        with pytest.raises(BudgetRefusedError, match=match):
            check_agreed(own, 1, parameters)


def test_terms_are_refused_that_tolerate_fewer_colluders_than_the_operator_fears():
    """A node refuses terms that tolerate fewer colluders than its operator expects."""
    check_feared(terms(corrupt=0.2), 0.2)
    check_feared(terms(told=False, corrupt=0.0), 0.2)
    with pytest.raises(BudgetRefusedError, match=r"run with secagg\.corrupt_tolerance=0\.3"):
        check_feared(terms(corrupt=0.2), 0.3)


def checked(own_terms, parameters, updates, others=VICTIMS):
    members = {"updates": frozenset(updates), "correctors": frozenset(others)}
    session = SimpleNamespace(parameters=parameters, **members)
    check_schedule(own_terms, 1, cast("ClientSession", session), 0.2)


def test_the_whole_sum_of_the_schedule_is_taken_part_in():
    assert sorted(VICTIMS + NEXT) == list(range(CLIENTS)) == list(range(SCHEDULE.members(1, (0.5,))))
    checked(terms(), sum_of(CLIENTS, len(VICTIMS), corrupt=3), NEXT)


@pytest.mark.parametrize(
    ("told", "corrupt", "updates", "others", "match"),
    [
        (False, 3, NEXT, VICTIMS, "no schedule of turns was agreed to"),
        (
            True,
            3,
            (*NEXT[1:], VICTIMS[0]),
            VICTIMS[1:],
            f"client {VICTIMS[0]} is asked for an update in round 1",
        ),
        # Colluders who take nothing back would hold enough shares to unmask any part of the sum.
        (
            True,
            3,
            NEXT[3:],
            (*VICTIMS, *NEXT[:3]),
            f"client {NEXT[0]} is a member, and has no noise that round 1 subtracts",
        ),
        # The server says that the honest ones are away, and so counts fewer colluders.
        (
            True,
            2,
            NEXT[:5],
            VICTIMS[:3],
            "sized against 2 corrupt members, and this node assumes 3 among the 15",
        ),
    ],
    ids=["no schedule", "another's turn", "members without a part", "members held back"],
)
def test_a_sum_that_the_schedule_does_not_have_is_refused(told, corrupt, updates, others, match):
    parameters = sum_of(len(updates) + len(others), len(others), corrupt=corrupt)
    with pytest.raises(BudgetRefusedError, match=match):
        checked(terms(told=told), parameters, updates, others)


def test_no_schedule_is_asked_for_where_nobody_signs():
    checked(terms(told=False), sum_of(CLIENTS, 8, mode="curious", corrupt=3), NEXT)


def test_a_sum_without_signatures_is_refused_where_a_schedule_was_agreed_to():
    """A node that has agreed to a schedule refuses a sum that asks for no signatures."""
    assert not trusted_with(terms())
    with pytest.raises(BudgetRefusedError, match="this sum asks for no signatures"):
        checked(terms(), sum_of(CLIENTS, 8, mode="curious", corrupt=3), NEXT)


@pytest.mark.parametrize(
    ("schedule", "match"),
    [
        ("[[2, 1, [[0, 3, 1], [3, 5, 1]]]]", "names a client twice"),
        ("[[2, 1, [[0, 599999, 1]]], [2, 1, [[600000, 1199999, 1]]]]", "it has more than 1000000 clients"),
        ("[[4, 2, [[0, 3, 1]]]]", "not a rate of turns in lowest terms"),
        ("[[7, 2, [[0, 3, 1]]]]", "has 2 turns in 7 rounds, and the run has 6 rounds"),
        (f"[[{2**63 - 1}, {2**63 - 2}, [[0, 3, 1]]]]", "and the run has 6 rounds"),
        ("no schedule", "the terms have no valid schedule of turns"),
    ],
)
def test_a_schedule_that_is_none_is_refused_when_the_run_is_offered(schedule, match):
    check_offered(terms(), None)
    with pytest.raises(PrivacyError, match=match):
        check_offered(replace(terms(), schedule=schedule), None)


def test_one_turn_in_more_rounds_than_the_run_has_is_a_schedule():
    check_offered(replace(terms(), schedule="[[67, 1, [[0, 3, 1]]]]"), None)


OF_RUN: Any = {
    "run": "run",
    "group": 0,
    "epsilon": 9.0,
    "delta": 1e-5,
    "accountant": "rdp",
    "sums_hidden": True,
}
FIXED = SampledGaussian(
    sampling="fixed_size", sampling_rate=0.1, group_size=20, noise_stddev=6.0, clipping_norm=1.0
)
ALLOCATED = AllocatedGaussian(block_rounds=10, noise_stddev=6.0, clipping_norm=1.0)


@pytest.mark.parametrize(
    "offered",
    [
        SumTerms(charges=(Charge(event=FIXED, count=20),), **OF_RUN),
        AllocatedTerms(charges=(Charge(event=ALLOCATED, count=2),), **OF_RUN),
    ],
)
def test_an_apps_own_function_is_not_asked_under_a_sampling_without_proof(offered):
    check_offered(offered, None)
    with pytest.raises(BudgetRefusedError, match="between rounds, as an app's own train function may"):
        check_offered(offered, object())
