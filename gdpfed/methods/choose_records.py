"""Chooses settings that the user left open, for record-level DP methods, from public numbers alone.

It reads the numbers of records and parties, their budgets and delta, and the number of parameters; no
record, label, gradient or accuracy. A heuristic that costs no budget, and not optimal.
"""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from conf.schema import Config
from gdpfed.errors import ConfigError
from gdpfed.methods.choose import Proposal

STEPS = 300
"""Of a run. How many share a budget hardly changes the noise in the model, and short ones follow the loss."""
LOCAL_STEPS, MOST_LOCAL_STEPS = 10, 20
NORM = 1.0
"""C: clipping and step size act as one product, so one of them can be a unit."""
NOISE = 0.4
"""The most that the noise of all steps may add up to in a parameter, as a standard deviation."""
NOISE_NORM = 10.0
"""The most of all parameters together, which lowers `NOISE` for models of more than 625 parameters."""
LONGEST_STEP = 1.0
"""Of eta C: beyond it, a step along gradients of norm C leaves the region where they point downhill."""
ENOUGH = 0.9
"""Of the signal-to-noise ratio of whole batches."""
BATCH_RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
LEAST_BATCH = 50
"""Records of all parties in a step: with fewer, which ones are drawn matters more than the noise."""


@dataclass(frozen=True, kw_only=True)
class PublicNumbers:
    """Public numbers from which the settings of a record-level DP method are chosen.

    Attributes:
        clients: how many are in a round, expected.
        records: how many they hold together, expected.
        privacy: mu, the mean Gaussian privacy parameter of the budgets (1 / sigma of one release).
        dimension: d.
        shares_noise: whether all clients of a round share one noise; else each adds its own.
        parties: S, at how many clients one person may be, whose steps at all of them are paid for.
    """

    clients: float
    records: float
    privacy: float
    dimension: int
    shares_noise: bool
    parties: int = 1

    def reached(self, batch_rate: float, num_steps: int) -> float:
        """Return a run's signal-to-noise ratio at this batch rate, relative to a run with full batches.

        sqrt(ln(1 + x) / x) with x = mu^2 / (q^2 T), by `noise_multiplier`.
        """
        exponent = (self.privacy / batch_rate) ** 2 / (num_steps * self.parties)
        return math.sqrt(math.log1p(exponent) / exponent)

    def noise_multiplier(self, batch_rate: float, num_steps: int) -> float:
        """Return an estimate of the noise multiplier sigma for this number of DP-SGD steps and batch rate.

        sigma = ln(1 + mu^2 / (q^2 S T))^(-1/2) for T steps at rate q, and S `parties`.
        Source: Bu, Dong, Long, Su, arXiv:1911.11607, Corollary 5.4.
        """
        return 1 / math.sqrt(math.log1p((self.privacy / batch_rate) ** 2 / (num_steps * self.parties)))

    def batch_rate(self, num_steps: int) -> float:
        """Return the smallest batch rate with enough signal and enough records a batch; 1 if none exists."""
        return next(
            (
                rate
                for rate in BATCH_RATES
                if self.reached(rate, num_steps) >= ENOUGH and rate * self.records >= LEAST_BATCH
            ),
            1.0,
        )

    def parameter_noise(self) -> float:
        """Return the most noise that all steps together may add to one parameter: min(0.4, 10 / sqrt(d))."""
        return min(NOISE, NOISE_NORM / math.sqrt(self.dimension))

    def step(self, *, clipping_norm: float, batch_rate: float, num_steps: int, sigma: float) -> float:
        """Return the largest learning rate at which the noise of all steps is within `parameter_noise`.

        At most 1 / C. One noise for all clients is C sigma / sqrt(S), on gradients of norm C / S.
        """
        noise = clipping_norm * sigma / (batch_rate * self.records)
        if self.shares_noise:
            noise /= math.sqrt(self.parties)
            clipping_norm /= self.parties
        if not self.shares_noise:
            noise *= math.sqrt(self.clients)
        return min(LONGEST_STEP / clipping_norm, self.parameter_noise() / (noise * math.sqrt(num_steps)))


def propose(
    config: Config,
    unset: Collection[str],
    known: PublicNumbers,
    steps_of: Callable[[Config], int],
) -> tuple[Config, list[Proposal]]:
    """Choose the settings in `unset`; return the configuration with them, and a reason for each.

    `config`: whose set values stay. `unset`: keys of `CHOOSABLE` that may be chosen. `known`: the public
    numbers. `steps_of`: how many steps a configuration makes in all.
    """
    proposals: list[Proposal] = []

    def take(key: str, value: float, reason: str) -> None:
        nonlocal config
        if key in unset:
            config = with_value(config, key, value)
            proposals.append(Proposal(key, f"{value:g}", reason))

    # About `STEPS` steps in all.
    local = LOCAL_STEPS if "training.local_steps" in unset else config.training.local_steps
    if known.shares_noise:
        rounds, local = STEPS, 1
    elif "run.num_rounds" in unset:
        rounds = max(1, round(STEPS / local))
    else:
        rounds = config.run.num_rounds
        local = min(MOST_LOCAL_STEPS, max(1, round(STEPS / rounds)))
    take("run.num_rounds", rounds, f"about {STEPS} steps in all: noise hardly depends on their number")
    if not known.shares_noise and getattr(config.method, "rule", "fixed") == "fixed":
        take("training.local_steps", local, f"the {STEPS} steps over the rounds")
    guess = config.run.num_rounds * (1 if known.shares_noise else config.training.local_steps)
    given = config.method.noise_multiplier
    if given is None:
        rate = known.batch_rate(guess)
        take(
            "privacy.batch_rate",
            rate,
            f"the least rate of {100 * known.reached(rate, guess):.0f} % of the signal-to-noise ratio of "
            f"whole batches, {rate * known.records:.0f} records a step",
        )
    take("privacy.clipping_norm", NORM, "a unit: it acts as a product with the step size")
    total, rate, norm = steps_of(config), config.privacy.batch_rate, config.privacy.clipping_norm
    sigma = known.noise_multiplier(rate, total) if given is None else given
    step = known.step(clipping_norm=norm, batch_rate=rate, num_steps=total, sigma=sigma)
    if "training.learning_rate" in unset and not config.training.is_sgd:
        raise ConfigError(
            f"training.learning_rate is chosen for SGD, and training.optimizer={config.training.optimizer} "
            "with its options is another: set training.learning_rate"
        )
    take(
        "training.learning_rate",
        float(f"{step:.2g}"),
        f"all steps bring a parameter noise of at most {known.parameter_noise():.2g}, and none is longer "
        f"than {LONGEST_STEP:g}",
    )
    take("training.learning_rate_decay", 1.0, "steps of one size share the budget best")
    take("training.momentum", 0.0, "noise would be carried on")
    return config, proposals


def with_value(config: Config, key: str, value: float) -> Config:
    """Return the configuration with one setting changed to this value."""
    group, _, name = key.partition(".")
    section = getattr(config, group)
    kind = type(getattr(section, name))
    return replace(config, **{group: replace(section, **{name: kind(value)})})


def chosen_lines(config: Config) -> Iterator[str]:
    """Yield one line that names the settings chosen from public numbers; yield nothing if there are none."""
    chosen = dict(each.split("=") for each in getattr(config.method, "chosen", None) or () if "=" in each)
    form = {
        "run.num_rounds": "{} rounds",
        "training.local_steps": "{} steps in each",
        "privacy.batch_rate": "{:.4g} % of the records in a step",
        "training.learning_rate": "step size {}",
        "privacy.clipping_norm": "norm {}",
    }
    percent = {"privacy.batch_rate": 100.0}
    words = [
        form[key].format(float(chosen[key]) * percent[key] if key in percent else chosen[key])
        for key in form
        if key in chosen
    ]
    if words:
        yield f"Chosen from public numbers: {', '.join(words)} (gdpfed plan --choose says why)."
