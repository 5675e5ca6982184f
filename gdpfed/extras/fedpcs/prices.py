"""Posted prices for a unit of zCDP: the budgets that clients choose at a price, and the resulting plan."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from conf.schema import CLIENTS, Config
from gdpfed.errors import ConfigError, PrivacyError
from gdpfed.extras.fedpcs.client_budgets import epsilon_of_total
from gdpfed.extras.fedpcs.fedpcs import FedPCS
from gdpfed.extras.fedpcs.game.payoffs import Floats
from gdpfed.extras.fedpcs.game.posted_price import PostedPrice, welfare
from gdpfed.methods import make_method
from gdpfed.methods.rates import configured_delta

NUM_PRICES = 9


@dataclass(frozen=True, eq=False, kw_only=True)
class Priced:
    """What follows from one posted price per unit of zCDP: clients' budgets, payments, and the plan.

    Attributes:
        posted: the price.
        budgets: rho_i that every client answers, shape (n,).
        epsilons: the same as epsilons at the plan's delta.
        welfare: sum_i (R rho_i - c_i rho_i^2).
        groups: the budgets that are planned, one a group.
        noise_magnitude: Lambda of the plan; None where there is none.
        reason: why there is no plan; empty where there is one.
    """

    posted: PostedPrice
    budgets: Floats
    epsilons: Floats
    welfare: float
    groups: tuple[float, ...] = ()
    noise_magnitude: float | None = None
    reason: str = ""

    @property
    def spent(self) -> float:
        """The zCDP that all clients spend: sum_i rho_i."""
        return float(self.budgets.sum())

    @property
    def paid(self) -> float:
        """The payment to all clients: R sum_i rho_i."""
        return self.posted.price * self.spent


def posted_price(config: Config) -> PostedPrice | None:
    """Return the price per unit of zCDP that a run offers (posts) to its nodes; None if it posts none."""
    least, highest = config.privacy.price_bounds
    price = config.privacy.price
    return None if price is None else PostedPrice(price=float(price), least=least, highest=highest)


def configured_aversions(config: Config) -> Floats:
    """Return each client's aversion c_i, the weight of its privacy cost: configured, or drawn from U(0, 1).

    Raises ConfigError: not one a client.
    """
    given, n = config.privacy.client_aversions, config.dataset.num_clients
    if given is None:
        return np.random.default_rng(config.run.seed).uniform(0, 1, n)
    if len(given) != n:
        raise ConfigError(
            f"privacy.client_aversions has {len(given)} entries for dataset.num_clients={n}: give one for "
            "each client"
        )
    return np.asarray(given, dtype=np.float64)


def sweep(config: Config) -> Iterator[Priced]:
    """Yield what follows from each of several posted prices, or from the configured price alone.

    At the first all answer with more than the least, at the last those of aversion above 1/2 with less than
    the highest. Where the run has a price of its own, it is that alone. Raises ConfigError: a method whose
    clients say no budgets.
    """
    method = config.method.name
    if method in {"fedavg", FedPCS.name}:
        raise ConfigError(
            f"method={method} has no budgets that clients could choose by a price: use a method with groups, "
            "such as method=gdpfed_plus"
        )
    least, highest = config.privacy.price_bounds
    own = posted_price(config)
    prices = np.geomspace(2 * least, highest, NUM_PRICES).tolist()
    posted = [PostedPrice(price=each, least=least, highest=highest) for each in prices]
    aversions = configured_aversions(config)
    for each in posted if own is None else [own]:
        budgets, delta = each.budgets(aversions), configured_delta(config)
        epsilons = [epsilon_of_total(rho, delta) for rho in budgets.tolist()]
        privacy = replace(
            config.privacy,
            budgets=CLIENTS,
            client_budgets=epsilons,
            group_shares=None,
            delta=delta,
        )
        priced = Priced(
            posted=each,
            budgets=budgets,
            epsilons=np.asarray(epsilons),
            welfare=welfare(budgets, aversions, each.price),
        )
        try:
            planned = make_method(replace(config, privacy=privacy))
        except PrivacyError as error:
            priced = replace(priced, reason=str(error))
        else:
            priced = replace(
                priced,
                groups=tuple(group.epsilon for group in planned.plan.groups),
                noise_magnitude=planned.weighting.noise_magnitude(planned.plan),
            )
        yield priced
