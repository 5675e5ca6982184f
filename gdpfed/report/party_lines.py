"""The parties of a plan by name: which budget each has, and who is planned below what it offers."""

from collections.abc import Iterator, Mapping, Sequence

from conf.schema import Config
from gdpfed.clients.configured import task_of
from gdpfed.privacy.plan import PrivacyPlan

MOST_NAMED = 20
"""Of parties, that are listed one by one."""
TABLES = ("csv", "breast_cancer", "heart_disease")
"""Data sets whose parties have names, and which are read in less than a second or so."""
BELOW = 0.9
"""Of what a client offers: a plan that uses less says so."""


def party_names(config: Config) -> tuple[str, ...]:
    """What every client is called; empty where they are many or have no names."""
    if config.dataset.name not in TABLES or config.dataset.num_clients > MOST_NAMED:
        return ()
    if config.dataset.name == "csv" and config.dataset.path is None:
        return ()
    return task_of(config).client_names


def group_of_client(plan: PrivacyPlan) -> Mapping[int, int]:
    """The group of every client."""
    return {client: index for index, group in enumerate(plan.groups) for client in group.clients}


def party_lines(config: Config, plan: PrivacyPlan) -> Iterator[str]:
    """One line with every party's budget, and one for those of whose budget the plan uses less.

    There are none of many clients.

    Args:
        config: with budgets in the order of clients, as a method resolves it.
    """
    if not plan.private or config.privacy.budgets_of == "records":
        return
    names, groups = party_names(config), group_of_client(plan)
    if names:
        budgets = (f"{name}: {plan.groups[groups[client]].epsilon:g}" for client, name in enumerate(names))
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
