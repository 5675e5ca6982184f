"""Turns, norms and taps of scheduled participation: the least noise for the step, at given messages a round.

Group m has n_m clients, each with at most k_m turns, b_m = floor(T / k_m) rounds apart, and norm
C_m = mu_m s / sens(k_m, b_m), the largest that its budget allows; mu_m is that of the Gaussian mechanism
that costs exactly eps_m at delta. What is minimised is the noise of the last model, or the root mean square
of all models', over sum_m n_m k_m C_m, the sum of all rounds of updates which all clients agree on.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from gdpfed.errors import PrivacyError
from gdpfed.late_import import late_import
from gdpfed.privacy.accountants.gaussian import gaussian_sigma
from gdpfed.privacy.correlated_noise import (
    MOST_TAPS,
    check_taps,
    densest_turns,
    noise_response,
    prefix_noise,
    sensitivities,
    sensitivity,
)
from gdpfed.privacy.events import Adjacency
from gdpfed.privacy.planning.groups import Group
from gdpfed.privacy.validation import (
    require_choice,
    require_count,
    require_length,
    require_positive,
    require_rate,
)

optimize = late_import("scipy.optimize")

Floats = npt.NDArray[np.float64]
Heard = Literal["last", "rms"]
"""Whose noise is minimised: of the last model, or the root mean square of all models'."""

FIRST_TAPS = np.linspace(0.0, 0.99, 100)
TAP_DIGITS = 3
"""Digits of the taps: the optimum is flat, and another machine must find the same."""
SAFE_SHARE = 1 - 1e-9
"""Of mu, so that rounding takes nobody above its budget."""
MOST_UNITS = 4000
"""Into how many units messages are divided where turns are handed out."""
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class TurnsOf:
    """What holds for one group: k_m turns, at least b_m rounds apart, of norm C_m."""

    most_turns: int
    separation: int
    clipping_norm: float


@dataclass(frozen=True, kw_only=True)
class StreamPlan:
    """A stream of sums: its groups, its taps, and s, the standard deviation of the noise new in a round.

    `noise_per_step` is the noise that was minimised over sum_m n_m k_m C_m.
    """

    groups: tuple[TurnsOf, ...]
    taps: tuple[float, ...]
    noise_stddev: float
    noise_per_step: float


@dataclass(frozen=True)
class _Asked:
    """What a plan is looked for under; mu of the groups are those of an update of norm one under s = 1."""

    num_rounds: int
    sizes: Floats
    mu: Floats
    heard: Heard
    equal_norms: bool

    def noise(self, taps: Sequence[float]) -> float:
        return prefix_noise(taps, self.num_rounds)[self.heard == "last"]

    def norms(self, turns: Sequence[int], sens: Callable[[int], float]) -> Floats:
        """C_m / s."""
        norms = self.mu / np.array([sens(each) for each in turns])
        return np.full(len(norms), norms.min()) if self.equal_norms else norms

    def figure(self, turns: Sequence[int], taps: Sequence[float]) -> float:
        """The noise for the step of turns and taps."""
        norms = self.norms(turns, lambda each: _sens(taps, each, self.num_rounds))
        return self.noise(taps) / float((self.sizes * np.array(turns) * norms).sum())


def plan_stream(
    groups: Sequence[Group],
    *,
    num_rounds: int,
    sampling_rate: float,
    delta: float,
    clipping_norm: float,
    num_taps: int = 1,
    adjacency: Adjacency = "zero_out",
    heard: Heard = "last",
    turns: Sequence[int] | None = None,
    equal_norms: bool = False,
) -> StreamPlan:
    """Return the turns, norms and taps of one stream of sums over all groups.

    Args:
        groups: with their budgets.
        num_rounds: T.
        sampling_rate: q, at most q n T updates are sent: sum_m n_m k_m.
        delta: of the budgets.
        clipping_norm: C, the mean of C_m over the updates that are sent.
        num_taps: p; 0 for noise that is not correlated.
        adjacency: replace_one takes half of the norms.
        heard: whose noise is minimised.
        turns: k_m where they are given; None to choose them.
        equal_norms: whether all groups have one norm.

    Raises:
        PrivacyError: input that is out of range, and where not every client can have one turn.
    """
    require_count("num_rounds", num_rounds)
    require_rate("sampling_rate", sampling_rate)
    require_positive("clipping_norm", clipping_norm)
    require_choice("heard", heard, get_args(Heard))
    if require_count("noise_taps", num_taps, at_least=0) > MOST_TAPS:
        raise PrivacyError(f"noise_taps is {num_taps}; use at most {MOST_TAPS}")
    distance = 1.0 if adjacency == "zero_out" else 2.0
    asked = _Asked(
        num_rounds,
        np.array([float(group.size) for group in groups]),
        np.array([SAFE_SHARE / gaussian_sigma(group.epsilon, delta) / distance for group in groups]),
        heard,
        equal_norms,
    )
    chosen = (
        _checked_turns(turns, asked) if turns is not None else _best_turns(asked, sampling_rate, num_taps)
    )
    taps = _best_taps(asked, chosen, num_taps)
    norms = asked.norms(chosen, lambda each: _sens(taps, each, num_rounds))
    updates = asked.sizes * np.array(chosen)
    stddev = clipping_norm * float(updates.sum() / (updates * norms).sum())
    return StreamPlan(
        groups=tuple(
            TurnsOf(most_turns=each, separation=num_rounds // each, clipping_norm=stddev * norm)
            for each, norm in zip(chosen, norms.tolist(), strict=True)
        ),
        taps=taps,
        noise_stddev=stddev,
        noise_per_step=asked.figure(chosen, taps),
    )


def equal_turns(sampling_rate: float, num_rounds: int) -> int:
    """Return the most turns a client that all clients can have; PrivacyError where that is none."""
    turns = math.floor(require_rate("sampling_rate", sampling_rate) * num_rounds + ROUNDING)
    if turns < 1:
        raise PrivacyError(
            f"sampling_rate {sampling_rate:g} of {num_rounds} rounds is less than one turn a client; use "
            f"{1 / num_rounds:.3g} or more, or more rounds"
        )
    return turns


def _checked_turns(turns: Sequence[int], asked: _Asked) -> tuple[int, ...]:
    require_length("turns", turns, len(asked.sizes))
    for each in turns:
        if require_count("a group's turns", each) > asked.num_rounds:
            raise PrivacyError(f"a group has {each} turns in {asked.num_rounds} rounds; a rate is at most 1")
    return tuple(turns)


def _sens(taps: Sequence[float], turns: int, num_rounds: int) -> float:
    return sensitivity(tuple(taps), densest_turns(turns, num_rounds // turns, num_rounds), num_rounds)


def _best_turns(asked: _Asked, sampling_rate: float, num_taps: int) -> tuple[int, ...]:
    """The best k_m over the first tap: of every tap they are those with the largest sum of updates."""
    equal_turns(sampling_rate, asked.num_rounds)
    updates = sampling_rate * float(asked.sizes.sum()) * asked.num_rounds + ROUNDING
    best, least = (1,) * len(asked.sizes), math.inf
    for tap in FIRST_TAPS if num_taps else FIRST_TAPS[:1]:
        all_sens = sensitivities((tap,), asked.num_rounds)
        share = _even_norms if asked.equal_norms else _largest_sum
        turns = share(asked, all_sens, updates)
        norms = asked.norms(turns, lambda each, sens=all_sens: float(sens[each - 1]))  # type: ignore[misc]
        figure = asked.noise((tap,)) / float((asked.sizes * np.array(turns) * norms).sum())
        if figure < least * (1 - ROUNDING):
            best, least = turns, figure
    return best


def _largest_sum(asked: _Asked, all_sens: Floats, updates: float) -> tuple[int, ...]:
    """The k_m that maximise sum_m n_m mu_m k_m / sens(k_m) within so many updates, group after group."""
    divisor = math.gcd(*(int(size) for size in asked.sizes))
    unit = divisor * max(1, math.ceil(updates / MOST_UNITS / divisor))
    values = np.full(int(updates / unit + ROUNDING) + 1, -math.inf)
    values[0] = 0.0
    choices = []
    for size, mu in zip(asked.sizes.tolist(), asked.mu.tolist(), strict=True):
        reached, chosen = np.full(len(values), -math.inf), np.zeros(len(values), np.int64)
        for turns in range(1, asked.num_rounds + 1):
            cost = math.ceil(size * turns / unit - ROUNDING)
            if cost >= len(values):
                break
            gained = values[: len(values) - cost] + size * mu * turns / all_sens[turns - 1]
            better = gained > reached[cost:] * (1 + ROUNDING)
            reached[cost:][better] = gained[better]
            chosen[cost:][better] = turns
        values = reached
        choices.append(chosen)
    if values.max() == -math.inf:
        return (1,) * len(asked.sizes)
    place, turns_of = int(values.argmax()), list[int]()
    for size, chosen in zip(asked.sizes[::-1].tolist(), choices[::-1], strict=True):
        turns_of.append(int(chosen[place]))
        place -= math.ceil(size * turns_of[-1] / unit - ROUNDING)
    return tuple(turns_of[::-1])


def _even_norms(asked: _Asked, all_sens: Floats, updates: float) -> tuple[int, ...]:
    """The k_m that maximise C sum_m n_m k_m, where one norm C must suit every group."""
    best, most = (1,) * len(asked.sizes), 0.0
    for norm in np.unique(asked.mu[:, None] / all_sens):
        turns = [int((all_sens <= mu / norm * (1 + ROUNDING)).sum()) for mu in asked.mu.tolist()]
        if min(turns) < 1:
            continue
        while (asked.sizes * np.array(turns)).sum() > updates and max(turns) > 1:
            turns[int(np.argmax(turns))] -= 1
        gained = float((asked.sizes * np.array(turns)).sum() * norm)
        if gained > most * (1 + ROUNDING):
            best, most = tuple(turns), gained
    return best


def _best_taps(asked: _Asked, turns: Sequence[int], num_taps: int) -> tuple[float, ...]:
    """The taps, none larger than the one before it, of the least noise for the step."""
    if not num_taps or asked.num_rounds == 1:
        return (0.0,) * num_taps

    def taps_of(point: Floats) -> Floats:
        return np.minimum.accumulate(np.clip(point, 0.0, 1.0))

    def loss(point: Floats) -> float:
        taps = taps_of(point)
        response = noise_response(taps.tolist(), asked.num_rounds)
        rise = float(np.diff(response).max(initial=0.0))
        return 10.0 + rise if rise > 0 else math.log(asked.figure(turns, taps.tolist()))

    found = min(
        (
            optimize.minimize(
                loss,
                np.array([first / 2**later for later in range(num_taps)]),
                method="Nelder-Mead",
                options={"maxiter": 4000, "xatol": 1e-5, "fatol": 1e-9},
            )
            for first in (0.3, 0.5, 0.7)
        ),
        key=lambda each: float(each.fun),
    )
    return _rounded(taps_of(found.x), asked.num_rounds)


def _rounded(taps: Floats, num_rounds: int) -> tuple[float, ...]:
    """Taps of few digits under which h does not rise: smaller last ones where rounding has made it rise."""
    digits = np.round(taps * 10**TAP_DIGITS).astype(int).tolist()
    while True:
        rounded = tuple(each / 10**TAP_DIGITS for each in digits)
        try:
            check_taps(rounded, num_rounds)
        except PrivacyError:
            later = max((j for j, each in enumerate(digits) if each), default=0)
            digits[later] -= 1
        else:
            return rounded
