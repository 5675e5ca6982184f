"""Tests that the server's history reveals if a node's ledger and lock file come from an old backup."""

import json
import shutil

import pytest
from flwr.app import ConfigRecord

from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.cli import main
from gdpfed.errors import RunError
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.federation.server.client_history import HISTORY_FILE, ClientHistory
from testing.small_runs import NUM_CLIENTS, grid_of_owners, ledger_of, run

EVERYBODY = (
    *("method=dp_fedavg", "privacy.sampling_rate=1", "run.num_rounds=2"),
    *("privacy.budgets=[1]", "secagg.dropout_tolerance=0.2"),
)
VICTIM = 3
WITHOUT_IT = f"run.minimum_nodes={NUM_CLIENTS - 1}"
REFUSAL = f"client {VICTIM} does not take part in this run: this client's ledger lacks runs that it has taken"


def owners(tmp_path, **more):
    return grid_of_owners(
        tmp_path / "ledgers", [9.0] * NUM_CLIENTS, {key.replace("_", "-"): each for key, each in more.items()}
    )


def files_of_victim(folder):
    return [folder / f"{VICTIM}.json", folder / f"{VICTIM}.json.lock"]


def copied(tmp_path, source, to):
    """Copy the victim's ledger and its lock file, as a backup of a disk does."""
    (tmp_path / to).mkdir(exist_ok=True)
    for path in files_of_victim(tmp_path / source):
        shutil.copy(path, tmp_path / to / path.name)


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
    """Return a folder of two runs and the name of the second, which the victim's restored ledger lacks."""
    tmp_path = tmp_path_factory.mktemp("two_runs")
    run(tmp_path / "first", EVERYBODY, grid=owners(tmp_path))
    copied(tmp_path, "ledgers", "backup")
    run(tmp_path / "second", EVERYBODY, grid=owners(tmp_path))
    second = ledger_of(tmp_path / "ledgers", VICTIM).runs[1]
    assert len(second.rounds) == 2
    copied(tmp_path, "backup", "ledgers")
    assert len(ledger_of(tmp_path / "ledgers", VICTIM).runs) == 1
    return tmp_path, second.terms.run


@pytest.fixture
def put_back(tmp_path, two_runs):
    """Copy the two runs into the test's folder, and return the name of the second run."""
    shutil.copytree(two_runs[0], tmp_path, dirs_exist_ok=True)
    return two_runs[1]


def test_a_ledger_that_was_put_back_with_its_lock_is_refused_in_the_next_run(tmp_path, put_back, caplog):
    with pytest.raises(RunError, match=REFUSAL):
        run(tmp_path / "third", EVERYBODY, grid=owners(tmp_path, lost_rounds=0))
    assert not (tmp_path / "third").exists()
    assert f"lacks 2 rounds in which the server has received updates ({put_back}: 2)" in caplog.text
    assert "start the node with lost-rounds=2" in caplog.text
    # The others go on without it, where they are enough.
    run(tmp_path / "fourth", [*EVERYBODY, WITHOUT_IT], grid=owners(tmp_path))
    assert len(ledger_of(tmp_path / "ledgers", VICTIM).runs) == 1
    assert len(ledger_of(tmp_path / "ledgers", 0).runs) == 3


def test_the_newest_ledger_or_its_operators_word_lets_the_client_in_again(tmp_path, put_back):
    with pytest.raises(RunError, match=REFUSAL):
        run(tmp_path / "third", EVERYBODY, grid=owners(tmp_path, lost_rounds=1))
    run(tmp_path / "fourth", EVERYBODY, grid=owners(tmp_path, lost_rounds=2))
    assert len(ledger_of(tmp_path / "ledgers", VICTIM).runs) == 2
    copied(tmp_path, "backup", "ledgers")
    with pytest.raises(RunError, match=REFUSAL):
        run(tmp_path / "fifth", EVERYBODY, grid=owners(tmp_path, lost_rounds=2))


def test_a_ledger_from_the_middle_of_a_run_falls_short_of_it(tmp_path):
    run(tmp_path / "first", EVERYBODY, grid=owners(tmp_path))
    history = json.loads((tmp_path / HISTORY_FILE).read_text())
    (name,) = history["clients"][f"client {VICTIM}"]
    history["clients"][f"client {VICTIM}"][name]["rounds"] = 3
    (tmp_path / HISTORY_FILE).write_text(json.dumps(history))
    with pytest.raises(RunError, match=REFUSAL):
        run(tmp_path / "second", EVERYBODY, grid=owners(tmp_path))


def test_an_audit_names_the_run_that_a_ledger_lacks(tmp_path, put_back, capsys):
    ledger, runs = tmp_path / "ledgers" / f"{VICTIM}.json", [tmp_path / "first", tmp_path / "second"]
    audit = audit_node_ledger(ledger, VICTIM, runs)
    assert not audit.passed
    (finding,) = audit.findings
    assert finding.startswith(f"run {put_back} in {runs[1]} has drawn client {VICTIM} for 2 rounds")
    assert audit_node_ledger(tmp_path / "ledgers" / "0.json", 0, runs).passed
    words = ["audit", "--node-ledger", str(ledger), *map(str, runs)]
    assert main([*words, "--client", str(VICTIM)]) == 1
    assert main(words) == 2
    assert "--client N needs --node-ledger FILE" in capsys.readouterr().err


def test_a_server_without_its_file_knows_nothing(tmp_path, put_back):
    (tmp_path / HISTORY_FILE).unlink()
    run(tmp_path / "third", EVERYBODY, grid=owners(tmp_path))
    assert len(ledger_of(tmp_path / "ledgers", VICTIM).runs) == 2


def test_each_client_is_told_its_own_runs_and_the_file_is_the_servers_alone(tmp_path):
    told = {}

    def listen(kind, client, content):
        if kind == "offer" and "history" in content:
            told[client] = dict(content["history"])
        return content

    run(tmp_path / "first", [*EVERYBODY, WITHOUT_IT], grid=owners(tmp_path))
    grid = owners(tmp_path)
    grid.meddle = listen
    run(tmp_path / "second", EVERYBODY, grid=grid)
    ledgers = [ledger_of(tmp_path / "ledgers", client) for client in range(NUM_CLIENTS)]
    first = ledgers[0].runs[0].terms.run
    secrets = [[run.secret for run in ledger.runs] for ledger in ledgers]
    assert len({each for own in secrets for each in own} - {""}) == 2 * NUM_CLIENTS
    assert told == {
        client: {"runs": [first], "rounds": [2], "secrets": [old], "secret": new}
        for client, (old, new) in enumerate(secrets)
    }
    assert (tmp_path / HISTORY_FILE).stat().st_mode & 0o077 == 0
    assert json.loads((tmp_path / HISTORY_FILE).read_text())["version"] == 3


@pytest.mark.parametrize("secret", ["", "0" * 32])
def test_no_other_server_reads_from_refusals_in_how_many_rounds_a_client_was(tmp_path, secret):
    """A server without a run's secret cannot learn from refusals in how many rounds a client took part."""
    run(tmp_path / "first", EVERYBODY, grid=owners(tmp_path))
    name = ledger_of(tmp_path / "ledgers", VICTIM).runs[0].terms.run

    def ask(kind, client, content):
        if kind == "offer" and client == VICTIM:
            content["history"] = ConfigRecord({"runs": [name], "rounds": [1000], "secrets": [secret]})
        return content

    grid = owners(tmp_path)
    grid.meddle = ask
    run(tmp_path / "second", EVERYBODY, grid=grid)
    assert len(ledger_of(tmp_path / "ledgers", VICTIM).runs) == 2


def test_a_history_and_ledgers_of_before_the_secrets_are_read(tmp_path):
    """Files of older versions without secrets are read, but their numbers of rounds are not compared."""
    run(tmp_path / "first", EVERYBODY, grid=owners(tmp_path))
    history = json.loads((tmp_path / HISTORY_FILE).read_text())
    before = {client: dict.fromkeys(runs, 2) for client, runs in history["clients"].items()}
    (tmp_path / HISTORY_FILE).write_text(json.dumps({"version": 1, "clients": before}))
    for client in range(NUM_CLIENTS):
        with locked_ledger(tmp_path / "ledgers" / f"{client}.json") as file:
            file.ledger.runs[0].secret = ""
            file.save()
    run(tmp_path / "second", EVERYBODY, grid=owners(tmp_path))
    runs = json.loads((tmp_path / HISTORY_FILE).read_text())["clients"][f"client {VICTIM}"]
    assert [each["rounds"] for each in runs.values()] == [2, 2]
    assert [len(each["secret"]) for each in runs.values()] == [0, 32]
    for path in files_of_victim(tmp_path / "ledgers"):
        path.unlink()
    with pytest.raises(RunError, match=REFUSAL):
        run(tmp_path / "third", EVERYBODY, grid=owners(tmp_path))


@pytest.mark.parametrize(
    "told",
    [
        {"runs": ["one"]},
        {"runs": ["one"], "rounds": [0]},
        {"runs": ["one"], "rounds": [-1], "secrets": [""]},
        {"runs": ["one", "one"], "rounds": [0, 0], "secrets": ["", ""]},
        {"runs": ["one"], "rounds": [0, 0], "secrets": [""]},
        {"runs": ["one"], "rounds": [0], "secrets": [0]},
        {"runs": [f"run {k}" for k in range(101)], "rounds": [0] * 101, "secrets": [""] * 101},
        {"runs": 3, "rounds": [0], "secrets": [""]},
    ],
)
def test_what_is_no_history_is_refused_as_one(tmp_path, told):

    def lie(kind, client, content):
        if kind == "offer" and client == VICTIM:
            content["history"] = ConfigRecord(told)
        return content

    grid = owners(tmp_path)
    grid.meddle = lie
    with pytest.raises(RunError, match="list of earlier runs has a form that this node cannot read"):
        run(tmp_path / "first", EVERYBODY, grid=grid)
    assert not ledger_of(tmp_path / "ledgers", VICTIM).runs


def test_a_client_is_known_by_its_key_and_its_newest_runs_are_kept(tmp_path):
    def history(run, keys=None):
        return ClientHistory(tmp_path, run, keys)

    for number in range(103):
        one = history(f"run {number}", {0: "aa", 1: "bb"})
        one.begun([0])
        one.received([0, 1], 0)
        one.received([0], 0)
    records = history("next", {5: "aa"}).told([5, 1])[5]
    runs = records["history"]["runs"]
    assert (len(runs), runs[0], runs[-1]) == (100, "run 3", "run 102")
    assert records["history"]["rounds"] == [1] * 100
    assert all(not told["history"]["runs"] for told in history("next").told([0, 1]).values())


@pytest.mark.parametrize(
    "text", ["{", '{"version": 1}', '{"version": 1, "clients": {"client 0": {"one": -1}}}']
)
def test_a_damaged_file_is_named_with_the_remedy(tmp_path, text):
    (tmp_path / HISTORY_FILE).write_text(text)
    with pytest.raises(RunError, match="is damaged .*: restore it from a copy, or remove it"):
        ClientHistory(tmp_path, "one", None).told([0])
    (tmp_path / HISTORY_FILE).write_text('{"version": 4, "clients": {}}')
    with pytest.raises(RunError, match="has version 4, and this gdpfed reads 1, 2, 3"):
        ClientHistory(tmp_path, "one", None).told([0])


def test_a_run_whose_nodes_have_no_ledgers_leaves_no_history(tmp_path):
    run(tmp_path / "first", EVERYBODY)
    assert not (tmp_path / HISTORY_FILE).exists()
