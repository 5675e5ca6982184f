"""How the server announces a game or a price to nodes, and reads the budgets that they choose."""

from dataclasses import dataclass, replace
from logging import INFO
from math import isfinite
from typing import Any

import numpy as np

from conf.schema import Config
from gdpfed.clients.messages import one_line
from gdpfed.errors import RunError
from gdpfed.extras.fedpcs.game.announcement import Announcement
from gdpfed.extras.fedpcs.game.mean_field import find_mean_field
from gdpfed.extras.fedpcs.game.payoffs import Floats
from gdpfed.extras.fedpcs.node_game import announcement, answered_announcement, plays_with_nodes
from gdpfed.extras.fedpcs.node_side import PATH
from gdpfed.extras.fedpcs.prices import posted_price
from gdpfed.federation import log
from gdpfed.federation.server.server_sides import Answer, JoinedNodes, ServerSide, Values


class _NoScheduleError(RunError):
    """Raised if a client answers the game without a valid list of budgets."""


@dataclass(frozen=True, eq=False)
class Schedules:
    """The budgets with which nodes answered an announced mean budget: rho_i^t, shape (num_rounds, n)."""

    budgets: Floats


class PriceServer(ServerSide):
    """Posts a price to nodes; they answer it when they join, and check a run's cost against their answer."""

    def told_at_join(self, config: Config) -> Values | None:
        posted = posted_price(config)
        return None if posted is None else posted.to_scalars()

    def told_with_terms(self, config: Config) -> Values | None:
        return self.told_at_join(config)


class GameServer(ServerSide):
    """Plays the game with nodes before the plan is made; a resumed run keeps the nodes' answers."""

    def asks(self, config: Config) -> bool:
        return plays_with_nodes(config) and config.method.paths is None

    def with_answers(self, config: Config, nodes: JoinedNodes) -> Config:
        """Play the game with nodes; return the configuration with each client's chosen budgets.

        A node that does not answer, or with what is not a schedule, is left out. The plan has a schedule for
        each client; that of one who is missing is the least in every round.

        Raises:
            RunError: too few nodes play.
            ConfigError, GameError: a game that cannot be announced.
        """
        method, num_clients = config.method, config.dataset.num_clients
        first = np.full(config.run.num_rounds, (method.least_budget + method.highest_budget) / 2)

        def respond(mean: Floats) -> Schedules:
            announced = announcement(config, mean)
            budgets = np.full((config.run.num_rounds, num_clients), announced.least)
            refusals: dict[int, str] = {}
            for client, answer in nodes.ask(announced.to_scalars()).items():
                try:
                    budgets[:, client] = _answered_budgets(client, answer, announced)
                except _NoScheduleError as error:
                    refusals[client] = str(error)
            nodes.leave_out(refusals)
            return Schedules(budgets)

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

    def told_with_terms(self, config: Config) -> Values | None:
        announced = answered_announcement(config)
        return None if announced is None else announced.to_scalars()


def _answered_budgets(client: int, answer: Answer, announced: Announcement) -> Floats:
    """Read the budgets in a client's answer, shape (num_rounds,).

    Raises _NoScheduleError: there is none.
    """
    if answer.silent:
        raise _NoScheduleError(
            f"client {client} has not answered the announced game: see whether its node is online"
        )
    if answer.refusal is not None:
        raise _NoScheduleError(f"client {client} takes no part in the game: {answer.refusal}")
    path: Any = answer.values.get(PATH)
    low, high = announced.least, announced.highest
    if not isinstance(path, list) or len(path) != len(announced.rewards):
        raise _NoScheduleError(
            f"client {client} answers with {one_line(path)}: it must give one budget for each round"
        )
    for budget in path:
        if type(budget) is not float or not isfinite(budget) or not low <= budget <= high:
            raise _NoScheduleError(
                f"client {client} answers with a budget of {one_line(budget)}: it must lie from {low:g} to "
                f"{high:g}"
            )
    return np.asarray(path)
