"""Budgets of the clients' own in their order, and how many groups they form."""

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches

from conf.schema import CLIENTS, Config
from gdpfed.errors import ConfigError
from gdpfed.methods.base import USUAL_GROUPS

FEW_CLIENTS = 20
"""Up to so many, each budget has a group of its own where all groups are one sum."""


def resolve_budgets(config: Config, *, one_sum: bool) -> Config:
    """Give budgets by name the order of the clients, and a plan its number of groups.

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
        privacy = replace(privacy, client_budgets=_in_order(config, privacy.client_budgets))
    budgets = privacy.client_budgets
    if privacy.num_groups is None and privacy.group_edges is None:
        apart = one_sum and len(budgets) <= FEW_CLIENTS
        most = FEW_CLIENTS if apart else USUAL_GROUPS
        privacy = replace(privacy, num_groups=min(most, len(set(budgets))))
    return replace(config, privacy=privacy)


def _in_order(config: Config, named: Mapping[str, float]) -> list[float]:
    # Data sets and torch take seconds to load, and a plan without names can do without them.
    from gdpfed.clients.configured import task_of

    names = task_of(config).client_names
    if not names:
        raise ConfigError(
            f"privacy.client_budgets names {', '.join(named)}, and the clients have no names with "
            f"dataset={config.dataset.name} and dataset.partition={config.dataset.partition}: give a list, "
            "one number a client"
        )
    for name in named:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise ConfigError(
                f"privacy.client_budgets names '{name}', and the parties are {', '.join(names)}{hint}"
            )
    silent = [name for name in names if name not in named]
    if silent:
        raise ConfigError(
            f"privacy.client_budgets names no budget for {', '.join(silent)}: name one for each party"
        )
    return [named[name] for name in names]
