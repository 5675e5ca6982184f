"""Tests of nodes with budgets and ledgers of their own: groups by budget, charges and refusals."""

import json
import re

import pytest
from flwr.app import ConfigRecord, RecordDict

from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.audit.run_audit import audit_run
from gdpfed.errors import ConfigError, RunError
from gdpfed.files import write_whole
from gdpfed.runs.file_formats import MODEL_FILE
from testing.local_grid import FIRST_NODE_ID, Crash, LocalGrid, crashing_grid, kinds_of, refusals
from testing.small_runs import NUM_CLIENTS, grid_of_owners, ledger_of, run

# Three kinds of budgets, mixed over the clients.
EPSILONS = [1.0 + (k % 3) * 2 + k / 100 for k in range(NUM_CLIENTS)]
THEIRS = ["privacy.budgets=clients", "privacy.delta=null"]
EVERYBODY = ["method=dp_fedavg", "privacy.sampling_rate=1"]
BEYOND = "^client {client} does not take part in this run: this run does not fit this client's own budget"


def plan_of(directory):
    return json.loads((directory / "plan.json").read_text())


def assignment_of(directory):
    groups = json.loads((directory / "assignment.json").read_text())["clients"]
    return [{client for start, stop in group for client in range(start, stop)} for group in groups]


def test_groups_are_formed_of_what_the_nodes_say(tmp_path):
    grid = grid_of_owners(tmp_path / "ledgers", EPSILONS)
    grid.contexts[FIRST_NODE_ID].node_config["delta"] = 1e-6
    records = run(tmp_path / "run", THEIRS, grid=grid)
    assert len(records) == 3
    plan, groups = plan_of(tmp_path / "run"), assignment_of(tmp_path / "run")
    # The smallest that a node says, the others say 1e-3, and the default for so few is 1e-5.
    assert plan["delta"] == 1e-6
    assert groups == [{k for k in range(NUM_CLIENTS) if k % 3 == m} for m in range(3)]
    for group, members in zip(plan["groups"], groups, strict=True):
        assert group["epsilon"] == min(EPSILONS[client] for client in members)
    assert (tmp_path / "run" / "config.yaml").stat().st_mode & 0o077 == 0
    assert refusals(grid) == []
    assert audit_run(tmp_path / "run").passed


@pytest.mark.parametrize(
    "method", ["dp_fedavg", "gdpfed", "gdpfed_op", "pfa", "idp_fedavg_scale", "gdpfed_star"]
)
def test_every_private_method_keeps_the_terms_it_offers(tmp_path, method):
    grid = grid_of_owners(tmp_path / "ledgers", EPSILONS)
    overrides = [*THEIRS, f"method={method}", "run.num_rounds=2"]
    run(tmp_path / "run", overrides, grid=grid)
    assert refusals(grid) == []
    assert audit_run(tmp_path / "run").findings == ()
    assert any(ledger_of(tmp_path / "ledgers", client).runs[0].rounds for client in range(NUM_CLIENTS))


def test_groups_can_be_cut_at_fixed_edges(tmp_path):
    grid = grid_of_owners(tmp_path / "ledgers", EPSILONS)
    overrides = [*THEIRS, "privacy.group_edges=[2]", "method=gdpfed", "run.num_rounds=1"]
    run(tmp_path / "run", overrides, grid=grid)
    assert [len(group) for group in assignment_of(tmp_path / "run")] == [4, 8]


def test_every_node_keeps_a_ledger_that_agrees_with_the_servers(tmp_path):
    overrides = [*THEIRS, "method=gdpfed", "privacy.sampling_rate=1"]
    run(tmp_path / "run", overrides, grid=grid_of_owners(tmp_path / "ledgers", EPSILONS))
    counts = json.loads((tmp_path / "run" / "ledger.json").read_text())["participations"]
    sent = {
        client: len(ledger_of(tmp_path / "ledgers", client).runs[0].rounds) for client in range(NUM_CLIENTS)
    }
    asked = {int(client): count for group in counts for client, count in group.items()}
    assert sent == asked == dict.fromkeys(range(NUM_CLIENTS), 3)
    for client in (0, 1, 2):
        audit = audit_node_ledger(tmp_path / "ledgers" / f"{client}.json")
        assert audit.passed
        assert audit.runs[0].epsilon <= audit.runs[0].budget == EPSILONS[client]


@pytest.mark.parametrize(
    ("epsilons", "words"),
    [
        ([None] * 12, r"client 0 \(12 of 12\) says no budget of its own: start its node with --node-config"),
        ([None] * 12, r"; 0 nodes are left and 12 are needed$"),
        ([*EPSILONS[:8], *[None] * 4], r"client 8 \(4 of 12\) says no budget of its own"),
        ([*EPSILONS[:8], *[None] * 4], r"12 are needed: run.minimum_nodes=8 goes on without them$"),
    ],
)
def test_nodes_that_say_no_budget_are_named_before_anything_is_written(tmp_path, epsilons, words):
    with pytest.raises(RunError, match=words):
        run(tmp_path / "run", THEIRS, grid=grid_of_owners(tmp_path / "ledgers", epsilons))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("epsilon", [0.05, float("nan"), -1.0, 1e9, 5e-324, None])
def test_one_node_does_not_decide_for_all(tmp_path, epsilon, caplog):
    """A node whose budget is impossible or far too small is left out and does not change the others' plan."""

    def spoil(kind, client, content):
        if (kind, client) == ("join", 3):
            own = dict(content["client"]) | {"epsilon": epsilon}
            content["client"] = ConfigRecord({key: value for key, value in own.items() if value is not None})
        return content

    grid = grid_of_owners(tmp_path / "ledgers", [2.0] * 12, spoil=spoil)
    words = [
        *THEIRS,
        "privacy.num_groups=1",
        "method=dp_fedavg",
        "run.num_rounds=1",
        "privacy.sampling_rate=1",
    ]
    (record,) = run(tmp_path / "run", [*words, "run.minimum_nodes=11"], grid=grid)
    assert record.survivors == [11]
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["groups"][0]["epsilon"] == 2.0
    (line,) = (each for each in caplog.messages if "client 3 states a budget of" in each)
    assert "is left out: it must be" in line
    with pytest.raises(RunError, match="client 3"):
        run(tmp_path / "other", words, grid=grid_of_owners(tmp_path / "more", [2.0] * 12, spoil=spoil))


def test_more_groups_than_budgets_is_one_line(tmp_path):
    from gdpfed.errors import PrivacyError

    with pytest.raises(PrivacyError, match="privacy.num_groups=3 is more than the 1 distinct budgets"):
        run(tmp_path / "run", [*THEIRS, "privacy.num_groups=3"], grid=grid_of_owners(tmp_path, [2.0] * 12))


def test_client_budgets_in_the_configuration_need_no_node_that_says_them(tmp_path):
    listed = ["privacy.budgets=clients", f"privacy.client_budgets={EPSILONS}", "run.num_rounds=1"]
    run(tmp_path / "run", listed)
    assert [len(group) for group in assignment_of(tmp_path / "run")] == [4, 4, 4]
    with pytest.raises(ConfigError, match="client_budgets has 2 entries for dataset.num_clients=12"):
        run(tmp_path / "other", ["privacy.budgets=clients", "privacy.client_budgets=[1,2]"])


def test_a_node_refuses_a_plan_beyond_its_budget_and_keeps_the_figures(tmp_path, caplog):
    epsilons = [None] * 11 + [0.5]
    grid = grid_of_owners(tmp_path / "ledgers", epsilons)
    with pytest.raises(RunError, match=BEYOND.format(client=11)):
        run(tmp_path / "run", ["method=gdpfed"], grid=grid)
    assert re.search(r"3 rounds .* epsilon 0 to 5.\d+ .* its own budget of 0.5", caplog.text)
    assert not (tmp_path / "run").exists()
    assert ledger_of(tmp_path / "ledgers", 11).runs == ()


def test_a_second_run_is_refused_by_the_ledger_of_the_first(tmp_path, caplog):
    """A node refuses a run whose cost, together with that of an earlier run, exceeds its budget."""
    epsilons = [None] * 11 + [1.5]
    overrides = ["method=gdpfed", "privacy.budgets=[1.2]"]
    run(tmp_path / "one", overrides, grid=grid_of_owners(tmp_path / "ledgers", epsilons))
    with pytest.raises(RunError, match=BEYOND.format(client=11)):
        run(tmp_path / "two", overrides, grid=grid_of_owners(tmp_path / "ledgers", epsilons))
    words = r"from epsilon 1.0\d+ to \d\.\d+ at delta 0.001, above its own budget of 1.5"
    assert re.search(words, caplog.text)
    cheaper = ["method=gdpfed", "privacy.budgets=[0.3]", "run.num_rounds=1"]
    run(tmp_path / "three", cheaper, grid=grid_of_owners(tmp_path / "ledgers", epsilons))
    assert len(ledger_of(tmp_path / "ledgers", 11).runs) == 2


def test_a_resumed_run_is_charged_once_even_after_the_nodes_were_restarted(tmp_path):
    grid = grid_of_owners(tmp_path / "ledgers", EPSILONS)
    run(tmp_path / "run", [*THEIRS, "run.stop_after_round=1"], grid=grid)
    before = ledger_of(tmp_path / "ledgers", 0).epsilon(1e-3)
    restarted = grid_of_owners(tmp_path / "ledgers", EPSILONS)
    records = run(tmp_path / "run", grid=restarted, resume=True)
    assert [record.round for record in records] == [1, 2, 3]
    ledger = ledger_of(tmp_path / "ledgers", 0)
    assert len(ledger.runs) == 1
    assert ledger.epsilon(1e-3) == before
    assert refusals(restarted) == []


def test_a_node_that_lowered_its_budget_refuses_to_go_on(tmp_path, caplog):
    run(
        tmp_path / "run",
        [*THEIRS, "run.stop_after_round=1"],
        grid=grid_of_owners(tmp_path / "ledgers", EPSILONS),
    )
    # At the delta of its own, 1e-3, two rounds of a plan at 1e-5 cost less than the plan says.
    lowered = [0.1, *EPSILONS[1:]]
    with pytest.raises(RunError, match=BEYOND.format(client=0)):
        run(tmp_path / "run", grid=grid_of_owners(tmp_path / "ledgers", lowered), resume=True)
    assert "above its own budget of 0.1" in caplog.text


def with_record(content, name, **changes):
    changed = RecordDict(dict(content))
    changed[name] = ConfigRecord({**content[name], **changes})
    return changed


def test_a_round_that_the_terms_do_not_have_is_refused(tmp_path):
    lies: dict[int, tuple[dict[str, object], str]] = {
        5: ({"round": 0}, "round 0 of run .* has had its update already"),
        6: ({"round": 3}, "round 3 of run .* lies beyond the 3 of its terms"),
        7: ({"run": "another"}, "run another was never begun with this client"),
        8: ({"round": "x"}, "the message does not say which round it is of"),
    }

    def lie(kind, client, content):
        if kind != "advertise" or client not in lies or content["advertise"]["round"] != 1:
            return content
        return with_record(content, "advertise", **lies[client][0])

    grid = grid_of_owners(tmp_path / "ledgers", [3.0] * NUM_CLIENTS, meddle=lie)
    overrides = [
        *EVERYBODY,
        "privacy.budgets=[3]",
        "run.num_rounds=3",
        "secagg.threshold=0.6",
        "secagg.dropout_tolerance=0.34",
    ]
    records = run(tmp_path / "run", overrides, grid=grid)
    assert [record.survivors for record in records] == [[12], [8], [12]]
    reasons = refusals(grid)
    assert len(reasons) == 4
    assert [words for _, words in lies.values() if not any(re.search(words, each) for each in reasons)] == []
    for client in lies:
        assert ledger_of(tmp_path / "ledgers", client).runs[0].rounds == [0, 2]


def test_a_server_that_lowers_the_noise_is_refused_by_everybody(tmp_path, monkeypatch):
    from dataclasses import replace

    from gdpfed.privacy.ledgers.charged import ChargedSum
    from gdpfed.rounds.fleet import Fleet

    honest = Fleet.parameters
    weaker = lambda *each: replace(p := honest(*each), noise_multiplier=p.noise_multiplier * 0.99)  # noqa: E731
    monkeypatch.setattr(Fleet, "parameters", weaker)
    monkeypatch.setattr(ChargedSum, "check", lambda *each: None)
    grid = grid_of_owners(tmp_path / "ledgers", [3.0] * 12)
    overrides = [*EVERYBODY, "privacy.budgets=[3]", "run.num_rounds=1"]
    records = run(tmp_path / "run", overrides, grid=grid, without_a_sum=True)
    assert records[0].survivors == [0]
    assert all("noise of standard deviation" in reason for reason in refusals(grid))
    assert len(refusals(grid)) == 12
    assert ledger_of(tmp_path / "ledgers", 0).runs[0].rounds == []


def test_a_limit_against_the_server_ends_a_nodes_part_and_not_the_run(tmp_path, caplog):
    grid = grid_of_owners(tmp_path / "ledgers", [None] * 11 + [3.0], {"max-epsilon-against-server": 2.0})
    overrides = [*EVERYBODY, "privacy.budgets=[3]", "run.num_rounds=3"]
    records = run(tmp_path / "run", overrides, grid=grid)
    assert [record.survivors for record in records] == [[12], [11], [11]]
    assert refusals(grid)[0] == "one more update does not fit this client's own limit against the server"
    assert "against the server, above its own limit of 2" in caplog.text
    ledger = ledger_of(tmp_path / "ledgers", 11)
    assert ledger.runs[0].rounds == [0]
    assert ledger.epsilon_against_server(1e-3) <= 2.0


def test_a_run_killed_in_its_last_round_is_concluded_with_nothing_left_to_agree(tmp_path):
    overrides = [*EVERYBODY, "privacy.budgets=[3]", "run.num_rounds=2"]
    grid = grid_of_owners(tmp_path / "ledgers", [3.0] * 12)
    grid.vanishes = crashing_grid(NUM_CLIENTS, "unmask", NUM_CLIENTS + 3).vanishes
    with pytest.raises(Crash):
        run(tmp_path / "run", overrides, grid=grid)
    again = grid_of_owners(tmp_path / "ledgers", [3.0] * 12)
    records = run(tmp_path / "run", overrides, grid=again, resume=True)
    assert [record.survivors for record in records] == [[12], []]
    assert again.exchanges == [{"join"}]
    assert [each.rounds for each in ledger_of(tmp_path / "ledgers", 5).runs] == [[0, 1]]
    assert (tmp_path / "run" / MODEL_FILE).exists()


def test_an_update_is_written_down_before_it_leaves(tmp_path):
    at_answer = {}

    class Watching(LocalGrid):
        def _deliver(self, message):
            kinds = kinds_of(message)
            reply = super()._deliver(message)
            if "mask" in kinds:
                client = message.metadata.dst_node_id - FIRST_NODE_ID
                at_answer[client] = json.loads((tmp_path / f"{client}.json").read_text())["ledger"]
            return reply

    grid = grid_of_owners(tmp_path, [3.0] * 12)
    grid.__class__ = Watching
    run(tmp_path / "run", [*EVERYBODY, "privacy.budgets=[3]", "run.num_rounds=1"], grid=grid)
    assert {client: ledger["runs"][0]["rounds"] for client, ledger in at_answer.items()} == {
        client: [0] for client in range(12)
    }


def test_single_updates_and_no_noise_are_refused(tmp_path, caplog):
    for overrides, words in (
        (["secagg=off"], "the server would see single updates"),
        (["method=fedavg"], BEYOND.format(client=0)),
    ):
        with pytest.raises(RunError, match=words):
            run(tmp_path / "run", overrides, grid=grid_of_owners(tmp_path / "ledgers", [9.0] * 12))
    assert "from epsilon 0 to inf at delta" in caplog.text


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"epsilon": -1.0}, "epsilon is -1.0: give a number above 0"),
        ({"ledger": "/nowhere/at/all/ledger.json"}, "name a file in an existing directory"),
        ({"delta": 2.0}, "delta is 2.0: give a number above 0 and below 1"),
    ],
)
def test_a_node_that_cannot_join_says_why(tmp_path, more, words):
    grid = grid_of_owners(tmp_path / "ledgers", [None] * 11 + [3.0], more)
    with pytest.raises(RunError, match=rf"SuperNode 1011 does not join: .*{words}"):
        run(tmp_path / "run", grid=grid)


def test_a_damaged_ledger_keeps_its_node_out(tmp_path):
    grid = grid_of_owners(tmp_path / "ledgers", [3.0] * 12)
    (tmp_path / "ledgers" / "7.json").write_text('{"ledger": {}')
    with pytest.raises(RunError, match="SuperNode 1007 does not join: ledger=.*7.json is damaged"):
        run(tmp_path / "run", grid=grid)
    assert (tmp_path / "ledgers" / "7.json").read_text() == '{"ledger": {}'


def test_nothing_leaves_a_node_whose_disk_is_full(tmp_path, monkeypatch):
    """A node that cannot write its ledger sends no update, and the sum succeeds without that node."""
    grid, full, write, answers = grid_of_owners(tmp_path / "ledgers", [3.0] * 12), set(), write_whole, {}

    def write_or_not(path, data):
        if path.name in full:
            raise OSError(28, "No space left on device")
        write(path, data)

    def fill(kind, client, content):
        if (kind, client) == ("mask", 7):
            full.add("7.json")
        return content

    def note(kind, client, content):
        if kind == "mask":
            values = [value for record in content.values() for value in record.values()]
            answers[client] = [value for value in values if isinstance(value, bytes)]
        return content

    monkeypatch.setattr("gdpfed.federation.node.node_file.write_whole", write_or_not)
    grid.meddle, grid.spoil = fill, note
    words = [*EVERYBODY, "secagg.dropout_tolerance=0.2", "run.num_rounds=1", "privacy.budgets=[1]"]
    (record,) = run(tmp_path / "run", words, grid=grid)
    assert record.survivors == [11]
    assert [line for line in refusals(grid) if "7.json cannot be written: No space left on device" in line]
    assert answers[7] == []
    assert all(answers[client] for client in range(7))
    assert ledger_of(tmp_path / "ledgers", 7).runs[0].rounds == []
