"""The options of method=fedpcs, and what each kind of local computation protects and costs.

`full_gradient` is the source's mathematics; `update` and `dp_sgd` are local training with an accounting.
"""

from dataclasses import dataclass
from math import inf
from typing import Any, cast, get_args

from conf.schema import CLIENTS, Config, MethodConfig, require
from conf.schema.ranges import Seed
from gdpfed.errors import ConfigError, not_known
from gdpfed.extras.fedpcs.client_budgets import ClientBudgets
from gdpfed.extras.fedpcs.node_game import plays_with_nodes
from gdpfed.extras.fedpcs.released_draws import RULES
from gdpfed.extras.fedpcs.spending_plan import StepBudgets
from gdpfed.extras.fedpcs.weighted_draws import Draws
from gdpfed.methods.rates import configured_delta
from gdpfed.privacy.events import Adjacency, Unit
from gdpfed.record_steps import Work


@dataclass(frozen=True, kw_only=True)
class LocalWork:
    """A kind of local computation in FedPCS: what a client computes in a round, and whom its noise protects.

    `unit`: what its noise protects. `work`: what clients are asked for. `adjacency`: what two neighbouring
    runs differ in; None for the configured one. `in_steps`: whether its cost is that of steps on batches, and
    no zCDP by round.
    """

    unit: Unit
    work: Work
    adjacency: Adjacency | None
    in_steps: bool = False


LOCAL_WORKS = {
    "full_gradient": LocalWork(unit="record", work="dp_sgd", adjacency="replace_one"),
    "update": LocalWork(unit="client", work="noised_update", adjacency=None),
    "dp_sgd": LocalWork(unit="record", work="dp_sgd", adjacency="zero_out", in_steps=True),
}


def local_work(config: Config) -> LocalWork:
    """Return the configured kind of local computation; raise ConfigError if settings do not go with it."""
    chosen, privacy = config.method.local, config.privacy
    work = LOCAL_WORKS[chosen]
    if privacy.unit != work.unit:
        others = " or ".join(name for name, each in LOCAL_WORKS.items() if each.unit == privacy.unit)
        raise ConfigError(
            f"method=fedpcs with method.local={chosen} protects a {work.unit}, not privacy.unit="
            f"{privacy.unit}: set privacy={work.unit}_level, or method.local={others}"
        )
    if privacy.noise != "gaussian":
        raise ConfigError(
            f"privacy.noise={privacy.noise} is noise that clients share, and each client of method=fedpcs "
            "adds its own: leave privacy.noise=gaussian"
        )
    if plays_with_nodes(config) and chosen != "full_gradient":
        raise ConfigError(
            f"method.types=clients has nodes check paths of full gradients, not of method.local={chosen}: "
            "use method.local=full_gradient, or method.types=configuration"
        )
    if work.in_steps and config.method.client_sampling == "unbiased":
        raise ConfigError(
            "method.client_sampling=unbiased needs the noise that a budget buys, and that of "
            "method.local=dp_sgd is found once the sampling is known: use method.client_sampling=random"
        )
    return work


def adjacency_of(config: Config) -> Adjacency:
    """Return the difference between neighbouring runs: a record or client is left out, or replaced."""
    return local_work(config).adjacency or cast("Adjacency", config.privacy.adjacency)


def paid_by(config: Config, spending: ClientBudgets) -> ClientBudgets:
    """Return the budgets unchanged or, for DP-SGD steps, with the noise of steps that these budgets pay for.

    Raises PrivacyError: budgets for which no noise is sought.
    """
    if not local_work(config).in_steps:
        return spending
    return StepBudgets.of(
        spending,
        steps=config.training.local_steps,
        rate=config.privacy.batch_rate,
        delta=configured_delta(config),
    )


TYPES = ("configuration", "clients")
CLIENT_SAMPLING = ("budgets", "random", "first_budgets", "unbiased", *RULES)
SPENDING = ("equal", "first", "paper")
WEIGHTS = ("budget", "records", "horvitz_thompson", "paper")
BEST = "best"
MOST_ANNOUNCEMENTS = 1_000


@dataclass
class FedPCSConfig(MethodConfig):
    """The options of method=fedpcs, in addition to the options of all methods."""

    local: str = "full_gradient"
    types: str = "configuration"
    seed: Seed | None = None
    aversions: list[float] | None = None
    first_budgets: list[float] | None = None
    least_budget: float = 0.01
    highest_budget: float = 12.0
    budget_scale: float = 1.0
    reward: Any = 5.0
    server_weight: float = 0.5
    accuracy_scale: float | None = None
    caps: list[float] | None = None
    client_sampling: str = "budgets"
    counts_rho: float | None = None
    spending: str = "equal"
    draws: str = "poisson"
    weights: str = "budget"
    max_participations: int | None = None
    most_announcements: int = 60
    announced: list[Any] | None = None
    paths: list[Any] | None = None

    def validate(self) -> None:
        super().validate()
        require(
            self.client_sampling != "aocs",
            "method.client_sampling=aocs cannot be charged: it reads the norm of every client's update, and "
            "each weight that a client uses reveals its norm; use random or the data-free unbiased here, or "
            "method=sampled_fedavg without privacy",
        )
        for key, known in (
            ("local", tuple(LOCAL_WORKS)),
            ("types", TYPES),
            ("client_sampling", CLIENT_SAMPLING),
            ("spending", SPENDING),
            ("draws", get_args(Draws)),
            ("weights", WEIGHTS),
        ):
            value = getattr(self, key)
            require(value in known, not_known(f"method.{key}={value}", known))
        rho = self.counts_rho
        require(rho is None or 0 < rho < inf, f"method.counts_rho={rho} must be above 0, or null")
        require(
            self.client_sampling != "fed_cbs" or rho is not None,
            "method.client_sampling=fed_cbs cannot be charged: it reads how many records of each class every "
            "client has; set method.counts_rho=0.1, the zCDP at which each releases them once with noise, or "
            "use method=sampled_fedavg without privacy",
        )
        self._validate_nodes()
        least, highest = self.least_budget, self.highest_budget
        require(
            0 < least < highest < inf,
            f"method.least_budget={least} must be above 0 and below method.highest_budget={highest}",
        )
        require(0 < self.budget_scale < inf, f"method.budget_scale={self.budget_scale} must be above 0")
        self._validate_reward()
        most = self.max_participations
        require(most is None or most >= 1, f"method.max_participations={most} must be at least 1, or null")
        require(
            (self.draws, self.weights) != ("with_replacement", "paper"),
            "method.weights=paper with method.draws=with_replacement is unbiased only if a client counts as "
            "often as it is drawn, and a client answers once a round: use method.weights=horvitz_thompson",
        )

    def _validate_nodes(self) -> None:
        """Raise ConfigError for options that do not fit method.types (who knows clients' preferences)."""
        most = self.most_announcements
        require(1 <= most <= MOST_ANNOUNCEMENTS, f"method.most_announcements={most} must be from 1 to 1000")
        ours = {"aversions": None, "first_budgets": None, "caps": None, "client_sampling": "budgets"}
        if self.types != CLIENTS:
            ours = {"announced": None, "paths": None}
        for key, usual in ours.items():
            value = getattr(self, key)
            require(
                value == usual,
                f"method.{key}={value} does not go with method.types={self.types}: leave it out",
            )
        require(
            self.types != CLIENTS or self.reward != BEST,
            "method.reward=best needs every client's aversion, which method.types=clients leaves with the "
            "nodes: give a number",
        )
        require(
            (self.announced is None) == (self.paths is None),
            "method.announced and method.paths are what nodes have answered: leave both out, or give both",
        )

    def _validate_reward(self) -> None:
        rewards = self.reward if isinstance(self.reward, list) else [self.reward]
        numbers = all(type(each) in (int, float) and 0 <= each < inf for each in rewards)
        require(
            self.reward == BEST or (numbers and bool(rewards)),
            f"method.reward={self.reward} must be {BEST}, a number from 0, or one for each round",
        )
        require(0 <= self.server_weight < 1, f"method.server_weight={self.server_weight} must be in [0, 1)")
        scale, caps = self.accuracy_scale, self.caps
        require(scale is None or 0 < scale < inf, f"method.accuracy_scale={scale} must be above 0, or null")
        require(
            caps is None or (len(caps) == 2 and all(0 < each < inf for each in caps)),
            f"method.caps={caps} must be the first and the last round's, as in method.caps=[700,300]",
        )
        require(
            caps is None or self.reward != BEST,
            f"method.caps={caps} sets the number of sampled clients, which method.reward={BEST} takes as "
            "given: leave one out",
        )
