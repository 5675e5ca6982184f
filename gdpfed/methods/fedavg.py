"""Federated averaging without privacy: the upper bound (McMahan et al., AISTATS 2017)."""

from typing import ClassVar, cast

from conf.schema import Config
from gdpfed.methods.base import CurveStyle, Method, configured_groups
from gdpfed.methods.rates import refuse_given_rates
from gdpfed.privacy.events import Sampling, Unit
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import merge_groups
from gdpfed.privacy.planning.make_plan import plain_plan


class FedAvg(Method):
    """One group, no clipping, no noise: theta + (1 / (q n)) * sum of updates."""

    name: ClassVar[str] = "fedavg"
    label: ClassVar[str] = "FedAvg (no privacy)"
    curve: ClassVar[CurveStyle | None] = ("#000000", ":", "X")
    unit: ClassVar[Unit | None] = None

    @classmethod
    def make_plan(cls, config: Config) -> PrivacyPlan:
        refuse_given_rates(config)
        return plain_plan(
            groups=(merge_groups(configured_groups(config)),),
            num_rounds=config.run.num_rounds,
            sampling_rate=config.privacy.sampling_rate,
            sampling=cast("Sampling", config.privacy.sampling),
        )
