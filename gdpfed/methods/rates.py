"""Makes privacy plans from the configuration: chooses sampling rates and passes settings to planners."""

from collections.abc import Sequence
from typing import cast

from conf.schema import Config
from gdpfed.errors import ConfigError, PrivacyError
from gdpfed.methods.norm_histogram import planned_norms
from gdpfed.methods.vote import planned_vote
from gdpfed.methods.weighting import Reweighting, relative_weights
from gdpfed.privacy.accountants.accountant import Accountant, RenyiOrders, accountant_for
from gdpfed.privacy.accountants.composition import AfterRelease
from gdpfed.privacy.events import Adjacency, NoiseLaw, Sampling
from gdpfed.privacy.mechanisms.allocated.planner import make_allocated_plan
from gdpfed.privacy.mechanisms.records.planner import DEFAULT_DELTA as DELTA_OF_RECORDS
from gdpfed.privacy.mechanisms.sampled.planner import make_plan
from gdpfed.privacy.mechanisms.scheduled.planner import make_scheduled_plan
from gdpfed.privacy.mechanisms.scheduled.streams import TurnBudget, plan_group_streams, plan_stream
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import Group, default_delta
from gdpfed.privacy.planning.sampling_rates import optimal_sampling_rates
from gdpfed.privacy.planning.shared_noise_rates import scaled_clipping_norms
from gdpfed.privacy.sums_once import SumOnce


def refuse_given_rates(config: Config) -> None:
    """Raise ConfigError if the user gave sampling rates for groups and the method sets them itself."""
    if config.privacy.sampling_rates != "auto":
        raise ConfigError(
            f"privacy.sampling_rates={config.privacy.sampling_rates} does not go with "
            f"method={config.method.name}, whose rates follow from privacy.sampling_rate: "
            "use method=gdpfed_star, method=gdpfed_op or method=gdpfed_plus"
        )


def given_rates(config: Config) -> tuple[float, ...] | None:
    """Return each group's configured sampling rate (a list, or the GDPFed paper's rates); None for ``auto``.

    Raises ConfigError: rates that the configuration does not have.
    """
    given = config.privacy.sampling_rates
    if isinstance(given, list):
        return tuple(given)
    if given != "paper":
        return None
    if config.dataset.paper_sampling_rates is None:
        raise ConfigError(f"privacy.sampling_rates=paper: the paper has no rates for {config.dataset.name}")
    return tuple(config.dataset.paper_sampling_rates)


def group_rates(config: Config, groups: Sequence[Group], *, sparsified: bool) -> tuple[float, ...]:
    """Return each group's sampling rate: as configured, or the optimum of the GDPFed paper (its Problem 1).

    Raises:
        ConfigError: rates that the configuration does not have, or an objective without an optimum.
        PrivacyError: rates that cannot be had.
    """
    given = given_rates(config)
    if given is not None:
        return given
    if config.method.reweighting != "squared_participation":
        raise ConfigError(
            f"method.reweighting={config.method.reweighting} makes the paper's Problem 1 equal for all rates"
            ": use squared_participation, or give the rates in privacy.sampling_rates"
        )
    return optimal_sampling_rates(
        groups,
        sampling_rate=config.privacy.sampling_rate,
        delta=configured_delta(config),
        num_rounds=config.run.num_rounds,
        local_steps=config.training.local_steps,
        learning_rate=config.training.learning_rate,
        sparsified=sparsified,
        min_sampling_rate=config.privacy.min_sampling_rate,
    )


def configured_delta(config: Config) -> float:
    """Return the plan's delta: the configured one, or the default for clients or for records."""
    if config.privacy.delta is not None:
        return config.privacy.delta
    if config.privacy.about_records:
        return DELTA_OF_RECORDS
    return default_delta(config.dataset.num_clients)


def renyi_orders(config: Config) -> RenyiOrders:
    """Return which Renyi orders the RDP accountant uses: fractional ones too, or integers only.

    The paper's printed noise at its own rates (FMNIST 1.42/0.89/0.73) follows from whole orders; all
    orders need 1.42/0.87/0.70. Asking for the paper's rates asks for its rows, so ``auto`` is whole there.
    """
    if config.privacy.renyi_orders == "auto":
        return "whole" if config.privacy.sampling_rates == "paper" else "fine"
    return cast("RenyiOrders", config.privacy.renyi_orders)


def configured_accountant(config: Config, groups: Sequence[Group]) -> Accountant:
    """Return the configured accountant, including the cost of any one-time sum before the first round."""
    privacy, first = config.privacy, configured_first(config, groups)
    own = accountant_for(cast("NoiseLaw", privacy.noise), privacy.accountant, renyi_orders(config))
    return own if first is None else AfterRelease(own, first.charge)


def uniform_rate_plan(config: Config, groups: Sequence[Group]) -> PrivacyPlan:
    """Plan one sum for each group, with every group sampled at the overall rate q, as GDPFed does."""
    return private_plan(
        config,
        groups=groups,
        group_sampling_rates=(config.privacy.sampling_rate,) * len(groups),
    )


def one_noise_plan(
    config: Config, groups: Sequence[Group], apart: PrivacyPlan, weights: Sequence[float]
) -> PrivacyPlan:
    """Plan one noised sum over all groups, with clipping norms at which the same noise meets every budget.

    C_m is proportional to 1 / sigma_m, with mean C under these weights of the groups.
    """
    norms = scaled_clipping_norms(
        [group.noise_multiplier for group in apart.groups], weights, config.privacy.clipping_norm
    )
    return private_plan(
        config,
        groups=groups,
        group_sampling_rates=[group.sampling_rate for group in apart.groups],
        group_clipping_norms=norms,
        one_sum=True,
    )


def scheduled_plan(
    config: Config, groups: Sequence[Group], *, own_turns: bool = True, own_norms: bool = True
) -> PrivacyPlan:
    """Make the plan for privacy.against=everyone: clients are scheduled, and each round has one noised sum.

    `config`: of the run. `groups`: with their budgets. `own_turns`: whether larger budgets may have more
    turns; all have as many without. `own_norms`: whether larger budgets may have larger norms.
    """
    asked = turn_budget(config, groups)
    turns = None if own_turns else asked.equal_turns
    stream = plan_stream(asked, turns=turns, equal_norms=not own_norms)
    return make_scheduled_plan(asked, stream, sums_hidden=config.secagg.hides_updates)


def scheduled_group_plan(
    config: Config, groups: Sequence[Group], *, reweighting: Reweighting = "uniform", own_turns: bool = False
) -> PrivacyPlan:
    """Make the plan for privacy.against=everyone: scheduled clients, correlated noise, one sum per group.

    `config`: of the run. `groups`: with their budgets. `reweighting`: the rule of the sums' weights, under
    which noise is to be least. `own_turns`: whether turns are chosen; all groups have as many without.
    """
    asked = turn_budget(config, groups)
    turns = None if own_turns else asked.equal_turns
    stream = plan_group_streams(asked, lambda sizes: relative_weights(sizes, reweighting), turns=turns)
    return make_scheduled_plan(asked, stream, sums_hidden=config.secagg.hides_updates)


def turn_budget(config: Config, groups: Sequence[Group]) -> TurnBudget:
    """Return the settings from which the clients' scheduled rounds are planned, such as their budgets."""
    privacy = config.privacy
    return TurnBudget(
        groups=tuple(groups),
        num_rounds=config.run.num_rounds,
        sampling_rate=privacy.sampling_rate,
        delta=configured_delta(config),
        clipping_norm=privacy.clipping_norm,
        num_taps=privacy.noise_taps,
        adjacency=cast("Adjacency", privacy.adjacency),
        first=configured_first(config, groups),
        minimum_cohort=config.secagg.minimum_cohort,
    )


def configured_first(config: Config, groups: Sequence[Group]) -> SumOnce | None:
    """Return the vote or norm histogram that costs privacy before the first round; None if not planned."""
    epsilons = [group.epsilon for group in groups]
    adjacency = cast("Adjacency", config.privacy.adjacency)
    delta = configured_delta(config)
    vote = planned_vote(config, epsilons, delta, "client", adjacency)
    return vote or planned_norms(config, epsilons, delta, adjacency)


def private_plan(
    config: Config,
    *,
    groups: Sequence[Group],
    group_sampling_rates: Sequence[float],
    group_clipping_norms: Sequence[float] | None = None,
    one_sum: bool = False,
) -> PrivacyPlan:
    """Make a privacy plan with sampled clients, from the configuration and these sampling rates and norms.

    Raises PrivacyError where no valid accounting exists, as of a vote before rounds that are allocated.
    """
    if config.privacy.sampling == "allocation":
        if config.training.vote is not None:
            raise PrivacyError(
                "training.vote is not accounted with privacy.sampling=allocation: leave out the vote, or use "
                "privacy.sampling=poisson"
            )
        return make_allocated_plan(
            groups=tuple(groups),
            num_rounds=config.run.num_rounds,
            sampling_rate=config.privacy.sampling_rate,
            clipping_norm=config.privacy.clipping_norm,
            delta=configured_delta(config),
            group_sampling_rates=tuple(group_sampling_rates),
            group_clipping_norms=group_clipping_norms,
            one_sum=one_sum,
            sums_hidden=config.secagg.hides_updates,
        )
    return make_plan(
        groups=tuple(groups),
        num_rounds=config.run.num_rounds,
        sampling_rate=config.privacy.sampling_rate,
        delta=configured_delta(config),
        clipping_norm=config.privacy.clipping_norm,
        accountant=config.privacy.accountant,
        renyi_orders=renyi_orders(config),
        noise=cast("NoiseLaw", config.privacy.noise),
        sampling=cast("Sampling", config.privacy.sampling),
        adjacency=cast("Adjacency", config.privacy.adjacency),
        group_sampling_rates=tuple(group_sampling_rates),
        group_clipping_norms=group_clipping_norms,
        one_sum=one_sum,
        sums_hidden=config.secagg.hides_updates,
        first=configured_first(config, groups),
    )
