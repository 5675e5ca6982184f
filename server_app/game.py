"""The server's part in a game with nodes: it announces, they answer, and what comes of it is the plan's."""

from collections.abc import Mapping
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
from gdpfed.errors import RunError
from gdpfed.game.announcement import Announcement
from gdpfed.game.mean_field import find_mean_field
from gdpfed.game.rules import Floats
from gdpfed.methods.client_sampling.node_game import announcement, plays_with_nodes
from server_app.exchange import failure_of
from server_app.join import Joined
from server_app.replies import send_and_receive


@dataclass(frozen=True, eq=False)
class Paths:
    """What the nodes answer to a mean: rho_i^t, shape (num_rounds, n)."""

    budgets: Floats


def game_waits_for_clients(config: Config) -> bool:
    """Whether nodes are to play before the plan is made; one that is resumed was made of their answers."""
    return plays_with_nodes(config) and config.method.paths is None


def with_played_game(grid: Grid, joined: Joined, config: Config) -> Config:
    """The configuration with what the nodes answered, once the mean field stays or the last one is announced.

    Every client has to answer every time: the plan has a path for each.

    Raises:
        RunError: a client that is missing, does not answer, or answers with what is no path.
        ConfigError, GameError: a game that cannot be announced.
    """
    method, num_clients = config.method, config.dataset.num_clients
    missing = [client for client in range(num_clients) if client not in joined.nodes]
    if missing:
        raise RunError(
            f"method.types=clients, and client {missing[0]} ({len(missing)} of {num_clients}) has not "
            "joined: the plan has a path for every client, so all must answer before a run begins"
        )
    first = np.full(config.run.num_rounds, (method.least_budget + method.highest_budget) / 2)

    def respond(mean: Floats) -> Paths:
        announced = announcement(config, mean)
        return Paths(_answers(grid, joined, announced, config.run.timeout_seconds))

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


def _answers(grid: Grid, joined: Joined, announced: Announcement, timeout_seconds: float) -> Floats:
    """One answer of every client, shape (num_rounds, n)."""
    record = ConfigRecord(dict(announced.to_scalars()))
    messages = {
        client: Message(RecordDict({GAME_RECORD: record}), joined.nodes[client], f"query.{PLAY}")
        for client in sorted(joined.nodes)
    }
    replies = send_and_receive(grid, messages.values(), timeout_seconds)
    clients = {message.metadata.message_id: client for client, message in messages.items()}
    answered = {clients[reply.metadata.reply_to_message_id]: reply for reply in replies}
    return np.stack([_path(client, answered, announced) for client in messages], axis=1)


def _path(client: int, answered: Mapping[int, Message], announced: Announcement) -> Floats:
    """The path in a client's answer.

    Raises:
        RunError: there is none.
    """
    if client not in answered:
        raise RunError(f"client {client} does not answer what is announced: see whether its node is up")
    reply = answered[client]
    refusal = failure_of(reply)
    if refusal is not None:
        raise RunError(f"client {client} does not play: {refusal}")
    record = reply.content.get(GAME_RECORD)
    path: Any = record.get(PATH) if isinstance(record, ConfigRecord) else None
    low, high = announced.least, announced.highest
    if not isinstance(path, list) or len(path) != len(announced.rewards):
        raise RunError(f"client {client} answers with {one_line(path)}: one budget a round is due")
    for budget in path:
        if type(budget) is not float or not isfinite(budget) or not low <= budget <= high:
            raise RunError(
                f"client {client} answers with a budget of {one_line(budget)}: it must lie from {low:g} to "
                f"{high:g}"
            )
    return np.asarray(path)
