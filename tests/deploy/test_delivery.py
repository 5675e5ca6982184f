"""Tests of delivery without HTTP: no message is lost although answers of the SuperLink get lost."""

import os
from secrets import token_hex

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.app.metadata import Metadata
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.state.alembic import utils
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers

from deploy.delivery import WRAPPED, PartNotStoredError, repeatable, whole
from deploy.superlink import find_tables_under_any_path, lose_no_message

OF_SESSION = "UPDATE object_push_sessions SET expires_at = '2000-01-01 00:00:00.000000'"


class SuperLink:
    """A SuperLink's state and handlers, without HTTP, with one active run."""

    def __init__(self, database):
        store = ObjectStoreFactory(database).store()
        self.state = SqlLinkState(database, NoOpFederationManager(), store)
        self.state.initialize()
        self.run_id = self.state.create_run(
            "", "", "", {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP
        )
        (self.task,) = self.state.get_tasks(run_ids=[self.run_id])
        self.state.claim_task(self.task.task_id)
        self.state.activate_task(self.task.task_id)

    def node(self):
        """Return a new node, which is online."""
        node_id = self.state.create_node("", "", os.urandom(8), 30)
        assert self.state.activate_node(node_id, 30)
        return Node(node_id=node_id)

    def message(self, text, node):
        """Send a node a message from the server's app; return its id."""
        metadata = Metadata(
            self.run_id, "", SUPERLINK_NODE_ID, node.node_id, "", "", now().timestamp(), 100.0, "query.join"
        )
        message = named(make_message(metadata, RecordDict({"said": ConfigRecord({"text": text})})))
        session = self.state.start_session(self.run_id)
        self.state.store_message_and_object_tree(
            remove_content_from_message(message), get_object_tree(message), session
        )
        for object_id, each in get_all_nested_objects(message).items():
            assert self.state.store_object(self.run_id, session, object_id, each.deflate())
        return message.metadata.message_id

    def pulled(self, node):
        """Return the messages that a node pulls, if the SuperLink's answer is not lost."""
        answer = fleet_handlers.pull_messages(
            PullMessagesRequest(node=node), self.state, self.state.object_store
        )
        return [message_from_proto(each) for each in answer.messages_list]

    def confirm(self, node, message):
        asked = ConfirmMessageReceivedRequest(
            node=node, run_id=self.run_id, message_object_id=message.metadata.message_id
        )
        fleet_handlers.confirm_message_received(asked, self.state, self.state.object_store)

    def push(self, node, reply):
        """Announce a reply; return its session and the reply's parts by id, which are still to be sent."""
        asked = PushMessagesRequest(
            node=node,
            messages_list=[message_to_proto(remove_content_from_message(reply))],
            message_object_trees=[get_object_tree(reply)],
        )
        answer = fleet_handlers.push_messages(asked, self.state)
        parts = {key: each.deflate() for key, each in get_all_nested_objects(reply).items()}
        assert set(answer.objects_to_push) == parts.keys()
        return answer.session_id, parts

    def push_part(self, node, session, object_id, content):
        asked = PushObjectRequest(
            node=node, run_id=self.run_id, session_id=session, object_id=object_id, object_content=content
        )
        return fleet_handlers.push_object(asked, self.state).stored

    def replies(self, *messages):
        """Pull replies to these messages as the server's app does; return reply ids by message id."""
        asked = PullAppMessagesRequest(message_ids=ids(messages))
        answer = runtime_handlers.pull_messages(asked, self.state, self.task)
        replies = [each.metadata for each in answer.messages_list]
        return {each.reply_to_message_id: each.message_id for each in replies}

    def confirm_reply(self, reply_id):
        asked = ConfirmMessageReceivedRequest(run_id=self.run_id, message_object_id=reply_id)
        runtime_handlers.confirm_message_received(asked, self.state, self.task)

    def stored(self):
        """Return the numbers of stored messages and of stored replies."""
        return self.state.num_message_ins(), self.state.num_message_res()


def named(message):
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


def reply_to(message):
    return named(Message(RecordDict({"said": ConfigRecord({"text": token_hex()})}), reply_to=message))


@pytest.fixture(scope="module")
def superlink(tmp_path_factory):
    with pytest.MonkeyPatch.context() as flower:
        flower.setattr(utils, "build_alembic_config", utils.build_alembic_config)
        find_tables_under_any_path()
        for owner, name, _ in WRAPPED:
            flower.setattr(owner, name, getattr(owner, name))
        lose_no_message()
        yield SuperLink(str(tmp_path_factory.mktemp("superlink") / "superlink.db"))


@pytest.fixture
def node(superlink):
    return superlink.node()


@pytest.fixture
def message(superlink, node):
    """Return a message that the node has pulled."""
    superlink.message(token_hex(), node)
    (message,) = superlink.pulled(node)
    return message


def ids(messages):
    return [message.metadata.message_id for message in messages]


def test_a_message_is_handed_out_until_its_node_has_confirmed_it(superlink, node):
    other = superlink.node()
    first = superlink.message("first", node)
    assert superlink.pulled(other) == []
    assert ids(superlink.pulled(node)) == [first]
    second = superlink.message("second", node)
    # A new one comes first, so that one that its node cannot take holds up no other.
    assert ids(superlink.pulled(node)) == [second]
    again = superlink.pulled(node)
    assert ids(again) in ([first], [second])
    superlink.confirm(node, again[0])
    rest = superlink.pulled(node)
    assert {*ids(again), *ids(rest)} == {first, second}
    superlink.confirm(node, rest[0])
    assert superlink.pulled(node) == superlink.pulled(other) == []


def test_what_a_node_has_answered_it_does_not_get_again(superlink, node, message):
    superlink.push(node, reply_to(message))
    assert superlink.pulled(node) == []


def test_a_part_of_a_reply_that_is_sent_twice_is_stored(superlink, node, message):
    session, parts = superlink.push(node, reply_to(message))
    for object_id, content in parts.items():
        assert superlink.push_part(node, session, object_id, content)
        assert superlink.push_part(node, session, object_id, content)
    assert not superlink.push_part(node, session, "0" * 64, b"what nobody awaits")
    assert [*superlink.replies(message)] == ids([message])
    # The server's app has it, and the node has had no answer to the last part.
    for part in parts:
        superlink.state.object_store.delete(part)
    assert superlink.push_part(node, session, object_id, content)


def test_a_part_that_an_earlier_process_of_the_superlink_stored_is_stored(superlink, node, message):
    session, parts = superlink.push(node, reply_to(message))
    object_id, content = next(iter(parts.items()))
    assert superlink.push_part(node, session, object_id, content)
    once = repeatable(lambda *_: False)
    assert once(superlink.state, superlink.run_id, session, object_id, content)


def test_a_part_that_the_database_did_not_take_is_no_answer_for_the_node(
    superlink, node, message, monkeypatch
):
    session, parts = superlink.push(node, reply_to(message))
    object_id, content = next(iter(parts.items()))

    def locked(*_):
        raise OSError("database is locked")

    with monkeypatch.context() as patched:
        patched.setattr(superlink.state.object_store, "put", locked)
        with pytest.raises(PartNotStoredError):
            superlink.push_part(node, session, object_id, content)
    assert superlink.push_part(node, session, object_id, content)


def test_a_reply_of_which_parts_are_missing_holds_up_no_round(superlink, node, message):
    """The SuperLink hands a reply to the server's app only once all parts of the reply are stored."""
    session, parts = superlink.push(node, reply_to(message))
    (first, content), *others = parts.items()
    assert superlink.push_part(node, session, first, content)
    assert superlink.replies(message) == {}
    for object_id, content in others:
        assert superlink.push_part(node, session, object_id, content)
    assert [*superlink.replies(message)] == ids([message])


def test_no_reply_can_come_between_the_look_at_replies_and_their_taking(superlink):
    state, held = superlink.state, []

    def taken(*_):
        with state.session() as session:
            held.append(session.connection().connection.dbapi_connection.in_transaction)

    whole(taken)(state, ["0" * 64], superlink.run_id)
    assert held == [True]


def test_a_reply_is_handed_out_until_the_server_s_app_has_confirmed_it(superlink, node, message):
    before = superlink.stored()
    session, parts = superlink.push(node, reply_to(message))
    for object_id, content in parts.items():
        assert superlink.push_part(node, session, object_id, content)
    (first,), (again,) = (superlink.replies(message).values() for _ in range(2))
    assert first == again
    superlink.confirm_reply(first)
    assert superlink.stored() == (before[0] - 1, before[1])


def test_what_the_superlink_answers_for_a_node_that_is_away_is_final(superlink, node):
    superlink.message(token_hex(), node)
    (message,) = superlink.pulled(node)
    before = superlink.stored()
    assert superlink.state.deactivate_node(node.node_id)
    assert [*superlink.replies(message)] == ids([message])
    assert superlink.stored() == (before[0] - 1, before[1])


def test_of_a_reply_that_will_never_be_whole_the_server_is_told(superlink, node, message):
    _, parts = superlink.push(node, reply_to(message))
    superlink.state.query(OF_SESSION)
    assert [*superlink.replies(message)] == ids([message])
    assert superlink.state.get_object(superlink.run_id, next(iter(parts))) is None


def test_a_node_is_let_in_again_until_something_was_heard_of_it(superlink, node):
    state, interval = superlink.state, 30
    assert state.activate_node(node.node_id, interval)
    assert state.activate_node(node.node_id, interval)
    assert state.acknowledge_node_heartbeat(node.node_id, interval)
    assert not state.activate_node(node.node_id, interval)
    unknown = superlink.node().node_id
    state.delete_node("", unknown)
    assert not state.activate_node(unknown, interval)
