"""Compute epsilon from the privacy costs in the file of a run or of a node, using only dp-accounting.

Poisson sampling is accounted with privacy loss distributions, fixed-size sampling with Renyi divergences
under replace_one, where dp-accounting reads the noise in units of the distance of two updates, 2 C.
Discrete Gaussian noise counts as continuous noise of `DISCRETE_SHARE` of its standard deviation at a
delta smaller by `DISCRETE_DELTA`; docs/secagg.md has the proof.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import Any

import dp_accounting as dp
import numpy as np
import numpy.typing as npt
from dp_accounting.pld import privacy_loss_distribution
from scipy import optimize, special, stats

from gdpfed.audit.allocation import block_divergences, losses_of_block
from gdpfed.audit.event_kinds import check_charges, unknown_kind

# It warns of every order that it leaves out, which makes a bound no smaller.
logging.getLogger("absl").setLevel(logging.ERROR)

DISCRETE_SHARE = math.sqrt(1 - 3**2 / (40**2 * (1 + 12**2)))
DISCRETE_DELTA = 1e-8
DISCRETE_MOST_EPSILON = 30.0
# Continuous noise is drawn by the logarithm of 75 random bits: none is longer, in standard deviations.
LONGEST_DRAW = math.sqrt(2 * 75 * math.log(2))
DRAWS_SHARE_OF_DELTA, DRAWS_MOST_EPSILON = 0.01, 30.0
# Each grid of losses gives an upper bound; a finer one is tighter, and slower.
GRIDS = (1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6, 3e-7, 1e-7)
GRID_ERROR = 1e-3
# A figure that is this little above what it may be at most is computed more precisely.
REFINED_BELOW, REFINED_ERROR = 1.01, 1e-5
# More losses of one release take dp-accounting minutes.
MOST_LOSSES = 200_000
TAIL_DEVIATIONS = 8.0
POISSON_ORDERS = (*(1 + tenth / 10 for tenth in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)
# Fractional orders of sampling without replacement are slow.
FIXED_SIZE_ORDERS = (1.25, 1.5, 1.75, 2.5, 3.5, *range(2, 33), *range(36, 64, 4), 96, 128, 256, 512, 1024)

# The figure of several runs is looked for upwards, in steps of this part of it, and then to this precision.
FILTER_STEP, FILTER_ERROR = 0.02, 1e-7
FILTER_LIMITS = 1e-3, 1e3
FILTER_ORDERS = (1.5, 2, 2.5, 3, 3.5, *range(4, 64), 128, 256, 512, 1024)

ALLOCATION = "allocation"
# With less noise a block counts as its one sum, of which it is known which it is: that is never less.
LEAST_ALLOCATED_SIGMA = 0.2

_RELATIONS = {
    "zero_out": dp.NeighboringRelation.REPLACE_SPECIAL,
    "replace_one": dp.NeighboringRelation.REPLACE_ONE,
}

Vector = npt.NDArray[np.float64]

FIRST = ("vote", "norm_histogram")
"""The plan's entries for noised sums before the first round: a vote and a histogram of norms."""


@dataclass(frozen=True)
class SampledSums:
    """The parameters that decide the privacy cost of noised sums over sampled clients or records.

    `noise_multiplier` is the standard deviation of the sum's noise in units of the clipping norm; k sums over
    one cohort count as one of 1 / sqrt(k) of it. Of a window of steps whose end alone is released,
    `window_steps` says how many there are and `bound` in which way a record moves it. Of a block of rounds,
    in one of which a client takes part, `window_steps` is their number and `bound` is `ALLOCATION`.
    """

    sampling: str
    sampling_rate: float
    group_size: int
    adjacency: str
    noise: str
    noise_multiplier: float
    bound: str = ""
    window_steps: int = 1

    @property
    def charged_multiplier(self) -> float:
        """The noise multiplier used for accounting; discrete noise counts as slightly less."""
        return self.noise_multiplier * (DISCRETE_SHARE if self.noise == "discrete_gaussian" else 1.0)

    @property
    def distance(self) -> float:
        """The sensitivity of a sum to one client or record, in units of the clipping norm: 1 or 2."""
        return 1.0 if self.adjacency == "zero_out" else 2.0

    def charged_delta(self, delta: float) -> float:
        """Return the delta used for accounting, which is slightly below `delta` for discrete noise."""
        return delta - DISCRETE_DELTA if self.noise == "discrete_gaussian" else delta


Charges = Sequence[tuple[SampledSums, int]]
"""Pairs of a noised sum and how often it is released, in the order of the rounds."""


def less_noise(charges: Charges, part: float) -> Charges:
    """Return the same releases with every noise multiplier multiplied by `part`."""
    return [(replace(sums, noise_multiplier=sums.noise_multiplier * part), count) for sums, count in charges]


def charges_of(saved: Sequence[Mapping[str, Any]]) -> list[tuple[SampledSums, int]]:
    """Convert privacy costs as saved in a file to pairs of a noised sum and its number of releases.

    Steps of DP-SGD are sums over a batch that everybody's secret draw makes; a sum that everybody is known to
    be part of is sampled at a rate of one. Raises ValueError: a kind of event that this audit has no figure
    for, or as in `check_charges`.
    """
    check_charges(saved)
    charges = []
    for charge in saved:
        event, kind = charge["event"], charge["event"]["kind"]
        if kind in ("dp_sgd_steps", "local_windows"):
            rate, sigma = event["batch_rate"], event["noise_multiplier"]
            window = event.get("bound", ""), event.get("window_steps", 1)
            sums = SampledSums("poisson", rate, 1, "zero_out", "gaussian", sigma, *window)
        elif kind == "allocated_gaussian":
            rounds, sigma = rounds_of(event), event["noise_stddev"] / event["clipping_norm"]
            if rounds == 1 or sigma < LEAST_ALLOCATED_SIGMA:
                sums = SampledSums("poisson", 1.0, 1, "zero_out", "gaussian", sigma)
            else:
                sums = SampledSums(
                    "poisson", 1 / rounds, 1, "zero_out", "gaussian", sigma, ALLOCATION, rounds
                )
        elif kind in ("sampled_gaussian", "gaussian"):
            sampled = kind == "sampled_gaussian"
            sigma = event["noise_stddev"] / event["clipping_norm"] / math.sqrt(event.get("num_sums", 1))
            sums = SampledSums(
                sampling=event["sampling"] if sampled else "poisson",
                sampling_rate=event["sampling_rate"] if sampled else 1.0,
                group_size=event["group_size"] if sampled else 1,
                adjacency=event["adjacency"],
                noise=event["noise"],
                noise_multiplier=sigma,
            )
        else:
            raise unknown_kind(kind)
        # Steps or windows of steps, times the clients with a person's data.
        releases = int(event.get("num_steps", 1)) // int(event.get("window_steps", 1)) * parties_in(event)
        charges.append((sums, charge["count"] * releases))
    return charges


def paid_first(plan: Mapping[str, Any]) -> list[tuple[SampledSums, int]]:
    """Read from a plan the costs of a vote and a norm histogram before the first round; [] without them."""
    return charges_of([plan[entry]["charge"] for entry in FIRST if entry in plan])


def rounds_of(event: Mapping[str, Any]) -> int:
    """Read how many rounds a privacy event covers: 1, or those of a block under random allocation."""
    return int(event.get("block_rounds", 1))


def parties_in(event: Mapping[str, Any]) -> int:
    """Read from a privacy event at how many clients one person may have records; 1 if it does not say."""
    return int(event.get("parties", 1))


def first_rounds(saved: Sequence[Mapping[str, Any]], rounds: int) -> list[tuple[SampledSums, int]]:
    """Return the privacy costs of the first `rounds` rounds; a block that has begun counts in full."""
    kept, left = [], rounds
    for charge in saved:
        length = rounds_of(charge["event"])
        if left > 0:
            kept.append({**charge, "count": min(charge["count"], -(-left // length))})
        left -= charge["count"] * length
    return charges_of(kept)


def event_in(saved: Sequence[Mapping[str, Any]], round_index: int) -> Mapping[str, Any]:
    """Return a round's privacy event (rounds from 0); rounds after the plan's end have the last event."""
    event: Mapping[str, Any] = {}
    end = 0
    for charge in saved:
        event, end = charge["event"], end + charge["count"] * rounds_of(charge["event"])
        if round_index < end:
            break
    return event


def epsilon_after(charges: Charges, delta: float, *, at_most: float = 0.0) -> float:
    """Return an upper bound on epsilon at delta for noised sums whose noise was fixed before the run.

    Its grid of losses is as fine as the number of releases asks for, and finer just above `at_most`.
    """
    merged: dict[SampledSums, int] = {}
    for sums, count in charges:
        merged[sums] = merged.get(sums, 0) + count
    releases = [(sums, count) for sums, count in merged.items() if count]
    if not releases:
        return 0.0
    if any(sums.noise_multiplier == 0.0 for sums, _ in releases):
        return math.inf
    delta = min(sums.charged_delta(delta) for sums, _ in releases)
    if delta <= 0.0:
        return math.inf
    if any(sums.sampling == "fixed_size" for sums, _ in releases):
        return _bounded(releases, _renyi_epsilon(releases, delta))
    grid = GRIDS[0]
    epsilon = _loss_epsilon(releases, delta, grid)
    while (finer := _grid_for(releases, delta, epsilon, at_most)) < grid:
        grid, epsilon = finer, min(epsilon, _loss_epsilon(releases, delta, finer))
    if math.isinf(epsilon) and not any(_is_for_a_filter(sums) for sums, _ in releases):
        # Losses leave out tails of about 1e-15, and have no figure at so small a delta.
        epsilon = _renyi_epsilon(releases, delta)
    return _bounded(releases, epsilon)


def epsilon_against_server(runs: Charges, delta: float) -> float:
    """Return epsilon at delta of noised sums if the attacker knows that the client is in each of them."""
    taken = [(sums, count) for sums, count in runs if count]
    if not taken:
        return 0.0
    if any(sums.noise_multiplier == 0.0 for sums, _ in taken):
        return math.inf
    delta = min(sums.charged_delta(delta) for sums, _ in taken)
    inverse = math.fsum(count * (sums.distance / sums.charged_multiplier) ** 2 for sums, count in taken)
    return _gaussian_epsilon(inverse**-0.5, delta)


def composed_epsilon(runs: Sequence[Charges], delta: float, *, at_most: float) -> float:
    """Return epsilon at delta of several runs together; the cost of each run was fixed before it began.

    One alone that has cost anything is accounted as by `epsilon_after`. Several are a Renyi filter, which
    docs/privacy.md defines, with the limit `at_most`; 0 means that there is none. Windows of steps, and
    Poisson sampling under replace_one, have the bound of `_filter_divergences` there.
    """
    paid = [run for run in runs if run]
    if len(paid) == 1:
        return epsilon_after(paid[0], delta, at_most=at_most)
    releases = [release for run in paid for release in run]
    if any(sums.noise_multiplier == 0.0 for sums, _ in releases):
        return math.inf
    if not releases:
        return 0.0
    if min(sums.charged_delta(delta) for sums, _ in releases) <= 0.0:
        return math.inf
    # Set aside in any case: later runs may have discrete noise.
    delta -= DISCRETE_DELTA if delta > DISCRETE_DELTA else 0.0
    fixed = any(sums.sampling == "fixed_size" for sums, _ in releases)
    orders = tuple(order for order in FILTER_ORDERS if not fixed or order in FIXED_SIZE_ORDERS)
    curve = np.array(renyi_curve_of(releases, orders)).reshape(-1, 2)
    found = _bounded(releases, _filter_epsilon(curve, delta, at_most)) if at_most else 0.0
    if found <= at_most:
        # The limit allows them, or there is none. Then the least limit that does is shown.
        start, _ = dp.rdp.compute_epsilon(curve[:, 0], curve[:, 1], delta)
        found = min(_least_limit(curve, delta, max(FILTER_LIMITS[0], start)), at_most or math.inf)
    return _bounded(releases, found)


def _least_limit(curve: Vector, delta: float, start: float) -> float:
    """Return the first limit that allows the releases, from `start` up in steps of 2 %, and then exactly."""
    figure, step = start, start * FILTER_STEP
    while math.isfinite(figure) and _filter_epsilon(curve, delta, figure) > figure:
        step = figure * FILTER_STEP
        figure += step
    while math.isfinite(figure) and figure > start and step > figure * FILTER_ERROR:
        step /= 2
        if _filter_epsilon(curve, delta, figure - step) <= figure - step:
            figure -= step
    return figure


def _filter_weights(limit: float, delta: float) -> list[float]:
    """Return the weights of `FILTER_ORDERS`: four fifths near the best order of a Gaussian of this limit."""
    orders = np.array(FILTER_ORDERS)
    mu = 1 / dp.get_sigma_gaussian(min(max(limit, FILTER_LIMITS[0]), FILTER_LIMITS[1]), delta)
    proved = mu**2 * orders / 2 + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    apart = np.gradient(orders)
    near = apart * stats.norm.pdf(orders, orders[np.argmin(proved)], 1 / mu)
    far = apart / (orders - 1)
    weights: list[float] = (0.8 * near / near.sum() + 0.2 * far / far.sum()).tolist()
    return weights


def _filter_epsilon(curve: Vector, delta: float, limit: float) -> float:
    """Return the largest x + log(1 - delta sum_a w_a exp((a - 1) (x - S_a))) over all losses x.

    `curve`: rows of an order a and the releases' Renyi divergence S_a.
    """
    weight_of = dict(zip(FILTER_ORDERS, _filter_weights(limit, delta), strict=True))
    orders, divergences = curve.T
    weights = np.array([weight_of[order] for order in orders])
    if not len(orders):
        return math.inf

    def log_share(loss: float) -> float:
        terms = np.log(delta * weights) + (orders - 1) * (loss - divergences)
        return float(special.logsumexp(terms))

    def epsilon_of(loss: float) -> float:
        share = log_share(loss)
        return loss + math.log1p(-math.exp(share)) if share < 0 else -math.inf

    high = float((divergences - np.log(delta * weights) / (orders - 1)).min())
    # Rounding may leave it just below the end, where one order outweighs all others.
    if log_share(high) > 0:
        high = optimize.brentq(log_share, high - max(1e4, abs(high)), high, xtol=1e-13)
    found = optimize.minimize_scalar(
        lambda below: -epsilon_of(high - math.exp(below)), bounds=(-30.0, 9.0), options={"xatol": 1e-10}
    )
    return max(0.0, -float(found.fun))


def _is_for_a_filter(sums: SampledSums) -> bool:
    """Whether a release's Renyi bound is that of `_filter_divergences`, by which no run is planned."""
    return sums.bound not in ("", ALLOCATION) or (
        sums.sampling == "poisson" and sums.adjacency == "replace_one"
    )


def _bounded(releases: Charges, epsilon: float) -> float:
    discrete = any(sums.noise == "discrete_gaussian" for sums, _ in releases)
    return math.inf if discrete and epsilon > DISCRETE_MOST_EPSILON else epsilon


def ends_too_soon(charges: Charges, delta: float, budget: float) -> bool:
    """Whether the draws of the noise are too short for a budget: sums beyond them show more than delta / 100.

    A budget above 30 is not judged, as the documents say.
    """
    beyond = math.fsum(count * _beyond_longest_draw(sums) for sums, count in charges)
    return budget <= DRAWS_MOST_EPSILON and beyond > DRAWS_SHARE_OF_DELTA * delta


def _beyond_longest_draw(sums: SampledSums) -> float:
    """Return how likely a sum with the client or record lies where no sum without it can lie."""
    if sums.noise == "discrete_gaussian" or sums.noise_multiplier == 0.0:
        return 0.0
    moves, chances = np.array([sums.distance]), np.array([sums.sampling_rate])
    if sums.bound == ALLOCATION:
        chances = np.ones(1)
    elif sums.bound:
        moves, log_chances = _moves_of_window(sums.bound, sums.window_steps, sums.sampling_rate)
        chances = np.exp(log_chances)
    return float(chances @ stats.norm.sf(LONGEST_DRAW - moves / sums.noise_multiplier))


def _grid_for(releases: Charges, delta: float, epsilon: float, at_most: float) -> float:
    """Choose among fast grids for privacy losses: the coarsest one that is precise, or else the finest one.

    A grid of width h adds at most h^2 / 6 to the variance of each of k losses. Where the tail of their sum
    falls at a rate r, that adds r k h^2 / 12 to epsilon, and r is about 2 ln(1 / delta) / epsilon.
    """
    if not 0.0 < epsilon < math.inf:
        return GRIDS[0]
    allowed = REFINED_ERROR if at_most < epsilon <= at_most * REFINED_BELOW else GRID_ERROR
    added = sum(count for _, count in releases) * -math.log(delta) / (6 * epsilon**2)
    largest_losses = []
    for sums, _ in releases:
        # About the largest loss of one release, ignoring a negligible probability.
        moved = sums.distance / sums.charged_multiplier
        rate = 1.0 if sums.bound else sums.sampling_rate
        exponent = min(moved * TAIL_DEVIATIONS + moved**2 / 2, 700.0)
        largest_losses.append(math.log1p(rate * math.expm1(exponent)))
    width = max(largest_losses)
    quick = [grid for grid in GRIDS if width <= MOST_LOSSES * grid] or [GRIDS[0]]
    return next((grid for grid in quick if added * grid**2 <= allowed), quick[-1])


def _loss_epsilon(releases: Charges, delta: float, grid: float) -> float:
    if all(sums.sampling_rate == 1.0 and not sums.bound for sums, _ in releases):
        inverse = math.fsum(
            count * (sums.distance / sums.charged_multiplier) ** 2 for sums, count in releases
        )
        return _gaussian_epsilon(inverse**-0.5, delta)
    return _epsilon_of_losses(tuple(releases), delta, grid)


@lru_cache(maxsize=4096)
def _gaussian_epsilon(sigma: float, delta: float) -> float:
    """Compute epsilon at delta of one Gaussian release of sensitivity 1; results are cached."""
    return float(dp.get_epsilon_gaussian(sigma, delta))


@lru_cache(maxsize=4096)
def _epsilon_of_losses(releases: tuple[tuple[SampledSums, int], ...], delta: float, grid: float) -> float:
    """Compute epsilon at delta from privacy loss distributions; results are cached."""
    return float(losses_of(releases, grid).get_epsilon_for_delta(delta))


def losses_of(releases: Charges, grid: float) -> Any:
    """Compose the privacy loss distributions of these releases with dp-accounting."""
    return _losses(tuple(releases), grid)


@lru_cache(maxsize=8)
def _losses(releases: tuple[tuple[SampledSums, int], ...], grid: float) -> Any:
    """Compose the privacy loss distributions of these releases; results are cached."""
    parts = (_one_release(sums, grid).self_compose(count) for sums, count in releases)
    return reduce(lambda left, right: left.compose(right), parts)


def _one_release(sums: SampledSums, grid: float) -> Any:
    if sums.bound == ALLOCATION:
        return losses_of_block(sums.noise_multiplier, sums.window_steps, grid)
    if sums.bound:
        return _one_window(sums.bound, sums.window_steps, sums.sampling_rate, sums.noise_multiplier, grid)
    return _one_round(sums.charged_multiplier, sums.sampling_rate, sums.adjacency, grid)


@lru_cache(maxsize=16)
def _one_window(bound: str, steps: int, rate: float, sigma: float, grid: float) -> Any:
    """Return the privacy losses of a window of DP-SGD steps of which only the final model is released.

    convex: it is met j times with the chance of a binomial, and moves the end by j. window: it is first met
    in step j with the chance of a geometric, and moves the end by (m - j + 1) / m.
    """
    moves, log_chances = _moves_of_window(bound, steps, rate)
    chances = np.exp(log_chances)
    return privacy_loss_distribution.from_mixture_gaussian_mechanism(
        sigma, moves.tolist(), chances.tolist(), value_discretization_interval=grid
    )


def _moves_of_window(bound: str, steps: int, rate: float) -> tuple[Any, Any]:
    """Return how far a record can move the end of a window, and the logarithm of the chance of it."""
    if bound == "convex":
        moves = np.arange(steps + 1, dtype=float)
        log_chances = stats.binom.logpmf(np.arange(steps + 1), steps, rate)
    else:
        missed = np.arange(steps)
        moves = np.concatenate([(steps - missed) / steps, [0.0]])
        met = math.log(rate) + special.xlog1py(missed, -rate)
        log_chances = np.append(met, special.xlog1py(steps, -rate))
    return moves, special.log_softmax(log_chances)


@lru_cache(maxsize=16)
def _one_round(sigma: float, rate: float, adjacency: str, grid: float) -> Any:
    return privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=sigma,
        value_discretization_interval=grid,
        sampling_prob=rate,
        neighboring_relation=_RELATIONS[adjacency],
    )


def _renyi_epsilon(runs: Charges, delta: float) -> float:
    """Compute epsilon from Renyi divergences, for rounds that all sample in the same way."""
    curve = renyi_curve_of(runs, FIXED_SIZE_ORDERS if runs[0][0].sampling == "fixed_size" else POISSON_ORDERS)
    if not curve:
        return math.inf
    epsilon, _ = dp.rdp.compute_epsilon(*zip(*curve, strict=True), delta)
    return float(epsilon)


def renyi_curve_of(runs: Charges, orders: tuple[float, ...]) -> list[tuple[float, float]]:
    """Return pairs of an order and all rounds' Renyi divergence; for discrete noise only integer orders."""
    whole_only = any(sums.noise == "discrete_gaussian" for sums, _ in runs)
    total = np.sum([rounds * np.asarray(_one_round_renyi(sums, orders)) for sums, rounds in runs], axis=0)
    found = zip(orders, total, strict=True)
    usable = ((order, float(value)) for order, value in found if not whole_only or order % 1 == 0)
    return [(order, value) for order, value in usable if math.isfinite(value)]


@lru_cache(maxsize=64)
def _one_round_renyi(sums: SampledSums, orders: tuple[float, ...]) -> tuple[float, ...]:
    """Return the Renyi divergences of one round; results are cached because dp-accounting is slow."""
    if sums.bound == ALLOCATION:
        known = block_divergences(sums.noise_multiplier, sums.window_steps)
        return tuple(known.get(order, math.inf) for order in orders)  # type: ignore[call-overload]
    if _is_for_a_filter(sums):
        return _filter_divergences(sums, orders)
    fixed = sums.sampling == "fixed_size"
    relation = dp.NeighboringRelation.REPLACE_ONE if fixed else dp.NeighboringRelation.REPLACE_SPECIAL
    accountant = dp.rdp.RdpAccountant(orders, neighboring_relation=relation)
    if sums.sampling == "poisson":
        event = dp.PoissonSampledDpEvent(sums.sampling_rate, dp.GaussianDpEvent(sums.noise_multiplier))
    else:
        cohort = round(sums.sampling_rate * sums.group_size)
        # Where a client is not drawn another stands in, so that even zero_out moves the sum by 2 C.
        moved = sums.distance if cohort == sums.group_size else 2.0
        noised = dp.GaussianDpEvent(sums.noise_multiplier / moved)
        event = dp.SampledWithoutReplacementDpEvent(sums.group_size, cohort, noised)
    accountant.compose(event)
    return tuple(float(value) for value in accountant._rdp)


def _filter_divergences(sums: SampledSums, orders: tuple[float, ...]) -> tuple[float, ...]:
    """Bound the Renyi divergences of a window of steps, or of Poisson sampling under replace_one.

    A window: which move it would be is shown, and whether the record was drawn at all is not. Of a move s at
    probability p, E[(dP / dQ)^a] is the mean of exp(k (k - 1) s^2 / (2 sigma^2)) over the binomials k of a
    draws. Two updates: by Cauchy and Schwarz from one to none and from none to the other, or 2 C apart.
    """
    order = np.array(orders)
    if not sums.bound:
        one = replace(sums, adjacency="zero_out")
        to, back = (np.array(_one_round_renyi(one, tuple(each))) for each in (2 * order, 2 * order - 1))
        by_none = (order - 0.5) / (order - 1) * to + back
        return tuple(np.minimum(by_none, 2 * order / sums.noise_multiplier**2).tolist())
    moves, log_chances = _moves_of_window(sums.bound, sums.window_steps, sums.sampling_rate)
    made = moves > 0
    log_drawn = min(0.0, float(special.logsumexp(log_chances[made])))
    squares = (moves[made] / sums.noise_multiplier) ** 2 / 2
    shares = log_chances[made] - log_drawn

    def divergence(a: float) -> float:
        drawn = np.arange(a + 1)
        of_moves = special.logsumexp(
            stats.binom.logpmf(drawn, a, math.exp(log_drawn)) + np.outer(squares, drawn * (drawn - 1)), axis=1
        )
        return max(0.0, float(special.logsumexp(shares + of_moves)) / (a - 1))

    return tuple(divergence(a) if a % 1 == 0 else math.inf for a in orders)
