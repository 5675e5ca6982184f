"""Groups clients by privacy budget; finds how many clients may hold records of the same person."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from conf.schema import CLIENTS, Config
from gdpfed.errors import ConfigError
from gdpfed.privacy.planning.groups import Group, form_groups, groups_from_shares

USUAL_GROUPS = 3
"""Of clients with budgets of their own, where nothing else is said."""
FEW_CLIENTS = 20
"""Up to this number of clients, each budget has its own group where all groups are one sum."""

TABLES = ("csv", "python")
"""Data sets whose records may be rows of persons; the second is of tables that a program gives."""


def resolve_budgets(config: Config, *, one_sum: bool) -> Config:
    """Convert budgets given by client name to a list, and choose the number of groups if it is left open.

    Args:
        one_sum: whether the clients of all groups are one sum; else each group is a sum that hides its
            members, so groups of one client would be skipped.

    Raises:
        ConfigError: a name that no party has, or a party without a budget.
    """
    privacy = config.privacy
    if privacy.budgets != CLIENTS or privacy.client_budgets is None:
        return config
    if isinstance(privacy.client_budgets, Mapping):
        # Data sets and torch take seconds to load, and a plan without names can do without them.
        from gdpfed.clients.configured import task_of

        named, names = privacy.client_budgets, task_of(config).client_names
        if not names:
            raise ConfigError(
                f"privacy.client_budgets names {', '.join(named)}, and the clients have no names with "
                f"dataset={config.dataset.name} and dataset.partition={config.dataset.partition}: give a "
                "list, one number for each client"
            )
        privacy = replace(privacy, client_budgets=budgets_in_order(names, named))
    budgets = privacy.client_budgets
    if privacy.num_groups is None and privacy.group_edges is None:
        apart = one_sum and len(budgets) <= FEW_CLIENTS
        privacy = replace(privacy, num_groups=_num_groups(budgets, FEW_CLIENTS if apart else USUAL_GROUPS))
    return replace(config, privacy=privacy)


def configured_groups(config: Config) -> tuple[Group, ...]:
    """Return the clients' budget groups: of configured sizes, or formed of clients with similar budgets.

    Raises:
        ConfigError: the clients' own budgets are not known yet, or are not one a client.
        PrivacyError: budgets or groups that cannot be had.
    """
    privacy, num_clients = config.privacy, config.dataset.num_clients
    if privacy.budgets != CLIENTS:
        return groups_from_shares(num_clients, privacy.budgets, privacy.group_shares)
    if privacy.client_budgets is None:
        raise ConfigError(
            f"privacy.budgets={CLIENTS} is planned once the nodes have joined and said their budgets: to "
            "plan or simulate, name every client's in privacy.client_budgets=[0.5,2,...]"
        )
    if len(privacy.client_budgets) != num_clients:
        raise ConfigError(
            f"privacy.client_budgets has {len(privacy.client_budgets)} entries for "
            f"dataset.num_clients={num_clients}: give one for each client"
        )
    if privacy.group_edges is not None:
        return form_groups(privacy.client_budgets, edges=privacy.group_edges)
    num_groups = privacy.num_groups or _num_groups(privacy.client_budgets, USUAL_GROUPS)
    return form_groups(privacy.client_budgets, num_groups=num_groups)


def _num_groups(budgets: Sequence[float], most: int) -> int:
    return min(most, len(set(budgets)))


def budgets_in_order(names: Sequence[str], named: Mapping[str, float]) -> list[float]:
    """Return the clients' budgets in the order of these names; raise ConfigError if names do not match.

    Raises ConfigError: a name that no client has, or a client without a budget.
    """
    for name in named:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise ConfigError(
                f"privacy.client_budgets names '{name}', and the parties are {', '.join(names)}{hint}: "
                "name these"
            )
    silent = [name for name in names if name not in named]
    if silent:
        raise ConfigError(
            f"privacy.client_budgets names no budget for {', '.join(silent)}: name one for each party"
        )
    return [named[name] for name in names]


def configured_parties(config: Config) -> int:
    """Return how many clients may have records of the same person; 0 if persons are not protected.

    A plan that is made without its data takes a record for a row.
    """
    if not config.privacy.about_records or config.dataset.name not in TABLES:
        return 0
    from gdpfed.clients.configured import source_of
    from gdpfed.learning.data.tabular import parties_of_person

    return parties_of_person(source_of(config))
