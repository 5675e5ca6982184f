"""One exchange: the server sends messages, and the clients answer or are left out."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from logging import WARNING
from time import perf_counter

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from gdpfed.clients.messages import REFUSAL_RECORD, STAGES, one_line
from server_app.replies import send_and_receive


@dataclass
class Exchanger:
    """Sends one message to each of some clients and gathers the answers.

    Attributes:
        grid: Flower's connection to the nodes.
        nodes: node id of every client id that has one.
        timeout_seconds: how long one exchange waits; who has not answered by then counts as vanished.
        seconds: time spent in each kind of exchange since it was last cleared, by its leading stage.
    """

    grid: Grid
    nodes: Mapping[int, int]
    timeout_seconds: float
    seconds: dict[str, float] = field(default_factory=dict)

    def exchange(self, contents: Mapping[int, RecordDict]) -> dict[int, RecordDict]:
        """Send ``contents``, records of stages, by client id; the answers by client id.

        A client that fails, stays silent or has no node is left out, with one line in the log.
        """
        started = perf_counter()
        stages = {client_id: leading_stage(content) for client_id, content in contents.items()}
        messages = {
            client_id: Message(content, self.nodes[client_id], f"train.{stages[client_id]}")
            for client_id, content in contents.items()
            if client_id in self.nodes
        }
        replies = send_and_receive(self.grid, messages.values(), self.timeout_seconds)
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
        leading = leading_stage(stages.values())
        if silent:
            log(WARNING, "%d clients did not answer in stage %s", len(silent), leading)
        self.seconds[leading] = self.seconds.get(leading, 0.0) + perf_counter() - started
        return answers


def leading_stage(asked: Container[str]) -> str:
    """The first of the stages asked: it gives a message its type, and an exchange its name."""
    return next(stage for stage in STAGES if stage in asked)


def failure_of(reply: Message) -> str | None:
    """Say in one line why a reply is no answer; None if it is one."""
    if reply.has_error():
        return one_line(reply.error.reason)
    if not reply.has_content():
        return "the reply is empty"
    refusal = reply.content.get(REFUSAL_RECORD)
    if refusal is None:
        return None
    return one_line(refusal.get("reason") if isinstance(refusal, ConfigRecord) else refusal)


def replies_to(
    grid: Grid,
    nodes: Mapping[int, int],
    contents: Mapping[int, RecordDict],
    question: str,
    timeout_seconds: float,
) -> dict[int, Message]:
    """Ask clients a question, by client id; the replies of those that answer in time."""
    messages = {
        client: Message(content, nodes[client], f"query.{question}") for client, content in contents.items()
    }
    replies = send_and_receive(grid, messages.values(), timeout_seconds)
    clients = {message.metadata.message_id: client for client, message in messages.items()}
    return {clients[reply.metadata.reply_to_message_id]: reply for reply in replies}


def ask(
    grid: Grid,
    nodes: Mapping[int, int],
    contents: Mapping[int, RecordDict],
    question: str,
    timeout_seconds: float,
) -> dict[int, str]:
    """Ask clients a question, by client id; why not, of those who refuse or stay silent."""
    if not contents:
        return {}
    replies = replies_to(grid, nodes, contents, question, timeout_seconds)
    answered = {client: failure_of(reply) for client, reply in replies.items()}
    silence = f"it did not answer within {timeout_seconds:g} seconds"
    refusals = {client: answered.get(client, silence) for client in contents}
    return {client: refusal for client, refusal in refusals.items() if refusal is not None}
