"""Renyi divergences for a filter: of every event, also of those for which the rdp accountant makes no plan.

A ledger must be able to go on after any run, so each event needs a curve. Let S_a(s, p) be the divergence of
order a of one Poisson-sampled Gaussian, (1 - p) N(0, z^2) + p N(s, z^2) from N(0, z^2), which bounds the
reverse direction too (Mironov, Talwar, Zhang, arXiv:1908.10530, Theorem 5). At whole orders

    (a - 1) S_a(s, p) = log E exp(K (K - 1) s^2 / (2 z^2)),    K ~ Binomial(a, p),

which rises with s; of a move v in many dimensions it is that of s = |v|.

**Mixtures and windows.** A unit moves the release by v_k, |v_k| <= s_k, with probability w_k, and not at all
with probability 1 - p, p = sum_k w_k. Draw first which move it would be, J = k with probability w_k / p, and
then, with probability p, whether it is made. J has the same law where the unit has no influence, as have the
draws of all others. To show J and these beside the release lowers no divergence (data processing); given them
it is S_a(s_J, p) at most. So, in both directions and whatever earlier releases v_k depends on,

    D_a <= log(sum_k (w_k / p) exp((a - 1) S_a(s_k, p))) / (a - 1).

s_k and w_k are those of a mixture, or of a window j with the chance of Binomial(m, q) (convex), or
(m - j + 1) / m with the chance q (1 - q)^(j - 1) (window): docs/h2fdp.md proves these moves, given the
batches of all other records. Each window draws anew, so windows add up.

**Poisson sampling under replace_one.** P and Q are the releases with two updates of norm C, and R is the one
with none. By Cauchy and Schwarz, with P^a Q^(1-a) = (P^a R^(1/2-a)) (R^(a-1/2) Q^(1-a)),

    D_a(P|Q) <= (a - 1/2) / (a - 1) D_2a(P|R) + D_(2a-1)(R|Q)
             <= (a - 1/2) / (a - 1) S_2a(1, q) + S_(2a-1)(1, q).

Shown who is drawn, it is that of two Gaussians 2 C apart at most, 2 a / z^2; the smaller one counts. Both
hold for discrete noise at whole orders, as S_a does (`gdpfed.privacy.accountants.discrete`).
"""

from functools import singledispatch

import numpy as np
import numpy.typing as npt

from gdpfed.late_import import late_import
from gdpfed.privacy.accountants.rdp import FILTER_ORDERS, RENYI_ROUNDING_SLACK, poisson_renyi, renyi_curve
from gdpfed.privacy.events import Event, GaussianMixture, LocalWindows, SampledGaussian

special = late_import("scipy.special")

Floats = npt.NDArray[np.float64]

WHOLE_ORDERS = tuple(int(order) for order in FILTER_ORDERS if order == int(order))


@singledispatch
def filter_curve(event: Event) -> dict[float, float]:
    """Return an upper bound on one release's Renyi divergence at each order that has one.

    It is that of `renyi_curve` or, where the rdp accountant has none, one of this file. Raises PrivacyError
    for an event of a package that has neither.
    """
    return renyi_curve(event)


@filter_curve.register
def _(event: GaussianMixture) -> dict[float, float]:
    made = [each for each in zip(event.sensitivities, event.weights, strict=True) if all(each)]
    if not made:
        return dict.fromkeys(WHOLE_ORDERS, 0.0)
    moves, weights = np.array(made, dtype=np.float64).T
    return _of_moves(moves / event.noise_stddev, np.log(weights), float(weights.sum()))


@filter_curve.register
def _(event: LocalWindows) -> dict[float, float]:
    q, m = event.batch_rate, event.window_steps
    step = np.arange(1.0, m + 1)
    # In logarithms: a chance that is too small for a float may belong to the move that counts most.
    if event.bound == "convex":
        ways = special.gammaln(m + 1) - special.gammaln(step + 1) - special.gammaln(m - step + 1)
        moves, log_weights = step, ways + step * np.log(q) + special.xlog1py(m - step, -q)
    else:
        moves, log_weights = (m - step + 1) / m, np.log(q) + special.xlog1py(step - 1, -q)
    drawn = -float(np.expm1(m * np.log1p(-q))) if q < 1 else 1.0
    one = _of_moves(moves / event.noise_multiplier, log_weights, drawn)
    return {order: event.num_windows * renyi for order, renyi in one.items()}


@filter_curve.register
def _(event: SampledGaussian) -> dict[float, float]:
    if (event.sampling, event.adjacency) != ("poisson", "replace_one"):
        return renyi_curve(event)
    known, rate = renyi_curve(event.for_members()), event.sampling_rate

    def by_none(order: float) -> float:
        to, back = poisson_renyi(event.noise_multiplier, rate, (2 * order, 2 * order - 1))
        return (order - 0.5) / (order - 1) * to + back

    return {order: min(known[order], by_none(order)) + RENYI_ROUNDING_SLACK for order in FILTER_ORDERS}


def _of_moves(moves: Floats, log_weights: Floats, drawn: float) -> dict[float, float]:
    """Return the bound on a mixture, of which the moves are above 0 and in units of the noise.

    `drawn`: p, the probability that one is made.
    """
    p = min(drawn, 1.0)
    log_shares = log_weights - special.logsumexp(log_weights)
    curve: dict[float, float] = {}
    for order in WHOLE_ORDERS:
        k = np.arange(order + 1.0)
        ways = special.gammaln(order + 1) - special.gammaln(k + 1) - special.gammaln(order - k + 1)
        chances = ways + special.xlogy(k, p) + special.xlog1py(order - k, -p)
        with np.errstate(over="ignore", invalid="ignore"):
            sums = special.logsumexp(chances + k * (k - 1) * moves[:, None] ** 2 / 2, axis=1)
            renyi = float(special.logsumexp(log_shares + sums)) / (order - 1)
        curve[order] = renyi + RENYI_ROUNDING_SLACK
    return curve
