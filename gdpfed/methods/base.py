"""The base class of all federated methods, which plan privacy, request sums, and update the model.

The round loop knows nothing else of a method. It draws the cohorts as the plan says, charges the round, and
calls :meth:`Method.round`, which asks for its sums: all at once (the default) or one after the other, from a
model each. Every request goes through the ledger, which refuses what the plan has not charged.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from conf.schema import Config, MethodConfig
from gdpfed.methods.weighting import Weighting
from gdpfed.privacy.events import Unit
from gdpfed.privacy.mechanism_options import taps_of
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.plan_extensions import with_adaptive_clipping
from gdpfed.privacy.release import NoiseAt, Release, Vector
from gdpfed.privacy.sampling.laws import ClientIds

if TYPE_CHECKING:
    from gdpfed.learning.training.optimizers import LocalTraining
    from gdpfed.methods.choose import Proposal

_CACHED = 2**16
"""Coordinates of a step that are computed at once, so that its terms stay in a core's cache."""

Theta = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False, kw_only=True)
class SumRequest(Release):
    """A method's request for one sum: what clients compute for it, their clipping norms, and its noise.

    Attributes:
        start: the model that clients start from, shape (d,).
        training: how they train; None for the run's own training at the round's learning rate.
        window: tells sums of one round apart in which clients train in turn; from 0.
        norm_factor: F, in units of which norms and noise are; clients divide what they compute by it.
        indicator_share: rho, for a last coordinate that says whether the update was clipped; 0 for none.
            See `gdpfed.privacy.plan.AdaptiveClipping`, by which the run sets both.
        coordinates: how many a contribution has; None for those of the model.
        settings: of a vote, one after the other.
    """

    start: Theta
    training: "LocalTraining | None" = None
    window: int = 0
    norm_factor: float = 1.0
    indicator_share: float = 0.0
    coordinates: int | None = None
    settings: tuple[float, ...] = ()

    @property
    def told(self) -> dict[str, Any]:
        """Return, by name and in fixed order, the values that the server sends clients with this request."""
        names = ("noise", "work", "window", "norm_factor", "indicator_share", "taps", "settings")
        return {name: getattr(self, name) for name in names}

    @property
    def dimension(self) -> int:
        """The number of coordinates of the sum."""
        return self.coordinates or len(self.start) + (self.indicator_share > 0)


@dataclass(frozen=True, eq=False)
class ClientSum:
    """The result of one requested sum: the sum itself, or None if too few clients were left for it.

    Attributes:
        total: float64[d], y_m; or None.
        survivors: how many clients are in it.
        failure: why there is none, in one line.
        upload_bytes: what a client sent for it, in bytes a coordinate.
        noise_stddev: C sigma, the standard deviation of the noise that was asked for, at least.
        groups, members: whose cohorts it was asked of, and the ids of those clients.
        share_stddev: the standard deviation of each one's noise in it; 0 where the server adds the noise.
        asked: how many members it had where they share the noise, those without an update included.
        taken_back: who took noise back in it, and of which earlier round: pairs.
    """

    name: str
    total: Vector | None
    survivors: int
    failure: str | None = None
    upload_bytes: float = 0.0
    noise_stddev: float = 0.0
    groups: tuple[int, ...] = ()
    members: Sequence[int] = ()
    share_stddev: float = 0.0
    asked: int = 0
    taken_back: Sequence[tuple[int, int]] = ()


Cohorts = Sequence[ClientIds]
SumUpdates = Callable[[Sequence[SumRequest]], list[ClientSum]]
"""Charges requests and has them summed; refuses what goes beyond the plan."""


@dataclass(frozen=True, kw_only=True)
class PlanTable:
    """A table in which a method shows its privacy plan to the user: title, headings, rows and notes.

    Attributes:
        title: above it.
        headings: of its columns.
        rows: one cell a heading; a cell may have several lines.
        notes: below it, a paragraph each.
        text_columns: headings of columns with words, which begin at the left; figures end at the right.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    text_columns: Sequence[str] = ()


RunOption = Literal["adaptive clipping", "any optimizer", "client state", "turns", "vote"]
"""What a method may allow a run: that one factor moves all norms, as a round is one sum of updates under one
noise; that clients step otherwise than by SGD, as no bound and no step of the server follows from it; that
clients keep something between their rounds, as these are sums of updates; that the plan holds against
everyone, by turns (`Method.make_turn_plan`); that clients vote on settings, as each can try a run alone."""

CurveStyle = tuple[str, Any, str]
"""Colour, dash and marker of a curve, as matplotlib takes them."""


class Method(ABC):
    """A federated method: it makes the privacy plan, requests sums, and computes the next model.

    Attributes:
        name: what it is chosen by, as in ``method=<name>``.
        label: its name in print; where it is empty, its name.
        curve: colour, dash and marker of its curves, the same in every picture; None for what is free.
        config_class: the dataclass of its options, which stand in ``conf/method/<name>.yaml``.
        unit: whose presence its plans protect; None for one that goes with any, as without a promise.
        compared: whether its plans have one sum of a client a round, and so stand beside those of others.
        differences: values of ``method.heterogeneous`` that are compared where records are protected.
        private: whether it promises anything; privacy.against has no meaning for one that does not.
        usually_against_everyone: whether it does so by default, whatever the data set recommends.
        goes_with: which options of a run it allows, see `RunOption`.
        clients_are_edges: whether clients are edges with runs of their own, which hear when this one ends.
        announced: digest of what clients were told before the plan was made; empty where nothing was.
        reads_alone: whether the server reads every contribution alone, so that one client is enough.
    """

    name: ClassVar[str]
    label: ClassVar[str] = ""
    curve: ClassVar[CurveStyle | None] = None
    unit: ClassVar[Unit | None] = "client"
    private: ClassVar[bool] = True
    usually_against_everyone: ClassVar[bool] = False
    compared: ClassVar[bool] = True
    differences: ClassVar[Sequence[str]] = ()
    config_class: ClassVar[type[MethodConfig]] = MethodConfig
    clients_are_edges: ClassVar[bool] = False
    goes_with: ClassVar[tuple[RunOption, ...]] = ("any optimizer",)
    announced: str = ""
    reads_alone: bool = False

    def __init__(self, plan: PrivacyPlan, weighting: Weighting, *, server_learning_rate: float) -> None:
        self.plan = plan
        self.weighting = weighting
        self.server_learning_rate = server_learning_rate

    def least_members(self, config: Config) -> int:
        """Return the smallest number of clients over which the server may see a sum."""
        return 1 if self.reads_alone else config.secagg.minimum_cohort

    @classmethod
    def resolve(cls, config: Config) -> Config:
        """Return the configuration with all open settings chosen; by default, return it unchanged.

        It may choose settings from public quantities. What is resolved resolves to itself, for a resumed run.
        """
        return config

    @classmethod
    def proposals(cls, config: Config) -> "tuple[Config, list[Proposal]] | None":
        """Choose the settings that the user left open, with reasons; return None if no rule exists for it."""
        return None

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Make the method with its privacy plan, from a configuration in which no setting is left open."""
        plan = cls.planned(config)
        if config.privacy.clipping == "adaptive":
            plan = with_adaptive_clipping(
                plan,
                quantile=config.privacy.clipping_quantile,
                learning_rate=config.privacy.clipping_learning_rate,
                fraction_noise=config.privacy.clipping_noise,
            )
        return cls(
            plan,
            cls.make_weighting(config, plan),
            server_learning_rate=config.method.server_learning_rate,
        )

    @classmethod
    def planned(cls, config: Config) -> PrivacyPlan:
        """Make the privacy plan against the configured attacker (`privacy.against`)."""
        return cls.make_turn_plan(config) if config.privacy.against == "everyone" else cls.make_plan(config)

    @classmethod
    @abstractmethod
    def make_plan(cls, config: Config) -> PrivacyPlan:
        """Return the method's privacy plan under this configuration."""

    @classmethod
    def make_turn_plan(cls, config: Config) -> PrivacyPlan:
        """Return a plan with scheduled rounds for each client (turns); its epsilon holds against everyone."""
        raise TypeError(f"{cls.name} plans no turns under {config.privacy.against}")

    @classmethod
    def make_weighting(cls, config: Config, plan: PrivacyPlan) -> Weighting:
        """Return the weights of the groups' sums in the model update, by the rule ``method.reweighting``."""
        return Weighting.of(plan, getattr(config.method, "reweighting", "uniform"))

    def describe(self) -> dict[str, Any]:
        """Return the privacy plan and the weights of groups' sums as a JSON object, to print and save."""
        return {**self.plan.to_dict(), "weighting": self.weighting.to_dict(self.plan)}

    def plan_tables(self) -> Sequence[PlanTable]:
        """Return the tables that show the privacy plan in `gdpfed plan` and logs; () for the usual table."""
        return ()

    def draw_plan(self, path: Path) -> bool:
        """Draw the privacy plan into a PNG file; return False if the method has no such picture."""
        return False

    def observers(self, directory: Path) -> Sequence[Any]:
        """Return the method's own objects that are told of every round of the run in this directory."""
        return ()

    def requests(self, theta: Theta, round_index: int, cohorts: Cohorts) -> list[SumRequest]:
        """Return the requests for a round's sums: by default one for each group, noised by the clients."""
        ranges = [group.at(round_index) for group in self.plan.groups]
        return [
            SumRequest(
                name=f"group {index}",
                clients=cohort,
                clipping_norm=round_range.clipping_norm,
                noise_multiplier=round_range.noise_multiplier,
                noise_at=self.noise_at,
                noise=self.plan.noise,
                taps=taps_of(self.plan.mechanism, index),
                start=theta,
            )
            for index, (round_range, cohort) in enumerate(zip(ranges, cohorts, strict=True))
        ]

    @property
    def noise_at(self) -> NoiseAt:
        return NoiseAt.CLIENT if self.plan.private else NoiseAt.NOWHERE

    def requests_ahead(self, theta: Theta, round_index: int, draw: Callable[[], Cohorts]) -> list[SumRequest]:
        """Return the next round's requests that are already known, so that clients can agree on keys early.

        Clients agree on the keys of these sums while the round before is still running, which saves two
        of its four exchanges. A request that then comes otherwise agrees on keys of its own. A method
        that asks for its sums one after the other returns those it asks for first, or []; ``draw`` draws
        the next round's cohorts, before anybody else does. Of where it starts only the length is known yet.
        """
        return self.requests(theta, round_index, draw())

    def sample(self, round_index: int) -> Cohorts:
        """Return a round's cohorts, for methods in which released values decide who is sampled."""
        raise TypeError(f"{self.name}, round {round_index}: the plan's sampling draws the cohorts")

    def take_counts(self, counts: npt.NDArray[np.float64]) -> None:
        """Receive the noised class counts that every client released before the first round, shape (n, B)."""
        raise TypeError(
            f"{self.name} does not use class counts, and was given those of {len(counts)} clients"
        )

    def noted(self, round_index: int) -> dict[str, float]:
        """Return values, by name, that single clients released in a round, for the log; empty by default."""
        return {}

    def round(
        self, theta: Theta, round_index: int, cohorts: Cohorts, sum_updates: SumUpdates
    ) -> tuple[Theta, list[ClientSum]]:
        """Carry out a round: return the next model theta^{t+1}, and the sums from which it was computed."""
        sums = sum_updates(self.requests(theta, round_index, cohorts))
        return self.step(theta, sums), sums

    def step(self, theta: Theta, sums: Sequence[ClientSum]) -> Theta:
        """Return the next model, theta + server_learning_rate * sum_m omega_m * transform_m(y_m).

        It is float32[d] -> float32[d]. y_m is the released sum of group m, and omega_m its weight. A group
        whose sum is missing contributes nothing.
        """
        released = [
            (weight, self.transform(index, each.total))
            for index, (weight, each) in enumerate(zip(self.sum_weights, sums, strict=True))
            if each.total is not None
        ]
        moved = np.empty(len(theta), np.float32)
        for start in range(0, len(theta), _CACHED):
            part = slice(start, start + _CACHED)
            update = sum((weight * total[part] for weight, total in released), np.zeros(1))
            moved[part] = theta[part] + self.server_learning_rate * update
        return moved

    @property
    def weighs_by_batch(self) -> bool:
        """Whether a client's weight is proportional to its expected batch size, in record-level DP."""
        return False

    @property
    def sum_weights(self) -> list[float]:
        """omega: the weight of each sum of a round in the model update, in the order of requests."""
        return list(self.weighting.group_weights)

    def transform(self, group_index: int, total: Vector) -> Vector:
        """Change a group's released sum before the model update, for example by top-k; costs no privacy."""
        return total

    def released(self, theta: Theta) -> Theta:
        """Return the model that is evaluated, saved and described in the model card; by default theta itself.

        It is made of theta and of what :meth:`state_dict` holds, so of released sums only: post-processing,
        which costs no privacy. It changes neither, and may be asked for twice.
        """
        return theta

    def state_dict(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the method's state between rounds, computed from released sums only; empty by default.

        It is part of every checkpoint, so that a resumed run goes on as if it had never stopped.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Restore the state that :meth:`state_dict` returned; raise ValueError for another method's state."""
        if state:
            raise ValueError(
                f"{self.name} keeps no state in a checkpoint, but found {', '.join(sorted(state))}"
            )


class ConfiguredMethod(Method):
    """A method that keeps the run's configuration, since it needs settings in every round.

    Attributes:
        config: of the run.
    """

    def __init__(self, plan: PrivacyPlan, config: Config) -> None:
        super().__init__(
            plan,
            self.make_weighting(config, plan),
            server_learning_rate=config.method.server_learning_rate,
        )
        self.config = config

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Make the method with its privacy plan, from a configuration in which no setting is left open."""
        return cls(cls.planned(config), config)
