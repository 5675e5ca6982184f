"""Accounting for discrete Gaussian noise on integers; every client adds a part of the noise.

A round releases the sum of integer vectors x_i, |x_i| <= C / grid, and of the clients' noise. What
the accountants for continuous Gaussians say of it, and why:

* **Sum.** n independent D(s), the discrete Gaussian of exp(-x**2 / (2 s**2)), differ from one of
  S = sqrt(n) s by tau in log-probability (`sum_divergence_bound`), 0 for every practical purpose.
* **rdp, at whole orders.** With P = D(S) on Z^d and Q = P shifted by an integer vector v, and a whole
  number j, completing the square moves the summand by j v, which leaves a sum over Z^d as it is:
  E_P[(Q / P)^j] = exp(j (j - 1) |v|**2 / (2 S**2)), *equal* to the continuous Gaussian's. The Renyi
  divergence of (1 - q) P + q Q from P at a whole order is a polynomial in these, so it is Mironov,
  Talwar, Zhang, arXiv:1908.10530, Section 3.3; x -> v - x swaps P and Q, so by their Theorem 5 it
  bounds the reverse too. Wang, Balle, Kasiviswanathan, arXiv:1808.00087, Theorem 27, for fixed_size,
  uses whole orders only as well. At fractional orders none of this holds.
* **pld.** Add N(0, S**2 - h**2), h = 3, and round to y with probability proportional to
  exp(-(y - x)**2 / (2 h**2)). That is post-processing of a continuous Gaussian and commutes with
  integer shifts, and y is D(S) up to a factor 1 +- 4 exp(-2 pi**2 h**2) < 1 +- 2**-253 (Peikert, "An
  Efficient and Parallel Gaussian Sampler for Lattices", CRYPTO 2010, Theorem 3.1). So whatever holds
  for a continuous Gaussian holds here for `GAUSSIAN_SHARE` of the standard deviation.
* **delta.** A distance t of the noise from the law above costs (1 + e^epsilon) t (`effective_delta`).

The bits behind the noise are pseudo-random, so the guarantee is computational.
"""

import math
from functools import lru_cache

import numpy as np

from gdpfed.errors import PrivacyError
from gdpfed.late_import import late_import
from gdpfed.privacy.events import NoiseLaw
from gdpfed.privacy.validation import require_count, require_delta, require_positive

special = late_import("scipy.special")

SMALLEST_VARIANCE = 40**2 * (1 + 12**2)
"""The least variance of one client's noise, in steps**2: D(40) + 12 D(40)."""
SMOOTHING_VARIANCE = 3**2
GAUSSIAN_SHARE = math.sqrt(1 - SMOOTHING_VARIANCE / SMALLEST_VARIANCE)
"""How much of its standard deviation discrete noise is charged as continuous: 1 - 1.94e-5."""
TABLE_DISTANCE = 2.0**-134
"""Total variation of a client's coordinate, as it is sampled, from D(s), at most."""
_SMOOTHING_DISTANCE = 4.2 * math.exp(-2 * math.pi**2 * SMOOTHING_VARIANCE)

DELTA_RESERVE = 1e-8
MOST_EPSILON = 30.0
MOST_CLIENTS, MOST_DIMENSION, MOST_ROUNDS, MOST_PARTS = 2**12, 2**31, 2**13, 17


def sum_divergence_bound(num_clients: int, integer_stddev: float, dimension: int) -> float:
    """Return d tau, a bound on |log(P / Q)|, for a sum of n discrete Gaussians (P) and one Gaussian (Q).

    tau = 10 sum_{k=1}^{n-1} exp(-2 pi**2 s**2 k / (k + 1)), for s >= 1/2: Kairouz, Liu, Steinke, "The
    Distributed Discrete Gaussian Mechanism", ICML 2021, arXiv:2102.06387, Section 3. It bounds the
    total variation as well. For s = 481.7, n = 1000 it is below 2**-3_000_000 a coordinate; a
    bound that float64 cannot hold is returned as the smallest number that it can, 5e-324.
    """
    require_count("num_clients", num_clients)
    require_count("dimension", dimension)
    if require_positive("integer_stddev", integer_stddev) < 0.5:
        raise PrivacyError(f"integer_stddev is {integer_stddev}; the bound for sums needs at least 0.5")
    if num_clients == 1:
        return 0.0
    log_bound = _log_tau(num_clients, float(integer_stddev)) + math.log(dimension)
    return max(math.exp(min(log_bound, 700.0)), math.ulp(0.0))


def effective_delta(
    delta: float,
    *,
    epsilon: float = MOST_EPSILON,
    num_clients: int = MOST_CLIENTS,
    dimension: int = MOST_DIMENSION,
    num_rounds: int = MOST_ROUNDS,
) -> float:
    """Return delta - 1e-8 for discrete noise; the 1e-8 is reserved for the noise sampler's error.

    With t the total variation of all noise of a training from the law that is accounted, an (epsilon, delta -
    (1 + e^epsilon) t) guarantee of that law is (epsilon, delta) of what is sampled. t adds up, over n
    clients, d coordinates and T rounds, `TABLE_DISTANCE` for each of up to 17 parts, and once a coordinate
    the bound for sums and the rounding behind pld. By default the sizes are the largest that may be met; then
    (1 + e^30) t = 7e-10. Raises PrivacyError where 1e-8 does not cover it, and for a delta that it would use
    up.
    """
    require_delta(delta)
    for name, count in (("num_clients", num_clients), ("dimension", dimension), ("num_rounds", num_rounds)):
        require_count(name, count)
    released = sum_divergence_bound(num_clients, math.sqrt(SMALLEST_VARIANCE), dimension)
    released += dimension * (_SMOOTHING_DISTANCE + MOST_PARTS * num_clients * TABLE_DISTANCE)
    cost = (1 + math.exp(min(require_positive("epsilon", epsilon), 700.0))) * num_rounds * released
    if not cost <= DELTA_RESERVE:
        raise PrivacyError(
            f"the sampler's error costs {cost:.3g} of delta, more than the {DELTA_RESERVE:g} set aside, at "
            f"epsilon {epsilon:g}, {num_clients} clients, dimension {dimension}, {num_rounds} rounds; "
            "lower the epsilon or the size"
        )
    if not delta > DELTA_RESERVE:
        raise PrivacyError(
            f"delta is {delta:.3g}, of which discrete_gaussian noise sets {DELTA_RESERVE:g} aside; "
            "choose a larger delta"
        )
    return delta - DELTA_RESERVE


def refuse_unaccountable(noise: NoiseLaw, epsilon: float) -> None:
    """Raise PrivacyError if epsilon is above the range in which discrete noise can be accounted for."""
    if noise == "discrete_gaussian" and not epsilon <= MOST_EPSILON:
        raise PrivacyError(
            f"epsilon is {epsilon:g}; discrete_gaussian noise is accounted up to {MOST_EPSILON:g}, "
            "lower the budget or use gaussian noise"
        )


@lru_cache(maxsize=64)
def _log_tau(num_clients: int, integer_stddev: float) -> float:
    k = np.arange(1, num_clients)
    exponents = -2 * (math.pi * integer_stddev) ** 2 * (k / (k + 1))
    return math.log(10) + float(special.logsumexp(exponents))
