"""IDP-FedAvg: under one noise, larger budgets are sampled more often, or clipped to larger norms.

Source: Boenisch et al., "Have it your way: Individualized Privacy Assignment for DP-SGD", NeurIPS 2023,
arXiv:2303.17046, Sample and Scale, with clients in place of examples.
"""

from typing import ClassVar, cast

from conf.schema import Config
from gdpfed.methods.base import CurveStyle
from gdpfed.methods.party_budgets import configured_groups
from gdpfed.methods.rates import (
    configured_accountant,
    configured_delta,
    one_noise_plan,
    private_plan,
    refuse_given_rates,
    scheduled_plan,
    uniform_rate_plan,
)
from gdpfed.methods.shared_noise_method import SharedNoise
from gdpfed.privacy.events import Adjacency, Sampling
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.shared_noise_rates import shared_noise_sampling_rates


class IDPFedAvgSample(SharedNoise):
    """One C and one sigma for all; the rates q_m, with mean q, at which sigma meets every eps_m."""

    name: ClassVar[str] = "idp_fedavg_sample"
    label: ClassVar[str] = "IDP-FedAvg, sample"
    curve: ClassVar[CurveStyle | None] = ("#E69F00", "-.", "P")

    @classmethod
    def make_plan(cls, config: Config) -> PrivacyPlan:
        refuse_given_rates(config)
        groups = configured_groups(config)
        privacy = config.privacy
        rates = shared_noise_sampling_rates(
            configured_accountant(config, groups),
            groups,
            sampling=cast("Sampling", privacy.sampling),
            sampling_rate=privacy.sampling_rate,
            num_rounds=config.run.num_rounds,
            delta=configured_delta(config),
            adjacency=cast("Adjacency", privacy.adjacency),
        )
        return private_plan(config, groups=groups, group_sampling_rates=rates, one_sum=True)

    @classmethod
    def make_turn_plan(cls, config: Config) -> PrivacyPlan:
        return scheduled_plan(config, configured_groups(config), own_norms=False)


class IDPFedAvgScale(SharedNoise):
    """Rate q for all; C_m proportional to 1 / sigma_m with mean C, sigma_m being gdpfed's."""

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
