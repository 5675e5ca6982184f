"""Samples clients by Fed-CBS or DELTA from values that they released with noise, for method=fedpcs.

Chances follow from released class counts, or from released gradients, with a public seed: post-processing,
which costs nothing. What it costs to release them is in the plan.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from conf.schema import Config
from gdpfed.errors import ConfigError, PrivacyError
from gdpfed.extras.fedpcs.client_budgets import ClientBudgets, Rule
from gdpfed.extras.fedpcs.client_choice import (
    BalancedSamples,
    noised_distances,
    public_draws,
    released_delta_chances,
)

Floats = npt.NDArray[np.float64]
Positions = npt.NDArray[np.int64]
RULES: tuple[Rule, ...] = ("fed_cbs", "delta")
WEIGHTS_OF_RULES: Mapping[Rule, Sequence[str]] = {
    "fed_cbs": ("budget", "records"),
    "delta": ("budget", "records", "horvitz_thompson"),
}
DISTANCES_KEY = "delta.distances"


def refuse_unfit_rule(config: Config) -> None:
    """Raise ConfigError for settings that contradict sampling by released values."""
    method = config.method
    by = f"method.client_sampling={method.client_sampling}"
    if method.client_sampling != "fed_cbs" and method.counts_rho is not None:
        raise ConfigError(
            f"method.counts_rho={method.counts_rho:g} pays for class counts, which {by} does not read: leave "
            "it out, or set method.client_sampling=fed_cbs"
        )
    if method.client_sampling not in RULES:
        return
    if method.local != "full_gradient":
        raise ConfigError(
            f"{by} is charged as zCDP of a record that is replaced, and method.local={method.local} protects "
            "otherwise: set method.local=full_gradient"
        )
    if method.draws != "poisson":
        raise ConfigError(
            f"method.draws={method.draws} does not go with {by}, which draws by itself: leave it out"
        )
    allowed = WEIGHTS_OF_RULES[method.client_sampling]
    if method.weights not in allowed:
        raise ConfigError(
            f"method.weights={method.weights} divides by chances that {by} does not have: set "
            f"method.weights={' or '.join(allowed)}"
        )
    if method.client_sampling == "delta" and config.secagg.hides_updates:
        raise ConfigError(
            f"{by} reads the noised gradient of every client that is asked, which secure aggregation hides: "
            "set secagg=off, or method.client_sampling=random"
        )


class PlannedDraws:
    """Sampling with probabilities fixed in the plan; base class of sampling that uses released values.

    Attributes:
        reads_alone: whether every gradient is read alone, under the noise of its client.
    """

    reads_alone: ClassVar[bool] = False

    def sample(self, round_index: int) -> Positions:
        """Return the clients of a round's sample, in ascending order.

        Raises PrivacyError where a secret key draws them, or nothing that they follow from is released yet.
        """
        raise PrivacyError(
            f"round {round_index}: this plan draws clients from what they have released; ask it for "
            "the cohort"
        )

    def chances(self, round_index: int) -> Floats | None:
        """Return each client's sampling probability in a round, shape (n,); None if the plan fixes it."""
        return None

    def take_counts(self, counts: Floats) -> None:
        """Receive the released class counts, shape (n, B), for later samples."""
        raise PrivacyError(
            f"class counts of {len(counts)} clients were released, and this sampling does not use them"
        )

    def take_gradients(
        self, round_index: int, clients: Positions, gradients: Floats, noise_stddevs: Floats
    ) -> None:
        """Receive the released gradients of a round, for later samples.

        `round_index`: of the round. `clients`: whose they are, shape (k,). `gradients`: shape (k, d).
        `noise_stddevs`: of the noise in a coordinate of each, shape (k,).
        """

    def noted(self, round_index: int) -> dict[str, float]:
        """Return what the log must keep of a round, by client: the numbers on which later samples depend."""
        return {}

    def state_dict(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the numbers of each client from which later rounds' cohorts are drawn, for a checkpoint."""
        return {}

    def load_state_dict(self, state: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Restore the sampling state that `state_dict` returned.

        Raises ValueError: it is not what these samples follow from.
        """
        if state:
            raise ValueError(
                f"these samples keep no state, but got {', '.join(sorted(state))}; restore the "
                "checkpoint of this run"
            )


class ClassDraws(PlannedDraws):
    """Samples clients by Fed-CBS from noised class counts, with negative counts set to 0."""

    def __init__(self, spending: ClientBudgets, seed: int) -> None:
        self._sizes, self._seed = spending.cohort_sizes.tolist(), seed
        self._samples: BalancedSamples | None = None

    def take_counts(self, counts: Floats) -> None:
        self._samples = BalancedSamples(np.maximum(counts, 0.0), self._sizes, self._seed)

    def sample(self, round_index: int) -> Positions:
        if self._samples is None:
            raise PrivacyError(f"round {round_index}: the class counts are not released yet")
        return self._samples.sample(round_index)


class DistanceDraws(PlannedDraws):
    """Samples clients by DELTA: by the distance of each client's latest noised gradient from the mean.

    Every client is drawn on its own. Gradients are compared within a round, in which all are of one model.
    """

    reads_alone: ClassVar[bool] = True

    def __init__(self, spending: ClientBudgets, shares: Floats, seed: int) -> None:
        self._sizes, self._shares, self._seed = spending.cohort_sizes.tolist(), shares, seed
        self._distances = np.full(len(shares), np.nan)
        self._noted: tuple[int, Positions] | None = None

    def chances(self, round_index: int) -> Floats:
        return released_delta_chances(self._distances, self._shares, self._sizes[round_index])

    def sample(self, round_index: int) -> Positions:
        chances = self.chances(round_index)
        return np.flatnonzero(public_draws(self._seed, round_index).random(len(chances)) < chances)

    def take_gradients(
        self, round_index: int, clients: Positions, gradients: Floats, noise_stddevs: Floats
    ) -> None:
        """Record gradients' distances from the round's mean; do nothing if only one gradient arrived."""
        if len(clients) > 1:
            self._distances[clients] = noised_distances(gradients, noise_stddevs)
            self._noted = round_index, clients

    def noted(self, round_index: int) -> dict[str, float]:
        if self._noted is None or self._noted[0] != round_index:
            return {}
        clients = self._noted[1]
        return dict(zip(map(str, clients.tolist()), self._distances[clients].tolist(), strict=True))

    def state_dict(self) -> dict[str, npt.NDArray[np.generic]]:
        return {DISTANCES_KEY: self._distances.copy()}

    def load_state_dict(self, state: Mapping[str, npt.NDArray[np.generic]]) -> None:
        if not state:
            return
        saved = state.get(DISTANCES_KEY)
        if set(state) != {DISTANCES_KEY} or saved is None or saved.shape != self._distances.shape:
            raise ValueError(f"the distances of DELTA are not {len(self._distances)} numbers")
        self._distances = saved.astype(np.float64)


def draws_of(spending: ClientBudgets, shares: Floats, seed: int) -> PlannedDraws:
    """Return how clients are sampled: by planned chances, released class counts, or distances of updates."""
    if spending.rule == "fed_cbs":
        return ClassDraws(spending, seed)
    return PlannedDraws() if spending.rule is None else DistanceDraws(spending, shares, seed)
