"""Plans a run from clients' own budgets and record counts, and has clients agree to the run's conditions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from logging import WARNING

from conf.schema import CLIENTS, Config
from gdpfed.clients.configured import record_counts, task_of
from gdpfed.clients.messages import (
    BEGIN,
    OFFER,
    TERMS_RECORD,
)
from gdpfed.federation import log
from gdpfed.federation.server.client_history import ClientHistory
from gdpfed.federation.server.join import Joined
from gdpfed.federation.server.questions import Records, Transport, refusals
from gdpfed.federation.server.server_sides import told_with_terms
from gdpfed.methods.rates import configured_delta
from gdpfed.privacy.ledgers.terms import Terms, terms_of
from gdpfed.privacy.mechanism_options import HasTurns, KeepsTurns, record_groups, taps_of
from gdpfed.rounds.run import PreparedRun

NODE_CONFIG = {
    "client": "--node-config \"epsilon=... ledger='...'\"",
    "record": "--node-config \"epsilon-record=... ledger='...'\"",
}
NO_LEDGER = (
    "secagg.mode=active and privacy.against=everyone take noise back, and it has no ledger to check that by: "
    f"give it {NODE_CONFIG['client']}, or use privacy.noise_taps=0 or privacy.against=outsiders"
)


def plan_waits_for_clients(config: Config) -> bool:
    """Whether a run can be planned only after nodes have stated their budgets or record counts.

    The budgets are asked for again to resume; how many records there are, the plan then knows.
    """
    known = config.privacy.client_budgets is not None and config.run.resume is None
    return (config.privacy.budgets == CLIENTS and not known) or _records_are_asked(config)


def _records_are_asked(config: Config) -> bool:
    privacy = config.privacy
    return privacy.about_records and privacy.client_records is None and config.run.resume is None


def with_said_records(config: Config, joined: Joined) -> Config:
    """Add the record count of every client to the configuration, if nodes bring their own data.

    A client whose node brings none has the part of the data set that the partition gives it.
    """
    if not (_records_are_asked(config) and joined.records):
        return config
    task = task_of(config)
    counts = [
        joined.records[client] if client in joined.records else len(task.client_indices(client))
        for client in range(config.dataset.num_clients)
    ]
    return replace(config, privacy=replace(config.privacy, client_records=counts))


def with_said_budgets(config: Config, joined: Joined, enough: int) -> Config:
    """Return the configuration with the budgets that clients stated, and a delta that all of them allow.

    A run that is resumed keeps the budgets that its plan was made of; whether they still hold is for each
    client to say when it is offered the terms. Without a configured delta the plan takes the smallest that a
    client says, or the default of :func:`configured_delta` if that is smaller. If no node of a resumed run
    says a budget, it is one whose budgets were configured. A node without a budget is left out. A client that
    has not joined is planned with the smallest that another one says: should it come late with a smaller one,
    it refuses the terms. Raises RunError: fewer than ``enough`` nodes have a budget of their own.
    """
    privacy, num_clients = config.privacy, config.dataset.num_clients
    if privacy.client_budgets is not None and not joined.budgets:
        return config
    silent = sorted(joined.nodes.keys() - joined.budgets.keys())
    reason = (
        f"says no budget of its own: start its node with {NODE_CONFIG[privacy.unit]}, or set "
        "privacy.budgets=[...] for all"
    )
    all_silent = f" ({len(silent)} of {num_clients})"
    joined.leave_out(
        {client: f"privacy.budgets={CLIENTS}, but client {client}{all_silent} {reason}" for client in silent},
        max(enough, 1),
    )
    if privacy.client_budgets is not None:
        return config
    least = min(own.epsilon for own in joined.budgets.values())
    own = joined.budgets
    budgets = [own[client].epsilon if client in own else least for client in range(num_clients)]
    said = min(own.delta for own in joined.budgets.values())
    delta = min(said, configured_delta(config)) if privacy.delta is None else privacy.delta
    return replace(config, privacy=replace(privacy, client_budgets=budgets, delta=delta))


@dataclass(frozen=True)
class Offer:
    """The conditions of a run that are offered to one client.

    Attributes:
        terms: of the run, for this client.
        told: beside them, by record: what systems tell, as a price, and the client's earlier runs.
    """

    terms: Terms
    told: Records

    def content(self) -> Records:
        """Return the offered conditions as records of a message."""
        return {TERMS_RECORD: self.terms.to_scalars(), **self.told}


def terms_of_clients(
    run: PreparedRun, history: ClientHistory, joined: Joined, first_round: int
) -> dict[int, Offer]:
    """Make the conditions of the remaining rounds for each client that has a budget of its own.

    With them each is told of its earlier runs.
    """
    plan, secagg = run.method.plan, run.config.secagg
    if first_round == plan.num_rounds:
        return {}
    told = told_with_terms(run.config)
    groups = plan.groups if secagg.signs else ()
    terms: dict[int, Offer] = {}
    for index, group in enumerate(plan.groups):
        of_group = partial(
            terms_of,
            plan,
            index,
            run.name,
            first_round=first_round,
            dropout_tolerance=secagg.dropout_tolerance,
            corrupt_tolerance=secagg.corrupt_tolerance,
            seed=run.config.run.seed,
            task=run.order.task.digest,
            announced=run.order.announced,
        )
        # Only members that know each other can compare a sum with a schedule.
        if groups and isinstance(plan.mechanism, HasTurns):
            of_group = partial(of_group, schedule=plan.mechanism.schedule(index, groups).to_text())
        members = joined.budgets.keys() & set(group.clients)
        if isinstance(plan.mechanism, KeepsTurns):
            terms |= {client: Offer(of_group(client=client), told) for client in members}
        elif members:
            terms |= dict.fromkeys(members, Offer(of_group(), told))
    earlier = history.told(terms)
    return {
        client: replace(each, told={**each.told, **earlier.get(client, {})}) for client, each in terms.items()
    }


def agree_to_terms(transport: Transport, joined: Joined, terms: Mapping[int, Offer], enough: int) -> None:
    """Ask clients with own budgets to accept the run, without recording costs; leave out those that refuse.

    Those that do not agree are left out as long as ``enough`` nodes stay. Raises RunError: too few stay; it
    says why the last one does not.
    """
    _leave_out(joined, offer_terms(transport, joined, terms), enough)


def keep_groups(run: PreparedRun, joined: Joined, enough: int) -> None:
    """Leave out clients with records in other budget groups than planned; raise RunError if too few stay."""
    _leave_out(joined, dealt_otherwise(run, joined), enough)


def keep_ledgers(run: PreparedRun, joined: Joined, enough: int) -> None:
    """Leave out clients without a ledger if sums are signed and later sums subtract earlier noise.

    Such a client has agreed to no terms, so it cannot tell whether a sum follows those of the other members.
    Raises RunError: too few stay.
    """
    plan = run.method.plan
    taken_back = any(any(taps_of(plan.mechanism, m)) for m in range(len(plan.groups)))
    if run.config.secagg.signs and taken_back:
        _leave_out(joined, dict.fromkeys(joined.nodes.keys() - joined.budgets.keys(), NO_LEDGER), enough)


def dealt_otherwise(run: PreparedRun, joined: Joined) -> dict[int, str]:
    """Return a refusal for each client whose new record count would move records to other budget groups.

    Shares deal records out by how many there are. With another number a record can pass from a strict group
    to a loose one while the run goes on, and cost more than its own budget. Where data says the group of
    every record, and where all records have one budget, a new number changes weights and no epsilon.
    """
    several = len(record_groups(run.method.plan.mechanism, 0)) > 1
    if not joined.records or not several or run.task.load().record_groups:
        return {}
    counts = record_counts(run.config)
    return {
        client: f"it brings {count} records, and the plan assigned {counts[client]} to groups with budgets "
        "of their own: bring the same records as before, or begin a new run"
        for client, count in joined.records.items()
        if count != counts[client]
    }


def _leave_out(joined: Joined, refusals: Mapping[int, str], enough: int) -> None:
    said = {
        client: f"client {client} does not take part in this run: {why}" for client, why in refusals.items()
    }
    joined.leave_out(said, enough)


def begin_with_terms(
    transport: Transport, joined: Joined, terms: Mapping[int, Offer], history: ClientHistory
) -> None:
    """Have clients record the run's cost in their own ledgers before round 1; leave out those that cannot.

    One that cannot is left out. The others have charged the run by then, so it goes on; before the next round
    the node is asked again, as one that comes late is.
    """
    agreed = {client: each for client, each in terms.items() if client in joined.nodes}
    for client, refusal in begin_terms(transport, joined, agreed, history).items():
        log(WARNING, "client %d does not begin this run: %s", client, refusal)
        del joined.nodes[client]


def offer_terms(transport: Transport, joined: Joined, terms: Mapping[int, Offer]) -> dict[int, str]:
    """Ask clients whether the run fits their own budgets; return the reason of each client that refuses."""
    return refusals(transport, joined.nodes, _contents(terms), OFFER)


def begin_terms(
    transport: Transport, joined: Joined, terms: Mapping[int, Offer], history: ClientHistory
) -> dict[int, str]:
    """Have clients record the run's cost in their own ledgers; return the reason of each that refuses."""
    refused = refusals(transport, joined.nodes, _contents(terms), BEGIN)
    history.begun(terms.keys() - refused.keys())
    return refused


def _contents(terms: Mapping[int, Offer]) -> dict[int, Records]:
    return {client: each.content() for client, each in terms.items()}
