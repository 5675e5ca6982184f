"""Methods to compare with H2FDP: no privacy, noise on every device, or a separate run at each edge server."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np

from conf.schema import Config, MethodConfig, require
from gdpfed.extras.h2fdp.h2fdp import H2FDP, H2FDPConfig, SubnetMethod
from gdpfed.extras.h2fdp.subnets import SubnetConfig, drawing, rate_of_all, subnets_of, windows_of_round
from gdpfed.methods.base import ClientSum, CurveStyle, Method, Theta
from gdpfed.methods.rates import refuse_given_rates
from gdpfed.privacy.events import Sampling, Unit
from gdpfed.privacy.mechanisms.sampled.planner import plain_plan
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import groups_from_sizes


class HierFedAvg(SubnetMethod):
    """Hierarchical FedAvg: edge servers average without clipping or noise, an upper bound on accuracy."""

    name: ClassVar[str] = "hier_fedavg"
    label: ClassVar[str] = "Hierarchical FedAvg (no privacy)"
    curve: ClassVar[CurveStyle | None] = ("#008038", ":", "8")
    config_class: ClassVar[type[MethodConfig]] = SubnetConfig

    @classmethod
    def make_plan(cls, config: Config) -> PrivacyPlan:
        refuse_given_rates(config)
        sampling, rates = drawing(config)
        return plain_plan(
            groups=subnets_of(config),
            num_rounds=config.run.num_rounds,
            sampling_rate=rate_of_all(config),
            sampling=sampling,
            group_sampling_rates=rates,
            sums_per_round=windows_of_round(config),
        )


@dataclass
class HFLDPConfig(H2FDPConfig):
    """The options of method=hfl_dp, in which no edge server is trusted."""

    trust: Any = "untrusted"

    def validate(self) -> None:
        super().validate()
        require(
            self.trust == "untrusted" and not self.trusted_share,
            f"method.trust={self.trust} with method.trusted_share={self.trusted_share}: method={self.name} "
            "trusts nobody; use method=h2fdp",
        )


class HFLDP(H2FDP):
    """HFL-DP: every device adds all noise (Shi et al., ICME 2021, as in H2FDP's comparison)."""

    name: ClassVar[str] = "hfl_dp"
    label: ClassVar[str] = "HFL-DP"
    curve: ClassVar[CurveStyle | None] = ("#2090D8", "--", "H")
    config_class: ClassVar[type[MethodConfig]] = HFLDPConfig


@dataclass
class PEDPFLConfig(HFLDPConfig):
    """The options of method=pedpfl, in which all devices belong to one server."""

    num_subnets: int = 1
    local_aggregations: int | None = 1

    def validate(self) -> None:
        super().validate()
        require(
            self.num_subnets == 1 and (self.local_aggregations == 1 or self.mechanism == "step_sum"),
            f"method.num_subnets={self.num_subnets} with method.local_aggregations={self.local_aggregations}:"
            f" method={self.name} is one subnet that sums once a round; use method=hfl_dp",
        )


class PEDPFL(HFLDP):
    """PEDPFL: one server, no edges, noise on every device (Shen et al., 2022, as in H2FDP's comparison)."""

    name: ClassVar[str] = "pedpfl"
    label: ClassVar[str] = "PEDPFL"
    curve: ClassVar[CurveStyle | None] = ("#5838A8", "-.", "1")
    config_class: ClassVar[type[MethodConfig]] = PEDPFLConfig


# A plan without privacy has every budget infinite; groups want a number.
ANY_BUDGET = 1.0


class EdgeAverage(Method):
    """A central server whose clients are edge servers: adds the mean of their model changes to its model.

    Every edge runs a private method of its own on its devices, and answers with how far an interval of it
    moved the model. That is made of released sums, so averaging costs no privacy, and this plan promises
    none: what holds for devices is in the plan, the ledger and the card of their edge's run.
    """

    name: ClassVar[str] = "edge_average"
    label: ClassVar[str] = "Average of edges"
    curve: ClassVar[CurveStyle | None] = ("#18FDFA", "-", "4")
    unit: ClassVar[Unit | None] = None
    compared: ClassVar[bool] = False
    clients_are_edges: ClassVar[bool] = True

    @classmethod
    def make_plan(cls, config: Config) -> PrivacyPlan:
        refuse_given_rates(config)
        return plain_plan(
            groups=groups_from_sizes(ANY_BUDGET, [config.dataset.num_clients]),
            num_rounds=config.run.num_rounds,
            sampling_rate=1.0,
            sampling=cast("Sampling", config.privacy.sampling),
        )

    def step(self, theta: Theta, sums: Sequence[ClientSum]) -> Theta:
        """Add the mean change of the edge servers that answered; keep the model if none answered."""
        (edges,) = sums
        if edges.total is None:
            return theta
        mean = np.asarray(edges.total) / edges.survivors
        return (theta + self.server_learning_rate * mean).astype(np.float32)
