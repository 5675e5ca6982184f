"""A vote on settings before a run: each client tries them on its own records and votes for the best.

Source: DP-Hype, arXiv:2510.04902. Settings are those that no accounting depends on; the server sees one
noised sum of votes and takes the largest. What it costs is in `gdpfed.privacy.sums_once`.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Protocol, cast

import numpy as np

from conf.schema import VOTABLE, Config
from gdpfed.errors import ConfigError
from gdpfed.methods.base import Method, SumRequest, Theta
from gdpfed.methods.first_sum import noise_of_share, refuse_unpaid
from gdpfed.methods.party_budgets import configured_parties
from gdpfed.privacy.accountants.gaussian import gaussian_epsilon
from gdpfed.privacy.events import Adjacency, Unit
from gdpfed.privacy.release import NoiseAt
from gdpfed.privacy.sums_once import Vote
from gdpfed.record_steps import RecordSteps

Setting = tuple[float, ...]
"""The values of `VOTABLE`, in its order."""


class RecordRun(Protocol):
    """A record-level DP method whose run a client can simulate alone, on its own records.

    Attributes:
        config: by which it goes on; the setting that was chosen goes there.
    """

    config: Config

    def rehearsal(self, client: int) -> RecordSteps:
        """Return the steps by which a client alone tries out settings, with the run's noise per step."""


def settings_of(config: Config) -> tuple[Setting, ...]:
    """Return the settings to vote on: all combinations of listed values; empty if there is no vote."""
    grid = config.training.vote
    if grid is None:
        return ()
    lists = [grid.get(key, [getattr(config.training, key)]) for key in VOTABLE]
    return tuple(tuple(map(float, values)) for values in product(*lists))


def with_setting(config: Config, setting: Sequence[float]) -> Config:
    """Return the configuration with the setting that won the vote."""
    rate, momentum, decay = setting
    training = replace(config.training, learning_rate=rate, momentum=momentum, learning_rate_decay=decay)
    return replace(config, training=training)


def refuse_vote(config: Config, method: type[Method]) -> None:
    """Raise ConfigError if a vote on settings has no privacy proof or conflicts with other settings."""
    without = "or leave training.vote out"
    if "vote" not in method.goes_with:
        raise ConfigError(
            f"training.vote does not go with method={config.method.name}, which clients cannot try alone or "
            f"whose plan depends on what is voted on: use dp_sum, dp_sgd, gdpfed_star or gdpfed, {without}"
        )
    if configured_parties(config):
        raise ConfigError(
            "training.vote is proved for rows, of which each is at one party, and the columns of "
            f"dataset.path={config.dataset.path} name persons: leave training.vote out"
        )
    refuse_unpaid(config, "training.vote", "votes")
    decays = {setting[VOTABLE.index("learning_rate_decay")] for setting in settings_of(config)}
    if config.privacy.about_records and decays != {1.0}:
        raise ConfigError(
            "training.vote tries steps on records of one size, and they change by "
            f"training.learning_rate_decay={min(decays):g}: use 1, {without}"
        )
    if config.training.schedule != "constant":
        raise ConfigError(
            f"training.vote tries no schedule, and training.schedule={config.training.schedule}: use "
            f"constant, {without}"
        )
    if config.method.server_learning_rate != 1:
        raise ConfigError(
            "training.vote tries steps of the server of size 1, and method.server_learning_rate="
            f"{config.method.server_learning_rate:g} is another: use 1, {without}"
        )


def planned_vote(
    config: Config, epsilons: Sequence[float], delta: float, unit: Unit, adjacency: Adjacency = "zero_out"
) -> Vote | None:
    """Return the noise and privacy cost of a vote on settings; None if the run has no vote.

    The cost is a share of mu^2 of the smallest budget.
    """
    options = len(settings_of(config))
    if not options:
        return None
    sigma = noise_of_share(config.privacy.vote_share, epsilons, delta)
    moves = Vote.moved(unit, adjacency)
    return Vote(
        epsilon=gaussian_epsilon(sigma, delta),
        noise_stddev=sigma * moves,
        unit=unit,
        moves=moves,
        options=options,
    )


def vote_request(method: Method, model: Theta, clients: Sequence[int], config: Config) -> SumRequest:
    """Return the request by which clients vote, before the first round, on training settings.

    Where clients are protected, a trial is all rounds of local training, with the noise over the step that
    the plan's rounds have (`Weighting.noise_per_step`).
    """
    plan = method.plan
    planned, ids = plan.vote, np.asarray(sorted(clients), dtype=np.int64)
    if plan.about_records:
        trials = [cast("RecordRun", method).rehearsal(client) for client in ids.tolist()]
    else:
        noise = method.weighting.noise_per_step(plan)
        rounds = RecordSteps(
            num_steps=plan.num_rounds,
            batch_rates=(1.0,),
            clipping_norm=plan.clipping_norm,
            noise_multiplier=noise,
        )
        trials = [rounds] * len(ids)
    return SumRequest(
        name="vote",
        clients=ids,
        clipping_norm=1.0,
        noise_multiplier=0.0 if planned is None else planned.noise_stddev,
        noise_at=NoiseAt.CLIENT,
        work="vote" if plan.about_records else "vote_by_rounds",
        unit=plan.unit,
        records=trials,
        start=model,
        settings=tuple(value for setting in settings_of(config) for value in setting),
        coordinates=len(settings_of(config)),
    )


def chance_of_agreement(clients: int, noise_stddev: float, options: int) -> float:
    """Return the probability that a setting wins if all clients vote for it and all counts get noise.

    P(n + s Z > s max Z_j) = int phi(z) Phi(z + n / s)^(K - 1) dz, by the trapezoidal rule.
    """
    z = np.linspace(-8, 8, 2001)
    tail = np.array([0.5 * math.erfc(-(each + clients / noise_stddev) / math.sqrt(2)) for each in z])
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return float(np.trapezoid(density * tail ** (options - 1), z))
