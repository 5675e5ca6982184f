"""What several trainings cost one client together.

The terms of a training may depend on what earlier ones released, so its admission is a *privacy
filter*. Renyi divergences, added order by order, are one: a client is (epsilon, delta)-DP as long as,
at some order, the sum converts to at most epsilon (Feldman and Zrnic, "Individual Privacy Accounting
via a Renyi Filter", NeurIPS 2021, Theorem 3.1; for a set of orders Lecuyer, arXiv:2103.01379, Theorem
3.3). Composed privacy-loss distributions are tighter, but proved for mechanisms that are fixed
beforehand. So one training alone, whose terms are fixed before it begins, has the least of all
figures that cover it, and several have the Renyi sum.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import epsilon_of_renyi, renyi_curve
from gdpfed.privacy.accountants.discrete import GAUSSIAN_SHARE, MOST_EPSILON, effective_delta
from gdpfed.privacy.accountants.noise_law import NoiseLaw, accountant_for
from gdpfed.privacy.accountants.server_view import epsilon_against_server
from gdpfed.privacy.events import SampledGaussian
from gdpfed.privacy.validation import require_count, require_delta


@dataclass(frozen=True)
class Charge:
    """`num_rounds` rounds of one mechanism under one law of noise."""

    mechanism: SampledGaussian
    num_rounds: int
    noise: NoiseLaw = "gaussian"

    def __post_init__(self) -> None:
        require_count("num_rounds", self.num_rounds)


@dataclass(frozen=True)
class NoisedSums:
    """`count` sums, noised by `noise_stddev` / `clipping_norm`, that a client is known to be part of."""

    mechanism: SampledGaussian
    count: int
    noise: NoiseLaw = "gaussian"


def composed_epsilon(charges: Sequence[Charge], delta: float) -> float:
    """Return epsilon at delta of all charges together; 0 for none, inf where a charge has no noise.

    Charges under replace_one adjacency hold under zero_out as well, so mixed ones are accounted as
    what all of them are: zero_out.

    Raises PrivacyError where several charges include poisson sampling under replace_one, for which
    no Renyi bound is known.
    """
    require_delta(delta)
    if not charges:
        return 0.0
    if any(charge.mechanism.noise_stddev == 0.0 for charge in charges):
        return math.inf
    if len(charges) == 1:
        return _epsilon_alone(charges[0], delta)
    curves = [renyi_curve(charge.mechanism) for charge in charges]
    discrete = [charge for charge in charges if charge.noise == "discrete_gaussian"]
    orders = set.intersection(*(set(curve) for curve in curves))
    if discrete:
        orders = {order for order in orders if order == int(order)}
        delta = effective_delta(delta, num_rounds=sum(charge.num_rounds for charge in discrete))
    return _bounded(epsilon_of_renyi(_sum(charges, curves, orders), delta), bool(discrete))


def composed_epsilon_against_server(sums: Sequence[NoisedSums], delta: float) -> float:
    """Return epsilon at delta of the sums that a client was part of, sampling hiding nothing.

    K_i sums of noise multiplier sigma_i compose to one Gaussian of (sum_i K_i / sigma_i^2)^(-1/2),
    with sigma_i / 2 in place of sigma_i where one client's update may be replaced by any other. Gaussian
    mechanisms are exactly their own worst case, so the figure is a filter as well (Smith and
    Thakurta, "Fully Adaptive Composition for Gaussian Differential Privacy", arXiv:2210.17520).
    """
    require_delta(delta)
    taken = [each for each in sums if each.count]
    if not taken:
        return 0.0
    if any(each.mechanism.noise_stddev == 0.0 for each in taken):
        return math.inf
    discrete = sum(each.count for each in taken if each.noise == "discrete_gaussian")
    if discrete:
        delta = effective_delta(delta, num_rounds=discrete)
    sigma = math.fsum(each.count / _charged_multiplier(each) ** 2 for each in taken) ** -0.5
    return _bounded(epsilon_against_server(sigma, 1, delta), discrete > 0)


def _epsilon_alone(charge: Charge, delta: float) -> float:
    """The least figure of the accountants that cover one charge."""
    figures = []
    for name in ("pld", "rdp"):
        accountant = accountant_for(charge.noise, name, "fine")
        try:
            figures.append(accountant.epsilon(charge.mechanism, charge.num_rounds, delta))
        except PrivacyError as error:
            refused = error
    if not figures:
        raise refused
    return min(figures)


def _sum(
    charges: Sequence[Charge], curves: Sequence[Mapping[float, float]], orders: set[float]
) -> dict[float, float]:
    return {
        order: math.fsum(
            charge.num_rounds * curve[order] for charge, curve in zip(charges, curves, strict=True)
        )
        for order in sorted(orders)
    }


def _charged_multiplier(sums: NoisedSums) -> float:
    distance = 1.0 if sums.mechanism.adjacency == "zero_out" else 2.0
    share = GAUSSIAN_SHARE if sums.noise == "discrete_gaussian" else 1.0
    return sums.mechanism.noise_multiplier * share / distance


def _bounded(epsilon: float, discrete: bool) -> float:
    """inf beyond what the proof for discrete noise reaches."""
    return math.inf if discrete and epsilon > MOST_EPSILON else epsilon
