"""ALI-DPFL: DP-SGD on every client, where a rule plans the number of local steps before the run.

Source: "ALI-DPFL: Differentially Private Federated Learning with Adaptive Local Iterations", appendix, proof
of Theorem 1, corrected as docs/records.md says; the rules ``budget`` and ``knee`` are this project's. All of
them follow from public numbers and plan the whole run before it begins.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from conf.limits import MOST_STEPS
from conf.schema import Config, MethodConfig, require
from gdpfed.errors import PrivacyError, not_known
from gdpfed.methods.base import CurveStyle, RunOption
from gdpfed.methods.dp_sgd import DPSGD, DPSGDConfig
from gdpfed.methods.party_budgets import configured_parties
from gdpfed.methods.rates import configured_delta, renyi_orders
from gdpfed.methods.record_method import configured_dimension, configured_records, epsilons_of
from gdpfed.privacy.accountants.accountant import Accountant, make_accountant
from gdpfed.privacy.mechanisms.records.calibration import evenly_spread, knee_steps, step_noise, steps_allowed


@dataclass(frozen=True, kw_only=True)
class Convergence:
    """Assumptions about the loss and the noise, from which a convergence bound follows.

    Attributes:
        smoothness: L of every client's loss.
        strong_convexity: mu.
        heterogeneity: Gamma = F* - sum_i p_i F_i*, at least 0.
        initial_distance: Delta_1, the squared distance of the first model from the best one.
        clipping_norm: C, which must be above every gradient for the bound to hold.
        step_noise: N = sigma^2 C^2 d / B^2, the mean squared norm of a client's noise in a step.
        noise_share: sum_i p_i^2: what averaging over clients leaves of N.
    """

    smoothness: float
    strong_convexity: float
    heterogeneity: float
    initial_distance: float
    clipping_norm: float
    step_noise: float
    noise_share: float


def loss_bound(known: Convergence, local_steps: int, num_steps: int) -> float:
    """Return an upper bound on the excess loss E F(w_T) - F* after T = `num_steps` steps.

    With tau = `local_steps` a round it is
    (L / 2) (4 A / mu^2 + (g0 + 1) Delta_1) / (g0 + T) with g0 = 2 L / mu and
    A = 2 ((tau - 1) C + sqrt((tau - 1) N))^2 + 2 C^2 + 2 L Gamma + N sum_i p_i^2.
    """
    tau, norm = local_steps, known.clipping_norm
    drift = (tau - 1) * norm + math.sqrt((tau - 1) * known.step_noise)
    start = 2 * known.smoothness / known.strong_convexity
    disturbance = (
        2 * drift**2
        + 2 * norm**2
        + 2 * known.smoothness * known.heterogeneity
        + known.step_noise * known.noise_share
    )
    numerator = 4 * disturbance / known.strong_convexity**2 + (start + 1) * known.initial_distance
    return known.smoothness / 2 * numerator / (start + num_steps)


def steps_of_bound(
    known: Convergence, *, num_rounds: int, most_local_steps: int, steps_allowed: int | None = None
) -> int:
    """Return the number of local steps, at most `most_local_steps`, that minimises the bound on the loss."""

    def bound(tau: int) -> float:
        steps = num_rounds * tau
        return loss_bound(known, tau, steps if steps_allowed is None else min(steps, steps_allowed))

    return min(range(1, most_local_steps + 1), key=bound)


def steps_as_printed(known: Convergence, learning_rate: float) -> float:
    """Return the local steps tau by the ALI-DPFL paper's formula, for comparison only: its proof is wrong.

    sqrt(1 + (4 / mu^2 + 3 C^2 + 2 Gamma / eta + N) / ((2 + eta mu) Z)) with Z = C^2 + N.
    """
    mu, square = known.strong_convexity, known.clipping_norm**2
    rest = 4 / mu**2 + 3 * square + 2 * known.heterogeneity / learning_rate + known.step_noise
    return math.sqrt(1 + rest / ((2 + learning_rate * mu) * (square + known.step_noise)))


RULES = ("fixed", "printed", "bound", "budget", "knee")
NOISE_FIRST = ("printed", "bound", "budget")
MOST_STEPS_A_ROUND = MOST_STEPS
OF_BOUNDS = ("strong_convexity", "smoothness", "initial_distance")


@dataclass
class ALIDPFLConfig(DPSGDConfig):
    """The options of method=ali_dpfl, in addition to those of dp_sgd."""

    rule: str = "knee"
    most_local_steps: int = 50
    strong_convexity: float | None = None
    smoothness: float | None = None
    heterogeneity: float = 0.0
    initial_distance: float | None = None

    def validate(self) -> None:
        super().validate()
        require(self.rule in RULES, not_known(f"method.rule={self.rule}", RULES))
        require(
            1 <= self.most_local_steps <= MOST_STEPS_A_ROUND,
            f"method.most_local_steps={self.most_local_steps} must be from 1 to {MOST_STEPS_A_ROUND:.0f}",
        )
        require(
            self.rule not in NOISE_FIRST or self.noise_multiplier is not None,
            f"method.rule={self.rule} finds the steps that go with a noise: set method.noise_multiplier, or "
            "use method.rule=knee, which finds both",
        )
        require(
            self.rule != "knee" or self.noise_multiplier is None,
            f"method.noise_multiplier={self.noise_multiplier} does not go with method.rule=knee, which "
            "finds it: leave it out, or use method.rule=budget",
        )
        require(self.heterogeneity >= 0, f"method.heterogeneity={self.heterogeneity} must not be negative")
        for key in OF_BOUNDS:
            value = getattr(self, key)
            require(
                value is None or 0 < value < float("inf"), f"method.{key}={value} must be positive and finite"
            )
            require(
                value is not None or self.rule not in ("printed", "bound"),
                f"method.rule={self.rule} needs method.{key}, a guess from public knowledge: nothing may be "
                "estimated from the clients' data without being charged",
            )


class ALIDPFL(DPSGD):
    """ALI-DPFL: DP-SGD on every client, where a rule chooses the number of local steps in each round."""

    name: ClassVar[str] = "ali_dpfl"
    label: ClassVar[str] = "ALI-DPFL"
    curve: ClassVar[CurveStyle | None] = ("#18D0C0", "-.", "d")
    goes_with: ClassVar[tuple[RunOption, ...]] = ()
    config_class: ClassVar[type[MethodConfig]] = ALIDPFLConfig

    @classmethod
    def schedule(cls, config: Config, num_rounds: int) -> Sequence[int]:
        """Return the number of local steps in each round, planned by the configured rule ``method.rule``.

        Raises ConfigError: more steps in a round than a client takes.
        """
        schedule = cls._by_rule(config, num_rounds)
        require(
            max(schedule) <= MOST_STEPS_A_ROUND,
            f"method.rule={config.method.rule} plans {max(schedule)} steps a round, and a client takes up to "
            f"{MOST_STEPS_A_ROUND:.0f}: set a smaller method.noise_multiplier, or more run.num_rounds",
        )
        return schedule

    @classmethod
    def _by_rule(cls, config: Config, num_rounds: int) -> Sequence[int]:
        method, accountant = config.method, make_accountant(config.privacy.accountant, renyi_orders(config))
        if method.rule == "fixed":
            return (config.training.local_steps,) * num_rounds
        if method.rule == "knee":
            return (_steps_at_knee(config, accountant, num_rounds),) * num_rounds
        largest, sigma = max(epsilons_of(config)), method.noise_multiplier
        paid = steps_allowed(
            accountant,
            epsilon=largest,
            delta=configured_delta(config),
            batch_rate=config.privacy.batch_rate,
            noise_multiplier=sigma,
        )
        allowed = paid // (configured_parties(config) or 1)
        if allowed == 0:
            raise PrivacyError(
                f"epsilon {largest:g} allows no step at "
                f"privacy.batch_rate={config.privacy.batch_rate:g} and method.noise_multiplier={sigma:g}: "
                "use more noise or a smaller batch rate"
            )
        # Where not every client is in every round, rounds have equal numbers of steps or none.
        whole_rounds = config.privacy.sampling_rate < 1
        if method.rule == "budget":
            if not whole_rounds:
                return evenly_spread(allowed, num_rounds)
            return _up_to(allowed, max(1, allowed // num_rounds), num_rounds, whole_rounds=True)
        known = convergence(config)
        if method.rule == "bound":
            tau = steps_of_bound(
                known,
                num_rounds=num_rounds,
                most_local_steps=method.most_local_steps,
                steps_allowed=allowed,
            )
        else:
            printed = steps_as_printed(known, config.training.learning_rate)
            tau = max(1, min(round(printed), method.most_local_steps))
        return _up_to(allowed, tau, num_rounds, whole_rounds=whole_rounds)


def convergence(config: Config) -> Convergence:
    """Return the assumptions of the convergence bound, from the configured model, data and noise.

    d is that of the configured model, B the mean expected batch, p_i = D_i / sum D.
    """
    method, counts = config.method, configured_records(config)
    dimension = configured_dimension(config)
    batch = config.privacy.batch_rate * float(counts.mean())
    norm = config.privacy.clipping_norm
    shares = counts / counts.sum()
    return Convergence(
        smoothness=method.smoothness,
        strong_convexity=method.strong_convexity,
        heterogeneity=method.heterogeneity,
        initial_distance=method.initial_distance,
        clipping_norm=norm,
        step_noise=(method.noise_multiplier * norm) ** 2 * dimension / batch**2,
        noise_share=float(np.square(shares).sum()),
    )


def _steps_at_knee(config: Config, accountant: Accountant, num_rounds: int) -> int:
    largest, rate, delta = max(epsilons_of(config)), config.privacy.batch_rate, configured_delta(config)
    parties = configured_parties(config) or 1

    def noise_of(num_steps: int) -> float:
        paid = num_steps * parties
        return step_noise(accountant, epsilon=largest, delta=delta, batch_rate=rate, num_steps=paid)

    return knee_steps(noise_of, num_rounds, config.method.most_local_steps)


def _up_to(allowed: int, tau: int, num_rounds: int, *, whole_rounds: bool) -> Sequence[int]:
    """Give rounds `tau` steps each; a last round gets the remainder of `allowed`, unless `whole_rounds`."""
    full, rest = divmod(allowed, tau)
    last = () if whole_rounds else (rest,)
    return ((tau,) * full + last + (0,) * num_rounds)[:num_rounds]
