"""Send messages to clients, and collect the replies that come in time."""

import time
from collections.abc import Iterable

from flwr.app import Message
from flwr.serverapp import Grid

# Asking costs the SuperLink a query, waiting costs time: at most a part of what has been waited anyway.
PART_OF_THE_WAIT = 0.05
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 1.0


def send_and_receive(grid: Grid, messages: Iterable[Message], timeout_seconds: float) -> list[Message]:
    """Send messages, and return the replies that come within the timeout, in the order in which they come.

    ``Grid.send_and_receive`` pauses for three seconds between its questions for replies, in each exchange of
    a round; this one for a twentieth of the time that it has waited. A message that Flower cannot send has
    no reply.
    """
    awaited = {message_id for message_id in grid.push_messages(list(messages)) if message_id}
    started = time.monotonic()
    replies: list[Message] = []
    while awaited:
        arrived = list(grid.pull_messages(awaited))
        replies += arrived
        awaited -= {reply.metadata.reply_to_message_id for reply in arrived}
        waited = time.monotonic() - started
        if waited > timeout_seconds:
            break
        if awaited:
            time.sleep(min(max(PART_OF_THE_WAIT * waited, SHORTEST_PAUSE), LONGEST_PAUSE))
    return replies
