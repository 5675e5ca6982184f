"""Implements Flower's protocol `PrivacyAccountant` by this project's accounting, for Flower's strategies.

What Flower's terms are taken for, with the standard deviation z C of a sum's noise, z being an event's
`noise_multiplier` and C the strategy's clipping norm:

* no amplification, add-or-remove-one: one of the clients that were asked has its update zeroed, so the sum
  moves by C. Flower's strategies average over as many replies as they asked for, and stop with fewer.
* Poisson sampling, add-or-remove-one: the same, each client being drawn with probability sample / population.
* sampling without replacement, replace-one: a sum moves by 2 C, so z counts as z / 2. Flower's own accountant
  counts z as it is, which is right only where the caller has halved it.

Whether there is a next release, and with which noise, may depend on what was released before. So Gaussian
releases are composed by their own filter, sampled ones by the Renyi filter (`gdpfed.privacy.accountants`).
"""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from flwr.serverapp import GaussianPrivacyEvent, PrivacyConfig, PrivacySpent, SamplingMethod

from gdpfed.errors import BudgetExhausted, PrivacyError
from gdpfed.privacy.accountants.composition import compose, compose_against_server
from gdpfed.privacy.charges import Charge, charge_from_dict
from gdpfed.privacy.events import Event, Gaussian, SampledGaussian
from gdpfed.privacy.validation import require_delta, require_positive

LEAST_DELTA = 1e-15


class LedgerAccountant:
    """Adds up the privacy cost of releases, one cost for all clients; raises an error above `max_epsilon`.

    `config`: Flower's, which says what is protected and how clients are drawn.
    """

    def __init__(self, config: PrivacyConfig) -> None:
        """Start without any recorded release."""
        self._config = config
        self._charges: list[Charge] = []

    @property
    def config(self) -> PrivacyConfig:
        """The configuration that was given at the start."""
        return self._config

    @property
    def num_releases(self) -> int:
        """The number of recorded releases."""
        return sum(charge.count for charge in self._charges)

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Record the privacy cost of `count` releases, as Flower does before it shares a round's model.

        Raises BudgetExhausted where they exceed the configuration's `max_epsilon`, and then charges nothing;
        PrivacyError for an event of another population.
        """
        charge = self._charge(event, count)
        limit = self._config.max_epsilon
        if limit is not None and self._exceeds(charge, limit):
            raise BudgetExhausted(
                f"{count} more of {self.num_releases} releases would exceed max_epsilon={limit:g} at delta "
                f"{self._config.target_delta:g}: stop here, or plan more noise"
            )
        self._charges.append(charge)

    def get_epsilon(self, delta: float) -> float:
        """Return epsilon at delta of all recorded releases."""
        return self._epsilon(self._charges, delta)

    def get_delta(self, epsilon: float) -> float:
        """Return the smallest delta from 1e-15 to 1 at which all releases cost at most `epsilon`."""
        if not 0 <= epsilon < math.inf:
            raise PrivacyError(f"epsilon is {epsilon}; it must be finite and not negative")
        low, high = math.log(LEAST_DELTA), 0.0
        if self._epsilon(self._charges, LEAST_DELTA, epsilon) <= epsilon:
            return LEAST_DELTA
        while high - low > 1e-9:
            middle = (low + high) / 2
            fits = self._epsilon(self._charges, math.exp(middle), epsilon) <= epsilon
            low, high = (low, middle) if fits else (middle, high)
        return math.exp(high)

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """Return epsilon at this delta (None: the configuration's delta), and the number of releases."""
        delta = self._config.target_delta if delta is None else delta
        filter_of = "gaussian" if self._is_exact else "renyi"
        return PrivacySpent(self.get_epsilon(delta), delta, self.num_releases, f"gdpfed {filter_of} filter")

    def would_exceed(
        self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1
    ) -> bool:
        """Whether `count` more releases would cost more than `max_epsilon` (default: the configuration's)."""
        limit = self._config.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            raise PrivacyError("max_epsilon is not given: name it here or in PrivacyConfig")
        return self._exceeds(self._charge(event, count), require_positive("max_epsilon", limit))

    def state_dict(self) -> dict[str, object]:
        """Return configuration and recorded releases as JSON data, which :meth:`load_state_dict` reads."""
        return {"config": asdict(self._config), "charges": [charge.to_dict() for charge in self._charges]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; raise PrivacyError if it is damaged or of another configuration."""
        if set(state) != {"config", "charges"} or state["config"] != asdict(self._config):
            raise PrivacyError("this state is of another accountant or configuration: open it with those")
        charges = [charge_from_dict(charge) for charge in state["charges"]]
        self._charges = charges

    @property
    def _is_exact(self) -> bool:
        return self._config.sampling_method is SamplingMethod.NO_AMPLIFICATION

    def _exceeds(self, charge: Charge, limit: float) -> bool:
        return self._epsilon([*self._charges, charge], self._config.target_delta, limit) > limit

    def _epsilon(self, charges: list[Charge], delta: float, limit: float | None = None) -> float:
        """Return epsilon at delta; `limit`: up to which releases are allowed, None to find the least."""
        require_delta(delta)
        if self._is_exact:
            return compose_against_server(charges, delta)
        # All noise here is continuous.
        return compose(charges, delta, schedule="adaptive", limit=limit, reserve=0.0).epsilon

    def _charge(self, event: GaussianPrivacyEvent, count: int) -> Charge:
        if event.population_size != self._config.population_size:
            raise PrivacyError(
                f"population_size={event.population_size} of a release is not the configuration's "
                f"{self._config.population_size}: open an accountant for each population"
            )
        return Charge(event=self._event(event), count=count)

    def _event(self, event: GaussianPrivacyEvent) -> Event:
        if self._is_exact:
            return Gaussian(noise_stddev=event.noise_multiplier, clipping_norm=1.0)
        poisson = self._config.sampling_method is SamplingMethod.POISSON
        return SampledGaussian(
            sampling="poisson" if poisson else "fixed_size",
            sampling_rate=event.sample_size / event.population_size,
            group_size=event.population_size,
            noise_stddev=event.noise_multiplier,
            clipping_norm=1.0,
            adjacency="zero_out" if poisson else "replace_one",
        )
