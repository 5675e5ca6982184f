"""Training over Flower's grid, from the configuration to the released model."""

from collections.abc import Sequence
from functools import partial
from logging import INFO
from typing import cast

from flwr.common.logger import log
from flwr.serverapp import Grid

from conf.schema import CLIENTS, Config
from conf.schema.run_config import LOCAL
from gdpfed.clients.configured import task_of
from gdpfed.errors import ConfigError
from gdpfed.federation.server.attendance import Attendance, tell_edges_the_end
from gdpfed.federation.server.budgets import (
    agree_to_terms,
    begin_with_terms,
    dealt_otherwise,
    keep_groups,
    keep_ledgers,
    plan_waits_for_clients,
    terms_of_clients,
    with_said_budgets,
    with_said_records,
)
from gdpfed.federation.server.client_history import ClientHistory
from gdpfed.federation.server.join import Joined, join_clients
from gdpfed.federation.server.joined_nodes import carry_model, sides_wait_for_nodes, with_answers
from gdpfed.federation.server.questions import (
    Bounds,
    Questions,
    Transport,
    consortium_roster,
    keys_of_clients,
)
from gdpfed.federation.server.server_sides import told_at_join
from gdpfed.methods.base import Theta
from gdpfed.privacy.events import Unit
from gdpfed.rounds.extensions.base import Extension
from gdpfed.rounds.extensions.table import server_extensions_of
from gdpfed.rounds.loop import EvaluateModel
from gdpfed.rounds.run import RUN_OBSERVERS, PreparedRun, path_of
from gdpfed.runs.paths import require_unused
from secagg import Roster
from server_app.exchange import Exchanger, GridTransport
from server_app.grid_fleet import GridFleet


def train(
    grid: Grid,
    config: Config,
    run_label: str,
    *,
    evaluate_model: EvaluateModel | None = None,
    more: Sequence[Extension] = (),
) -> Theta:
    """Check all input, make or open the run directory, and train over Flower; return the released model.

    ``evaluate_model`` stands in for the evaluation on the data's test split, and ``more`` are extensions of
    whoever starts the run.

    Raises ConfigError, PrivacyError, LearningError, RunError: before anything is written, for input that
    cannot be used; later only for a file system that refuses, and at the end of a run without a sum.
    """
    _refuse_simulated(config)
    if config.run.resume is None:
        require_unused(path_of(config))
    transport = GridTransport(grid, config.run.timeout_seconds)
    questions = _questions_at_join(config, run_label)
    prepared, joined = _joined_and_planned(transport, config, questions, evaluate_model)
    enough = _enough(config)
    keep_groups(prepared, joined, enough)
    keep_ledgers(prepared, joined, enough)
    carry_model(transport, joined, prepared.order.task.dimension, enough)
    history = ClientHistory(prepared.path.parent, prepared.name, prepared.enrolment.identities)
    terms = terms_of_clients(prepared, history, joined, prepared.next_round)
    agree_to_terms(transport, joined, terms, enough)
    of_edges = prepared.method.clients_are_edges
    attendance = Attendance(
        transport,
        joined,
        partial(terms_of_clients, prepared, history),
        partial(dealt_otherwise, prepared),
        config.dataset.num_clients,
        questions,
        history,
        (enough if of_edges else 0, config.run.timeout_seconds),
    )
    fleet = GridFleet(
        Exchanger(grid, joined.nodes, config.run.timeout_seconds),
        prepared.config.secagg,
        run_label,
        questions.roster or Roster(joined.roster),
        roster_is_sent=questions.roster is None,
        run_name=prepared.name,
        attendance=attendance,
        is_edge=config.run.mailbox is not None,
    )
    log(INFO, "the run's files are in %s", prepared.path)
    announce = partial(log, INFO, "%s")
    # The first of them are optional features that only runs over Flower have.
    extensions = [*server_extensions_of(prepared, announce), *more]
    with prepared.open(fleet, RUN_OBSERVERS.get("shown"), announce, extensions) as run:
        begin_with_terms(transport, joined, terms, history)
        for _ in run.rounds():
            pass  # its observers take every round
        try:
            run.conclude()
        finally:
            if of_edges and prepared.last_round == config.run.num_rounds:
                tell_edges_the_end(transport, joined, prepared.name)
        return run.released


def _questions_at_join(config: Config, run_label: str) -> Questions:
    """Return the server's questions to nodes that join a run, such as on keys, task and budgets."""
    return Questions(
        config.secagg.mode,
        run_label,
        consortium_roster(config),
        task_of(config),
        cast("Unit", config.privacy.unit),
        told_at_join(config),
        bounds=Bounds(config.privacy.budget_floor, config.privacy.most_records, config.privacy.delta_floor),
        by_party=config.run.evaluation_by_party,
    )


def _enough(config: Config) -> int:
    """Return how many nodes must join before a run begins."""
    num_clients = config.dataset.num_clients
    return min(num_clients, config.run.minimum_nodes or num_clients)


def _joined_and_planned(
    transport: Transport, config: Config, questions: Questions, evaluate_model: EvaluateModel | None
) -> tuple[PreparedRun, Joined]:
    """Return the prepared run and its nodes; the nodes join first if the plan depends on their answers."""
    num_clients = config.dataset.num_clients
    identities = keys_of_clients(questions.roster, num_clients)
    join = partial(join_clients, transport, num_clients, questions, config.run.minimum_nodes)
    if not (plan_waits_for_clients(config) or sides_wait_for_nodes(config)):
        prepared = PreparedRun.of(config, identities, evaluate_model)
        return prepared, join()
    joined = join()
    config = with_said_records(config, joined)
    config = with_answers(transport, joined, config, _enough(config))
    if config.privacy.budgets == CLIENTS:
        config = with_said_budgets(config, joined, _enough(config))
    return PreparedRun.of(config, identities, evaluate_model), joined


def _refuse_simulated(config: Config) -> None:
    """Raise ConfigError for settings of simulations only: a precision not float32, or a backend not local."""
    precision, backend = config.simulation.precision, config.simulation.backend
    if precision != "float32":
        raise ConfigError(f"simulation.precision={precision} is for gdpfed simulate: leave it out here")
    if backend != LOCAL:
        raise ConfigError(
            f"simulation.backend={backend} is for gdpfed simulate: set simulation.backend=local here"
        )
