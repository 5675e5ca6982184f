"""The law of the noise that clients add, and who accounts for it."""

from typing import Literal, get_args

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import Accountant, RenyiOrders, make_accountant
from gdpfed.privacy.accountants.discrete import (
    MOST_EPSILON,
    discrete_accountant,
    discrete_epsilon_against_server,
)
from gdpfed.privacy.accountants.server_view import epsilon_against_server
from gdpfed.privacy.events import Adjacency
from gdpfed.privacy.validation import require_choice

NoiseLaw = Literal["gaussian", "discrete_gaussian"]


def accountant_for(noise: NoiseLaw, name: str, renyi_orders: RenyiOrders) -> Accountant:
    """Return the accountant of that name for that noise.

    Raises PrivacyError for a name or a law that there is not, and for a proof that does not cover
    the law.
    """
    require_choice("noise", noise, get_args(NoiseLaw))
    if noise == "discrete_gaussian":
        return discrete_accountant(name)
    return make_accountant(name, renyi_orders)


def refuse_unaccountable(noise: NoiseLaw, epsilon: float) -> None:
    """Raise PrivacyError for a budget that the proof for this noise does not reach."""
    if noise == "discrete_gaussian" and epsilon > MOST_EPSILON:
        raise PrivacyError(
            f"epsilon is {epsilon:g}; discrete_gaussian noise is accounted up to {MOST_EPSILON:g}, "
            "lower the budget or use gaussian noise"
        )


def server_epsilon(
    noise: NoiseLaw, noise_multiplier: float, participations: int, delta: float, adjacency: Adjacency
) -> float:
    """Return epsilon against the server of K noised sums that a client is known to be part of."""
    bound = discrete_epsilon_against_server if noise == "discrete_gaussian" else epsilon_against_server
    return bound(noise_multiplier, participations, delta, adjacency)
