"""Send messages to clients, and collect the replies that come in time."""

import time
from collections.abc import Callable, Collection, Iterable
from logging import WARNING

import httpx
from flwr.app import Message
from flwr.common.logger import log
from flwr.serverapp import Grid

from gdpfed.federation.server.transport import PATIENCE_SECONDS

# Asking costs the SuperLink a query, waiting costs time: at most a part of what has been waited anyway.
PART_OF_THE_WAIT = 0.05
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 1.0


def send_and_receive(
    grid: Grid,
    messages: Iterable[Message],
    timeout_seconds: float,
    tell_silent: Callable[[set[str]], None] | None = None,
) -> list[Message]:
    """Send messages, and return the replies that come within the timeout, in the order in which they come.

    ``Grid.send_and_receive`` pauses for three seconds between its questions for replies, in each exchange of
    a round; this one for a twentieth of the time that it has waited. A message that Flower cannot send has
    no reply. After a minute ``tell_silent`` is told once the ids of the messages that have none yet.
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
        if awaited and tell_silent is not None and waited > PATIENCE_SECONDS:
            tell_silent(set(awaited))
            tell_silent = None
        if awaited:
            time.sleep(min(max(PART_OF_THE_WAIT * waited, SHORTEST_PAUSE), LONGEST_PAUSE))
    return replies


def pulled(grid: Grid, message_ids: Collection[str]) -> list[Message]:
    """The replies to these messages that are there, at most one to each.

    Flower puts every reply together from the bytes that its node has sent, and raises where it cannot. Then
    the replies are fetched one by one, so that such a node loses its own. What Flower had already fetched
    beside it is lost too, and counts as silence.

    Raises:
        httpx.HTTPError: the SuperLink is not there.
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
