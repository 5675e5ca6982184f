"""Lists the data owners (parties) in a plan with their budgets, and warns if a budget is hardly used."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from conf.schema import Config
from gdpfed.errors import LearningError
from gdpfed.privacy.plan import PrivacyPlan

if TYPE_CHECKING:
    from gdpfed.learning.data.source import DataSource

MOST_NAMED = 20
"""Of parties, that are listed one by one."""
SMALL = ("breast_cancer", "heart_disease")
"""Data sets whose parties have names, and which are read in no time."""
BUNDLED = ("breast_cancer",)
"""Those of them that need no path."""
DIGITS = 12
"""Of a digest, that are shown."""
BELOW = 0.9
"""Of what a client offers: a plan that uses less says so."""


def party_names(config: Config) -> tuple[str, ...]:
    """Return the clients' names without reading data; return () if there are many clients or no names."""
    data = config.dataset
    if data.partition != "natural" or data.num_clients > MOST_NAMED:
        return ()
    if data.name == "csv" and data.path is not None:
        from gdpfed.learning.data.tabular import declared_parties

        names = declared_parties(_source(config))
        return names if len(names) == data.num_clients else ()
    if data.name in SMALL and (data.name in BUNDLED or data.path is not None):
        from gdpfed.clients.configured import task_of

        return task_of(config).client_names
    return ()


def has_every_party(config: Config) -> bool:
    """Whether the clients are all of the data's owners, as far as is known without reading a large table.

    They are if as many parties have names as there are clients: those that a table's declaration names, those
    of a folder's files, or those of small public data.
    """
    data = config.dataset
    if data.partition != "natural" or (data.path is None and data.name not in BUNDLED):
        return False
    try:
        if data.name == "csv":
            from gdpfed.learning.data.tabular import declared_parties

            return len(declared_parties(_source(config))) == data.num_clients
        if data.name in SMALL:
            from gdpfed.clients.configured import task_of

            return len(task_of(config).load().owner_names) == data.num_clients
    except LearningError:
        # Files that were there at the start may be gone by the time a card is written.
        return False
    return False


def _source(config: Config) -> "DataSource":
    from gdpfed.learning.data.source import DataSource

    return DataSource(config.dataset.name, path=config.dataset.path, columns=config.dataset.columns)


def declared_digest(config: Config) -> str | None:
    """Return the hash of a run's declared table columns, without reading data; None if none are declared."""
    if config.dataset.name != "csv" or config.dataset.path is None:
        return None
    from gdpfed.learning.data.tabular import declared_columns

    return declared_columns(_source(config)).digest


def group_of(plan: PrivacyPlan, client: int) -> int:
    """Return the index of the plan's group that contains a client."""
    return next(index for index, group in enumerate(plan.groups) if client in group.clients)


def party_dict(config: Config, plan: PrivacyPlan) -> dict[str, object]:
    """Return each party's budget by name, and the hash of the declared table columns, for JSON."""
    digest, names = declared_digest(config), party_names(config)
    values: dict[str, object] = {} if digest is None else {"columns": digest}
    if names and plan.private and config.privacy.budgets_of == "clients":
        values["parties"] = {
            name: plan.groups[group_of(plan, client)].epsilon for client, name in enumerate(names)
        }
    return values


def party_lines(config: Config, plan: PrivacyPlan) -> Iterator[str]:
    """Yield lines with the hash of declared columns, all parties' budgets, and warnings.

    A warning is for parties of whose budget the plan uses little; there are none of many clients.

    `config`: with budgets in the order of clients, as a method resolves it.
    """
    digest = declared_digest(config)
    if digest is not None:
        yield f"columns as declared: {digest[:DIGITS]}, the same at all parties and in the model"
    if not plan.private or config.privacy.budgets_of == "records":
        return
    names = party_names(config)
    if names:
        budgets = (
            f"{name}: {plan.groups[group_of(plan, client)].epsilon:g}" for client, name in enumerate(names)
        )
        yield f"epsilon by party: {', '.join(budgets)}"
    offered: Sequence[float] = config.privacy.client_budgets or ()
    if not 0 < len(offered) <= MOST_NAMED:
        return
    for index, group in enumerate(plan.groups):
        uses = min(group.epsilon, plan.epsilon_after(index, plan.num_rounds))
        below = [client for client in group.clients if uses < BELOW * offered[client]]
        if below:
            called = ", ".join(names[client] if names else f"client {client}" for client in below)
            most = max(offered[client] for client in below)
            remedy = (
                "a larger privacy.num_groups uses more of it"
                if group.epsilon < BELOW * most
                else "more rounds or a smaller privacy.batch_rate use more of it"
            )
            yield f"{called}: up to {most:g} is offered, and the plan uses {uses:.3g}: {remedy}"
