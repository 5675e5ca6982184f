"""Audits any private training loop with canaries: do its releases contradict its stated epsilon?"""

import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import stats

from gdpfed.audit.accounting import charges_of, epsilon_after
from gdpfed.errors import ConfigError, GDPFedError, kind_and_words
from gdpfed.extras.canaries.canary import Canaries, dirac_directions
from gdpfed.extras.canaries.lower_bounds import VIEWS, epsilon_lower_bounds
from gdpfed.extras.canaries.measure import Measurement, Settings
from gdpfed.extras.canaries.program_check import (
    ACCOUNTING,
    CONTRIBUTIONS,
    LONGEST,
    POWER,
    SAMPLES,
    NotComputed,
    ProgramCheck,
)
from gdpfed.extras.canaries.program_checks import program_checks
from gdpfed.extras.canaries.transcript import RevealedSum, Transcript
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.promised_loop import Released, TrainingLoop
from gdpfed.registry import Registry
from gdpfed.runs.round_log import RoundLogEntry

LOOPS: Registry[TrainingLoop] = Registry("training loop", "gdpfed.loops", error=ConfigError)
"""Loops that installed packages declare, by name."""
# Two accountants may differ by so much; where a loop states less, its own is wrong.
SAME_EPSILON = 0.01
ASKED = "a loop that tells who was asked, by Released(asked=...)"


def audit_loop(
    loop: TrainingLoop,
    *,
    num_runs: int = 20,
    confidence: float = 0.95,
    announce: Callable[[int], None] = lambda runs: None,
) -> Measurement:
    """Run a training loop with canaries several times; return lower bounds on epsilon, and results of checks.

    Every unit is a canary in a coordinate of its own: by a fair coin it contributes three times the norm
    or, by the loop's adjacency, nothing or the opposite. `num_runs`: how often the loop trains, with new
    coins. `confidence`: of everything that is found together, so a loop that does what it promises is
    blamed with a probability of at most 1 - confidence. `announce`: is told how many runs are done.

    Raises ConfigError: numbers that measure nothing, and a loop that has released something else than it
    says. What the loop itself raises is not caught.
    """
    settings = Settings(num_runs=num_runs, confidence=confidence)
    plan, runs = loop.plan(), list[Transcript]()
    for number in range(num_runs):
        runs.append(_one_run(loop, plan))
        announce(number + 1)
    significance = (1 - confidence) / 2
    figures = epsilon_lower_bounds(runs, plan, [plan.num_rounds], significance, independent=True)
    looked = list[ProgramCheck | NotComputed]()
    if loop.epsilon is not None:
        cost = _stated(plan)
        low = loop.epsilon < cost * (1 - SAME_EPSILON)
        looked.append(
            ProgramCheck(
                looked_at=ACCOUNTING,
                of="its epsilon",
                measured=f"{loop.epsilon:.3g} of {cost:.3g}",
                would_find=f"< {cost * (1 - SAME_EPSILON):.3g}",
                num_values=1,
                wrong="less than its rounds, rate and noise cost" if low else "",
            )
        )
    looked += program_checks(runs, plan, significance / 2)
    looked.append(_longest_contribution(runs, loop, significance / 2))
    told, models = bool(runs[0].records), bool(runs[0].models)
    views = {"sums", *(["server"] if told else []), *(["model"] if models else [])}
    shown = tuple(each for each in figures if each.view in views)
    missing = [
        NotComputed(
            view=view, of="group 0", why="all canaries or none were present", remedy="more runs, or units"
        )
        for view in VIEWS
        if view in views - {each.view for each in shown}
    ]
    unseen = [each for each in looked if isinstance(each, NotComputed)]
    if not told:
        why = "the loop does not tell who was asked"
        unseen = [
            replace(each, why=why, remedy=ASKED) if each.view in (CONTRIBUTIONS, LONGEST, SAMPLES) else each
            for each in unseen
        ]
    return Measurement(
        method=loop.name,
        settings=settings,
        budgets=(_stated(plan) if loop.epsilon is None else loop.epsilon,),
        delta=loop.delta,
        unit=plan.unit,
        num_rounds=plan.num_rounds,
        sums_revealed=sum(len(each.sums) for each in runs),
        figures=shown,
        checks=tuple(each for each in looked if isinstance(each, ProgramCheck)),
        not_computed=(*missing, *unseen),
    )


def named_loop(name: str) -> TrainingLoop:
    """Find a training loop by its name: an entry point of `gdpfed.loops`, or ``module:attribute``.

    A module is also found in the folder in which the command was given. An attribute may be a function
    without arguments that returns the loop. Raises ConfigError in one line for everything else.
    """
    if ":" not in name:
        found: object = LOOPS.get(name)
    else:
        module, _, attribute = name.partition(":")
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
        try:
            found = getattr(import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"--loop {name} cannot be imported: {error}: name MODULE:ATTRIBUTE of an installed module"
            ) from None
    try:
        made = found() if callable(found) else found
    except GDPFedError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"--loop {name} cannot be called: {kind_and_words(error)}: name a gdpfed.TrainingLoop, or a "
            "function without arguments that returns one"
        ) from None
    if not isinstance(made, TrainingLoop):
        raise ConfigError(
            f"--loop {name} is of type {type(made).__name__}: name a gdpfed.TrainingLoop, or a function "
            "without arguments that returns one"
        )
    return made


def _stated(plan: PrivacyPlan) -> float:
    """Compute epsilon from the noise multiplier, sampling rate and rounds that a training loop states."""
    return epsilon_after(charges_of([charge.to_dict() for charge in plan.charges(0)]), plan.delta)


def _longest_contribution(
    runs: Sequence[Transcript], loop: TrainingLoop, level: float
) -> ProgramCheck | NotComputed:
    """Check that no single unit (client or record) contributes more than the clipping norm.

    A unit is the same in all runs. With x what the rounds of one move its coordinate by and y what is seen,
    sum x (y - x) over |x| s is normal under the plan; over the noise that is measured where no canary is, it
    is Student's t. Where there is less noise than planned, s is the plan's.
    """
    beyond, moved = np.zeros((2, loop.num_units))
    still = [np.zeros(0)]
    stddev = loop.noise_multiplier * loop.clipping_norm
    for transcript in runs:
        signs = transcript.canaries.signs
        for each in transcript.sums:
            x = each.asked * (signs != 0) * loop.clipping_norm / stddev
            beyond += x * (each.projections * signs / stddev - x)
            moved += x**2
            noise = each.pure_noise[np.isfinite(each.pure_noise)].astype(np.float64)
            still.append(noise / stddev)
    values, seen = np.concatenate(still), moved > 0
    of = "any one unit"
    if not seen.any() or len(values) < 2:
        return NotComputed(view=LONGEST, of=of, why="no canary was in a sum", remedy="more runs")
    spread = max(1.0, float(np.sqrt(np.mean(values**2))))
    far = np.divide(beyond, spread * np.sqrt(moved), out=np.full(len(moved), -np.inf), where=seen)
    worst, count = int(np.argmax(far)), int(seen.sum())
    p_value = float(stats.t.sf(far[worst], len(values)) * count)
    least = stats.t.isf(level / count, len(values)) + stats.norm.ppf(POWER)
    return ProgramCheck(
        looked_at=LONGEST,
        of=of,
        measured=f"{1 + beyond[worst] / moved[worst]:.2f} norms",
        would_find=f"> {1 + least * spread / np.sqrt(np.median(moved[seen])):.2f}",
        num_values=count,
        wrong=f"unit {worst} contributes more than the norm" if p_value <= level else "",
    )


def _one_run(loop: TrainingLoop, plan: PrivacyPlan) -> Transcript:
    """Run the training loop once; new random coins decide which canaries are present."""
    generator = np.random.default_rng(secrets.randbits(128))
    units = np.arange(loop.num_units)
    canaries = Canaries(
        clients=units,
        groups=np.zeros(loop.num_units, dtype=np.int64),
        present=generator.random(loop.num_units) < 0.5,
        directions=dirac_directions(loop.num_units, loop.dimension, generator),
        adjacency=plan.adjacency,
    )
    released = loop.run(canaries.updates(units.tolist(), [loop.clipping_norm] * loop.num_units))
    if not isinstance(released, Released):
        raise ConfigError(
            f"{loop.name} has returned {type(released).__name__}: return gdpfed.Released(sums=...) or "
            "gdpfed.Released(models=..., step=...)"
        )
    rounds, models, asked = loop.num_rounds, None, None
    if released.models is not None:
        models = _array(loop, "models", released.models, (rounds + 1, loop.dimension))
        sums = np.diff(models, axis=0) / released.step
    else:
        sums = _array(loop, "sums", released.sums, (rounds, loop.dimension))
    if released.asked is not None:
        asked = _array(loop, "asked", released.asked, (rounds, loop.num_units)).astype(bool)
    elif loop.sampling_rate == 1.0:
        asked = np.ones((rounds, loop.num_units), dtype=bool)
    transcript = Transcript(plan, canaries, np.zeros(loop.dimension, dtype=np.float32))
    stddev = loop.noise_multiplier * loop.clipping_norm
    for index, total in enumerate(sums):
        who = None if asked is None else asked[index]
        # Where nobody says who took part, all units may have.
        takers = np.ones(loop.num_units, dtype=bool) if who is None else who
        transcript.sums.append(
            RevealedSum(
                round_index=index,
                groups=(0,),
                asked=np.zeros(loop.num_units, dtype=bool) if who is None else who,
                projections=canaries.directions.project(total),
                noise_stddev=np.full(loop.num_units, stddev),
                name="sums",
                clients=tuple(np.flatnonzero(takers).tolist()),
                pure_noise=np.where(
                    transcript.still, total[transcript.watched].astype(np.float32), np.float32(np.nan)
                ),
                drawn_stddev=stddev,
            )
        )
        if who is not None:
            size = int(who.sum())
            entry = RoundLogEntry(index + 1, None, None, [size], [size], {}, [None], [None])
            transcript.records.append(entry)
    if models is not None:
        transcript.models = [canaries.directions.project(each - models[0]) for each in models[1:]]
    return transcript


def _array(loop: TrainingLoop, name: str, values: object, shape: Sequence[int]) -> npt.NDArray[np.float64]:
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(
            f"{loop.name} has released {name} that are not an array of numbers: release arrays of numbers"
        ) from None
    if found.shape != tuple(shape):
        raise ConfigError(
            f"{loop.name} has released {name} of shape {found.shape}, and its numbers need shape "
            f"{tuple(shape)}: release this shape"
        )
    if not np.isfinite(found).all():
        raise ConfigError(f"{loop.name} has released {name} that are not finite: release finite numbers")
    return found
