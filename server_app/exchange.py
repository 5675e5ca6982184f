"""Exchanges over Flower: send messages to nodes, and collect the answers that come in time."""

import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from logging import INFO, WARNING
from time import perf_counter
from typing import Any

import httpx
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.serverapp import Grid

from gdpfed.clients.messages import JOINED, JOINED_BYTES, REFUSAL_RECORD, STAGES, cause_in_line, one_line
from gdpfed.federation.server.questions import NodeReply, Records, patience

# A pause between two questions for replies, as a part of the time waited so far: each question costs the
# SuperLink a query, and each pause may delay the round.
PART_OF_THE_WAIT = 0.05
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
MOST_NAMED = 20


def send_and_receive(
    grid: Grid,
    messages: Iterable[Message],
    timeout_seconds: float,
    tell_silent: Callable[[set[str]], None] | None = None,
) -> list[Message]:
    """Send messages, and return the replies that come in time, in order of arrival.

    ``Grid.send_and_receive`` pauses for three seconds between its questions for replies. This function pauses
    for a twentieth of the time waited so far, from 0.05 s to 1 s. A message that Flower cannot send gets no
    reply. After `patience` seconds ``tell_silent`` is called once, with the ids of messages without a reply.
    """
    awaited = {message_id for message_id in grid.push_messages(list(messages)) if message_id}
    started = time.monotonic()
    replies: list[Message] = []
    while awaited:
        arrived = pulled(grid, awaited)
        replies += arrived
        awaited -= {reply.metadata.reply_to_message_id for reply in arrived}
        waited = time.monotonic() - started
        if waited > timeout_seconds:
            break
        if awaited and tell_silent is not None and waited > patience(timeout_seconds):
            tell_silent(set(awaited))
            tell_silent = None
        if awaited:
            time.sleep(min(max(PART_OF_THE_WAIT * waited, SHORTEST_PAUSE), LONGEST_PAUSE))
    return replies


def pulled(grid: Grid, message_ids: Collection[str]) -> list[Message]:
    """Return the replies to these messages that have arrived, at most one reply to a message.

    Flower raises an error if it cannot build a reply from the bytes that a node sent. Then the replies are
    fetched one by one, so that only such a node loses its reply. Replies that Flower had already fetched in
    the failed call are lost too, and their nodes count as silent. Raises httpx.HTTPError if the SuperLink
    cannot be reached.
    """
    try:
        found = list(grid.pull_messages(message_ids))
    except httpx.HTTPError:
        raise
    except Exception as error:
        if len(message_ids) == 1:
            log(WARNING, "a reply cannot be read (%s), and its node counts as silent", type(error).__name__)
            return []
        return [reply for message_id in sorted(message_ids) for reply in pulled(grid, [message_id])]
    replies: dict[str, Message] = {}
    for reply in found:
        if reply.metadata.reply_to_message_id in message_ids:
            replies.setdefault(reply.metadata.reply_to_message_id, reply)
    return list(replies.values())


@dataclass
class Exchanger:
    """Sends one message to each of some clients and collects the answers.

    `grid`: Flower's connection to the nodes. `nodes`: client id -> node id. `timeout_seconds`: how long one
    exchange waits; a client that has not answered by then counts as dropped out. `seconds`: time spent in
    exchanges since it was last cleared, by the leading stage of the exchange.
    """

    grid: Grid
    nodes: Mapping[int, int]
    timeout_seconds: float
    seconds: dict[str, float] = field(default_factory=dict)

    def exchange(self, contents: Mapping[int, RecordDict]) -> dict[int, RecordDict]:
        """Send each client one message for one or several stages of secure sums; return replies by client id.

        A client that fails, stays silent or has no node is left out, and the server's log names it. While the
        server waits, the log names the clients without an answer. Status lines never name clients, since the
        cohort may be secret.
        """
        started = perf_counter()
        stages = {client_id: leading_stage(content) for client_id, content in contents.items()}
        messages = {
            client_id: Message(joined(content), self.nodes[client_id], f"train.{stages[client_id]}")
            for client_id, content in contents.items()
            if client_id in self.nodes
        }
        leading = leading_stage(stages.values())

        def tell_silent(ids: Collection[str]) -> None:
            awaited = named(key for key, message in messages.items() if _id_of(message) in ids)
            waited, most = patience(self.timeout_seconds), self.timeout_seconds
            log(INFO, "stage %s waits for %s, after %g s of at most %g s", leading, awaited, waited, most)

        replies = send_and_receive(self.grid, messages.values(), self.timeout_seconds, tell_silent)
        clients = {message.metadata.message_id: key for key, message in messages.items()}
        answers: dict[int, RecordDict] = {}
        silent = set(contents)
        for reply in replies:
            client_id = clients[reply.metadata.reply_to_message_id]
            silent.discard(client_id)
            reason = failure_of(reply)
            if reason is None:
                answers[client_id] = reply.content
            else:
                log(WARNING, "client %d left in stage %s: %s", client_id, stages[client_id], reason)
        if silent:
            log(WARNING, "stage %s goes on without an answer of %s", leading, named(silent))
        self.seconds[leading] = self.seconds.get(leading, 0.0) + perf_counter() - started
        return answers


def named(clients: Iterable[int]) -> str:
    """Write clients' ids as text for the log; only the first ones if there are many."""
    ids = sorted(clients)
    more = f" and {len(ids) - MOST_NAMED} more" if len(ids) > MOST_NAMED else ""
    return f"client{'s' * (len(ids) > 1)} {', '.join(map(str, ids[:MOST_NAMED]))}{more}"


def joined(content: RecordDict) -> RecordDict:
    """Return a message's records with all small non-empty records joined into one; others do not change."""
    small = {name: record for name, record in content.items() if record and _is_small(record)}
    values: dict[str, Any] = {}
    for name, record in small.items():
        for key, value in record.items():
            if isinstance(value, Array):
                numbers = value.numpy()
                values[f"{name}/{key}/{numbers.dtype.str}"] = numbers.tobytes()
            else:
                values[f"{name}/{key}"] = value
    others = {name: record for name, record in content.items() if name not in small}
    return RecordDict({JOINED: ConfigRecord(values), **others})


def _is_small(record: ArrayRecord | ConfigRecord | MetricRecord) -> bool:
    """Whether a message's record is small: at most `JOINED_BYTES` bytes, and only arrays with one axis."""
    if isinstance(record, ArrayRecord):
        flat = all(len(each.shape) == 1 for each in record.values())
        return flat and sum(len(each.data) for each in record.values()) <= JOINED_BYTES
    fields = (each for value in record.values() for each in (value if isinstance(value, list) else [value]))
    return sum(len(each) if isinstance(each, bytes | str) else 8 for each in fields) <= JOINED_BYTES


def leading_stage(asked: Container[str]) -> str:
    """Return the earliest protocol stage that a message asks for; it becomes the message's name."""
    return next(stage for stage in STAGES if stage in asked)


def failure_of(reply: Message) -> str | None:
    """Return in one line why a node's reply contains no answer; None if it does contain one."""
    if reply.has_error():
        return cause_in_line(reply.error.reason)
    if not reply.has_content():
        return "the reply is empty"
    refusal = reply.content.get(REFUSAL_RECORD)
    if refusal is None:
        return None
    return one_line(refusal.get("reason") if isinstance(refusal, ConfigRecord) else refusal)


@dataclass
class GridTransport:
    """Sends the server's requests to nodes through Flower's grid; see `Transport` for the methods."""

    grid: Grid
    timeout_seconds: float

    def node_ids(self) -> set[int]:
        """Return the ids of the nodes that are online."""
        return set(self.grid.get_node_ids())

    def ask(
        self,
        question: str,
        contents: Mapping[int, Records],
        *,
        timeout_seconds: float | None = None,
        tell_silent: Callable[[Collection[int]], None] | None = None,
    ) -> dict[int, NodeReply]:
        """Send a request to nodes; return replies by node id, without nodes that were too slow."""
        messages = []
        for node, records in contents.items():
            content = RecordDict()
            for name, values in records.items():
                if any(isinstance(value, np.ndarray) for value in values.values()):
                    content[name] = ArrayRecord({key: Array(value) for key, value in values.items()})
                else:
                    content[name] = ConfigRecord(dict(values))
            messages.append(Message(content, node, f"query.{question}"))

        def tell(silent: Collection[str]) -> None:
            if tell_silent is not None:
                tell_silent([each.metadata.dst_node_id for each in messages if _id_of(each) in silent])

        seconds = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        replies = send_and_receive(self.grid, messages, seconds, tell)
        nodes = {_id_of(message): message.metadata.dst_node_id for message in messages}
        return {nodes[reply.metadata.reply_to_message_id]: node_reply(reply) for reply in replies}


def _id_of(message: Message) -> str:
    """Return the id that Flower gives a message when sending it."""
    return message.metadata.message_id


def node_reply(reply: Message) -> NodeReply:
    """Convert Flower's reply message to plain values: records, failure, and whether the node was reached."""
    records = reply.content.config_records if reply.has_content() else {}
    refused = reply.has_error() and reply.error.code == ErrorCode.INVALID_FAB
    return NodeReply(records, failure_of(reply), reached=refused or not reply.has_error())
