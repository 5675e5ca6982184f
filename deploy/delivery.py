"""Changes to Flower's SuperLink, so that no message is lost when one of the SuperLink's answers is lost.

Flower's SuperNode repeats a question that nobody answers, or that is answered with 502, 503 or 504. Three of
its questions mean something else the second time. The SuperLink hands a message out once: where that answer
is lost, nobody has the message. It takes each part of a reply once: a repeated part it calls wrong, and the
SuperNode drops the whole reply. And it lets a SuperNode in once: the second time it takes it for another with
the same key, and the SuperNode ends. Here a message is handed out until its node has confirmed it, a repeated
part counts, and a SuperNode from which nothing was heard since may come in again.

A server's app that is given a reply waits for all of its parts, however long its round may wait. Here it is
given a reply once all parts have come, or once Flower has stopped waiting for them. And what is lost on the
way to it is gone as well, message and reply. Here both stay until it has confirmed the reply.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from flwr.app import Message
from flwr.common.constant import HEARTBEAT_PATIENCE, SUPERLINK_NODE_ID
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.constant import NodeStatus
from flwr.supercore.date import now
from flwr.supercore.state.schema.corestate_models import (
    ObjectPushSession,
    ObjectPushSessionPending,
    ObjectPushSessionRoot,
)
from flwr.supercore.state.schema.linkstate_models import MessageIns, MessageRes, Node, Run
from flwr.supercore.utils import uint64_to_int64
from flwr.superlink.servicer.runtime import runtime_handlers
from sqlalchemy import select, update

# Flower keeps the same moment as text and as a number with fewer digits.
CLOCK_SECONDS = 1e-5
MOST_REMEMBERED = 10_000


class PartNotStoredError(Exception):
    """Raised if the database did not store a part of an awaited reply: the node must send the part again."""


def until_confirmed(get: Callable[..., list[Message]]) -> Callable[..., list[Message]]:
    """Wrap Flower's method that gives a node its next message, so that a lost message is sent again.

    A SuperNode asks for a message once it is done with the last one. So where there is no new one, it has
    lost those that it neither confirmed nor answered. What it has confirmed its app may have seen, and it is
    never handed out again.
    """

    def get_message_ins(self: Any, node_id: int, limit: int | None, **others: Any) -> list[Message]:
        found = get(self, node_id, limit, **others)
        if found or node_id == SUPERLINK_NODE_ID:
            return found
        # Lost is what was sent, and the node has neither answered nor confirmed.
        unanswered = (
            select(MessageIns.message_id)
            .outerjoin(MessageRes, MessageRes.reply_to_message_id == MessageIns.message_id)
            .where(
                MessageIns.dst_node_id == uint64_to_int64(node_id),
                MessageIns.delivered_at != "",
                MessageRes.message_id.is_(None),
            )
        )
        with self.session() as session:
            # With its confirmation the content of a message is deleted.
            lost = [each for each in session.scalars(unanswered) if self.object_store.get(each) is not None]
            if lost:
                unsent = update(MessageIns).where(MessageIns.message_id.in_(lost)).values(delivered_at="")
                session.execute(unsent)
        return get(self, node_id, limit, **others) if lost else found

    return get_message_ins


def repeatable(store: Callable[..., bool]) -> Callable[..., bool]:
    """Wrap Flower's method that stores a part of a reply, so that a node may send the part twice.

    A part is named by its hash, so two parts of one name are the same. With the last one the server's app may
    have taken the whole reply, so the newest are remembered. Raises PartNotStoredError.
    """
    stored: OrderedDict[tuple[str, str], None] = OrderedDict()

    def store_object(self: Any, run_id: int, session_id: str, object_id: str, object_content: bytes) -> bool:
        part = (session_id, object_id)
        if part in stored:
            return True
        if store(self, run_id, session_id, object_id, object_content):
            stored[part] = None
            if len(stored) > MOST_REMEMBERED:
                stored.popitem(last=False)
            return True
        if self.object_store.get(object_id):
            return True
        awaited = select(ObjectPushSessionPending.object_id).where(
            ObjectPushSessionPending.session_id == session_id,
            ObjectPushSessionPending.object_id == object_id,
        )
        with self.session() as session:
            if session.scalar(awaited) is None:
                return False
        raise PartNotStoredError(object_id)

    return store_object


def whole(get: Callable[..., list[Message]]) -> Callable[..., list[Message]]:
    """Wrap Flower's method that hands replies to a ServerApp, so that it leaves out incomplete replies.

    The app asks once it has confirmed what it got. So a reply that it had and did not confirm, it has lost.
    """

    def get_message_res(self: Any, message_ids: Iterable[str], run_id: int) -> list[Message]:
        asked, run = set(message_ids), uint64_to_int64(run_id)
        half = (
            select(MessageRes.reply_to_message_id)
            .join(ObjectPushSessionRoot, ObjectPushSessionRoot.root_object_id == MessageRes.message_id)
            .join(ObjectPushSession, ObjectPushSession.session_id == ObjectPushSessionRoot.session_id)
            .where(
                MessageRes.reply_to_message_id.in_(asked),
                ObjectPushSession.pending_count > 0,
                ObjectPushSession.expires_at > now(),
            )
        )
        with self.session() as session:
            # A write, after which no reply can be announced before this one's end.
            session.execute(update(Run).where(Run.run_id == run).values(run_id=Run.run_id))
            asked.difference_update(session.scalars(half))
            lost = MessageRes.reply_to_message_id.in_(asked), MessageRes.delivered_at != ""
            session.execute(update(MessageRes).where(*lost).values(delivered_at=""))
            return get(self, asked, run_id)

    return get_message_res


class _Keeping:
    """Wraps a SuperLink's state for one request of a ServerApp, so that nodes' replies are not deleted."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def delete_messages(self, message_ins_ids: set[str]) -> None:
        """Delete messages that the SuperLink answered with an error; keep those that nodes answered."""
        of_nodes = select(MessageRes.reply_to_message_id).where(
            MessageRes.reply_to_message_id.in_(message_ins_ids)
        )
        with self._state.session() as session:
            self._state.delete_messages(message_ins_ids.difference(session.scalars(of_nodes)))


def kept(pull: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap Flower's handler that sends replies to a ServerApp, so that sent replies stay in the database."""

    def pull_messages(request: Any, state: Any, task: Any) -> Any:
        return pull(request, _Keeping(state), task)

    return pull_messages


def deleted(confirm: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap Flower's handler that confirms a reply's arrival, so that reply and request are then deleted."""

    def confirm_message_received(request: Any, state: Any, task: Any) -> Any:
        answer = confirm(request, state, task)
        message = select(MessageRes.reply_to_message_id).where(
            MessageRes.message_id == request.message_object_id
        )
        with state.session() as session:
            state.delete_messages(set(session.scalars(message)))
        return answer

    return confirm_message_received


def let_in_again(activate: Callable[..., bool]) -> Callable[..., bool]:
    """Wrap Flower's method that admits a node: one that left before its first heartbeat may come back."""

    def activate_node(self: Any, node_id: int, heartbeat_interval: float) -> bool:
        if activate(self, node_id, heartbeat_interval):
            return True
        with self.session() as session:
            node = session.get(Node, uint64_to_int64(node_id))
            if node is None or node.status != NodeStatus.ONLINE:
                return False
            heard = node.online_until - HEARTBEAT_PATIENCE * node.heartbeat_interval
            if heard - datetime.fromisoformat(node.last_activated_at).timestamp() > CLOCK_SECONDS:
                return False
            node.status = NodeStatus.OFFLINE
        return activate(self, node_id, heartbeat_interval)

    return activate_node


WRAPPED: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (SqlLinkState, "get_message_ins", until_confirmed),
    (SqlLinkState, "store_object", repeatable),
    (SqlLinkState, "get_message_res", whole),
    (SqlLinkState, "activate_node", let_in_again),
    (runtime_handlers, "pull_messages", kept),
    (runtime_handlers, "confirm_message_received", deleted),
)
