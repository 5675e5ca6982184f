"""IDP-FedAvg by clipping: clients with larger budgets have larger clipping norms, under one noise.

Source: Boenisch et al., "Have it your way: Individualized Privacy Assignment for DP-SGD", NeurIPS 2023,
arXiv:2303.17046, Scale, with clients in place of examples.
"""

from typing import ClassVar

from conf.schema import Config
from gdpfed.methods.base import CurveStyle, configured_groups
from gdpfed.methods.rates import one_noise_plan, refuse_given_rates, uniform_rate_plan
from gdpfed.methods.shared_noise import SharedNoise
from gdpfed.privacy.plan import PrivacyPlan


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
