"""Chooses scheduled rounds (turns), clipping norms and correlated noise for the least noise in the model.

Group m has n_m clients, each with at most k_m turns, b_m = floor(T / k_m) rounds apart, and norm C_m; mu_m is
that of the Gaussian mechanism that costs exactly eps_m at delta. What is minimised is the noise of the last
model over the sum of all rounds of updates which all clients agree on. In one sum of all groups
C_m = mu_m s / sens(k_m, b_m) is the largest norm that the budget allows; with one sum a group all have one
norm C, and s_m = C sens(k_m, b_m) / mu_m is the least noise.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import numpy.typing as npt

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.gaussian import gaussian_sigma
from gdpfed.privacy.correlated_noise import (
    MOST_TAPS,
    best_taps,
    densest_turns,
    prefix_noise,
    sensitivities,
    sensitivity,
)
from gdpfed.privacy.events import Adjacency
from gdpfed.privacy.planning.groups import Group
from gdpfed.privacy.sums_once import SumOnce
from gdpfed.privacy.validation import (
    require_count,
    require_delta,
    require_length,
    require_positive,
    require_rate,
)

Floats = npt.NDArray[np.float64]
Weigh = Callable[[Floats], Floats]
"""From clients of every group in a round, shape (..., M), to the weights of their sums, up to a factor."""

FIRST_TAPS = np.linspace(0.0, 0.99, 100)
SAFE_SHARE = 1 - 1e-9
"""Of mu, so that rounding takes nobody above its budget."""
MOST_ROUNDS = 5000
"""Planning turns takes memory and time that grow with the square of the rounds."""
MOST_UNITS = 4000
"""Into how many units messages are divided where turns are handed out."""
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class TurnBudget:
    """Inputs for planning scheduled rounds (turns): budgets, numbers of rounds and updates, kind of noise.

    Attributes:
        groups: with their budgets.
        num_rounds: T.
        sampling_rate: q, at most q n T updates are sent: sum_m n_m k_m.
        delta: of the budgets.
        clipping_norm: C, the mean of C_m over the updates that are sent.
        num_taps: p; 0 for noise that is not correlated.
        adjacency: replace_one takes half of the norms.
        minimum_cohort: fewest clients of a sum; groups with a sum of their own have turns for so many, where
            equal turns have.
        first: what everybody pays before the first round; turns have what is left of mu^2.

    Raises:
        PrivacyError: input that is out of range.
    """

    groups: tuple[Group, ...]
    num_rounds: int
    sampling_rate: float
    delta: float
    clipping_norm: float
    num_taps: int = 1
    adjacency: Adjacency = "zero_out"
    minimum_cohort: int = 1
    first: SumOnce | None = None

    def __post_init__(self) -> None:
        if not self.groups:
            raise PrivacyError("groups is empty; give at least one group")
        require_count("num_rounds", self.num_rounds)
        if self.num_rounds > MOST_ROUNDS:
            raise PrivacyError(
                f"run.num_rounds={self.num_rounds} is above {MOST_ROUNDS}, the most that can be planned with "
                "privacy.against=everyone: use fewer rounds, or privacy.against=outsiders"
            )
        require_rate("sampling_rate", self.sampling_rate)
        require_positive("clipping_norm", self.clipping_norm)
        require_delta(self.delta)
        if require_count("noise_taps", self.num_taps, at_least=0) > MOST_TAPS:
            raise PrivacyError(f"noise_taps is {self.num_taps}; use at most {MOST_TAPS}")

    @cached_property
    def sizes(self) -> Floats:
        """n_m: the number of clients of each group, shape (M,)."""
        return np.array([float(group.size) for group in self.groups])

    @cached_property
    def mu(self) -> Floats:
        """mu_m, the Gaussian DP parameter that each group's budget leaves for all rounds, shape (M,).

        All releases are Gaussian and known to hold the client, so mu^2 adds up, exactly (Dong, Roth, Su,
        arXiv:1905.02383, Corollary 2).
        """
        distance = 1.0 if self.adjacency == "zero_out" else 2.0
        paid = 0.0 if self.first is None else (self.first.moves / self.first.noise_stddev) ** 2
        mus = [gaussian_sigma(group.epsilon, self.delta) ** -2 - paid for group in self.groups]
        return SAFE_SHARE * np.sqrt(mus) / distance

    @property
    def most_updates(self) -> float:
        """q n T: the number of updates that all clients may send in all rounds."""
        return self.sampling_rate * float(self.sizes.sum()) * self.num_rounds + ROUNDING

    @property
    def share(self) -> float:
        """The share of clients that are ever scheduled: all, unless the sampling rate q is below 1 / T.

        It is then T / P with a whole P, as if each had one turn in P rounds.
        """
        return self.num_rounds / max(self.num_rounds, math.ceil(1 / self.sampling_rate - ROUNDING))

    @property
    def equal_turns(self) -> tuple[int, ...]:
        """The rounds per client, equal in all groups: the rate times all rounds, rounded down, at least 1."""
        turns = math.floor(self.sampling_rate * self.num_rounds + ROUNDING)
        return (max(1, turns),) * len(self.groups)

    @property
    def least_turns(self) -> npt.NDArray[np.int64]:
        """Return, per group, the fewest rounds per client that give each round `minimum_cohort` clients.

        A round without any of them needs no sum, so of 1 they are 1.
        """
        asked = self.minimum_cohort if self.minimum_cohort > 1 else 0
        least = np.ceil(asked * self.num_rounds / self.sizes).astype(np.int64)
        return np.clip(least, 1, self.equal_turns)

    def checked(self, turns: Sequence[int] | None) -> tuple[int, ...] | None:
        """Check and return the rounds per client; None stays None, or becomes 1 each if rounds are too few.

        PrivacyError for what cannot be.
        """
        if turns is None:
            return self.equal_turns if self.share < 1 else None
        require_length("turns", turns, len(self.groups))
        for each in turns:
            if require_count("a group's turns", each) > self.num_rounds:
                raise PrivacyError(
                    f"a group has {each} turns in {self.num_rounds} rounds; use at most one for each round"
                )
        return tuple(turns)

    def sens(self, taps: Sequence[float], turns: int) -> float:
        """Return the joint sensitivity of all sums to a client in `turns` rounds at equal distances."""
        densest = densest_turns(turns, self.num_rounds // turns, self.num_rounds)
        return sensitivity(tuple(taps), densest, self.num_rounds)

    def noise(self, taps: Sequence[float]) -> float:
        """Return the final model's noise (standard deviation) divided by the noise drawn in one round."""
        return prefix_noise(taps, self.num_rounds)


@dataclass(frozen=True, kw_only=True)
class TurnsOf:
    """The values chosen for one group: clipping norm, noise, taps, and limits on the rounds of a client.

    Taps are the parts of noise that later rounds subtract.
    """

    most_turns: int
    separation: int
    clipping_norm: float
    taps: tuple[float, ...]
    noise_stddev: float


@dataclass(frozen=True, kw_only=True)
class StreamPlan:
    """The values chosen for each group, whether all share one sum, and noise divided by the model's step."""

    groups: tuple[TurnsOf, ...]
    one_sum: bool
    noise_per_step: float


def plan_stream(
    asked: TurnBudget, *, turns: Sequence[int] | None = None, equal_norms: bool = False
) -> StreamPlan:
    """Choose rounds per client, clipping norms and taps (noise to subtract) for one sum over all groups.

    Args:
        asked: what is planned for.
        turns: k_m where they are given; None to choose them.
        equal_norms: whether all groups have one norm.

    Raises:
        PrivacyError: turns that cannot be.
    """

    def norms(taps: Sequence[float], chosen: Sequence[int]) -> Floats:
        """Return the largest clipping norms that the budgets allow, in units of the noise: shape (M,)."""
        largest = asked.mu / np.array([asked.sens(taps, each) for each in chosen])
        return np.full(len(largest), largest.min()) if equal_norms else largest

    def figure(taps: Sequence[float]) -> float:
        return asked.noise(taps) / float((updates * norms(taps, chosen)).sum())

    chosen = asked.checked(turns) or _best_turns(asked, equal_norms)
    updates = asked.share * asked.sizes * np.array(chosen)
    taps = best_taps(figure, asked.num_taps, asked.num_rounds)
    in_noise = norms(taps, chosen)
    stddev = asked.clipping_norm * float(updates.sum() / (updates * in_noise).sum())
    planned = [
        _turns_of(asked, each, stddev * norm, taps, stddev)
        for each, norm in zip(chosen, in_noise.tolist(), strict=True)
    ]
    return StreamPlan(groups=tuple(planned), one_sum=True, noise_per_step=figure(taps))


def plan_group_streams(asked: TurnBudget, weigh: Weigh, *, turns: Sequence[int] | None = None) -> StreamPlan:
    """Choose rounds per client and taps (noise to subtract) for one sum per group, with norm C for all.

    Args:
        asked: what is planned for.
        weigh: the weights, by which the noise of the groups' sums adds up.
        turns: k_m where they are given; None to choose them.

    Raises:
        PrivacyError: turns that cannot be.
    """
    chosen = asked.checked(turns) or _best_group_turns(asked, weigh)
    planned = []
    for each, mu in zip(chosen, asked.mu.tolist(), strict=True):
        taps = best_taps(lambda g, k=each: _left(asked, g, k), asked.num_taps, asked.num_rounds)  # type: ignore[misc]
        stddev = asked.clipping_norm * asked.sens(taps, each) / mu
        planned.append(_turns_of(asked, each, asked.clipping_norm, taps, stddev))
    left = np.array([_left(asked, each.taps, each.most_turns) for each in planned])
    figure = float(_group_figures(asked, weigh, np.array(chosen), left))
    return StreamPlan(groups=tuple(planned), one_sum=False, noise_per_step=figure)


def _turns_of(asked: TurnBudget, turns: int, norm: float, taps: tuple[float, ...], stddev: float) -> TurnsOf:
    return TurnsOf(
        most_turns=turns,
        separation=asked.num_rounds // turns,
        clipping_norm=norm,
        taps=taps,
        noise_stddev=stddev,
    )


def _left(asked: TurnBudget, taps: Sequence[float], turns: int) -> float:
    """Return the noise in the final model if the clipping norm is C = 1 and the budget is mu = 1."""
    return asked.noise(taps) * asked.sens(taps, turns)


def _group_figures(asked: TurnBudget, weigh: Weigh, turns: npt.NDArray[np.int64], left: Floats) -> Floats:
    """Return the noise divided by the model's step, for each candidate choice of rounds per client."""
    updates = asked.share * asked.sizes * turns
    weights = weigh(updates)
    return np.asarray(np.linalg.norm(weights * left / asked.mu, axis=-1) / (weights * updates).sum(axis=-1))


def _best_group_turns(asked: TurnBudget, weigh: Weigh) -> tuple[int, ...]:
    """Search the rounds per client with the least noise per model step; change one or two groups at a time.

    Of two groups one has any number of turns, and the other what messages are left for.
    """
    turns, fewest = np.array(asked.equal_turns), asked.least_turns
    table = np.full(asked.num_rounds, math.inf)
    for tap in FIRST_TAPS if asked.num_taps else FIRST_TAPS[:1]:
        table = np.minimum(table, asked.noise((tap,)) * sensitivities((tap,), asked.num_rounds))

    def figures(each: npt.NDArray[np.int64]) -> Floats:
        return _group_figures(asked, weigh, each, table[each - 1])

    least, numbers = float(figures(turns)), np.arange(1, asked.num_rounds + 1)
    while True:
        candidates = [turns[None]]
        for changed, other in product(range(len(turns)), repeat=2):
            each = np.repeat(turns[None], asked.num_rounds, axis=0)
            each[:, changed] = numbers
            if other != changed:
                each[:, other] = 0
                free = asked.most_updates - each @ asked.sizes
                each[:, other] = np.minimum(free // asked.sizes[other], asked.num_rounds)
            possible = (each >= fewest).all(axis=1) & (each @ asked.sizes <= asked.most_updates)
            candidates.append(each[possible])
        tried = np.concatenate(candidates)
        found = figures(tried)
        if not found.min() < least * (1 - ROUNDING):
            return tuple(turns.tolist())
        turns, least = tried[int(found.argmin())], float(found.min())


def _best_turns(asked: TurnBudget, equal_norms: bool) -> tuple[int, ...]:
    """Search the rounds per client at which one sum over all groups has the least noise per model step."""
    best, least = asked.equal_turns, math.inf
    for tap in FIRST_TAPS if asked.num_taps else FIRST_TAPS[:1]:
        all_sens = sensitivities((tap,), asked.num_rounds)
        turns = (_even_norms if equal_norms else _largest_sum)(asked, all_sens)
        norms = asked.mu / all_sens[np.array(turns) - 1]
        norms = np.full(len(norms), norms.min()) if equal_norms else norms
        figure = asked.noise((tap,)) / float((asked.sizes * np.array(turns) * norms).sum())
        if figure < least * (1 - ROUNDING):
            best, least = turns, figure
    return best


def _largest_sum(asked: TurnBudget, all_sens: Floats) -> tuple[int, ...]:
    """Return each group's rounds per client, `most_updates` in all, for the largest signal in one sum."""
    updates = asked.most_updates
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


def _even_norms(asked: TurnBudget, all_sens: Floats) -> tuple[int, ...]:
    """Return each group's rounds per client k_m for the largest signal, if all groups have one norm C."""
    best, most = (1,) * len(asked.sizes), 0.0
    for norm in np.unique(asked.mu[:, None] / all_sens)[::-1].tolist():
        turns = (all_sens <= asked.mu[:, None] / norm * (1 + ROUNDING)).sum(axis=1)
        bound = min(float(asked.sizes @ turns), asked.most_updates) * norm
        if turns.min() < 1 or bound <= most * (1 + ROUNDING):
            continue
        while asked.sizes @ turns > asked.most_updates and turns.max() > 1:
            turns[turns.argmax()] -= 1
        gained = float(asked.sizes @ turns) * norm
        if gained > most * (1 + ROUNDING):
            best, most = tuple(turns.tolist()), gained
    return best
