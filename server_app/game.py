"""The server's side of a game with nodes: it announces, they answer, and the plan holds the result."""

from dataclasses import dataclass, replace
from logging import INFO
from math import isfinite
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from conf.schema import Config
from gdpfed.clients.messages import GAME_RECORD, PATH, PLAY, one_line
from gdpfed.systems.fedpcs.game.announcement import Announcement
from gdpfed.systems.fedpcs.game.mean_field import find_mean_field
from gdpfed.systems.fedpcs.game.rules import Floats
from gdpfed.systems.fedpcs.node_game import announcement, plays_with_nodes
from server_app.exchange import failure_of
from server_app.join import Joined
from server_app.questions import NodeRefusedError
from server_app.replies import send_and_receive


@dataclass(frozen=True, eq=False)
class Paths:
    """What the nodes answer to a mean: rho_i^t, shape (num_rounds, n)."""

    budgets: Floats


def game_waits_for_clients(config: Config) -> bool:
    """Whether nodes are to play before the plan is made; one that is resumed was made of their answers."""
    return plays_with_nodes(config) and config.method.paths is None


def with_played_game(grid: Grid, joined: Joined, config: Config, enough: int) -> Config:
    """The configuration with what nodes answered, once the mean field stays or the last one is announced.

    A node that does not answer, or with what is no path, is left out. The plan has a path for each client;
    that of one who is missing is the least in every round.

    Raises:
        RunError: fewer than ``enough`` nodes play.
        ConfigError, GameError: a game that cannot be announced.
    """
    method, num_clients = config.method, config.dataset.num_clients
    first = np.full(config.run.num_rounds, (method.least_budget + method.highest_budget) / 2)

    def respond(mean: Floats) -> Paths:
        announced = announcement(config, mean)
        paths = np.full((config.run.num_rounds, num_clients), announced.least)
        refusals: dict[int, str] = {}
        for client, reply in _answers(grid, joined, announced, config.run.timeout_seconds).items():
            try:
                paths[:, client] = _path(client, reply, announced)
            except NodeRefusedError as error:
                refusals[client] = str(error)
        joined.leave_out(refusals, enough)
        return Paths(paths)

    found = find_mean_field(respond, first, most=method.most_announcements)
    log(
        INFO,
        "the nodes have answered %d announcements, and the mean field %s",
        len(found.announced),
        "stays" if found.converged else "does not stay yet: their last answers are the plan",
    )
    played = replace(
        method,
        announced=found.announced.tolist(),
        paths=found.answers.budgets.T.tolist(),
    )
    return replace(config, method=played)


def _answers(
    grid: Grid, joined: Joined, announced: Announcement, timeout_seconds: float
) -> dict[int, Message | None]:
    """What every client answers; None where it does not."""
    record = ConfigRecord(dict(announced.to_scalars()))
    messages = {
        client: Message(RecordDict({GAME_RECORD: record}), joined.nodes[client], f"query.{PLAY}")
        for client in sorted(joined.nodes)
    }
    replies = send_and_receive(grid, messages.values(), timeout_seconds)
    by_message = {reply.metadata.reply_to_message_id: reply for reply in replies}
    return {client: by_message.get(message.metadata.message_id) for client, message in messages.items()}


def _path(client: int, reply: Message | None, announced: Announcement) -> Floats:
    """The path in a client's answer, shape (num_rounds,).

    Raises:
        NodeRefusedError: there is none.
    """
    if reply is None:
        raise NodeRefusedError(
            f"client {client} does not answer what is announced: see whether its node is up"
        )
    refusal = failure_of(reply)
    if refusal is not None:
        raise NodeRefusedError(f"client {client} does not play: {refusal}")
    record = reply.content.get(GAME_RECORD)
    path: Any = record.get(PATH) if isinstance(record, ConfigRecord) else None
    low, high = announced.least, announced.highest
    if not isinstance(path, list) or len(path) != len(announced.rewards):
        raise NodeRefusedError(f"client {client} answers with {one_line(path)}: one budget a round is due")
    for budget in path:
        if type(budget) is not float or not isfinite(budget) or not low <= budget <= high:
            raise NodeRefusedError(
                f"client {client} answers with a budget of {one_line(budget)}: it must lie from {low:g} to "
                f"{high:g}"
            )
    return np.asarray(path)
