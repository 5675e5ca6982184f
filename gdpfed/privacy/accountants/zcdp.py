"""Zero-concentrated differential privacy of Gaussian releases without sampling.

A sum that one unit moves by Delta, with noise of standard deviation s, is rho-zCDP with rho =
Delta^2 / (2 s^2); this holds for continuous noise (Bun, Steinke, arXiv:1605.02658, Proposition 1.6) and for
discrete noise (Canonne, Kamath, Steinke, arXiv:2004.00010v4, Theorem 4), and rhos add up, in adaptive
composition too.
"""

import math
from collections.abc import Sequence

from gdpfed.errors import PrivacyError
from gdpfed.late_import import late_import
from gdpfed.privacy.accountants.discrete import MOST_EPSILON, effective_delta
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import Gaussian
from gdpfed.privacy.validation import require_delta

optimize = late_import("scipy.optimize")


def zcdp_rho(charges: Sequence[Charge]) -> float:
    """Return rho of all charges together.

    Raises PrivacyError for events other than sums that everybody is part of.
    """
    rho = 0.0
    for charge in charges:
        if not isinstance(charge.event, Gaussian):
            raise PrivacyError(
                f"zCDP has no bound for {charge.event.kind}, which is sampled; use the pld accountant"
            )
        rho += charge.count / (2 * charge.event.noise_multiplier**2)
    return rho


def zcdp_epsilon(charges: Sequence[Charge], delta: float) -> float:
    """Return epsilon at delta of all charges together.

    It is the least rho alpha + log(1 - 1/alpha) - log(delta alpha) / (alpha - 1) over alpha > 1:
    Canonne, Kamath, Steinke, arXiv:2004.00010v4, Proposition 12, as rho-zCDP is (alpha, rho alpha)-RDP at
    every order. The least is searched for; every alpha gives a valid bound.
    """
    require_delta(delta)
    rho = zcdp_rho(charges)
    discrete = sum(
        charge.count
        for charge in charges
        if isinstance(charge.event, Gaussian) and charge.event.noise == "discrete_gaussian"
    )
    if discrete:
        delta = effective_delta(delta, num_rounds=discrete)

    def bound(log_excess: float) -> float:
        excess = math.exp(log_excess)
        alpha = 1 + excess
        return rho * alpha + math.log(excess / alpha) - math.log(delta * alpha) / excess

    best = optimize.minimize_scalar(bound, bounds=(-9.0, 16.0), method="bounded")
    epsilon = max(0.0, float(best.fun))
    return math.inf if discrete and epsilon > MOST_EPSILON else epsilon
