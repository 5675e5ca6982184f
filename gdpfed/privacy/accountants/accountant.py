"""Three accountants behind one interface, on top of dp-accounting.

Each takes the mechanism with explicit noise, clipping norm, sampling and adjacency and returns
epsilon; dp-accounting's conventions, which differ between its accountants, end here:

* Poisson sampling under zero_out is dp-accounting's REPLACE_SPECIAL, noise multiplier std / C.
* Poisson sampling under replace_one is known to its PLD accountant only, in std / C.
* Fixed-size sampling is known to its RDP accountant only, under REPLACE_ONE, which reads the
  multiplier as std over the *distance of two updates*, std / (2 C). The same holds for zero_out:
  where a client is not drawn another stands in its place, so the bound (Wang, Balle,
  Kasiviswanathan, "Subsampled Renyi Differential Privacy and Analytical Moments Accountant",
  Theorem 27) compares two real updates as well. std / C would promise far too much there.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, Protocol, cast, get_args

from gdpfed.errors import PrivacyError
from gdpfed.late_import import late_import
from gdpfed.privacy.accountants.server_view import epsilon_against_server, participations_quantile
from gdpfed.privacy.accountants.theorem1 import check_theorem1, theorem1_epsilon, theorem1_variance
from gdpfed.privacy.events import Adjacency, SampledGaussian, Sampling
from gdpfed.privacy.validation import require_choice, require_count, require_delta

__all__ = [
    "Accountant",
    "AccountantName",
    "Adjacency",
    "RenyiOrders",
    "SampledGaussian",
    "Sampling",
    "check_theorem1",
    "epsilon_against_server",
    "make_accountant",
    "participations_quantile",
    "theorem1_variance",
]

dp = late_import("dp_accounting")

AccountantName = Literal["theorem1", "rdp", "pld"]
RenyiOrders = Literal["fine", "whole"]

# Fractional orders of the fixed-size bound are interpolated between whole ones and cost as much.
POISSON_ORDERS = (
    *(1 + tenth / 10 for tenth in range(1, 100)),
    *range(11, 64),
    *(128, 256, 512, 1024),
)
FIXED_SIZE_ORDERS = (
    *(1.25, 1.5, 1.75, 2.5, 3.5),
    *range(2, 33),
    *(36, 40, 44, 48, 56, 64, 80, 96, 128, 192, 257, 384, 512, 1024),
)

# dp-accounting sums 1 + O(q^2) in floating point. At tiny rates rounding can leave a divergence
# below the true one, or below zero, which it then takes for epsilon = 0; this much is added back.
RENYI_ROUNDING_SLACK = 1e-13


class Accountant(Protocol):
    """Turns a mechanism and a number of rounds into epsilon at a given delta."""

    @property
    def name(self) -> AccountantName:
        """The name it is configured by."""

    @property
    def renyi_orders(self) -> RenyiOrders:
        """Which orders the rdp accountant minimises over; the others have none."""

    def __hash__(self) -> int:
        """Equal accountants are one key of a cache."""

    def epsilon(self, mechanism: SampledGaussian, num_rounds: int, delta: float) -> float:
        """Return an epsilon such that `num_rounds` rounds are (epsilon, delta)-DP; inf if none.

        Raises PrivacyError for a combination of sampling and adjacency that this accountant has
        no valid bound for, saying what would work.
        """


@dataclass(frozen=True)
class _NamedAccountant:
    name: AccountantName
    _bound: Callable[[SampledGaussian, int, float], float]
    renyi_orders: RenyiOrders = "fine"

    def epsilon(self, mechanism: SampledGaussian, num_rounds: int, delta: float) -> float:
        require_count("num_rounds", num_rounds, at_least=0)
        require_delta(delta)
        if num_rounds == 0:
            return 0.0
        if mechanism.noise_stddev == 0.0:
            return math.inf
        return self._bound(mechanism, num_rounds, delta)


def make_accountant(name: str, renyi_orders: RenyiOrders = "fine") -> Accountant:
    """Return the accountant `theorem1`, `rdp` or `pld`.

    `renyi_orders` "whole" keeps rdp to orders 2, 3, ...: never a smaller epsilon, up to 4 % more
    variance where the best order is small, and what the paper's table has at its own rates.
    """
    require_choice("accountant", name, _BOUNDS)
    require_choice("renyi_orders", renyi_orders, get_args(RenyiOrders))
    if name == "rdp" and renyi_orders == "whole":
        return _NamedAccountant("rdp", _whole_order_rdp_epsilon, "whole")
    return _NamedAccountant(cast("AccountantName", name), _BOUNDS[name])


def _whole_order_rdp_epsilon(mechanism: SampledGaussian, num_rounds: int, delta: float) -> float:
    return _rdp_epsilon(mechanism, num_rounds, delta, keeps=lambda order: order == int(order))


def _rdp_epsilon(
    mechanism: SampledGaussian,
    num_rounds: int,
    delta: float,
    *,
    keeps: Callable[[float], bool] = lambda order: True,
) -> float:
    """Renyi DP, converted by Canonne, Kamath, Steinke, arXiv:2004.00010v4, Proposition 12."""
    curve = {order: num_rounds * renyi for order, renyi in renyi_curve(mechanism).items() if keeps(order)}
    return epsilon_of_renyi(curve, delta)


def epsilon_of_renyi(curve: Mapping[float, float], delta: float) -> float:
    """Return the least epsilon that Renyi divergences, by order, prove at delta."""
    epsilon, _ = dp.rdp.compute_epsilon(tuple(curve), tuple(curve.values()), delta)
    return float(epsilon)


def renyi_curve(mechanism: SampledGaussian) -> dict[float, float]:
    """Return an upper bound on one round's Renyi divergence at every order that has one.

    Raises PrivacyError for poisson sampling under replace_one, which has no such bound.
    """
    if mechanism.sampling == "fixed_size":
        orders, per_round = FIXED_SIZE_ORDERS, _fixed_size_renyi(mechanism)
    elif mechanism.adjacency == "zero_out":
        sigma = mechanism.noise_multiplier
        orders, per_round = POISSON_ORDERS, _poisson_renyi(sigma, mechanism.sampling_rate)
    else:
        raise PrivacyError(
            "the rdp accountant has no bound for poisson sampling under replace_one adjacency; "
            "use the pld accountant, or zero_out adjacency, or fixed_size sampling"
        )
    return {order: renyi + RENYI_ROUNDING_SLACK for order, renyi in zip(orders, per_round, strict=True)}


def _fixed_size_renyi(mechanism: SampledGaussian) -> tuple[float, ...]:
    # With everybody drawn nobody stands in, and zero_out moves the sum by C only.
    everybody = mechanism.cohort_size == mechanism.group_size
    distance = 1.0 if everybody and mechanism.adjacency == "zero_out" else 2.0
    multiplier = mechanism.noise_multiplier / distance
    return _without_replacement_renyi(multiplier, mechanism.cohort_size, mechanism.group_size)


@lru_cache(maxsize=256)
def _poisson_renyi(noise_multiplier: float, sampling_rate: float) -> tuple[float, ...]:
    """Mironov, Talwar, Zhang, arXiv:1908.10530, Section 3.3, one round, at POISSON_ORDERS."""
    relation = dp.NeighboringRelation.REPLACE_SPECIAL
    accountant = dp.rdp.RdpAccountant(POISSON_ORDERS, neighboring_relation=relation)
    gaussian = dp.GaussianDpEvent(noise_multiplier)
    with _unconverged_orders_expected():
        accountant.compose(dp.PoissonSampledDpEvent(sampling_rate, gaussian))
    return _renyi_of(accountant)


@lru_cache(maxsize=256)
def _without_replacement_renyi(
    noise_multiplier: float, cohort_size: int, group_size: int
) -> tuple[float, ...]:
    """Wang, Balle, Kasiviswanathan, arXiv:1808.00087, Theorem 27, one round."""
    relation = dp.NeighboringRelation.REPLACE_ONE
    accountant = dp.rdp.RdpAccountant(FIXED_SIZE_ORDERS, neighboring_relation=relation)
    gaussian = dp.GaussianDpEvent(noise_multiplier)
    accountant.compose(dp.SampledWithoutReplacementDpEvent(group_size, cohort_size, gaussian))
    return _renyi_of(accountant)


@contextmanager
def _unconverged_orders_expected() -> Iterator[None]:
    """Keep one message of dp-accounting off the terminal.

    Its series does not converge at some fractional orders below two and it says so; the order
    counts as infinite then, so that epsilon, the least over the others, stays a valid bound.
    """

    def is_other(record: logging.LogRecord) -> bool:
        return "_compute_log_a_frac failed to converge" not in str(record.msg)

    logger = logging.getLogger("absl")
    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


def _renyi_of(accountant: Any) -> tuple[float, ...]:
    # The one round's curve is multiplied by T; composing anew would recompute it every round.
    return tuple(float(value) for value in accountant._rdp)


def pld_epsilon(
    mechanism: SampledGaussian, num_rounds: int, delta: float, *, coarseness: float = 1.0
) -> float:
    """Return epsilon by privacy loss distributions (Doroshenko et al., arXiv:2207.04380).

    Always an upper bound. A `coarseness` above one widens the grid of losses by that factor, which
    is faster and looser: good for a first search, as calibration does.
    """
    if mechanism.sampling == "fixed_size":
        raise PrivacyError(
            "the pld accountant has no bound for fixed_size sampling; "
            "use the rdp accountant, or poisson sampling"
        )
    sigma, rate = mechanism.noise_multiplier, mechanism.sampling_rate
    if rate == 1.0:
        distance = 1.0 if mechanism.adjacency == "zero_out" else 2.0
        return float(dp.get_epsilon_gaussian(sigma / distance / math.sqrt(num_rounds), delta))
    step = coarseness * _discretization_interval(sigma, rate)
    return _composed_pld_epsilon(sigma, rate, mechanism.adjacency, step, num_rounds, delta)


@lru_cache(maxsize=4096)
def _composed_pld_epsilon(
    sigma: float, rate: float, adjacency: Adjacency, step: float, num_rounds: int, delta: float
) -> float:
    composed = _one_round_pld(sigma, rate, adjacency, step).self_compose(num_rounds)
    return float(composed.get_epsilon_for_delta(delta))


@lru_cache(maxsize=64)
def _one_round_pld(sigma: float, rate: float, adjacency: Adjacency, step: float) -> Any:
    relations = {
        "zero_out": dp.NeighboringRelation.REPLACE_SPECIAL,
        "replace_one": dp.NeighboringRelation.REPLACE_ONE,
    }
    return dp.pld.privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=sigma,
        value_discretization_interval=step,
        sampling_prob=rate,
        neighboring_relation=relations[adjacency],
    )


def _discretization_interval(sigma: float, rate: float) -> float:
    """Return a step h of the loss grid that loosens epsilon by about 2e-4 of itself.

    Rounding is pessimistic, so no step can tighten it. It adds about h^2 / 8 to a round's
    variance chi^2 = q^2 (exp(1/sigma^2) - 1), and so h^2 / (16 chi^2) to epsilon, relatively:
    h = chi / 20. In units of the largest loss that is seen (ten standard deviations of noise), h
    is kept between 1/40,000, for time, and 1/20,000 or 1e-3, as rare large losses dominate chi.
    """
    chi = rate * math.sqrt(math.expm1(min(sigma**-2, 50.0)))
    exponent = 10 / sigma
    largest_loss = math.log1p(rate * math.expm1(exponent)) if exponent < 500 else exponent
    return max(min(chi / 20, max(1e-3, largest_loss / 20_000)), largest_loss / 40_000)


_BOUNDS: Mapping[str, Callable[[SampledGaussian, int, float], float]] = MappingProxyType(
    {"theorem1": theorem1_epsilon, "rdp": _rdp_epsilon, "pld": pld_epsilon}
)
