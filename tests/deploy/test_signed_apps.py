"""Tests of signed apps: a node runs only code that its consortium has signed; a refusal is one log line."""

import json
from hashlib import sha256

import pytest
from flwr.app import Message, RecordDict
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.state.alembic import utils
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.supernode import main as api
from flwr.supernode import start_client_internal as client
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState
from flwr.supernode.start_client_internal import _verify_fab

from deploy import supernode
from deploy.compose import compose_file
from deploy.federation import Federation
from deploy.stored_app import store_app
from deploy.superlink import find_tables_under_any_path
from deploy.superlink_client import SuperLinkError
from deploy.supernode import (
    ASK_SECONDS,
    AWAKE_SECONDS,
    MOST_SECONDS,
    PAUSE_PER_ANSWER,
    AppGate,
    answering,
    check_flower,
    guarded,
    often,
)
from gdpfed.errors import InputError, LaunchError
from gdpfed.identities import signed_roster
from gdpfed.signed_apps import SignedApp, sign_app
from testing.known_identities import identity_of
from testing.signed_apps import bundle_of, trusted

CONSORTIUM, OTHER = identity_of(90), identity_of(91)
KEY = CONSORTIUM.public_bytes()
ROSTER = 7


@pytest.fixture
def gate(tmp_path):
    made = AppGate(KEY, tmp_path / "roster.json", tmp_path / "seen.json")
    made.roster_file.write_bytes(roster(ROSTER))
    return made


def roster(number):
    return signed_roster({0: identity_of(0).public_bytes()}, CONSORTIUM, number)


def signed(version="1.2.3", number=ROSTER, signer=CONSORTIUM, **words) -> SignedApp:
    return sign_app(bundle_of(version), signer, number, **words)


def admit(gate, app, bundle=None, run_config=None, node_config=None):
    bundle = bundle or bundle_of(app.statement.version)
    gate.admit(bundle, app.verifications(KEY), run_config or {"overrides": ""}, node_config or {})


def test_what_the_consortium_has_signed_is_let_in_and_remembered(gate):
    admit(gate, signed())
    admit(gate, signed("1.2.3", ROSTER + 1), run_config={"overrides": "run.num_rounds=3"})
    assert json.loads(gate.seen_file.read_bytes()) == {
        "roster_number": ROSTER + 1,
        "versions": {"@gdpfed/gdpfed": "1.2.3"},
    }


@pytest.mark.parametrize(
    ("app", "said"),
    [
        (
            signed("1.2.2", ROSTER + 1),
            r"version 1\.2\.2 of @gdpfed/gdpfed is older than 1\.10\.0, which this node has seen",
        ),
        (signed("1.10.0", ROSTER), "was signed for roster 7, and this node has seen 8"),
        (signed("1.10.0", ROSTER + 1, OTHER), "not signed by the consortium with key"),
        (signed("1.10.0", ROSTER + 1, days=1e-9), "has expired on"),
        (
            signed("1.10.0", ROSTER + 1, allowed_overrides="method"),
            "the app's signature allows only 'method'",
        ),
    ],
)
def test_older_ones_other_signers_and_other_overrides_are_refused(gate, app, said):
    admit(gate, signed("1.10.0", ROSTER + 1))
    seen = gate.seen_file.read_bytes()
    with pytest.raises(InputError, match=said) as error:
        admit(gate, app, run_config={"overrides": "run.num_rounds=3"})
    assert "\n" not in str(error.value)
    assert gate.seen_file.read_bytes() == seen


def test_one_byte_more_no_signature_and_the_operators_own_bounds_are_refused(gate):
    with pytest.raises(InputError, match="is not the one that was signed"):
        admit(gate, signed(), bundle_of("1.2.3") + b"\0")
    with pytest.raises(InputError, match="the app is not signed, and this node runs signed apps only"):
        gate.admit(bundle_of("1.2.3"), {}, {}, {})
    with pytest.raises(InputError, match="allowed-overrides allows only 'method'"):
        admit(
            gate,
            signed(),
            run_config={"overrides": "secagg=off"},
            node_config={"allowed-overrides": "method"},
        )
    assert not gate.seen_file.exists()


def test_a_newer_roster_of_the_node_and_a_damaged_memory_refuse(gate):
    gate.roster_file.write_bytes(roster(ROSTER + 1))
    with pytest.raises(InputError, match="was signed for roster 7, and this node has seen 8"):
        admit(gate, signed())
    gate.seen_file.write_text("{}")
    with pytest.raises(InputError, match="says what this node has seen, cannot be read"):
        admit(gate, signed(number=ROSTER + 1))


def test_flower_gets_a_refused_bundle_without_signatures(gate, monkeypatch):
    """The project gives a refused app to Flower without its signatures, so that Flower does not run it."""
    app, taken = signed(), []
    run = Run.create_empty(5)
    run.fab_hash = sha256(bundle_of("1.2.3")).hexdigest()
    run.override_config = {"overrides": "run.num_rounds=3"}
    # The second is one that Flower alone would run.
    sent = [(app.verifications(KEY), {}), (app.verifications(KEY), {"allowed-overrides": "method"}), ({}, {})]

    def pull(*, get_run, get_fab, trusted_entities, node_config):
        fab = get_fab(get_run(5).fab_hash, 5)
        taken.append(bool(fab.verifications) and _verify_fab(fab, trusted_entities))

    for verifications, node_config in sent:
        guarded(pull, gate)(
            get_run=lambda run_id: run,
            get_fab=lambda digest, run_id, brought=verifications: Fab(digest, bundle_of("1.2.3"), brought),
            trusted_entities=trusted(KEY),
            node_config=node_config,
        )
    assert taken == [True, False, False]
    assert str(client.FAB_VERIFICATION_ERROR.reason).startswith("the app is not signed")
    # Flower runs the bundle that the run names, of all that were ever sent.
    run.fab_hash = sha256(bundle_of("1.2.2")).hexdigest()
    guarded(pull, gate)(
        get_run=lambda run_id: run,
        get_fab=lambda digest, run_id: Fab(digest, bundle_of("1.2.3"), app.verifications(KEY)),
        trusted_entities=trusted(KEY),
        node_config={},
    )
    assert taken.pop() is False
    assert str(client.FAB_VERIFICATION_ERROR.reason).startswith("the SuperLink sent another app")
    assert json.loads(supernode.trusted_entities(KEY)) == trusted(KEY)


@pytest.mark.parametrize(
    ("answer_seconds", "pause"), [(0.0, ASK_SECONDS), (0.05, 0.05 * PAUSE_PER_ANSWER), (1.0, MOST_SECONDS)]
)
def test_a_node_asks_often_until_a_minute_after_the_last_message(monkeypatch, answer_seconds, pause):
    """A node asks often for messages until a minute has passed since the last message."""
    clock, pauses, answers = [1000.0], [], iter([None, 5, None, None, 6, *[None] * 1000])

    def sleep(seconds):
        pauses.append(seconds)
        clock[0] += seconds

    def pull(state):
        assert state == "mine"
        clock[0] += answer_seconds
        return next(answers)

    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr("time.sleep", sleep)
    ask = often(pull)
    assert ask(state="mine") is None
    assert pauses == []
    assert [ask(state="mine"), ask(state="mine")] == [5, 6]
    assert pauses == pytest.approx([pause] * 2)
    last = clock[0]
    assert ask(state="mine") is None
    assert AWAKE_SECONDS <= clock[0] - last < AWAKE_SECONDS + pause + answer_seconds


def test_an_app_that_ends_before_it_takes_its_message_does_not_stop_its_node(monkeypatch):
    """Flower waits for good for the answer of an app that ended between its start and its first request."""
    monkeypatch.setattr("deploy.supernode.time.sleep", lambda seconds: pytest.fail("the node waits"))
    store = ObjectStoreFactory().store()
    state, sent = InMemoryNodeState(store), []

    def push(**words):
        (reply,) = words["state"].get_messages_legacy(is_reply=True)
        sent.append(reply)
        words["state"].delete_messages(
            message_ids=[reply.metadata.message_id, reply.metadata.reply_to_message_id]
        )

    state.set_node_id(5)
    for answers in (False, True):
        with monkeypatch.context() as in_an_app:
            for name in ("_run_id", "_node_id", "_task_id"):
                in_an_app.setattr(TaskIdentity, name, 7)
            asked = Message(RecordDict(), dst_node_id=5, message_type="query.join")
        asked.metadata.__dict__["_message_id"] = f"{answers:064}"
        state.store_message(asked)
        task = state.create_task(TaskType.CLIENT_APP, 7) or 0
        assert state.claim_task(task)
        assert state.activate_task(task)
        if answers:
            client._insert_message(Message(RecordDict(), reply_to=asked), state, store)
        state.finish_task(task, "completed" if answers else "failed", "")
        answering(push)(state=state, object_store=store)
    crashed, answered = sent
    assert (crashed.has_error(), crashed.metadata.message_type) == (True, "query.join")
    assert not answered.has_error()


def test_another_flower_is_not_started(monkeypatch):
    check_flower()
    monkeypatch.setattr(client, "_pull_and_store_message", lambda get_run, node_config: None)
    monkeypatch.delattr(api, "create_app")
    with pytest.raises(
        LaunchError, match="has no FAB_VERIFICATION_ERROR, create_app, get_fab, trusted_entities"
    ):
        check_flower()


def test_flower_finds_a_stored_app_with_its_signatures(tmp_path, monkeypatch):
    """Flower finds an app with its signatures after the project has written both into its database."""
    monkeypatch.setattr(utils, "build_alembic_config", utils.build_alembic_config)
    find_tables_under_any_path()
    database, app, bundle = tmp_path / "superlink.db", signed(), bundle_of("1.2.3")
    state = SqlLinkState(str(database), NoOpFederationManager(), ObjectStoreFactory().store())
    state.initialize()
    for version, each in (("1.2.2", signed("1.2.2")), ("1.2.3", app), ("1.2.3", app)):
        store_app(database, bundle_of(version), each, KEY)
    found = state.get_app(NOOP_FEDERATION_ID, "@gdpfed/gdpfed", app.statement.bundle)
    assert found == Fab(app.statement.bundle, bundle, app.verifications(KEY))
    assert _verify_fab(found, trusted(KEY))
    state.store_fab(Fab(app.statement.bundle, bundle, {}))
    assert state.get_fab(app.statement.bundle) == found, "plain flwr run has removed the signatures"
    (listed,) = state.list_apps(NOOP_FEDERATION_ID)
    assert (listed.app_id, listed.app_type) == ("@gdpfed/gdpfed", "flwr-serverapp")
    with state.session() as session:
        session.connection().exec_driver_sql("ALTER TABLE fab RENAME COLUMN verifications TO signatures")
        engine = session.connection().engine
    engine.dispose()
    with pytest.raises(SuperLinkError, match=r"cannot store an app of Flower \S+ \(.*no such col") as error:
        store_app(database, bundle, app, KEY)
    assert "\n" not in str(error.value)
    with pytest.raises(SuperLinkError, match="is not a file"):
        store_app(tmp_path / "none.db", bundle, app, KEY)


def test_the_supernodes_of_a_signed_federation_check_and_remember():
    tree = compose_file(Federation.of(3))["services"]
    node = tree["supernode-0"]
    assert node["command"][:2] == ["-m", "deploy.supernode"]
    assert node["image"] == tree["node-0-superexec"]["image"]
    assert {each["target"] for each in node["volumes"]} == {"/federation", "/seen"}
    assert {"--signature", "--consortium", "--database"} < set(tree["train"]["entrypoint"])
    assert "/state" in {each["target"] for each in tree["train"]["volumes"]}
