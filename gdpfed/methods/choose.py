"""Proposes settings of a run before it starts, from public numbers alone (not from clients' data).

It reads the number of clients, their budgets and delta, the sampling rate, and the local steps and learning
rate as configured. It looks at no data, accuracy or model: a heuristic that costs no budget, and not optimal.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from conf.schema import Config
from gdpfed.errors import ConfigError
from gdpfed.methods import METHODS, resolve
from gdpfed.methods.party_budgets import configured_groups
from gdpfed.methods.rates import configured_delta
from gdpfed.methods.weighting import RELATIVE_NOISE, step_of_noise
from gdpfed.privacy.accountants.gaussian import gaussian_sigma

ROUNDS = (10, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1000)
ENOUGH = 0.9
"""Stop at this fraction of the signal-to-noise ratio of infinitely many rounds."""
MOST_ROUNDS = 200
LEAST_FRACTION_NOISE, MOST_FRACTION_NOISE = 0.05, 1.0
INDICATOR_SHARE = 0.3
"""The indicator of adaptive clipping then costs at most 5 % more noise."""


@dataclass(frozen=True)
class Candidate:
    """A possible number of rounds, with its estimated noise and learning progress.

    `noise_per_step`: of a round, in a parameter and in units of C. `way`: the signal-to-noise ratio of all
    rounds, as a fraction of that of infinitely many rounds. `step`: the server's step at this noise, by
    `step_of_noise`. `participations`: in how many rounds a client takes part, on average.
    """

    num_rounds: int
    noise_per_step: float
    way: float
    step: float
    participations: float


@dataclass(frozen=True)
class Proposal:
    """A proposed setting, as a key and a value, and the reason for it."""

    key: str
    value: str
    reason: str

    @property
    def override(self) -> str:
        return f"{self.key}={self.value}"


@dataclass(frozen=True)
class Choice:
    """The numbers of rounds that were compared, and the settings that are proposed.

    Attributes:
        candidates: numbers of rounds, ascending; the proposed one is among them. None are compared for
            records.
        rounds: the proposed one.
        proposals: overrides for what is not named already.
        weaker: whether the budgets hold against everyone without the proposals, and against outsiders alone
            with them.
    """

    candidates: tuple[Candidate, ...]
    rounds: int
    proposals: tuple[Proposal, ...]
    weaker: bool = False

    @property
    def overrides(self) -> list[str]:
        """The proposed settings as command-line arguments (key=value)."""
        return [proposal.override for proposal in self.proposals]


def choose(config: Config, overrides: Sequence[str], most_rounds: int = MOST_ROUNDS) -> Choice:
    """Propose rounds, clipping norm, local steps and server learning rate, if the user did not set them.

    sigma = ln(1 + mu^2 / (q^2 T))^(-1/2) (Bu, Dong, Long, Su, arXiv:1911.11607, Corollary 5.4) at the mean mu
    of the clients, or the smallest for dp_fedavg. Signal over noise of T rounds is in proportion to
    sqrt(T) / sigma, which rises to mu / q.

    For records it is what `Method.proposals` says. Raises ConfigError: a method that chooses nothing, or too
    few rounds allowed.
    """
    method = METHODS.get(config.method.name)
    proposed = method.proposals(config) if config.privacy.about_records else None
    if proposed is not None:
        resolved, proposals = proposed
        return Choice((), resolved.run.num_rounds, tuple(proposals))
    if method.unit is None or config.privacy.about_records:
        raise ConfigError(
            f"--choose is for methods that choose settings, not method={config.method.name} with "
            f"privacy.unit={config.privacy.unit}: choose another, or leave --choose out"
        )
    if config.privacy.against == "everyone":
        raise ConfigError(
            "--choose estimates rounds with a secret sample, and privacy.against=everyone has none: use "
            "privacy.against=outsiders, or --compare"
        )
    if most_rounds < ROUNDS[0]:
        raise ConfigError(
            f"--most-rounds {most_rounds} is below {ROUNDS[0]}, the fewest compared: allow more"
        )
    named = {override.partition("=")[0] for override in overrides}
    fixed = "run.num_rounds" in named
    rounds = sorted({*ROUNDS, config.run.num_rounds}) if fixed else ROUNDS
    groups, delta, rate = configured_groups(config), configured_delta(config), config.privacy.sampling_rate
    parameters = [1 / gaussian_sigma(group.epsilon, delta) for group in groups]
    clients = sum(group.size for group in groups)
    mean = math.fsum(mu * group.size for mu, group in zip(parameters, groups, strict=True)) / clients
    mu = min(parameters) if config.method.name == "dp_fedavg" else mean
    candidates = []
    for num_rounds in rounds:
        exponent = (mu / rate) ** 2 / num_rounds
        noise = 1 / math.sqrt(math.log1p(exponent)) / (rate * clients)
        candidates.append(
            Candidate(
                num_rounds=num_rounds,
                noise_per_step=noise,
                way=math.sqrt(math.log1p(exponent) / exponent),
                step=step_of_noise(noise, num_rounds),
                participations=rate * num_rounds,
            )
        )
    if fixed:
        best = next(choice for choice in candidates if choice.num_rounds == config.run.num_rounds)
    else:
        allowed = [choice for choice in candidates if choice.num_rounds <= most_rounds]
        best = next((choice for choice in allowed if choice.way >= ENOUGH), allowed[-1])
    wanted = [proposal for proposal in _proposals(config, best, most_rounds) if proposal.key not in named]
    weaker = resolve(config).privacy.against == "everyone"
    return Choice(tuple(candidates), best.num_rounds, tuple(wanted), weaker)


def _proposals(config: Config, best: Candidate, most_rounds: int) -> list[Proposal]:
    """Propose the best number of rounds and the settings that go with it, each with a reason."""
    server_step, adaptive = list[Proposal](), list[Proposal]()
    if getattr(config.method, "reweighting", "uniform") == "uniform":
        reason = f"all rounds together then bring a parameter noise of at most {RELATIVE_NOISE:g} C"
        server_step.append(Proposal("method.server_learning_rate", f"{best.step:.2g}", reason))
    if "adaptive clipping" in METHODS.get(config.method.name).goes_with:
        noise = max(LEAST_FRACTION_NOISE, best.noise_per_step / (2 * INDICATOR_SHARE))
        # Only where counting unclipped updates costs little.
        if not noise > MOST_FRACTION_NOISE:
            reason = "the norm is a guess, and half of the updates will be within it"
            adaptive.append(Proposal("privacy.clipping", "adaptive", reason))
            reason = "what is told of the norms costs at most about 5 % more noise"
            adaptive.append(Proposal("privacy.clipping_noise", f"{noise:.2g}", reason))
    enough = best.way >= ENOUGH
    training = config.training
    norm = training.learning_rate * math.sqrt(training.local_steps)
    return [
        Proposal(
            "run.num_rounds",
            str(best.num_rounds),
            f"they reach {100 * best.way:.0f} % of the signal-to-noise ratio of infinitely many rounds"
            + ("" if enough else f"; more rounds would reach more, and {most_rounds} are allowed"),
        ),
        Proposal(
            "training.local_steps",
            str(training.local_steps),
            "as configured: noise and budget do not depend on them",
        ),
        Proposal(
            "privacy.clipping_norm",
            f"{norm:.2g}",
            "learning rate times the root of the local steps: steps along gradients of norm one that "
            "have nothing in common",
        ),
        Proposal("privacy.against", "outsiders", "rounds and step are estimated for a secret sample"),
        *adaptive,
        *server_step,
        Proposal("method.average", "polynomial", "the average of the models costs nothing"),
    ]
