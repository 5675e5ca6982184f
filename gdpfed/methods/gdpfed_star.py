"""GDPFed*: one sum under one noise, with rates and norms by group that maximise signal over noise."""

from typing import ClassVar, cast

from conf.schema import Config
from gdpfed.methods.base import CurveStyle
from gdpfed.methods.party_budgets import configured_groups
from gdpfed.methods.rates import (
    configured_accountant,
    configured_delta,
    given_rates,
    one_noise_plan,
    private_plan,
    scheduled_plan,
)
from gdpfed.methods.shared_noise_method import SharedNoise
from gdpfed.privacy.events import Adjacency, Sampling
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import Group
from gdpfed.privacy.planning.shared_noise_rates import one_sum_sampling_rates


class GDPFedStar(SharedNoise):
    """Rates q_m with mean q, and C_m proportional to 1 / sigma_m(q_m) with mean C over a round's cohort.

    The rates maximise sum_m q_m |G_m| C_m over the noise, or are given; then the C_m are the best for them.
    """

    name: ClassVar[str] = "gdpfed_star"
    label: ClassVar[str] = "GDPFed*"
    curve: ClassVar[CurveStyle | None] = ("#C00000", "-", "p")
    usually_against_everyone: ClassVar[bool] = True

    @classmethod
    def make_plan(cls, config: Config) -> PrivacyPlan:
        groups = configured_groups(config)
        apart = private_plan(config, groups=groups, group_sampling_rates=_rates(config, groups))
        return one_noise_plan(config, groups, apart, [group.expected_cohort_size for group in apart.groups])

    @classmethod
    def make_turn_plan(cls, config: Config) -> PrivacyPlan:
        return scheduled_plan(config, configured_groups(config))


def _rates(config: Config, groups: tuple[Group, ...]) -> tuple[float, ...]:
    given = given_rates(config)
    if given is not None:
        return given
    privacy = config.privacy
    return one_sum_sampling_rates(
        configured_accountant(config, groups),
        groups,
        sampling=cast("Sampling", privacy.sampling),
        sampling_rate=privacy.sampling_rate,
        num_rounds=config.run.num_rounds,
        delta=configured_delta(config),
        adjacency=cast("Adjacency", privacy.adjacency),
        min_sampling_rate=privacy.min_sampling_rate,
    )
