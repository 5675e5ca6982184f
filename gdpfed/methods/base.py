"""The base class of all federated methods, which plan privacy, request sums, and update the model.

The round loop uses a method only through this class. It draws the cohorts by the plan, charges the round, and
calls :meth:`Method.round`. This asks for the round's sums: all at once (the default), or one after the other,
each from another model. The ledger checks every request, and refuses what the plan has not charged.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from conf.schema import Config, MethodConfig
from gdpfed.errors import ConfigError
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
"""The number of coordinates of a step that are computed at once, so that they stay in a core's cache."""

Theta = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False, kw_only=True)
class SumRequest(Release):
    """A method's request for one sum: what clients compute for it, their clipping norms, and its noise.

    Attributes:
        start: the model that clients start from, shape (d,).
        training: how clients train; None for the run's own training at the round's learning rate.
        window: the number of the training, from 0, if clients train several times in one round.
        norm_factor: F, the unit of norms and noise; clients divide what they compute by F.
        indicator_share: rho, for a last coordinate that says whether the update was clipped; 0 for no such
            coordinate. The run sets F and rho by `gdpfed.privacy.plan.AdaptiveClipping`.
        coordinates: the number of coordinates of a contribution; None for the model's number.
        settings: the settings of a vote, one after the other.
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
        total: float64[d], the sum y_m; or None.
        survivors: the number of clients whose contribution is in the sum.
        failure: why there is no sum, in one line.
        upload_bytes: the bytes for each coordinate that a client sent.
        noise_stddev: C sigma, the least standard deviation of the noise that was asked for.
        groups, members: the groups of the sum, and the ids of the clients whose contribution is in it.
        share_stddev: the standard deviation of each client's noise in it; 0 if the server adds the noise.
        asked: if clients add the noise, the number of members, those without an update included.
        taken_back: pairs of a client that subtracted noise in it, and the earlier round of that noise.
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
        title: the text above the table.
        headings: the headings of its columns.
        rows: one cell for each heading; a cell may have several lines.
        notes: paragraphs below the table.
        text_columns: headings of columns that are aligned to the left; the others are aligned to the right.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    text_columns: Sequence[str] = ()


RunOption = Literal["adaptive clipping", "any optimizer", "client state", "turns", "vote"]
"""What a method may allow a run. adaptive clipping: one factor scales all clipping norms; a round must be one
sum of updates. any optimizer: clients use another optimizer than SGD; no bound may depend on SGD. client
state: clients keep values between rounds; the sums must be of updates. turns: the plan holds against everyone
(`Method.make_turn_plan`). vote: clients vote on settings; each client must be able to try a run alone."""

CurveStyle = tuple[str, Any, str]
"""Colour, dash and marker of a curve, as matplotlib takes them."""


class Method(ABC):
    """A federated method: it makes the privacy plan, requests sums, and computes the next model.

    Attributes:
        name: the method's name in ``method=<name>``.
        label: its name in print; if empty, `name`.
        curve: colour, dash and marker of its curves in all pictures; None for any unused style.
        config_class: the dataclass of its options, whose defaults are in ``conf/method/<name>.yaml``.
        unit: the privacy unit of its plans; None if it works with any unit, such as a method without privacy.
        compared: whether a client is in one sum a round, so that plans can be compared with other methods'.
        differences: the values of ``method.heterogeneous`` that are compared if records are protected.
        private: whether it promises privacy; without a promise, privacy.against has no meaning.
        usually_against_everyone: whether privacy.against is everyone by default, for all data sets.
        goes_with: the options of a run that it allows, see `RunOption`.
        clients_are_edges: whether clients are edges with their own runs; they are told when this run ends.
        announced: digest of what clients were told before the plan was made; empty if they were told nothing.
        reads_alone: whether the server reads every contribution separately, so that one client is enough.
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
        """Return the smallest number of clients whose sum the server may see."""
        return 1 if self.reads_alone else config.secagg.minimum_cohort

    @classmethod
    def resolve(cls, config: Config) -> Config:
        """Return the configuration with all open settings chosen; by default, return it unchanged.

        It may choose settings from public numbers only. A resolved configuration must resolve to itself,
        since a resumed run resolves it again.
        """
        return config

    @classmethod
    def proposals(cls, config: Config) -> "tuple[Config, list[Proposal]] | None":
        """Return a configuration with proposed settings, and the reasons; None if nothing is proposed."""
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
        raise ConfigError(f"{cls.name} has no make_turn_plan: write it, or use privacy.against=outsiders")

    @classmethod
    def make_weighting(cls, config: Config, plan: PrivacyPlan) -> Weighting:
        """Return the weights of the groups' sums in the model update, by the rule ``method.reweighting``."""
        return Weighting.of(plan, getattr(config.method, "reweighting", "uniform"))

    def describe(self) -> dict[str, Any]:
        """Return the privacy plan and the weights of groups' sums as a JSON object, to print and save."""
        return {**self.plan.to_dict(), "weighting": self.weighting.to_dict(self.plan)}

    def plan_tables(self) -> Sequence[PlanTable]:
        """Return the method's own tables of the privacy plan; if there are none, the usual table is shown."""
        return ()

    def draw_plan(self, path: Path) -> bool:
        """Draw the method's own picture of the privacy plan as a PNG file; return False if it has none."""
        return False

    def observers(self, directory: Path) -> Sequence[Any]:
        """Return the method's own observers, which the run in ``directory`` notifies of every round."""
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
        """Return the next round's requests early, so that clients can agree on keys before that round begins.

        They do so while the round before is still running, which saves two of four exchanges. If the next
        round's request differs, its clients agree on new keys. A method that asks for one sum after the other
        returns the first ones, or []. Of ``theta`` only the length is right. ``draw`` draws the next cohorts.
        """
        return self.requests(theta, round_index, draw())

    def sample(self, round_index: int) -> Cohorts:
        """Return a round's cohorts, for methods that sample by released values; others raise TypeError."""
        raise TypeError(f"{self.name}, round {round_index}: the plan's sampling draws the cohorts")

    def take_counts(self, counts: npt.NDArray[np.float64]) -> None:
        """Receive all clients' noised class counts before the first round, shape (clients, classes)."""
        raise TypeError(
            f"{self.name} does not use class counts, and was given those of {len(counts)} clients"
        )

    def noted(self, round_index: int) -> dict[str, float]:
        """Return values that single clients released in a round, by name, for the log; empty by default."""
        return {}

    def round(
        self, theta: Theta, round_index: int, cohorts: Cohorts, sum_updates: SumUpdates
    ) -> tuple[Theta, list[ClientSum]]:
        """Carry out a round: return the next model theta^{t+1}, and the sums from which it was computed."""
        sums = sum_updates(self.requests(theta, round_index, cohorts))
        return self.step(theta, sums), sums

    def step(self, theta: Theta, sums: Sequence[ClientSum]) -> Theta:
        """Return theta + server_learning_rate * sum_m omega_m * transform_m(y_m), where y_m is group m's sum.

        It is float32[d] -> float32[d]. y_m: the released sum of group m; omega_m: its weight. A missing sum
        counts as 0.
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
        """The weights omega of a round's sums in the model update, in the order of the method's requests."""
        return list(self.weighting.group_weights)

    def transform(self, group_index: int, total: Vector) -> Vector:
        """Change a group's released sum before the model update, for example by top-k; costs no privacy."""
        return total

    def released(self, theta: Theta) -> Theta:
        """Return the model to evaluate and save, computed from the trained model theta; by default theta.

        It is computed from theta and the values in :meth:`state_dict`, so from released sums only. This is
        post-processing and costs no privacy. The call changes neither, and may be repeated.
        """
        return theta

    def state_dict(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the method's state between rounds, computed from released sums only; empty by default.

        It is part of every checkpoint, so that a resumed run continues as without the stop.
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
        config: the run's configuration.
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
