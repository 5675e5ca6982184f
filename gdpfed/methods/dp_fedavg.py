"""DP-FedAvg: all clients have the strictest budget (McMahan et al., ICLR 2018)."""

from typing import ClassVar

from conf.schema import Config
from gdpfed.methods.base import CurveStyle, Method, configured_groups
from gdpfed.methods.rates import private_plan, refuse_given_rates
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import merge_groups


class DPFedAvg(Method):
    """One group at min_i eps_i, rate q, weight 1 / (q n): one sum and one noise a round."""

    name: ClassVar[str] = "dp_fedavg"
    label: ClassVar[str] = "DP-FedAvg"
    curve: ClassVar[CurveStyle | None] = ("#D55E00", "--", "s")
    adapts_clipping: ClassVar[bool] = True

    @classmethod
    def make_plan(cls, config: Config) -> PrivacyPlan:
        refuse_given_rates(config)
        return private_plan(
            config,
            groups=(merge_groups(configured_groups(config)),),
            group_sampling_rates=(config.privacy.sampling_rate,),
        )
