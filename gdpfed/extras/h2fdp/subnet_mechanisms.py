"""The DP mechanisms of H2FDP, what each requires, and the noise in the mean over an edge server's devices.

The proofs are in docs/h2fdp.md.
"""

import math
from collections import Counter
from typing import Literal, cast

from conf.schema import Config, SecAggConfig, require
from gdpfed.errors import PrivacyError
from gdpfed.extras.h2fdp.subnet_plan import Windows
from gdpfed.extras.h2fdp.subnet_sums import Trust
from gdpfed.extras.h2fdp.subnets import windows_of_round
from gdpfed.methods.rates import configured_delta
from gdpfed.methods.record_method import configured_records
from gdpfed.methods.sum_parameters import sum_parameters
from gdpfed.record_steps import RecordSteps, Work, kind_of, record_move

Mechanism = Literal["update", "step_sum", "convex", "step_local", "window"]
WORKS: dict[Mechanism, Work] = {
    "update": "update",
    "step_sum": "gradient_sum",
    "convex": "convex_steps",
    "step_local": "dp_sgd",
    "window": "window_steps",
}
CONVEX_MODEL = "softmax"
# The part of delta that steps may use up which are too long for the batch that was drawn.
MOST_RESERVED = 0.01


def mechanism_of(config: Config) -> Mechanism:
    """Return the configured mechanism of H2FDP; `auto` chooses by privacy unit and model.

    Raises ConfigError: a mechanism that protects another unit.
    """
    privacy = config.privacy
    chosen = config.method.mechanism
    if chosen == "auto":
        convex = config.dataset.model == CONVEX_MODEL
        chosen = "update" if not privacy.about_records else "convex" if convex else "step_sum"
    unit = "client" if chosen == "update" else "record"
    require(
        privacy.unit == unit,
        f"method.mechanism={chosen} protects a {unit}, not privacy.unit={privacy.unit}: set "
        f"privacy={unit}_level, or method.mechanism=auto",
    )
    return cast("Mechanism", chosen)


def windows_of(config: Config, mechanism: Mechanism) -> Windows:
    """Return a device's steps between two sums, and how far one record can move what the device sends.

    Raises ConfigError: momentum where noise comes after several steps, or other sums than steps.
    """
    training = config.training
    require(
        mechanism == "step_local" or training.momentum == 0,
        f"training.momentum={training.momentum} does not go with method.mechanism={mechanism}, whose "
        "accounting assumes that a record acts only in its own steps: set training.momentum=0, or "
        "method.mechanism=step_local",
    )
    count = windows_of_round(config)
    if mechanism == "step_sum":
        given = config.method.local_aggregations
        require(
            given in (None, training.local_steps),
            f"method.mechanism=step_sum sums after every step: method.local_aggregations={given} must be "
            f"training.local_steps={training.local_steps}, or null",
        )
        count = training.local_steps
    work, steps = WORKS[mechanism], training.local_steps // count
    told = RecordSteps(
        num_steps=steps,
        batch_rates=(config.privacy.batch_rate,),
        clipping_norm=record_norm(config, mechanism),
        noise_multiplier=0.0,
    )
    return Windows(
        work=work,
        batch_rate=config.privacy.batch_rate,
        num_steps=steps,
        windows_per_round=count,
        move=record_move(work, told),
        most_records=int(configured_records(config).max()),
    )


def record_norm(config: Config, mechanism: Mechanism) -> float:
    """Return the bound on a record's gradient: that of a convex model, else the clipping norm.

    Raises ConfigError: a model or a loss that is not known to be convex, or labels that are not one class.
    """
    if mechanism != "convex":
        return float(config.privacy.clipping_norm)
    from gdpfed.clients.configured import task_of
    from gdpfed.clients.record_work import one_class
    from gdpfed.learning.models.networks import convex_bounds

    data, task = config.dataset, task_of(config)
    bounds = convex_bounds(task.build_model())
    require(
        bounds is not None,
        f"method.mechanism=convex needs a convex loss with bounded gradients, and dataset.model={data.model} "
        f"has none: use dataset.model={CONVEX_MODEL}, or method.mechanism=step_sum",
    )
    require(
        data.loss == "cross_entropy" and not data.class_weights,
        f"method.mechanism=convex is proved for dataset.loss=cross_entropy without weights, not "
        f"{data.loss} with dataset.class_weights={data.class_weights}: use method.mechanism=step_sum",
    )
    labels = task.known_form.labels
    require(
        one_class(labels),
        f"method.mechanism=convex is proved for labels that are one class, and those of dataset={data.name} "
        f"are {labels.words}: use method.mechanism=step_sum",
    )
    return 0.0 if bounds is None else bounds.gradient_norm


def reserved_delta(config: Config) -> float:
    """Return a bound on the probability that any step of a run is longer than the convex proof allows.

    Only the steps of a record's own device matter to it. Raises PrivacyError: more than `MOST_RESERVED` of
    delta.
    """
    from gdpfed.clients.configured import learning_rate_of, task_of
    from gdpfed.learning.models.networks import convex_bounds

    bounds = convex_bounds(task_of(config).build_model())
    if bounds is None:
        return 0.0
    rate, counts = config.privacy.batch_rate, {int(count) for count in configured_records(config)}
    rounds = Counter(learning_rate_of(config, index) for index in range(config.run.num_rounds))
    # Of each count by itself, since a record has one device.
    reserved = config.training.local_steps * max(
        sum(times * bounds.chance_of_long_step(eta, rate, count) for eta, times in rounds.items())
        for count in counts
    )
    if not reserved <= MOST_RESERVED * configured_delta(config):
        safe = 2 * rate / bounds.smoothness
        raise PrivacyError(
            f"training.learning_rate={config.training.learning_rate:g} is too large for "
            f"method.mechanism=convex, as it reaches {max(rounds):.4g}: with a chance of {reserved:.2g} a "
            f"batch breaks its privacy bound. Any rate up to {safe:.3g} is small enough at "
            f"privacy.batch_rate={rate:g}, and larger ones are at larger batches"
        )
    return reserved


def noise_factor(secagg: SecAggConfig, trust: Trust | None, size: int) -> float:
    """Return the ratio of actual to planned noise (standard deviations) in a sum over `size` devices.

    1 where an edge adds it, or a server that sums in clear; sqrt(s) where every device adds all of it;
    sqrt(s / (s - D - max(1, c))) where they share it: up to D may drop out, c collude, and one knows the
    share that it added itself. Noise for dropouts that is taken out again once they have answered
    (`secagg.noise_levels`) counts for nothing.
    """
    if trust == "trusted":
        return 1.0
    shared = 1.0
    if size >= 2 and secagg.hides_updates:
        parameters = sum_parameters(
            secagg, label="", num_clients=size, dimension=1, clipping_norm=1.0, noise_multiplier=1.0
        )
        dropouts = 0 if parameters.noise_levels else parameters.dropout_tolerance
        shared = math.sqrt(size / (size - dropouts - parameters.known_shares))
    return shared * math.sqrt(size) if trust == "untrusted" else shared


def mean_noise(
    *, work: Work, stddev: float, learning_rate: float, size: int, expected_batch: float, steps: int
) -> float:
    """Return the noise in the mean over `size` devices, per coordinate, as a standard deviation.

    Args:
        work: what devices compute.
        stddev: of the noise in their sum, or in one step of one device, in units of a gradient.
        learning_rate: eta.
        size: s.
        expected_batch: B, of one device.
        steps: m, of a window.
    """
    kind = kind_of(work)
    if not kind.on_records:
        return stddev / size
    if kind.window == "window":
        return learning_rate * stddev / size
    released = steps if kind.own_noise else 1
    return learning_rate * stddev * math.sqrt(released) / (expected_batch * size)
