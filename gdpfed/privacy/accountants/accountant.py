"""Accountants: each computes the epsilon of repeated releases of one kind, by its own method of proof.

A run can be planned with `rdp`, `pld` or `theorem1`. `gdpfed.privacy.accountants.composition` uses them to
compose lists of charges.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Protocol, cast, get_args

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.discrete import GAUSSIAN_SHARE, MOST_EPSILON, effective_delta
from gdpfed.privacy.accountants.pld import pld_epsilon
from gdpfed.privacy.accountants.rdp import rdp_epsilon
from gdpfed.privacy.accountants.theorem1 import theorem1_epsilon
from gdpfed.privacy.events import Event, NoiseLaw
from gdpfed.privacy.validation import require_choice, require_count, require_delta

AccountantName = Literal["theorem1", "rdp", "pld"]
RenyiOrders = Literal["fine", "whole"]


class Accountant(Protocol):
    """An object that computes, at a given delta, the epsilon of several releases of one kind (event)."""

    @property
    def name(self) -> AccountantName:
        """The name of this accountant in settings."""

    @property
    def renyi_orders(self) -> RenyiOrders:
        """The Renyi orders over which the rdp accountant minimises; other accountants ignore them."""

    def __hash__(self) -> int:
        """Return the same hash for equal accountants, which then share cached results."""

    def epsilon(self, event: Event, count: int, delta: float) -> float:
        """Return an epsilon for which `count` releases of an event are (epsilon, delta)-DP, or inf.

        Raises PrivacyError if this accountant has no valid bound for the event; the error says what has.
        """


@dataclass(frozen=True)
class _NamedAccountant:
    """An accountant of sums with continuous Gaussian noise."""

    name: AccountantName
    _bound: Callable[[Event, int, float], float]
    renyi_orders: RenyiOrders = "fine"

    def epsilon(self, event: Event, count: int, delta: float) -> float:
        require_count("num_rounds", count, at_least=0)
        require_delta(delta)
        if event.law != "gaussian":
            raise PrivacyError(f"{event} has discrete noise; account it with accountant_for(noise, ...)")
        if count == 0:
            return 0.0
        if not event.is_noisy:
            return math.inf
        return self._bound(event, count, delta)


@dataclass(frozen=True)
class _DiscreteAccountant:
    """An accountant of sums with discrete Gaussian noise, by `gdpfed.privacy.accountants.discrete`."""

    name: AccountantName
    renyi_orders: RenyiOrders = "whole"

    def epsilon(self, event: Event, count: int, delta: float) -> float:
        require_count("num_rounds", count, at_least=0)
        reduced = effective_delta(delta, num_rounds=max(1, count * event.num_releases))
        if count == 0:
            return 0.0
        if not event.is_noisy:
            return math.inf
        if self.name == "rdp":
            epsilon = make_accountant("rdp", "whole").epsilon(event.continuous(1.0), count, reduced)
        else:
            epsilon = pld_epsilon(event.continuous(GAUSSIAN_SHARE), count, reduced)
        return epsilon if epsilon <= MOST_EPSILON else math.inf


def make_accountant(name: str, renyi_orders: RenyiOrders = "fine") -> Accountant:
    """Return the accountant `theorem1`, `rdp` or `pld` for continuous noise.

    `renyi_orders` "whole" limits rdp to the orders 2, 3, ..., as in the paper's table. Its epsilon is never
    smaller; the planned noise has up to 4 % more variance if the best order is small.
    """
    require_choice("accountant", name, _BOUNDS)
    require_choice("renyi_orders", renyi_orders, get_args(RenyiOrders))
    if name == "rdp" and renyi_orders == "whole":
        return _NamedAccountant("rdp", _whole_order_rdp_epsilon, "whole")
    return _NamedAccountant(cast("AccountantName", name), _BOUNDS[name])


def discrete_accountant(name: str) -> Accountant:
    """Return the `rdp` (integer orders) or `pld` accountant for discrete Gaussian noise.

    Its `epsilon` takes events with the sum's actual noise, and the full delta. It returns inf for an epsilon
    above `MOST_EPSILON`. Raises PrivacyError for `theorem1`, whose proof is only about continuous noise.
    """
    require_choice("accountant", name, ("theorem1", "rdp", "pld"))
    if name == "theorem1":
        raise PrivacyError(
            "theorem1 is proved for continuous Gaussian noise, at fractional orders too; "
            "use the rdp or pld accountant with discrete_gaussian noise, or gaussian noise"
        )
    return _DiscreteAccountant("rdp" if name == "rdp" else "pld")


def accountant_for(noise: NoiseLaw, name: str, renyi_orders: RenyiOrders) -> Accountant:
    """Return the named accountant (rdp, pld, theorem1) for this law of noise, continuous or discrete.

    Raises PrivacyError if the name or the law is unknown, or the accountant's proof does not cover the law.
    """
    require_choice("noise", noise, get_args(NoiseLaw))
    if noise == "discrete_gaussian":
        return discrete_accountant(name)
    return make_accountant(name, renyi_orders)


def _whole_order_rdp_epsilon(event: Event, count: int, delta: float) -> float:
    return rdp_epsilon(event, count, delta, keeps=lambda order: order == int(order))


_BOUNDS: Mapping[str, Callable[[Event, int, float], float]] = MappingProxyType(
    {"theorem1": theorem1_epsilon, "rdp": rdp_epsilon, "pld": pld_epsilon}
)
