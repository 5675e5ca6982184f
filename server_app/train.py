"""A run on Flower's grid."""

from functools import partial
from logging import INFO
from pathlib import Path

from flwr.common.logger import log
from flwr.serverapp import Grid

from conf.schema import CLIENTS, Config
from edge_app.edge import Edge
from edge_app.mailbox import Mailbox
from gdpfed.clients.configured import task_of
from gdpfed.errors import ConfigError
from gdpfed.federation.server.server_sides import told_at_join
from gdpfed.privacy.events import Unit
from gdpfed.report.observers import default_observers
from gdpfed.rounds.loop import Announce
from gdpfed.rounds.observers import Observer
from gdpfed.rounds.run import OpenRun, PreparedRun, path_of
from gdpfed.runs.paths import require_unused
from secagg import Roster
from server_app.attendance import Attendance, tell_edges_the_end
from server_app.budgets import (
    agree_to_terms,
    begin_with_terms,
    dealt_otherwise,
    keep_groups,
    plan_waits_for_clients,
    terms_of_clients,
    with_said_budgets,
    with_said_records,
)
from server_app.carry import carry_model
from server_app.exchange import Exchanger
from server_app.fleet import GridFleet
from server_app.join import join_clients
from server_app.questions import Bounds, Questions, consortium_roster, keys_of_clients
from server_app.side_questions import sides_wait_for_nodes, with_answers


def train(grid: Grid, config: Config, run_label: str) -> None:
    """Check everything, then make or open the run directory, then train.

    Raises:
        ConfigError, PrivacyError, LearningError, RunError: before anything is written, for input that
            cannot be used; later only for a file system that refuses, and at the end of a run without a sum.
    """
    _refuse_simulated_precision(config)
    if config.run.resume is None:
        require_unused(path_of(config))
    waits, num_clients = config.run.timeout_seconds, config.dataset.num_clients
    roster = consortium_roster(config)
    identities = keys_of_clients(roster, num_clients)
    unit: Unit = "record" if config.privacy.unit == "record" else "client"
    questions = Questions(
        config.secagg.mode,
        run_label,
        roster,
        task_of(config),
        unit,
        told_at_join(config),
        bounds=Bounds(config.privacy.budget_floor, config.privacy.most_records),
    )
    enough = min(num_clients, config.run.minimum_nodes or num_clients)
    join = partial(join_clients, grid, num_clients, questions, waits, config.run.minimum_nodes)
    if plan_waits_for_clients(config) or sides_wait_for_nodes(config):
        joined = join()
        config = with_said_records(config, joined)
        config = with_answers(grid, joined, config, enough)
        if config.privacy.budgets == CLIENTS:
            config = with_said_budgets(config, joined, enough)
        prepared = PreparedRun.of(config, identities)
    else:
        prepared = PreparedRun.of(config, identities)
        joined = join()
    keep_groups(prepared, joined, enough)
    carry_model(grid, joined, prepared.order.task.dimension, waits, enough)
    of_edges = prepared.method.clients_are_edges
    terms = terms_of_clients(prepared, joined, prepared.next_round)
    agree_to_terms(grid, joined, terms, waits, enough)
    fleet = GridFleet(
        Exchanger(grid, joined.nodes, waits),
        config.secagg,
        f"{prepared.name}/{run_label}",
        roster or Roster(joined.roster),
        roster_is_sent=roster is None,
        run_name=prepared.name,
        attendance=Attendance(
            grid,
            joined,
            partial(terms_of_clients, prepared),
            partial(dealt_otherwise, prepared),
            num_clients,
            questions,
            waits,
            (enough, waits) if of_edges else (0, 0.0),
        ),
        is_edge=config.run.mailbox is not None,
    )
    with _opened(prepared, fleet) as run:
        begin_with_terms(grid, joined, terms, waits)
        for _ in run.rounds():
            pass  # its observers take every round
        try:
            run.conclude()
        finally:
            if of_edges and prepared.last_round == config.run.num_rounds:
                tell_edges_the_end(grid, joined, prepared.name, waits)


def _opened(prepared: PreparedRun, fleet: GridFleet) -> OpenRun:
    """The run; that of an edge starts every round from the cloud's model, and answers with its own."""
    announce, folder = partial(log, INFO, "%s"), prepared.config.run.mailbox
    if folder is None:
        return prepared.open(fleet, default_observers, announce)
    edge = Edge(Mailbox(Path(folder).expanduser()), announce, prepared.config.run.num_rounds)

    def observers(run: PreparedRun, announce: Announce) -> list[Observer]:
        return [edge, *default_observers(run, announce)]

    return prepared.open(fleet, observers, announce, edge.start)


def _refuse_simulated_precision(config: Config) -> None:
    """Nodes train in float32: the setting would be written down and not be true."""
    precision = config.simulation.precision
    if precision != "float32":
        raise ConfigError(f"simulation.precision={precision} is for gdpfed simulate: leave it out here")
