"""Tests of keys agreed one round ahead: two exchanges a round, and the same sums and charges as with four."""

import json
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.methods.fedavg import DPFedAvg
from testing.local_grid import FIRST_NODE_ID, LocalGrid, refusals
from testing.small_runs import ACTIVE, FIRST_SEEN, NUM_CLIENTS, final_model, grid_of_owners, run

EVERYBODY = ["method=dp_fedavg", "privacy.sampling_rate=1", "secagg.dropout_tolerance=0.1"]
FIRST = [{"advertise"}, {"share"}]
STEADY = [{"mask", "advertise"}, {"unmask", "share"}]
LAST = [{"mask"}, {"unmask"}]


def exchanges(directory, overrides, grid=None):
    """Run training and return the kinds of messages in each exchange after the join."""
    grid = grid or LocalGrid(NUM_CLIENTS, node_config=FIRST_SEEN)
    run(directory, overrides, grid=grid)
    assert grid.exchanges[0] == {"join"}
    return grid.exchanges[1:]


@pytest.mark.parametrize("method", ["gdpfed", "dp_fedavg", "pfa"])
def test_the_first_round_takes_four_exchanges_and_every_other_two(tmp_path, method):
    """The first round takes four exchanges and every later round two, for any number of groups."""
    found = exchanges(tmp_path / "run", [f"method={method}", "privacy.sampling_rate=1", "run.num_rounds=4"])
    assert found == FIRST + 3 * STEADY + LAST


def test_four_exchanges_a_round_without(tmp_path):
    assert exchanges(tmp_path / "run", ["secagg.keys_ahead=false"]) == 3 * (FIRST + LAST)


def test_a_server_that_may_lie_costs_one_more_exchange(tmp_path):
    found = exchanges(tmp_path / "run", [*ACTIVE, "run.num_rounds=2"])
    steady = [{"mask", "advertise"}, {"check", "share"}, {"unmask"}]
    assert found == [*FIRST, *steady, {"mask"}, {"check"}, {"unmask"}]


def test_a_process_agrees_on_no_keys_for_rounds_that_another_will_run(tmp_path):
    found = exchanges(tmp_path / "run", ["run.stop_after_round=2"])
    assert found == FIRST + STEADY + LAST


@pytest.mark.parametrize("mode", [(), ACTIVE], ids=["curious", "active"])
def test_the_model_does_not_depend_on_when_keys_are_agreed(tmp_path, mode):
    records = [
        run(
            tmp_path / str(ahead),
            ["method=fedavg", *mode, f"secagg.keys_ahead={ahead}"],
        )
        for ahead in (True, False)
    ]
    np.testing.assert_array_equal(final_model(tmp_path / "True"), final_model(tmp_path / "False"))
    assert np.abs(final_model(tmp_path / "True")).max() > 0.01
    ahead, beside = ([(r.cohort_sizes, r.survivors, r.accuracy) for r in each] for each in records)
    assert ahead == beside


class LosingGrid(LocalGrid):
    """A grid that loses some clients in some exchanges, which are counted from 1 after the join."""

    def __init__(self, exchanges, lost):
        super().__init__(NUM_CLIENTS, vanishes=self._gone)
        self.lacking, self.lost = exchanges, lost

    def _gone(self, kind, client):
        return len(self.exchanges) - 1 in self.lacking and client in self.lost


@pytest.mark.parametrize(
    ("exchanges", "missing"),
    [
        ({1, 5}, [1, 1, 1]),  # 5 loses its vector of round 2 and its keys of round 3
        ({2, 7}, [1, 0, 1]),
        ({3, 8}, [1, 1, 0]),  # unmasking, in 8, needs t of the survivors only
        ({4, 6}, [0, 1, 1]),  # unmasking comes beside sharing for the next round
    ],
)
def test_a_client_may_vanish_in_any_exchange(tmp_path, exchanges, missing):
    records = run(tmp_path / "run", EVERYBODY, grid=LosingGrid(exchanges, {3}))
    assert [record.failures for record in records] == [{}, {}, {}]
    assert [NUM_CLIENTS - record.survivors[0] for record in records] == missing


def test_who_vanishes_after_agreeing_is_a_dropout_of_the_round(tmp_path):
    """If 5 of 12 clients vanish before they mask, the round is charged and does not change the model."""
    grid = LosingGrid({5}, set(range(5)))
    records = run(tmp_path / "run", [*EVERYBODY, "run.num_rounds=3"], grid=grid)
    assert "7 clients are left, 11 are needed" in records[1].failures["group 0"]
    assert records[1].accuracy == records[0].accuracy
    assert records[1].spent_epsilon > records[0].spent_epsilon
    assert (records[2].survivors, records[2].failures) == ([12], {})
    # So many advertised too few keys for round 3 as well: it began anew, with everybody.
    assert grid.exchanges[1:] == [*FIRST, *STEADY, {"mask", "advertise"}, *FIRST, *LAST]


def test_a_node_that_restarts_is_missing_until_it_has_agreed_again(tmp_path):
    def restart(kind, client, content):
        if kind == "mask" and client == 4 and content["mask"]["round"] == 1:
            grid.contexts[FIRST_NODE_ID + client].state = RecordDict()
        return content

    grid = LocalGrid(NUM_CLIENTS, meddle=restart)
    records = run(tmp_path / "run", EVERYBODY, grid=grid)
    assert [record.survivors[0] for record in records] == [12, 11, 12]
    assert refusals(grid) == ["this client has no open session: it joins again next round"]


@pytest.mark.parametrize("stage", ["mask", "unmask", "share"])
def test_a_record_of_an_earlier_round_is_refused_and_harms_no_other_round(tmp_path, stage):
    earlier: dict[str, ConfigRecord] = {}

    def replay(kind, client, content):
        if kind != stage or client != 4:
            return content
        round_index = content[stage]["round"]
        earlier.setdefault("record", ConfigRecord(dict(content[stage])))
        if round_index != 1:
            return content
        return RecordDict({**content, stage: earlier["record"]})

    grid = LocalGrid(NUM_CLIENTS, meddle=replay)
    records = run(tmp_path / "run", EVERYBODY, grid=grid)
    lost = 0 if stage == "unmask" else 1
    assert [record.survivors[0] for record in records] == [12, 12 - lost, 12]
    assert refusals(grid) == ["the message is of round 0, and this client's keys are of round 1"]


def test_a_round_is_not_unmasked_twice(tmp_path):
    """A client refuses an old unmask request that the server repeats with its next mask request."""
    answered = {}

    def again(kind, client, content):
        if kind == "unmask" and client == 4:
            answered[content["unmask"]["round"]] = content["unmask"]
        if kind == "mask" and client == 4 and content["mask"]["round"] == 1:
            content["unmask"] = answered[0]
        return content

    grid = LocalGrid(NUM_CLIENTS, meddle=again)
    records = run(tmp_path / "run", EVERYBODY, grid=grid)
    assert [record.survivors[0] for record in records] == [12, 12, 12]
    assert refusals(grid) == ["the message is of round 0, and this client's keys are of round 1"]


def test_keys_that_were_agreed_ahead_and_not_used_cost_a_node_nothing(tmp_path):
    """A node's ledger has a charge for each masked vector, and none for keys that were not used."""
    seen: dict[str, int] = {}

    def gone(kind, client):
        seen[kind] = seen.get(kind, 0) + (client == 5)
        return client == 5 and kind == "mask" and seen["mask"] > 1

    grid = grid_of_owners(tmp_path / "ledgers", [3.0] * NUM_CLIENTS, vanishes=gone)
    run(tmp_path / "run", [*EVERYBODY, "privacy.budgets=[3]"], grid=grid)
    rounds = {}
    for client in (5, 6):
        with locked_ledger(tmp_path / "ledgers" / f"{client}.json") as file:
            rounds[client] = file.ledger.runs[0].rounds
    assert rounds == {5: [0], 6: [0, 1, 2]}
    assert seen["share"] >= 2
    server = json.loads((tmp_path / "run" / "ledger.json").read_text())["participations"][0]
    assert (server["5"], server["6"]) == (3, 3)
    assert refusals(grid) == []


def test_a_node_keeps_two_sessions_at_most_and_none_in_the_end(tmp_path):
    kept: set[tuple[str, ...]] = set()

    def look(kind, client, content):
        kept.update(tuple(sorted(context.state)) for context in grid.contexts.values())
        return content

    grid = LocalGrid(NUM_CLIENTS, meddle=look)
    run(tmp_path / "run", [*EVERYBODY, "run.num_rounds=3"], grid=grid)
    agreeing, masked = "secagg-session-agreeing", "secagg-session-masked"
    assert kept == {(), (agreeing,), (masked,), (agreeing, masked)}
    assert [context.state for context in grid.contexts.values() if context.state] == []


def test_what_was_masked_and_never_unmasked_is_erased_by_the_next_message(tmp_path):
    """At the server's next message a node erases the session of a vector that was not unmasked."""
    held: dict[str, set[tuple[str, ...]]] = {"share": set(), "mask": set()}

    def meddle(kind, client, content):
        if kind in held and client > 4 and content[kind]["round"] == 1:
            held[kind].add(tuple(sorted(grid.contexts[FIRST_NODE_ID + client].state)))
        if kind == "mask" and client < 5 and content["mask"]["round"] == 0:
            content["mask"] = ConfigRecord({**content["mask"], "round": 9})
        return content

    grid = LocalGrid(NUM_CLIENTS, meddle=meddle)
    records = run(tmp_path / "run", [*EVERYBODY, "run.num_rounds=2"], grid=grid)
    assert [record.survivors for record in records] == [[0], [12]]
    agreeing, masked = "secagg-session-agreeing", "secagg-session-masked"
    assert held == {"share": {(agreeing, masked)}, "mask": {(agreeing,)}}


class Adaptive(DPFedAvg):
    """A method whose clipping norm changes after each round, so that its sums differ from those expected."""

    factor = 1.0

    def requests(self, theta, round_index, cohorts):
        return [
            replace(
                each,
                clipping_norm=each.clipping_norm * self.factor,
                noise_multiplier=each.noise_multiplier / self.factor,
            )
            for each in super().requests(theta, round_index, cohorts)
        ]

    def step(self, theta, sums):
        self.factor /= 2
        return super().step(theta, sums)


class InTurn(DPFedAvg):
    """A method that sums two halves of the cohort, the second from the model that the first has made."""

    def round(self, theta, round_index, cohorts, sum_updates):
        sums = []
        for part in range(2):
            sums += sum_updates([self.part(theta, round_index, cohorts, part)])
            theta = self.step(theta, sums[-1:])
        return theta, sums

    def part(self, theta, round_index, cohorts, part):
        (whole,) = self.requests(theta, round_index, cohorts[:1])
        return replace(whole, name=f"part {part}", clients=np.array_split(cohorts[0], 2)[part])

    def requests_ahead(self, theta, round_index, draw):
        return [self.part(theta, round_index, draw(), 0)]


@pytest.mark.parametrize("method", [Adaptive, InTurn])
def test_a_method_need_not_ask_for_what_was_expected(tmp_path, monkeypatch, method):
    monkeypatch.setattr(
        "gdpfed.rounds.run.make_method",
        method.from_config,
    )
    grid = LocalGrid(NUM_CLIENTS)
    records = run(tmp_path / "run", [*EVERYBODY, "run.num_rounds=2"], grid=grid)
    assert [sum(record.survivors) for record in records] == [12, 12]
    assert refusals(grid) == []
    assert {"mask", "advertise"} in grid.exchanges
