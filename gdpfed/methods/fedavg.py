"""FedAvg without privacy, and DP-FedAvg, where the smallest budget of any client applies to all.

Source: McMahan et al., AISTATS 2017 and ICLR 2018.
"""

from typing import ClassVar, cast, get_args

from conf.schema import Config
from gdpfed.methods.base import CurveStyle, Method, RunOption
from gdpfed.methods.party_budgets import configured_groups
from gdpfed.methods.rates import private_plan, refuse_given_rates, scheduled_plan
from gdpfed.privacy.events import Sampling, Unit
from gdpfed.privacy.mechanisms.sampled.planner import plain_plan
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import merge_groups


class FedAvg(Method):
    """FedAvg without clipping or noise: the model theta + (1 / (q n)) * sum of clients' updates."""

    name: ClassVar[str] = "fedavg"
    label: ClassVar[str] = "FedAvg (no privacy)"
    curve: ClassVar[CurveStyle | None] = ("#000000", ":", "X")
    unit: ClassVar[Unit | None] = None
    private: ClassVar[bool] = False
    goes_with: ClassVar[tuple[RunOption, ...]] = ("any optimizer", "client state")

    @classmethod
    def make_plan(cls, config: Config) -> PrivacyPlan:
        refuse_given_rates(config)
        return plain_plan(
            groups=(merge_groups(configured_groups(config)),),
            num_rounds=config.run.num_rounds,
            sampling_rate=config.privacy.sampling_rate,
            delta=config.privacy.delta,
            sampling=cast("Sampling", config.privacy.sampling),
        )


class DPFedAvg(Method):
    """DP-FedAvg: one noised sum over clients sampled at rate q; all have the smallest budget min_i eps_i."""

    name: ClassVar[str] = "dp_fedavg"
    label: ClassVar[str] = "DP-FedAvg"
    curve: ClassVar[CurveStyle | None] = ("#D55E00", "--", "s")
    goes_with: ClassVar[tuple[RunOption, ...]] = get_args(RunOption)

    @classmethod
    def make_plan(cls, config: Config) -> PrivacyPlan:
        refuse_given_rates(config)
        return private_plan(
            config,
            groups=(merge_groups(configured_groups(config)),),
            group_sampling_rates=(config.privacy.sampling_rate,),
        )

    @classmethod
    def make_turn_plan(cls, config: Config) -> PrivacyPlan:
        return scheduled_plan(config, (merge_groups(configured_groups(config)),))
