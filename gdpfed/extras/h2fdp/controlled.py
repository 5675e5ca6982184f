"""Applies H2FDP's choice of steps and participants to a configuration."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from conf.schema import Config, require
from gdpfed.errors import ConfigError
from gdpfed.extras.h2fdp.control import (
    ControlSolution,
    NoiseTerm,
    Problem,
    planned_noise,
    printed_noise,
    solve,
)
from gdpfed.extras.h2fdp.subnet_mechanisms import (
    Mechanism,
    mean_noise,
    mechanism_of,
    noise_factor,
    reserved_delta,
    windows_of,
)
from gdpfed.extras.h2fdp.subnet_sums import Trust
from gdpfed.extras.h2fdp.subnets import sizes_of_subnets, subnets_of, windows_of_round
from gdpfed.methods.rates import configured_delta
from gdpfed.methods.record_method import configured_dimension, configured_records

SOURCE_SCALE = 30.0
POWERS = {"printed": 3, "corrected": 2}


def controlled(config: Config) -> Config:
    """Return the configuration with the steps, rounds and participants that H2FDP chooses.

    R, the steps of a run, are `method.total_steps`, or those that are configured; they are kept there, so
    that a configuration for which the choice was made comes to the same choice again.

    Raises:
        ConfigError: options that contradict each other.
        PrivacyError: a budget that no noise can reach.
    """
    if config.method.control == "none":
        return config
    problem = problem_of(config)
    return with_choice(config, problem, solve(problem))


def problem_of(config: Config) -> Problem:
    """Return the optimisation problem that chooses local steps and participants for a configuration.

    Raises ConfigError: options that contradict each other.
    """
    method, mechanism = config.method, mechanism_of(config)
    require(
        mechanism != "update",
        "method.control=planned is for runs that protect records, whose noise does not depend on who is "
        "drawn: set privacy=record_level",
    )
    require(
        method.participants is None or isinstance(method.participants, list),
        f"method.participants={method.participants} does not go with method.control=planned, which chooses "
        "them: leave it out, or bound them by method.most_participants",
    )
    count = windows_of_round(config)
    single = mechanism == "step_sum"
    require(
        single or count <= method.most_local_steps,
        f"method.most_local_steps={method.most_local_steps} are too few for "
        f"method.local_aggregations={count} sums a round: allow at least as many",
    )
    total = method.total_steps or config.run.num_rounds * config.training.local_steps
    trust = trust_of(config, mechanism)
    subnets = {word: trust.count(word) for word in dict.fromkeys(trust)}
    least, most = config.secagg.minimum_cohort, min(sizes_of_subnets(config))
    if method.most_participants is not None:
        require(
            method.most_participants >= least,
            f"method.most_participants={method.most_participants} is below "
            f"secagg.minimum_cohort={least}: allow more",
        )
        most = min(most, method.most_participants)
    step = 1 if single else count
    taus = range(step, min(method.most_local_steps, max(total, step)) + 1, step)
    windows: Callable[[int], int] = (lambda tau: tau) if single else (lambda tau: count)
    dimension = configured_dimension(config)
    first, second, third = method.control_weights
    printed = method.control_noise != "planned"
    return Problem(
        total_steps=total,
        local_steps=taus,
        windows=windows,
        subnets=subnets,
        sizes={word: range(least, most + 1) for word in subnets},
        dimension=dimension,
        weights=(first, second, third),
        noise_scale=method.noise_scale or (SOURCE_SCALE if printed else 1.0),
        distance=method.distance,
        together=method.together,
        noise=_noise_term(config, mechanism, total, dimension, windows, subnets),
    )


def with_choice(config: Config, problem: Problem, chosen: ControlSolution) -> Config:
    """Return the configuration with the chosen local steps and participants.

    Raises ConfigError: other participants are named.
    """
    method, mechanism = config.method, mechanism_of(config)
    sizes = [chosen.sizes[word] for word in trust_of(config, mechanism)]
    if method.participants not in (None, sizes):
        raise ConfigError(
            f"method.participants={method.participants} are not those that method.control=planned chooses, "
            f"{sizes}: leave them out"
        )
    found = replace(method, total_steps=problem.total_steps, participants=sizes)
    interval = _with_interval(config, mechanism, problem.total_steps, chosen.local_steps)
    return replace(interval, method=replace(found, local_aggregations=interval.method.local_aggregations))


def trust_of(config: Config, mechanism: Mechanism) -> tuple[Trust, ...]:
    """Return every edge server's trust setting; "untrusted" if devices add noise in every step."""
    words: tuple[Trust, ...] = config.method.trust_of_subnets()
    return tuple("untrusted" for _ in words) if mechanism == "step_local" else words


def _with_interval(config: Config, mechanism: Mechanism, total: int, tau: int) -> Config:
    """Return the configuration with tau local steps a round, and rounds for the same total of steps."""
    count = None if mechanism == "step_sum" else windows_of_round(config)
    return replace(
        config,
        method=replace(config.method, local_aggregations=count),
        training=replace(config.training, local_steps=tau),
        run=replace(config.run, num_rounds=math.ceil(total / tau)),
    )


def _noise_term(
    config: Config,
    mechanism: Mechanism,
    total: int,
    dimension: int,
    windows: Callable[[int], int],
    subnets: dict[Trust, int],
) -> NoiseTerm:
    method, privacy = config.method, config.privacy
    epsilon = subnets_of(config)[0].epsilon
    if method.control_noise != "planned":
        return printed_noise(
            dimension=dimension,
            batch_rate=privacy.batch_rate,
            gradient_norm=privacy.clipping_norm,
            delta=configured_delta(config),
            epsilon=epsilon,
            windows=windows,
            subnets=subnets,
            power=POWERS[method.control_noise],
        )
    expected_batch = privacy.batch_rate * float(configured_records(config).mean())
    eta = config.training.learning_rate

    @cache
    def stddev(tau: int) -> tuple[Any, float]:
        interval = _with_interval(config, mechanism, total, tau)
        plan = windows_of(interval, mechanism)
        reserved = reserved_delta(interval) if mechanism == "convex" else 0.0
        delta = configured_delta(config) - reserved
        return plan, plan.move * plan.estimated_noise(epsilon, interval.run.num_rounds, delta)

    def variance(tau: int, trust: Trust, size: int) -> float:
        plan, of_sum = stddev(tau)
        factor = math.sqrt(size) if mechanism == "step_local" else noise_factor(config.secagg, trust, size)
        noise = mean_noise(
            work=plan.work,
            stddev=of_sum * factor,
            learning_rate=eta,
            size=size,
            expected_batch=expected_batch,
            steps=plan.num_steps,
        )
        return noise**2

    return planned_noise(
        variance=cache(variance),
        dimension=dimension,
        smoothness=_smoothness(config),
        learning_rate=eta,
        windows=windows,
        subnets=subnets,
    )


def _smoothness(config: Config) -> float:
    """Return the smoothness beta of the loss: configured, or derived from a convex model.

    Raises ConfigError: a model for which none is known.
    """
    from gdpfed.clients.configured import task_of
    from gdpfed.learning.models.networks import convex_bounds

    if config.method.smoothness is not None:
        return float(config.method.smoothness)
    bounds = convex_bounds(task_of(config).build_model())
    require(
        bounds is not None,
        f"method.control=planned weighs noise by the smoothness of the loss, of which dataset.model="
        f"{config.dataset.model} has no known bound: give method.smoothness, or method.control_noise=printed",
    )
    return 0.0 if bounds is None else bounds.smoothness
