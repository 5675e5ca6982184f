"""Tests of noise that later rounds subtract: the noise in released sums, saved noise keys, and audits."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.linalg import block_diag

from conf.load import load
from conf.schema import SecAggConfig
from gdpfed.audit.node_audit import node_entry
from gdpfed.audit.run_audit import audit_run
from gdpfed.cli import main
from gdpfed.cli.audit_tables import run_table
from gdpfed.clients.configured import order_of, task_of
from gdpfed.errors import ConfigError, PrivacyError
from gdpfed.methods import make_method
from gdpfed.methods.base import ClientSum, SumRequest
from gdpfed.privacy.accountants.gaussian import gaussian_epsilon
from gdpfed.privacy.correlated_noise import sensitivity
from gdpfed.privacy.ledgers.client import ClientLedger
from gdpfed.privacy.ledgers.terms import terms_of
from gdpfed.privacy.mechanism_options import taps_of
from gdpfed.privacy.mechanisms.scheduled.mechanism import limits_of
from gdpfed.privacy.planning.groups import paper_delta
from gdpfed.privacy.release import NoiseAt
from gdpfed.privacy.sampling.cohorts import draw_cohorts
from gdpfed.report.plan_table import plan_lines
from gdpfed.rounds.extensions.base import Extensions
from gdpfed.rounds.extensions.correlated_noise import CorrelatedNoise
from gdpfed.rounds.fleet import Fleet
from gdpfed.rounds.noise_streams import NoiseStreams
from gdpfed.rounds.plain import summed_in_clear
from gdpfed.rounds.state import new_ledger
from gdpfed.runs.checkpoint import Checkpoint
from gdpfed.runs.file_formats import CHECKPOINT_FILE, MODEL_FILE
from testing.small_runs import run, small_config

EVERYONE = [
    *("method=gdpfed_star", "privacy.against=everyone", "secagg=off", "privacy.accountant=pld"),
    *("privacy.budgets=[1,3]", "run.num_rounds=6", "privacy.sampling_rate=0.4", "privacy.noise_taps=2"),
    "dataset.num_clients=15",
]
COORDINATES = 20_000


class Silent(Fleet):
    """Clients that send only zeros, or no answer in the rounds of `lost`."""

    lost: tuple[int, ...] = ()

    def exchange(self, asked):
        raise NotImplementedError

    def sum_plain(self, sums):
        answers = {client: bytes(4 * each.parameters.dimension) for each in sums for client in each.clients}
        return summed_in_clear(sums, {} if sums[0].order.round_index in self.lost else answers)


def released_sums(tmp_path, lost=(), settings=EVERYONE):
    """Return a plan and its released sums, by name and round; updates are zeros, so that sums are noise."""
    config = small_config(tmp_path, settings)
    method = make_method(config)
    fleet, order = Silent(config.secagg, "test"), order_of(config, task_of(config))
    fleet.lost = lost
    ledger, streams = new_ledger(method), Extensions([CorrelatedNoise(method.plan)])
    sums: dict[str, dict[int, Any]] = {}
    theta = np.zeros(COORDINATES, np.float32)
    for index in range(method.plan.num_rounds):
        cohorts = draw_cohorts(method.plan, index, bytes(32))
        ledger.open_round(index, cohorts)
        charged = ledger.charge(index, method.requests(theta, index, cohorts))
        here = order.__class__(**{**vars(order), "round_index": index})
        for released in fleet.sum_updates(here, charged, extensions=streams):
            if released.total is not None:
                sums.setdefault(released.name, {})[index] = released.total
        # A process that ends here goes on from what is written down.
        streams, saved = Extensions([CorrelatedNoise(method.plan)]), streams.state_dict()
        assert streams.restore(saved, index + 1) == {}
    return method.plan, sums


def planned_covariance(plan, m=0, lost=()):
    rounds = plan.num_rounds
    there = [index for index in range(rounds) if index not in lost]
    taken_back = np.eye(rounds)
    for lag, tap in enumerate(taps_of(plan.mechanism, m), start=1):
        for index in there:
            if index + lag < rounds:
                taken_back[index + lag, index] = -tap
    covariance = plan.groups[m].noise_stddev ** 2 * taken_back[:, there] @ taken_back[:, there].T
    return covariance[np.ix_(there, there)]


@pytest.mark.parametrize("lost", [(), (2,)])
def test_the_noise_of_real_sums_has_the_planned_covariance(tmp_path, lost):
    plan, by_name = released_sums(tmp_path, lost)
    sums = by_name["all groups"]
    assert len(taps_of(plan.mechanism, 0)) == 2
    assert min(taps_of(plan.mechanism, 0)[:1]) > 0.2
    assert set(sums) == set(range(plan.num_rounds)) - set(lost)
    values = np.array([sums[index] for index in sorted(sums)])
    measured, planned = values @ values.T / COORDINATES, planned_covariance(plan, lost=lost)
    scale = plan.groups[0].noise_stddev ** 2
    assert np.abs(measured - planned).max() < 6 * 2.5 * scale / math.sqrt(COORDINATES)
    assert np.abs(stats.kurtosis(values, axis=1)).max() < 6 * math.sqrt(24 / COORDINATES)
    if lost:
        return
    # What the turns of clients cost, from the noise that is really there.
    for m, group in enumerate(plan.groups):
        limits = plan.mechanism.limits[m]
        turns = tuple(range(0, limits.most_turns * limits.separation, limits.separation))
        moved = np.zeros(plan.num_rounds)
        moved[list(turns)] = group.clipping_norm
        mu = group.clipping_norm / group.noise_stddev * sensitivity(taps_of(plan.mechanism, 0), turns, 6)
        assert moved @ np.linalg.solve(measured, moved) == pytest.approx(mu**2, rel=0.06)


def test_the_sums_of_groups_have_streams_of_their_own(tmp_path):
    plan, sums = released_sums(
        tmp_path, settings=["method=gdpfed_op", *EVERYONE[1:], "dataset.num_clients=40"]
    )
    assert not plan.one_sum
    assert len({each.taps for each in limits_of(plan)}) == 2
    values = np.array([sums[f"group {m}"][index] for m in (0, 1) for index in range(6)])
    planned = block_diag(*(planned_covariance(plan, m) for m in (0, 1)))
    spread = np.sqrt(np.diag(planned))
    measured = values @ values.T / COORDINATES
    assert np.abs((measured - planned) / np.outer(spread, spread)).max() < 6 * 1.5 / math.sqrt(COORDINATES)


def test_keys_are_kept_as_long_as_they_are_needed_and_never_used_twice_as_new():
    taps, stream, keys = (0.5, 0.2), NoiseStreams(2), []
    for index in range(5):
        noise = stream.draw("a", taps, index)
        keys.append(noise.key)
        assert [(each.key, tap) for each, tap in noise.taken_back] == [
            (keys[index - lag], tap) for lag, tap in [(1, 0.5), (2, 0.2)] if index >= lag
        ]
        assert noise.new_share == pytest.approx(1 / math.sqrt(1 + 0.25 + 0.04))
        assert stream.draw("b", taps, index).taken_back == ()
        stream.round_ended(index, {"a": ClientSum("a", np.zeros(1), 3)})
    assert len(set(keys)) == 5
    kept = stream.state_dict()
    assert {name: each.tobytes()[:32] for name, each in kept.items()} == {
        "noise.3.a": keys[3],
        "noise.4.a": keys[4],
    }
    # The noise of a sum that nobody has seen is not taken back.
    stream.draw("a", taps, 5)
    stream.round_ended(5, {"a": ClientSum("a", None, 0)})
    assert [tap for _, tap in stream.draw("a", taps, 6).taken_back] == [0.2]
    assert NoiseStreams(0).draw("a", (), 3).taken_back == ()
    odd_keys: list[np.ndarray[Any, Any]] = [
        np.zeros((1, 48), np.uint8),
        np.zeros(47, np.uint8),
        np.zeros(53, np.uint8),
        np.zeros(48),
    ]
    for odd in odd_keys:
        with pytest.raises(ValueError, match="not those that this run keeps"):
            NoiseStreams(2).restore({"noise.0.a": odd})
    with pytest.raises(ValueError, match="not those that this run keeps"):
        NoiseStreams(2).restore({f"noise.{index}.a": np.zeros(48, np.uint8) for index in range(3)})


def test_a_run_goes_on_and_takes_back_what_the_process_before_has_added(tmp_path, monkeypatch):
    drawn, draw = [], NoiseStreams.draw

    def watched(stream, name, taps, round_index):
        drawn.append((round_index, draw(stream, name, taps, round_index)))
        return drawn[-1][1]

    monkeypatch.setattr(NoiseStreams, "draw", watched)
    run(tmp_path, [*EVERYONE, "run.stop_after_round=3"])
    path = tmp_path / CHECKPOINT_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    kept = Checkpoint.load(tmp_path).method_state
    for index in (1, 2):
        assert kept[f"noise.{index}.all groups"].tobytes()[:32] == drawn[index][1].key
    records = run(tmp_path, ["run.stop_after_round=null"], resume=True)
    assert [index for index, _ in drawn] == list(range(6))
    keys = [noise.key for _, noise in drawn]
    assert len(set(keys)) == 6
    for index, noise in drawn:
        assert [each.key for each, _ in noise.taken_back] == [
            keys[index - lag] for lag in (1, 2) if index >= lag
        ]
    assert not path.exists()
    assert all(record.survivors == [sum(record.cohort_sizes)] for record in records)
    assert records[-1].spent_epsilon == pytest.approx([1.0, 3.0])
    audit = audit_run(tmp_path)
    assert audit.passed, audit.findings


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    directory = tmp_path_factory.mktemp("stream") / "run"
    run(directory, EVERYONE)
    for name in ("seal.json", MODEL_FILE):
        (directory / name).unlink()
    # As it was before it ended.
    (directory / CHECKPOINT_FILE).write_bytes(b"")
    assert audit_run(directory).passed
    return directory


@pytest.mark.parametrize(
    ("name", "edit", "found"),
    [
        ("ledger.json", lambda data: _more_turns(data, 1), "and rounds.jsonl has"),
        ("ledger.json", lambda data: data["taken"].popitem(), "turns of client"),
        ("ledger.json", lambda data: _moved(data), "and rounds.jsonl has"),
        ("plan.json", lambda data: _set(data, "taps", [0.1, 0.0]), "charges of group"),
        ("plan.json", lambda data: _set(data, "taps", [0.1, 0.2]), "need not cost most"),
        ("plan.json", lambda data: _set(data, "separation", 9), "charges of group"),
        (
            "config.yaml",
            lambda data: data["privacy"].update(against="outsiders"),
            "privacy.against=outsiders",
        ),
    ],
)
def test_the_audit_finds_edited_turns(honest, name, edit, found):
    path = honest / name
    before = path.read_text()
    data = json.loads(before) if name.endswith("json") else None
    if data is None:
        path.write_text(before.replace("against: everyone", "against: outsiders"))
    else:
        edit(data)
        path.write_text(json.dumps(data))
    try:
        audit = audit_run(honest)
    finally:
        path.write_text(before)
    assert not audit.passed
    assert any(found in each for each in audit.findings), audit.findings


def test_the_audit_computes_what_every_client_has_spent_from_its_turns(honest, capsys):
    lines = [json.loads(line) for line in (honest / "rounds.jsonl").read_text().splitlines()]
    plan = json.loads((honest / "plan.json").read_text())
    for m, group in enumerate(audit_run(honest).groups):
        most, planned = group.most_spent, plan["groups"][m]
        assert most is not None
        spent = {}
        for client in {client for line in lines for client in line["turns"][m]}:
            turns = tuple(line["round"] - 1 for line in lines if client in line["turns"][m])
            moved = sensitivity(tuple(planned["turns"]["taps"]), turns, 6)
            spent[client] = gaussian_epsilon(planned["noise_multiplier"] / moved, plan["delta"])
        assert len(spent) == planned["clients"]
        assert most.epsilon == pytest.approx(max(spent.values()))
        assert most.epsilon == pytest.approx(spent[most.client])
        assert most.rounds == tuple(line["round"] for line in lines if most.client in line["turns"][m])
        assert group.against_members == most.epsilon <= group.budget
    assert main(["audit", str(honest)]) == 0
    whom = "epsilon against all but the server, by turns that all may know"
    assert whom in " ".join(capsys.readouterr().out.split())
    audit = audit_run(honest)
    masked = replace(audit, groups=tuple(replace(each, against_server=each.spent) for each in audit.groups))
    assert run_table(masked).note == f"{whom}; of each group's dearest client".replace(
        "all but the server", "everyone"
    )


def test_the_audit_finds_a_client_with_too_many_turns_in_both_files(honest):
    """The audit finds a client with too many turns (scheduled rounds), even if ledger and log agree."""
    before = {name: (honest / name).read_text() for name in ("ledger.json", "rounds.jsonl")}
    ledger = json.loads(before["ledger.json"])
    client = next(iter(ledger["participations"][0]))
    ledger["taken"][client], ledger["participations"][0][client] = list(range(6)), 6
    lines = [json.loads(line) for line in before["rounds.jsonl"].splitlines()]
    for line in lines:
        line["turns"][0] = sorted({*line["turns"][0], int(client)})
        line["cohort_sizes"][0] = len(line["turns"][0])
    (honest / "ledger.json").write_text(json.dumps(ledger))
    (honest / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    try:
        audit = audit_run(honest)
    finally:
        for name, text in before.items():
            (honest / name).write_text(text)
    assert any(
        f"client {client} of group 0 has had the turns [0, 1, 2, 3, 4, 5], and may" in each
        for each in audit.findings
    )
    assert audit.groups[0].most_spent is not None
    assert audit.groups[0].most_spent.client == int(client)
    assert not audit.groups[0].within_budget


def test_the_audit_finds_noise_that_is_taken_back_twice_or_where_none_is_due(honest):
    path = honest / "rounds.jsonl"
    before = path.read_text()
    for taken_back, found in (
        ({2: [[1]], 3: [[1]]}, ""),
        ({2: [[1, 1]]}, "round 1 in round 2, which was not due once"),
        ({4: [[1]]}, "round 1 in round 4, which was not due once"),
        ({2: [[2]]}, "round 2 in round 2, which was not due once"),
        ({3: [[2]]}, "round 2 in round 3, which was not due once"),
    ):
        lines = [json.loads(line) for line in before.splitlines()]
        client = lines[0]["turns"][0][0]
        assert client not in lines[1]["turns"][0]
        for index, turns in taken_back.items():
            lines[index - 1]["taken_back"] = [[[client, turn] for turn in each] for each in turns]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        try:
            audit = audit_run(honest)
        finally:
            path.write_text(before)
        assert audit.passed == (not found), audit.findings
        assert not found or found in audit.findings[0]


def _more_turns(ledger, index):
    client = next(iter(ledger["participations"][0]))
    turns = sorted({*ledger["taken"][client], *(turn + index for turn in ledger["taken"][client])})
    turns = [turn for turn in turns if turn < ledger["charged_rounds"]]
    ledger["taken"][client], ledger["participations"][0][client] = turns, len(turns)


def _moved(ledger):
    client = next(each for each, turns in ledger["taken"].items() if turns[-1] < 5)
    ledger["taken"][client][-1] += 1


def _set(plan, key, value):
    plan["groups"][0]["turns"][key] = value


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (["privacy.sampling=fixed_size", "privacy.accountant=rdp"], "privacy.sampling=fixed_size: use"),
        (["privacy.noise=discrete_gaussian"], "use privacy.noise=gaussian"),
        (["privacy.clipping=adaptive"], "use privacy.clipping=fixed"),
        (["privacy.accountant=rdp"], "use privacy.accountant=pld"),
        (["privacy.sampling_rates=[0.1,0.2]"], "use privacy.sampling_rates=auto"),
        (["privacy.noise_taps=17"], r"privacy.noise_taps=17 must be in \[0, 16\]"),
        (["run.mailbox=/a/folder"], "privacy.against=everyone does not go with run.mailbox=/a/folder"),
        (["privacy.unit=record"], "privacy.unit=record: use privacy.unit=client"),
        (["secagg.noise_levels=2"], "use privacy.noise=discrete_gaussian"),
        (["privacy.against=nobody"], "privacy.against=nobody is not known: use auto, outsiders or everyone"),
        (["method=hier_fedavg"], "does not go with method=hier_fedavg: it schedules rounds"),
    ],
)
def test_what_is_not_proved_is_refused_in_one_line(overrides, match):
    given = EVERYONE[1:] if overrides[0].startswith("method=") else EVERYONE
    settings = ["dataset=digits", *given, *overrides]
    with pytest.raises((ConfigError, PrivacyError), match=match) as refused:
        make_method(load(settings))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("method", ["dp_fedavg", "idp_fedavg_scale", "idp_fedavg_sample", "gdpfed_star"])
def test_every_one_sum_method_has_a_plan(method):
    settings = ["dataset=digits", "run.num_rounds=30", "privacy.sampling_rate=0.2", "privacy.budgets=[1,3,6]"]
    settings += [f"method={method}", "privacy.against=everyone", f"privacy.delta={paper_delta(360)}"]
    planned = make_method(load(settings))
    plan = planned.plan
    assert plan.mechanism.against_everyone
    assert [group.epsilon_against_server for group in plan.groups] == pytest.approx(
        [group.epsilon_accounted for group in plan.groups]
    )
    turns = {each.most_turns for each in limits_of(plan)}
    norms = {round(group.clipping_norm, 9) for group in plan.groups}
    assert (len(turns) > 1) == (method in ("idp_fedavg_sample", "gdpfed_star"))
    assert (len(norms) > 1) == (method in ("idp_fedavg_scale", "gdpfed_star"))
    if method == "gdpfed_star" and plan.num_clients == 360:
        # Of the reference: 0.00330 of what all rounds sum, and sqrt(30) of it a round.
        relative = planned.weighting.noise_per_step(plan) / math.sqrt(30)
        assert relative == pytest.approx(0.00330, abs=1e-5)


def test_the_plan_and_the_card_say_against_whom(tmp_path):
    run(tmp_path / "off", [*EVERYONE, "run.num_rounds=3"])
    card = (tmp_path / "off" / "model_card.md").read_text()
    assert "Epsilon holds against everyone but the server" in card
    assert "Nothing rests on a secret" in card
    settings = ["dataset=digits", "method=gdpfed_star", "privacy.against=everyone", "privacy.budgets=[1,3]"]
    said = " ".join(" ".join(plan_lines(make_method(load(settings)), SecAggConfig())).split())
    assert "client-level DP against everyone" in said
    assert "Epsilon holds against everyone: the public, members" in said
    assert "vs server" not in said


def test_a_node_ledger_of_turns_is_audited():
    plan = make_method(load(["dataset=digits", *EVERYONE])).plan
    terms = terms_of(plan, 1, "a run", dropout_tolerance=0.0, corrupt_tolerance=0.0)
    ledger = ClientLedger()
    ledger.begin(terms, epsilons=[3.0], delta=plan.delta)
    apart = int(terms.to_scalars()["separation"])
    for index in (1, 1 + apart):
        ledger.charge("a run", index)
    (entry,) = (node_entry(saved) for saved in ledger.to_dict()["runs"])
    (audit,) = entry.audits([entry])
    assert audit.epsilon == pytest.approx(ledger.epsilon(plan.delta))
    assert audit.within_budget
    assert (audit.sent, audit.num_updates) == (2, terms.to_scalars()["most_turns"])
    broken = ledger.to_dict()["runs"][0]
    broken["rounds"] = [1, apart]
    assert any("had the turns" in each for each in node_entry(broken).check())


def test_a_sum_whose_cohort_is_left_out_is_asked_for_without_an_error():
    """The extension for correlated noise accepts a request for a sum without clients."""
    config = load(["method=gdpfed", "privacy.against=everyone"])
    plan = make_method(config).plan
    assert not plan.one_sum
    nobody = SumRequest(
        name="group 0",
        clients=np.zeros(0, np.int64),
        clipping_norm=1.0,
        noise_multiplier=1.0,
        noise_at=NoiseAt.CLIENT,
        start=np.zeros(3, np.float32),
    )
    (asked,) = CorrelatedNoise(plan).asked(order_of(config, task_of(config)), [nobody])
    assert len(asked.clients) == 0
