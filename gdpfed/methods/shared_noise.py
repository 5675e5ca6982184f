"""Methods with one noised sum over all clients: IDP-FedAvg, and GDPFed*.

IDP-FedAvg samples larger budgets more often, or clips them to larger norms. Source: Boenisch et al., "Have it
your way: Individualized Privacy Assignment for DP-SGD", NeurIPS 2023, arXiv:2303.17046, Sample and Scale,
with clients in place of examples. GDPFed* has rates and norms by group that maximise signal over noise.
"""

from collections.abc import Callable
from functools import partial
from typing import ClassVar, cast, get_args

import numpy as np

from conf.schema import Config
from gdpfed.methods.base import Cohorts, CurveStyle, Method, RunOption, SumRequest, Theta
from gdpfed.methods.party_budgets import configured_groups
from gdpfed.methods.rates import (
    configured_accountant,
    configured_delta,
    given_rates,
    one_noise_plan,
    private_plan,
    refuse_given_rates,
    scheduled_plan,
    uniform_rate_plan,
)
from gdpfed.privacy.events import Adjacency, Sampling
from gdpfed.privacy.mechanism_options import taps_of
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import Group
from gdpfed.privacy.planning.shared_noise_rates import one_sum_sampling_rates, shared_noise_sampling_rates


class SharedNoise(Method):
    """Base class of methods with one noised sum over all groups; clients of group m have clipping norm C_m.

    Groups are drawn independently, and a client moves the sum by at most its own C_m. So for a client of
    group m a round is the sampled Gaussian mechanism of q_m, C_m and s, of multiplier sigma_m = s / C_m,
    whatever the other groups do.

    One sum has one weight, omega = 1 / (q n): it is squared_participation and uniform alike, since
    r^2 / sum_j r_j^2 is 1 where there is one sum. Weights by group would need one noised sum a group, and
    of those any weights add more noise for the same step: sum_m omega_m^2 s^2 / (sum_m omega_m r_m)^2 is at
    least s^2 / sum_m r_m^2 (Cauchy and Schwarz), above the s^2 / (sum_m r_m)^2 of the one sum.
    """

    goes_with: ClassVar[tuple[RunOption, ...]] = get_args(RunOption)

    def requests(self, theta: Theta, round_index: int, cohorts: Cohorts) -> list[SumRequest]:
        """Return the request for one sum over all groups, with noise for the largest clipping norm."""
        groups = [group.at(round_index) for group in self.plan.groups]
        largest = max(group.clipping_norm for group in groups)
        norms = [
            np.full(len(cohort), group.clipping_norm) for group, cohort in zip(groups, cohorts, strict=True)
        ]
        request = SumRequest(
            name="all groups",
            clients=np.concatenate(cohorts),
            clipping_norm=largest,
            noise_multiplier=max(group.noise_stddev for group in groups) / largest,
            noise_at=self.noise_at,
            noise=self.plan.noise,
            taps=taps_of(self.plan.mechanism, 0),
            start=theta,
            client_clipping_norms=np.concatenate(norms),
            least_norm=min(group.clipping_norm for group in groups),
        )
        return [request]

    @property
    def sum_weights(self) -> list[float]:
        return [self.weighting.group_weights[0]]


class GDPFedStar(SharedNoise):
    """GDPFed*: each group has its own sampling rate and clipping norm, and all groups share one noised sum.

    Group m has rate q_m and norm C_m ~ 1 / sigma_m(q_m).
    The rates maximise sum_m q_m |G_m| C_m over the noise, or are given; then the C_m are the best for them.
    """

    name: ClassVar[str] = "gdpfed_star"
    label: ClassVar[str] = "GDPFed*"
    curve: ClassVar[CurveStyle | None] = ("#C00000", "-", "p")
    usually_against_everyone: ClassVar[bool] = True

    @classmethod
    def make_plan(cls, config: Config) -> PrivacyPlan:
        groups = configured_groups(config)
        rates = given_rates(config)
        if rates is None:
            least = config.privacy.min_sampling_rate
            rates = _found_rates(partial(one_sum_sampling_rates, min_sampling_rate=least), config, groups)
        apart = private_plan(config, groups=groups, group_sampling_rates=rates)
        return one_noise_plan(config, groups, apart, [group.expected_cohort_size for group in apart.groups])

    @classmethod
    def make_turn_plan(cls, config: Config) -> PrivacyPlan:
        return scheduled_plan(config, configured_groups(config))


def _found_rates(
    find: Callable[..., tuple[float, ...]], config: Config, groups: tuple[Group, ...]
) -> tuple[float, ...]:
    """Return each group's sampling rate, found by the search function `find` with the configured settings.

    Those of allocation are the rates of Poisson sampling: any are valid, and its noise follows from them.
    """
    privacy = config.privacy
    sampling = "poisson" if privacy.sampling == "allocation" else privacy.sampling
    return find(
        configured_accountant(config, groups),
        groups,
        sampling=cast("Sampling", sampling),
        sampling_rate=privacy.sampling_rate,
        num_rounds=config.run.num_rounds,
        delta=configured_delta(config),
        adjacency=cast("Adjacency", privacy.adjacency),
    )


class IDPFedAvgSample(SharedNoise):
    """IDP-FedAvg, Sample: groups share clipping norm and noise; a group's sampling rate fits its budget."""

    name: ClassVar[str] = "idp_fedavg_sample"
    label: ClassVar[str] = "IDP-FedAvg, sample"
    curve: ClassVar[CurveStyle | None] = ("#E69F00", "-.", "P")

    @classmethod
    def make_plan(cls, config: Config) -> PrivacyPlan:
        refuse_given_rates(config)
        groups = configured_groups(config)
        rates = _found_rates(shared_noise_sampling_rates, config, groups)
        return private_plan(config, groups=groups, group_sampling_rates=rates, one_sum=True)

    @classmethod
    def make_turn_plan(cls, config: Config) -> PrivacyPlan:
        return scheduled_plan(config, configured_groups(config), own_norms=False)


class IDPFedAvgScale(SharedNoise):
    """IDP-FedAvg, Scale: groups share sampling rate and noise; a group's clipping norm fits its budget."""

    name: ClassVar[str] = "idp_fedavg_scale"
    label: ClassVar[str] = "IDP-FedAvg, scale"
    curve: ClassVar[CurveStyle | None] = ("#CC79A7", "--", "v")

    @classmethod
    def make_plan(cls, config: Config) -> PrivacyPlan:
        refuse_given_rates(config)
        groups = configured_groups(config)
        apart = uniform_rate_plan(config, groups)
        return one_noise_plan(config, groups, apart, [group.size for group in groups])

    @classmethod
    def make_turn_plan(cls, config: Config) -> PrivacyPlan:
        return scheduled_plan(config, configured_groups(config), own_turns=False)
