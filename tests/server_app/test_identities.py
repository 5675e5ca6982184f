"""Tests of nodes with identities: a node that is not in the roster takes no part and ends no run."""

import json
import os
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from flwr.app import ConfigRecord

from client_app.carried import node_of, settings_of
from conf.load import load
from gdpfed.errors import ConfigError, RunError
from gdpfed.federation.node.node_config import NodeConfigError
from gdpfed.federation.node.signing import prove, trust_of
from gdpfed.identities import IdentityError, new_identity, read_identity
from gdpfed.simulation.in_process_fleet import simulate
from secagg import Roster
from secagg.crypto.signatures import join_statement
from testing.known_identities import (
    CONSORTIUM,
    CONSORTIUM_KEY,
    ROSTER,
    grid_of_identities,
    identity_of,
    keys_of,
    node_settings,
    server_words,
    write_files,
)
from testing.local_grid import FIRST_NODE_ID, LocalGrid, make_context, refusals
from testing.small_runs import ACTIVE, FIRST_SEEN, run, small_config

CLIENTS = 6
INTRUDER, CLAIMED = 5000, 3
SIX = [
    f"dataset.num_clients={CLIENTS}",
    "method=dp_fedavg",
    "privacy.sampling_rate=1",
    "secagg.dropout_tolerance=0",
    "run.num_rounds=1",
]
SIGNED = [*SIX, "secagg.mode=active"]
CHALLENGE = bytes(range(32))


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "identities", keys_of(CLIENTS))


def question(challenge=CHALLENGE, roster=b""):
    return ConfigRecord({"mode": "active", "challenge": challenge, "roster": roster})


def test_a_run_goes_by_the_consortiums_roster_and_sends_none(tmp_path, folder):
    sent = []

    def listen(kind, client, content):
        sent.append("roster" in content)
        return content

    grid = grid_of_identities(folder, CLIENTS, meddle=listen)
    (record,) = run(tmp_path / "run", [*SIGNED, *server_words(folder)], grid=grid)
    assert (record.survivors, record.failures) == ([CLIENTS], {})
    assert "check" in {kind for exchange in grid.exchanges for kind in exchange}
    assert not any(sent)
    assert all(len(context.state) == 0 for context in grid.contexts.values())
    kept = json.loads((tmp_path / "run" / "assignment.json").read_text())["identities"]
    assert kept == {str(client): key.hex() for client, key in keys_of(CLIENTS).items()}


def cheat(monkeypatch, answers):
    """Let ``answers`` make some nodes' proofs of identity; other nodes stay honest."""

    reached = []

    def noted(context):
        reached.append(context.node_id)
        return node_of(context)

    monkeypatch.setattr("client_app.node_app.node_of", noted)
    monkeypatch.setattr(
        "client_app.node_app.prove", lambda node, asked: answers.get(reached[-1], prove)(node, asked)
    )


def own_key(node, asked):
    """Return a proof with a valid signature, whose key is not that of the claimed client."""
    thief = identity_of(CLAIMED, "thief")
    statement = join_statement("1", asked["challenge"], CLAIMED, asked["roster"])
    return {"identity": thief.public_bytes(), "signature": thief.sign(statement)}


def own_signature(node, asked):
    """Return a proof with the claimed client's key and a signature by another key."""
    return own_key(node, asked) | {"identity": identity_of(CLAIMED).public_bytes()}


def replayed(run_id, challenge=CHALLENGE):
    """Return an answer that repeats the claimed client's signature for another run or challenge."""

    def answer(node, asked):
        victim = identity_of(CLAIMED)
        statement = join_statement(run_id, challenge or asked["challenge"], CLAIMED, asked["roster"])
        return {"identity": victim.public_bytes(), "signature": victim.sign(statement)}

    return answer


def own_place(node, asked):
    """Return a proof by a client of the roster that claims another client's place."""
    member = identity_of(1)
    statement = join_statement("1", asked["challenge"], CLAIMED, asked["roster"])
    return {"identity": member.public_bytes(), "signature": member.sign(statement)}


ANOTHER_KEY = "signs with another key than the consortium's roster has for it"
CHEATS: tuple[tuple[Callable[..., dict[str, Any]], str], ...] = (
    (own_key, ANOTHER_KEY),
    (own_place, ANOTHER_KEY),
    (own_signature, "its signature does not fit its key"),
    (replayed("1"), "its signature does not fit its key"),
    (replayed("2", None), "its signature does not fit its key"),
    (lambda node, asked: {}, "signs nothing"),
    (lambda node, asked: {"identity": 5, "signature": "5"}, "signs nothing"),
)


@pytest.mark.parametrize("mode", ["curious", "active"])
def test_a_node_in_anothers_place_is_lost_and_not_the_run(tmp_path, folder, monkeypatch, caplog, mode):
    """A node that claims another client's place with a false proof is left out, and the run goes on."""
    grid = grid_of_identities(folder, CLIENTS)
    intruders = {INTRUDER + k: make_context(CLAIMED, node_id=INTRUDER + k) for k in range(len(CHEATS))}
    grid.contexts = {**intruders, **grid.contexts}
    cheat(monkeypatch, {INTRUDER + k: answer for k, (answer, _) in enumerate(CHEATS)})
    (record,) = run(tmp_path / "run", [*SIX, f"secagg.mode={mode}", *server_words(folder)], grid=grid)
    assert (record.survivors, record.failures) == ([CLIENTS], {})
    for k, (_, words) in enumerate(CHEATS):
        assert f"SuperNode {INTRUDER + k} says it is client {CLAIMED}, and {words}" in caplog.text


def test_nodes_that_go_by_another_roster_are_left_out(tmp_path, folder, caplog):
    """A node that uses another roster, which the same consortium has signed, is left out."""
    other = write_files(tmp_path / "other", keys_of(CLIENTS + 1))
    grid = grid_of_identities(folder, CLIENTS)
    grid.contexts[FIRST_NODE_ID + 2].node_config |= node_settings(other, 2)
    words = ["run.minimum_nodes=5", "secagg.dropout_tolerance=0.2"]
    (record,) = run(tmp_path / "run", [*SIGNED, *server_words(folder), *words], grid=grid)
    assert record.survivors == [CLIENTS - 1]
    assert "the server uses the consortium's roster" in refusals(grid)[0]


def test_a_node_that_is_started_anew_goes_on_under_its_identity(tmp_path, folder):
    """A node that is started anew during a run takes part again, with only its identity file left."""
    seen = count()

    def meddle(kind, client, content):
        if kind == "unmask" and client == CLIENTS - 1 and next(seen) == 0:
            old = grid.contexts.pop(FIRST_NODE_ID + 4)
            grid.contexts[INTRUDER] = make_context(4, old.node_config, INTRUDER)
        return content

    grid = grid_of_identities(folder, CLIENTS, meddle=meddle)
    records = run(tmp_path / "run", [*SIGNED, *server_words(folder), "run.num_rounds=2"], grid=grid)
    assert [(record.survivors, record.failures) for record in records] == [([CLIENTS], {})] * 2


def test_a_run_that_is_resumed_refuses_another_key_under_the_same_number(tmp_path, folder):
    words = [*SIGNED, *server_words(folder), "run.num_rounds=2", "run.stop_after_round=1"]
    run(tmp_path / "run", words, grid=grid_of_identities(folder, CLIENTS))
    thief = identity_of(4, "thief")
    write_files(folder, {**keys_of(CLIENTS), 4: thief.public_bytes()})
    grid = grid_of_identities(folder, CLIENTS)
    grid.contexts[FIRST_NODE_ID + 4].node_config |= node_settings(folder, 4, thief)
    words = words[:-1]
    with pytest.raises(
        RunError, match=f"client 4 had the key {identity_of(4).public_bytes().hex()} when the"
    ):
        run(tmp_path / "run", words, grid=grid, resume=True)
    assert grid.exchanges == []
    write_files(folder, keys_of(CLIENTS + 2))
    records = run(tmp_path / "run", words, grid=grid_of_identities(folder, CLIENTS), resume=True)
    assert [record.survivors for record in records] == [[CLIENTS]] * 2


def test_a_run_with_a_roster_is_not_resumed_without(tmp_path, folder):
    words = [*SIX, "run.num_rounds=2"]
    run(
        tmp_path / "run",
        [*words, *server_words(folder), "run.stop_after_round=1"],
        grid=grid_of_identities(folder, CLIENTS),
    )
    none = ["secagg.roster_file=null", "secagg.consortium_key=null"]
    with pytest.raises(RunError, match="began with a roster of the clients' keys: resume it with secagg"):
        run(tmp_path / "run", none, grid=LocalGrid(CLIENTS), resume=True)


def test_a_roster_without_a_client_of_the_run_is_refused_before_anything_starts(tmp_path):
    folder = write_files(tmp_path / "identities", keys_of(CLIENTS - 1))
    grid = LocalGrid(CLIENTS)
    with pytest.raises(ConfigError, match="lacks client 5 \\(1 of 6 clients\\)"):
        run(tmp_path / "run", [*SIX, *server_words(folder)], grid=grid)
    assert (grid.exchanges, (tmp_path / "run").exists()) == ([], False)


def test_a_server_takes_no_roster_that_its_consortium_has_not_signed(tmp_path, folder):
    (folder / ROSTER).write_bytes(Roster(keys_of(CLIENTS)).signed_by(identity_of(0)))
    with pytest.raises(IdentityError, match="it is not signed by the consortium with key"):
        run(tmp_path / "run", [*SIX, *server_words(folder)], grid=LocalGrid(CLIENTS))


def test_a_node_takes_no_older_roster_than_it_has_seen(tmp_path):
    """A node refuses a roster that is older than one it has seen, so that a stolen key stays invalid."""
    old, new = tmp_path / "old", tmp_path / "new"
    stolen = keys_of(CLIENTS) | {4: identity_of(4, "stolen").public_bytes()}
    write_files(old, stolen, number=7)
    write_files(new, keys_of(CLIENTS), number=8)
    kept = {"ledger": str(tmp_path / "ledger.json"), "epsilon": 1.0}

    def trusts(folder):
        return trust_of(settings_of(make_context(0, node_settings(folder, 0) | kept))) is not None

    assert trusts(old)
    assert trusts(new)
    assert trusts(new)
    with pytest.raises(NodeConfigError, match="has number 7, signed on no date, and this node has seen 8"):
        trusts(old)
    write_files(old, stolen, number=8)
    with pytest.raises(NodeConfigError, match="ask the consortium for its newest roster"):
        trusts(old)
    for damaged in ("{}", '{"number": 1e999, "digest": ""}', "[]", "[" * 100_000):
        (tmp_path / "ledger.json.roster").write_text(damaged)
        with pytest.raises(NodeConfigError, match="is damaged: remove it if"):
            trusts(new)


def test_an_identity_is_its_owners_and_in_a_folder_that_others_do_not_write(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    key = folder / "node.key"
    made = new_identity(key)
    assert read_identity(key).public_bytes() == made.public_bytes()
    folder.chmod(0o777)
    with pytest.raises(IdentityError, match=f"others may replace files in {folder}: chmod 700"):
        read_identity(key)
    folder.chmod(0o1777)
    assert read_identity(key).public_bytes() == made.public_bytes()
    folder.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: key.stat().st_uid + 1)
    monkeypatch.setattr("gdpfed.identities.ROOT", -1)
    with pytest.raises(IdentityError, match=f"{key} belongs to user {key.stat().st_uid}: give it to user"):
        read_identity(key)
    assert read_identity(key, owner=key.stat().st_uid).public_bytes() == made.public_bytes()


def without(settings, *keys):
    return {key: value for key, value in settings.items() if key not in keys}


def open_to_all(folder, settings):
    (folder / "0.key").chmod(0o644)
    return settings


def altered(folder, settings):
    text = (folder / ROSTER).read_text()
    (folder / ROSTER).write_text(text.replace(keys_of(1)[0].hex()[:2], "00", 1))
    return settings


def of_another_consortium(folder, settings):
    write_files(folder, keys_of(CLIENTS), identity_of(0, "another consortium"))
    return settings | {"consortium-key": CONSORTIUM.public_bytes().hex()}


def anothers_place(folder, settings):
    write_files(folder, {0: keys_of(2)[1], 1: keys_of(2)[0]})
    return settings


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda folder, own: without(own, "identity-file"),
            "roster-file is given without identity-file",
        ),
        (lambda folder, own: without(own, "roster-file"), "identity-file is given without roster-file"),
        (lambda folder, own: without(own, "consortium-key"), "is given without consortium-key: make a key"),
        (lambda folder, own: own | FIRST_SEEN, "consortium-key goes with a signed roster, not with"),
        (lambda folder, own: own | {"identity-file": "nowhere"}, "nowhere cannot be read: No such file"),
        (lambda folder, own: own | {"consortium-key": "123"}, "123 is neither a public key"),
        (open_to_all, r"0\.key is open to others \(mode 644\): chmod 600"),
        (altered, "it is not signed by the consortium with key"),
        (of_another_consortium, "it is not signed by the consortium with key"),
        (
            anothers_place,
            "does not have this node's key, .*, for client 0: set partition-id or",
        ),
    ],
)
def test_settings_that_cannot_be_used_keep_a_node_out_whatever_is_asked(folder, change, words):
    settings = change(folder, node_settings(folder, 0))
    for asked in (ConfigRecord({"mode": "curious"}), question()):
        with pytest.raises(NodeConfigError, match=words) as caught:
            prove(node_of(make_context(0, settings)), asked)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "asked", "words"),
    [
        (
            {"secagg-mode": "active"},
            ConfigRecord({"mode": "curious"}),
            "secagg-mode=active, and this node has",
        ),
        (
            {"secagg-mode": "active"},
            question(),
            "this run wants nodes that sign, and this node has no identity",
        ),
        ({}, question(), "this run wants nodes that sign, and this node has no identity: make a key with"),
        (FIRST_SEEN, question(roster=CHALLENGE), "this node uses roster-file=first-seen: give both the same"),
        (FIRST_SEEN, question(challenge=b"short"), "challenge is not 32 bytes"),
    ],
)
def test_a_node_without_an_identity_signs_nothing(settings, asked, words):
    with pytest.raises(NodeConfigError, match=words):
        prove(node_of(make_context(0, settings)), asked)


def test_a_node_that_is_asked_for_nothing_says_nothing(folder):
    asked = ConfigRecord({"mode": "curious"})
    assert (
        prove(node_of(make_context(0)), asked)
        == prove(node_of(make_context(0, node_settings(folder, 0))), asked)
        == {}
    )


def test_active_mode_ends_at_once_where_no_node_has_an_identity(tmp_path):
    with pytest.raises(RunError, match="this run wants nodes that sign, and this node has no identity"):
        run(tmp_path / "run", [*SIX, *ACTIVE], grid=LocalGrid(CLIENTS))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("clients", "served"), [(CLIENTS, True), (CLIENTS + 1, False)])
def test_a_node_with_a_roster_serves_no_other_that_a_server_makes_up(tmp_path, clients, served):
    """A node with a roster takes part only if the server collected exactly the keys of that roster."""
    folder = write_files(tmp_path / "identities", keys_of(clients))
    grid = grid_of_identities(folder, CLIENTS)
    (record,) = run(tmp_path / "run", [*SIX, *ACTIVE], grid=grid, without_a_sum=not served)
    assert record.survivors == [CLIENTS if served else 0]
    assert served == (refusals(grid) == [])
    assert served or "the roster of identities has changed since this node joined" in refusals(grid)[0]


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["secagg.mode=active"], "needs to know the key of each client: set secagg.roster_file"),
        (["secagg.roster_file=/r.json"], "secagg.consortium_key=None go together"),
        (
            [*ACTIVE, "secagg.roster_file=/r", "secagg.consortium_key=/c"],
            "does not go with secagg.roster",
        ),
        (["secagg.identities=everybody"], "secagg.identities=everybody must be first_seen"),
    ],
)
def test_the_server_needs_a_roster_or_the_word(words, refusal):
    with pytest.raises(ConfigError, match=refusal):
        load(words)


def test_a_simulation_takes_no_roster(tmp_path, folder):
    with pytest.raises(ConfigError, match="is for nodes that operators start"):
        simulate(small_config(tmp_path / "run", [*SIX, *server_words(folder)]))
    assert (folder / CONSORTIUM_KEY).read_text() == CONSORTIUM.public_bytes().hex()
