"""The privacy plan: everything about privacy, fixed before training.

Sampler, noise, weights and ledger are all derived from one frozen plan, so that what is drawn,
what is added and what is accounted for cannot disagree.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import AccountantName, RenyiOrders
from gdpfed.privacy.accountants.noise_law import NoiseLaw, accountant_for, server_epsilon
from gdpfed.privacy.events import Adjacency, SampledGaussian, Sampling
from gdpfed.privacy.validation import require_count

Reweighting = Literal["uniform", "squared_participation"]

BUDGET_TOLERANCE = 1e-12


@dataclass(frozen=True, kw_only=True)
class GroupPlan:
    """What holds for the clients of one group.

    `epsilon` is their budget, `epsilon_accounted` what the whole training costs against everybody
    who does not know who was sampled, `epsilon_against_server` what it costs against the server
    a client that takes part in `participations_p99` rounds (inf: no bound). `sampling_rate` is
    q_m as it is drawn, `expected_cohort_size` r_m = q_m |G_m|, `clipping_norm` C_m the L2 bound on
    an update, `noise_multiplier` sigma_m: the noise of the sum that the update is in has standard
    deviation sigma_m C_m. `keep_fraction` is k_m / d, `group_weight` omega_m.
    """

    epsilon: float
    epsilon_accounted: float
    epsilon_against_server: float
    participations_p99: int
    clients: Sequence[int]
    sampling_rate: float
    expected_cohort_size: float
    clipping_norm: float
    noise_multiplier: float
    keep_fraction: float
    group_weight: float

    def __post_init__(self) -> None:
        if self.epsilon_accounted > self.epsilon * (1 + BUDGET_TOLERANCE):
            raise PrivacyError(
                f"a group's accounted epsilon {self.epsilon_accounted:.6g} is above its budget "
                f"{self.epsilon:.6g}; calibrate its noise for this plan"
            )

    @property
    def noise_variance_multiplier(self) -> float:
        """sigma_m^2: the sum's noise has variance sigma_m^2 C_m^2 per coordinate."""
        return self.noise_multiplier**2

    @property
    def noise_stddev(self) -> float:
        """sigma_m C_m: of the noise in the sum, per coordinate, in the unit of an update."""
        return self.noise_multiplier * self.clipping_norm

    def to_dict(self, plan_clipping_norm: float) -> dict[str, Any]:
        """Return the JSON form: `clients` is their number, an infinite figure is null.

        `clipping_norm` is there where it is another than the plan's.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.clipping_norm == plan_clipping_norm:
            del values["clipping_norm"]
        values["clients"] = len(self.clients)
        values["noise_variance_multiplier"] = self.noise_variance_multiplier
        return _finite(values)


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """The plan of a training of `num_rounds` rounds; build it with `make_plan` or `plain_plan`.

    `delta` belongs to every epsilon. `sampling_rate` is the overall q, `noise_magnitude` Lambda.
    `clipping_norm` is C, the mean of C_m over all clients. `one_sum` says that a round releases one
    sum of all groups' cohorts with one noise, in place of one sum a group.
    `private` is False for training without clipping and noise: then every epsilon and
    `clipping_norm` are inf and `accountant` is "none". `sums_hidden` is False where single
    updates, which carry only a share of the noise, reach the server.
    """

    groups: tuple[GroupPlan, ...]
    num_rounds: int
    delta: float
    accountant: AccountantName | Literal["none"]
    sampling: Sampling
    adjacency: Adjacency
    clipping_norm: float
    noise_magnitude: float
    sampling_rate: float
    reweighting: Reweighting
    renyi_orders: RenyiOrders = "fine"
    noise: NoiseLaw = "gaussian"
    private: bool = True
    sums_hidden: bool = True
    one_sum: bool = False

    @property
    def num_clients(self) -> int:
        """The number of clients n of all groups."""
        return sum(len(group.clients) for group in self.groups)

    @property
    def effective_step(self) -> float:
        """sum_m omega_m r_m: what the server's step makes of an update that all clients agree on.

        1 under uniform weights; 1/M under squared_participation for M equal groups at one rate.
        """
        return math.fsum(group.group_weight * group.expected_cohort_size for group in self.groups)

    def mechanism(self, group_index: int) -> SampledGaussian:
        """Return what one round of a group releases, as an accountant sees it."""
        group = self.groups[group_index]
        clipping_norm = group.clipping_norm if self.private else 1.0
        return SampledGaussian(
            sampling=self.sampling,
            sampling_rate=group.sampling_rate,
            group_size=len(group.clients),
            noise_stddev=group.noise_multiplier * clipping_norm,
            clipping_norm=clipping_norm,
            adjacency=self.adjacency,
        )

    def epsilon_after(self, group_index: int, rounds: int) -> float:
        """Return the accounted epsilon of a group after so many rounds: 0 at first, cached."""
        require_count("rounds", rounds, at_least=0)
        if rounds == 0:
            return 0.0
        if self.accountant == "none":
            return math.inf
        accountant = accountant_for(self.noise, self.accountant, self.renyi_orders)
        return accountant.epsilon(self.mechanism(group_index), rounds, self.delta)

    def epsilon_against_server(self, group_index: int, participations: int) -> float:
        """Return the epsilon against the server of a client that took part K times; inf if none holds."""
        if participations == 0:
            return 0.0
        if not (self.private and self.sums_hidden):
            return math.inf
        sigma = self.groups[group_index].noise_multiplier
        return server_epsilon(self.noise, sigma, participations, self.delta, self.adjacency)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; an infinite figure is null."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["groups"] = [group.to_dict(self.clipping_norm) for group in self.groups]
        return _finite(values)

    def fingerprint(self) -> str:
        """Return a hash that two plans share if they say the same, to six digits a number."""
        digest = hashlib.sha256(json.dumps(_rounded(self.to_dict()), sort_keys=True).encode())
        for group in self.groups:
            if isinstance(group.clients, range):
                ids = repr(group.clients).encode()
            else:
                ids = np.asarray(group.clients, dtype="<i8").tobytes()
            digest.update(len(ids).to_bytes(8, "little") + ids)
        return digest.hexdigest()


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: None if isinstance(value, float) and math.isinf(value) else value
        for key, value in values.items()
    }


def _rounded(value: Any) -> Any:
    """Round floats: the last digits of a calibrated figure may differ between machines."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value
