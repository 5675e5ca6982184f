"""FedPCS: clients choose budgets in a game with posted rewards; the server samples clients by these budgets.

Source: Yuan, Wang, "A Game-Theoretic Framework for Privacy-Aware Client Sampling in Federated Learning", as
docs/fedpcs.md corrects it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from conf.schema import Config, MethodConfig
from gdpfed.errors import ConfigError
from gdpfed.extras.fedpcs.client_budgets import ClientBudgets
from gdpfed.extras.fedpcs.configured_game import Declared, check_rewards, played, spending_of
from gdpfed.extras.fedpcs.fedpcs_options import (
    BEST,
    FedPCSConfig,
    adjacency_of,
    local_work,
    paid_by,
)
from gdpfed.extras.fedpcs.game.mean_field import Equilibrium
from gdpfed.extras.fedpcs.game_tables import spending_tables
from gdpfed.extras.fedpcs.node_game import answered, answered_announcement, plays_with_nodes
from gdpfed.extras.fedpcs.own_spending import planned_spending
from gdpfed.extras.fedpcs.released_draws import draws_of, refuse_unfit_rule
from gdpfed.extras.fedpcs.spending_plan import spending_plan
from gdpfed.methods.base import (
    ClientSum,
    Cohorts,
    ConfiguredMethod,
    CurveStyle,
    PlanTable,
    RunOption,
    SumRequest,
    SumUpdates,
    Theta,
)
from gdpfed.methods.rates import configured_delta
from gdpfed.methods.record_method import configured_dimension
from gdpfed.privacy.events import Adjacency, Unit
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.release import NoiseAt
from gdpfed.privacy.sampling.laws import ClientIds
from gdpfed.record_steps import RecordSteps

Floats = npt.NDArray[np.float64]

OVER_MEMBERS = ("budget", "records")
"""Weights that are divided by those of all clients in the sum."""
DISTANCES: dict[Adjacency, float] = {"zero_out": 1.0, "replace_one": 2.0}


class FedPCS(ConfiguredMethod):
    """FedPCS: theta + sum_{i in S} w_i Delta_i over a sample S; each client noises its own update.

    Delta_i is, by `local`: `full_gradient`, - eta times the mean of the clipped gradients of all of a
    client's records, noised by 2 C / (D_i sqrt(2 rho_i^t)), as one record may be replaced by any other;
    `update`, the change by local training, clipped to C and noised by C / sqrt(2 rho_i^t), or twice that
    where a client may be replaced; `dp_sgd`, steps of DP-SGD, at the noise with which all steps of a run cost
    the epsilon of the total budget. The weights are public: `budget` gives w_i ~ 1 / variance of the noise,
    which is rho_i D_i^2 at one step a round, and `records` D_i, both over those in the sum;
    `horvitz_thompson` theta_i / pi_i, unbiased; `paper` theta_i / (K x_i), which is not, unless draws are
    with replacement. Where clients are protected, D_i is 1 for all.

    Samples follow from budgets, or from what clients have released before: of `fed_cbs` from noised class
    counts, of `delta` from noised gradients, each of which the server then reads alone.
    """

    name: ClassVar[str] = "fedpcs"
    label: ClassVar[str] = "FedPCS"
    curve: ClassVar[CurveStyle | None] = ("#300090", "--", "2")
    unit: ClassVar[Unit | None] = None
    compared: ClassVar[bool] = False
    config_class: ClassVar[type[MethodConfig]] = FedPCSConfig
    goes_with: ClassVar[tuple[RunOption, ...]] = ()

    def __init__(self, plan: PrivacyPlan, config: Config, found: Equilibrium, declared: Declared) -> None:
        super().__init__(plan, config)
        self.equilibrium, self.declared = found, declared
        told = answered_announcement(config)
        self.announced = "" if told is None else told.digest
        self.draws = draws_of(self.spending, declared.shares, config.run.seed)
        self.reads_alone = self.draws.reads_alone

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Solve the configured game, and make the method with the budgets of its equilibrium."""
        plan, found, declared = cls._planned(config)
        return cls(plan, config, found, declared)

    @classmethod
    def make_plan(cls, config: Config) -> PrivacyPlan:
        return cls._planned(config)[0]

    @classmethod
    def _planned(cls, config: Config) -> tuple[PrivacyPlan, Equilibrium, Declared]:
        privacy, method = config.privacy, config.method
        # What the data set recommends is there where nobody has given any. An older run may have others.
        given = privacy.budgets != config.dataset.budgets or privacy.budgets_of == "records"
        if given and config.run.resume is None:
            raise ConfigError(
                f"privacy.budgets={privacy.budgets} of {privacy.budgets_of} do not go with method=fedpcs, in "
                "which the game says what clients spend: leave them out, and set method.budget_scale or "
                "method.highest_budget"
            )
        most, rounds = method.max_participations, config.run.num_rounds
        if most is not None and most > rounds:
            raise ConfigError(
                f"method.max_participations={most} is above run.num_rounds={rounds}: leave it out"
            )
        check_rewards(config)
        refuse_unfit_rule(config)
        local, adjacency = local_work(config), adjacency_of(config)
        dimension = 1
        if method.client_sampling == "unbiased" or (method.reward == BEST and not method.accuracy_scale):
            # Only then does the plan depend on the number of the model's parameters.
            dimension = configured_dimension(config)
        declared = Declared.of(config, dimension=dimension, distance=DISTANCES[adjacency])
        found = answered(config) if plays_with_nodes(config) else played(config, declared)
        plan = spending_plan(
            paid_by(config, spending_of(config, found, declared)),
            unit=local.unit,
            adjacency=adjacency,
            work=local.work,
            clipping_norm=config.privacy.clipping_norm,
            delta=configured_delta(config),
            accountant=config.privacy.accountant,
            sums_hidden=config.secagg.hides_updates,
        )
        return plan, found, declared

    @property
    def spending(self) -> ClientBudgets:
        """Each client's budgets, and how clients are sampled."""
        return planned_spending(self.plan)

    @cached_property
    def inclusions(self) -> Floats:
        """pi_i^t: each client's probability to be sampled in each round, shape (num_rounds, n)."""
        return self.spending.inclusions()

    def client_weights(self, round_index: int) -> Floats:
        """Return w_i, the weight of each client's update in a round, shape (n,).

        Those over the clients in the sum have a common factor that is divided out.
        """
        by, shares = self.config.method.weights, self.declared.shares
        if by == "records":
            return self.declared.record_counts
        if by == "horvitz_thompson":
            chances = self.draws.chances(round_index)
            return np.asarray(shares / (self.inclusions[round_index] if chances is None else chances))
        if by == "paper":
            size = self.spending.cohort_sizes[round_index]
            return np.asarray(shares / (size * self.spending.draw_probabilities[round_index]))
        noise = self.spending.noise_multipliers(round_index, self.plan.mechanism.distance)
        return np.asarray((self.plan.mechanism.distance * self.declared.record_counts / noise) ** 2 / 2)

    @cached_property
    def noise_per_step(self) -> float:
        """A round's noise in a parameter, over the model's step if all clients' updates are alike, of norm C.

        Its square is sum_i pi_i w_i^2 s_i^2 / (sum_i pi_i w_i)^2, in the mean over the rounds. s_i is the
        noise of a client over C: sigma_i / (q D_i sqrt(tau)) for tau steps on batches of q D_i records, where
        both are 1 in all local work but `dp_sgd`.
        """
        spending, variances = self.spending, []
        records = spending.batch_rate * self.declared.record_counts * np.sqrt(spending.local_steps)
        for t, chances in enumerate(self.inclusions):
            weights = chances * self.client_weights(t)
            noise = spending.noise_multipliers(t, self.plan.mechanism.distance) / records
            variances.append((weights**2 / chances) @ noise**2 / weights.sum() ** 2)
        return float(np.sqrt(np.mean(variances)))

    def plan_tables(self) -> Sequence[PlanTable]:
        """Return tables of the game's result, by round and by client."""
        return spending_tables(self)

    def draw_plan(self, path: Path) -> bool:
        from gdpfed.extras.fedpcs.game_experiments import draw_game

        draw_game(self, path)
        return True

    def observers(self, directory: Path) -> Sequence[Any]:
        """Return the object that is told of every round and writes the clients' rewards to a file."""
        from gdpfed.extras.fedpcs.game_tables import RewardsFile

        return [RewardsFile(directory, self)]

    def describe(self) -> dict[str, Any]:
        """Return the plan as JSON, with the budget game's result and each client's total cost and payment."""
        spending, delta = self.spending, self.plan.delta
        game = {
            "rewards": self.equilibrium.rewards.tolist(),
            "mean_budgets": self.equilibrium.mean_budgets.tolist(),
            "announced": self.equilibrium.announced.tolist(),
            "converged": self.equilibrium.converged,
            "paths": self.equilibrium.budgets.tolist(),
            **self.equilibrium.types(),
            "record_counts": self.declared.record_counts.tolist(),
        }
        known = {} if spending.rule else {"inclusion_probabilities": self.inclusions.tolist()}
        totals = {
            **known,
            **spending.totals(delta),
            "expected_payments": self.expected_payments.tolist(),
        }
        return {**super().describe(), "game": game, "totals": totals}

    @property
    def expected_payments(self) -> Floats:
        """sum_t pi_i^t R_t rho_i^t: the expected payment to each client, shape (n,)."""
        return np.asarray(self.equilibrium.rewards @ (self.inclusions * self.played_budgets))

    @property
    def played_budgets(self) -> Floats:
        """The clients' budgets divided by `budget_scale`, so in the units in which rewards are stated."""
        return np.asarray(self.spending.budgets / self.config.method.budget_scale)

    def requests(self, theta: Theta, round_index: int, cohorts: Cohorts) -> list[SumRequest]:
        """Return one request for the sum of noised gradients or, to read each separately, one per client."""
        (cohort,) = cohorts
        if not len(cohort):
            return []
        if self.reads_alone:
            return [
                self._request(f"client {client}", theta, round_index, cohort[[i]], None)
                for i, client in enumerate(cohort)
            ]
        return [self._request("all clients", theta, round_index, cohort, self._scaled_weights(round_index))]

    def _scaled_weights(self, round_index: int) -> Floats:
        """Return the weights w_i scaled to a mean of 1, shape (n,)."""
        weights = self.client_weights(round_index)
        return np.asarray(weights / weights.mean())

    def _request(
        self, name: str, theta: Theta, round_index: int, cohort: ClientIds, weights: Floats | None
    ) -> SumRequest:
        noise = self.spending.noise_multipliers(round_index, self.plan.mechanism.distance)
        return SumRequest(
            name=name,
            clients=cohort,
            clipping_norm=inf,
            noise_multiplier=0.0,
            noise_at=NoiseAt.NOWHERE,
            client_weights=None if weights is None else weights[cohort],
            weight_range=None if weights is None else (float(weights.min()), float(weights.max())),
            work=self.plan.works[0],
            unit=self.plan.unit,
            records=[
                RecordSteps(
                    num_steps=self.spending.local_steps,
                    batch_rates=(self.spending.batch_rate,),
                    clipping_norm=self.plan.clipping_norm,
                    noise_multiplier=float(noise[client]),
                )
                for client in cohort
            ],
            alone=weights is None,
            start=theta,
        )

    def requests_ahead(self, theta: Theta, round_index: int, draw: Callable[[], Cohorts]) -> list[SumRequest]:
        """Return the next round's requests for sums; [] if they depend on values released in this round."""
        return [] if self.reads_alone else super().requests_ahead(theta, round_index, draw)

    def round(
        self, theta: Theta, round_index: int, cohorts: Cohorts, sum_updates: SumUpdates
    ) -> tuple[Theta, list[ClientSum]]:
        sums = sum_updates(self.requests(theta, round_index, cohorts))
        arrived = [each for each in sums if each.total is not None]
        if self.reads_alone and arrived:
            return (theta + self._change_alone(arrived, round_index)).astype(np.float32), sums
        for each in arrived:
            theta = (theta + self.change(each, round_index)).astype(np.float32)
        return theta, sums

    def _change_alone(self, arrived: Sequence[ClientSum], round_index: int) -> Floats:
        """Compute the model change from separate client gradients, which also decide who is sampled later."""
        from gdpfed.clients.configured import learning_rate_of  # Which imports torch.

        clients = np.array([client for each in arrived for client in each.members], dtype=np.int64)
        updates = np.stack([np.asarray(each.total) for each in arrived])
        total = self._scaled_weights(round_index)[clients] @ updates
        weighed = ClientSum("all clients", total, len(clients), members=clients.tolist())
        change = self.change(weighed, round_index)
        # Only now: the weights of this round are from its chances, which the distances move.
        rate = learning_rate_of(self.config, round_index)
        noise = (
            self.spending.noise_multipliers(round_index, self.plan.mechanism.distance)
            * self.plan.clipping_norm
        )
        stddevs = (noise / self.declared.record_counts)[clients]
        self.draws.take_gradients(round_index, clients, -updates / rate, stddevs)
        return change

    def sample(self, round_index: int) -> Cohorts:
        return (self.draws.sample(round_index),)

    def take_counts(self, counts: Floats) -> None:
        self.draws.take_counts(counts)

    def noted(self, round_index: int) -> dict[str, float]:
        return self.draws.noted(round_index)

    def state_dict(self) -> dict[str, npt.NDArray[np.generic]]:
        return self.draws.state_dict()

    def load_state_dict(self, state: Mapping[str, npt.NDArray[np.generic]]) -> None:
        self.draws.load_state_dict(state)

    def change(self, released: ClientSum, round_index: int) -> Floats:
        """Return the change of the model parameters by a released sum, shape (d,)."""
        weights = self.client_weights(round_index)
        scale = weights.mean()
        if self.config.method.weights in OVER_MEMBERS:
            scale /= weights[list(released.members)].sum()
        return np.asarray(self.server_learning_rate * scale * np.asarray(released.total))
