"""Measure epsilon: simulate runs with canaries, score what they reveal, and bound epsilon from below."""

import secrets
import tempfile
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt

from conf.schema import Config, SecAggConfig
from conf.schema.run_config import LOCAL
from gdpfed.errors import ConfigError, not_known
from gdpfed.extras.canaries.canary import (
    Canaries,
    CanaryEngine,
    Directions,
    Kind,
    choose_clients,
    dirac_directions,
    parts_of,
    random_directions,
)
from gdpfed.extras.canaries.lower_bounds import EpsilonLowerBound, epsilon_lower_bounds, views_of
from gdpfed.extras.canaries.program_check import NotComputed, ProgramCheck
from gdpfed.extras.canaries.program_checks import program_checks
from gdpfed.extras.canaries.record_canaries import RecordCanaries, RecordCanaryEngine, choose_records
from gdpfed.extras.canaries.transcript import ReleasedModels, TellResult, Transcript, WatchedFleet
from gdpfed.learning.models import flatten
from gdpfed.learning.training.evaluate import Evaluation
from gdpfed.methods.base import Theta
from gdpfed.privacy.mechanism_options import record_groups
from gdpfed.rounds.run import PreparedRun
from gdpfed.simulation.engine import Cohort, Engine
from gdpfed.simulation.engine_choice import choose_engine
from secagg import Contributors, Encoding

MOST_DENSE_CANARIES = 1000
CRAFTED_AGAINST = 64
MakeFleet = Callable[[SecAggConfig, str, Engine, TellResult], WatchedFleet]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to measure epsilon: the number of runs and canaries, and the confidence.

    Attributes:
        kind: ``dirac`` (coordinates of their own, nobody else trains), ``random`` (unit vectors among clients
            that train), ``crafted`` (as random, without what the others' updates have of them).
        num_runs: runs of the whole plan, each with new coins.
        confidence: of all figures of the measurement together.
        share: of the clients that are canaries, where the others train.
        marks: after how many points in the run's rounds to measure.
    """

    kind: Kind = "dirac"
    num_runs: int = 10
    confidence: float = 0.95
    share: float = 0.25
    marks: int = 1

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ConfigError(not_known(f"kind of canaries {self.kind!r}", get_args(Kind)))
        if self.num_runs < 1:
            raise ConfigError(f"{self.num_runs} runs measure nothing: give at least 1")
        if not 0.5 < self.confidence < 1.0:
            raise ConfigError(f"a confidence of {self.confidence}: give one between 0.5 and 1")
        if not 0.0 < self.share <= 1.0:
            raise ConfigError(f"a share of {self.share} of the clients: give one above 0 and at most 1")


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The result of measuring epsilon: all bounds and checks, with the settings used.

    Attributes:
        budgets: of the groups of clients or, where records are protected, of records.
        delta: of every figure.
        unit: whose presence the figures are about.
        sums_revealed: in all runs.
        figures: bounds on epsilon.
        checks: what the program did, beside its plan.
        not_computed: the views and checks that should be there and are not.
    """

    method: str
    settings: Settings
    budgets: tuple[float, ...]
    delta: float
    unit: str
    num_rounds: int
    sums_revealed: int
    figures: tuple[EpsilonLowerBound, ...]
    checks: tuple[ProgramCheck, ...] = ()
    not_computed: tuple[NotComputed, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether something was measured, and no bound or check contradicts the privacy plan."""
        held = [*(figure.held for figure in self.figures), *(check.held for check in self.checks)]
        return self.sums_revealed > 0 and all(held)

    @property
    def complete(self) -> bool:
        """Whether epsilon was measured against every attacker, and every check could be made."""
        return not self.not_computed

    @property
    def final(self) -> list[EpsilonLowerBound]:
        """The lower bounds on epsilon after the last round."""
        return [figure for figure in self.figures if figure.rounds == self.num_rounds]


def measure(
    config: Config,
    settings: Settings,
    *,
    make_fleet: MakeFleet = WatchedFleet,
    announce: Callable[[int], None] = lambda runs: None,
) -> Measurement:
    """Simulate runs of a configuration with canaries; return lower bounds on epsilon and checks of the runs.

    `config`: of the run, as for training it; nothing is written into its directory. `settings`: how to
    measure. `make_fleet`: what sums; another one than the simulation's is for tests. `announce`: is told how
    many runs are done. Raises ConfigError, PrivacyError, LearningError, RunError: input that cannot be used
    or measured.
    """
    prepared = _prepared_run(config, settings)
    plan = prepared.method.plan
    runs, start = [], flatten(prepared.task.build_model())
    with tempfile.TemporaryDirectory(prefix="gdpfed-canaries-") as folder:
        for number in range(settings.num_runs):
            runs.append(_one_run(prepared, settings, start, Path(folder) / str(number), make_fleet))
            announce(number + 1)
    num_rounds = plan.num_rounds
    marks = sorted({max(1, round(num_rounds * k / settings.marks)) for k in range(1, settings.marks + 1)})
    # Figures and checks have half of the probability of a false alarm each.
    significance = (1 - settings.confidence) / 2
    figures = epsilon_lower_bounds(runs, plan, marks, significance, independent=settings.kind == "dirac")
    looked = program_checks(runs, plan, significance)
    measured = {(each.group, each.view) for each in figures if each.rounds == num_rounds}
    why = "no canary that this view says something of was in a sum, or all or none were present"
    missing = [
        NotComputed(view=view, of=f"group {group}", why=why, remedy="more --runs")
        for group in range(len(parts_of(plan)))
        for view in views_of(plan)
        if (group, view) not in measured
    ]
    budgets = []
    for group, record_group in parts_of(plan):
        records = record_groups(plan.mechanism, group)
        budgets.append(records[record_group].epsilon if records else plan.groups[group].epsilon)
    return Measurement(
        method=prepared.method.name,
        settings=settings,
        budgets=tuple(budgets),
        delta=plan.delta,
        unit=plan.unit,
        num_rounds=num_rounds,
        sums_revealed=sum(len(transcript.sums) for transcript in runs),
        figures=tuple(figures),
        checks=tuple(each for each in looked if isinstance(each, ProgramCheck)),
        not_computed=(*missing, *(each for each in looked if isinstance(each, NotComputed))),
    )


def _prepared_run(config: Config, settings: Settings) -> PreparedRun:
    """Prepare the run to simulate; raise ConfigError if canaries cannot be put into it."""
    if config.run.resume:
        raise ConfigError(f"run.resume={config.run.resume} cannot be measured: leave it out")
    if config.training.vote is not None:
        raise ConfigError("training.vote has no canaries: set the setting that won, and leave the vote out")
    if config.privacy.norm_histogram_share is not None:
        raise ConfigError("privacy.norm_histogram_share has no canaries: leave it out")
    prepared = PreparedRun.of(config)
    plan = prepared.method.plan
    if not plan.private:
        raise ConfigError(
            f"method={prepared.method.name} promises no privacy, so there is no epsilon to measure: choose a "
            "private method"
        )
    if why := plan.mechanism.no_canaries:
        raise ConfigError(f"method={prepared.method.name} has no canaries: {why}; choose another method")
    if plan.about_records and not config.training.is_sgd:
        raise ConfigError(
            "canaries among records are measured only in steps of plain SGD, not with training.optimizer="
            f"{config.training.optimizer} and its options: use plain sgd, whose noise is the same"
        )
    if record_groups(plan.mechanism, 0) and settings.kind != "dirac":
        raise ConfigError(
            f"canaries of kind {settings.kind} are clients among others that train, and tell nothing of the "
            "records that this plan protects: use dirac"
        )
    return prepared


def _one_run(
    prepared: PreparedRun, settings: Settings, start: Theta, path: Path, make_fleet: MakeFleet
) -> Transcript:
    """Simulate one whole run with newly drawn canaries; return what it released."""
    config = prepared.config
    ours = replace(
        prepared,
        method=deepcopy(prepared.method),
        path=path,
        name=secrets.token_hex(16),
        evaluate_model=lambda theta: Evaluation(0.0, 0.0),
    )
    others = None
    if settings.kind != "dirac":
        here = replace(config.simulation, backend=LOCAL)
        others, _ = choose_engine(here, prepared.task, config.run.device)
    canaries = _draw_canaries(prepared, settings, start, others)
    transcript = Transcript(prepared.method.plan, canaries, start)
    many_at_once = config.simulation.engine != "sequential"
    engine: Engine
    if isinstance(canaries, RecordCanaries):
        engine = RecordCanaryEngine(
            canaries, prepared.task, many_at_once=many_at_once, tell=transcript.add_updates
        )
    else:
        engine = CanaryEngine(canaries, others, many_at_once=many_at_once)
    with (
        make_fleet(config.secagg, f"canaries {ours.name}", engine, transcript.add_sum) as fleet,
        ours.open(fleet, lambda run, announce: [ReleasedModels(transcript)], lambda line: None) as run,
    ):
        for _ in run.rounds():
            pass
    return transcript


def _draw_canaries(
    prepared: PreparedRun, settings: Settings, start: Theta, others: Engine | None
) -> Canaries:
    generator = np.random.default_rng(secrets.randbits(128))
    plan, dimension = prepared.method.plan, len(start)
    if record_groups(plan.mechanism, 0):
        return choose_records(plan, prepared.task, dimension, generator)
    if settings.kind == "dirac":
        clients, groups = choose_clients(plan, dimension, generator)
        directions: Directions = dirac_directions(len(clients), dimension, generator)
    else:
        most = min(MOST_DENSE_CANARIES, int(settings.share * plan.num_clients))
        clients, groups = choose_clients(plan, most, generator)
        avoid: npt.NDArray[np.float64] | None = None
        if settings.kind == "crafted" and others is not None:
            # Canary vectors are chosen orthogonal to some ordinary clients' updates, (n, d).
            avoid, rest = np.zeros((0, dimension)), np.setdiff1d(np.arange(plan.num_clients), clients)
            ordinary = rest[:CRAFTED_AGAINST].tolist()
            if ordinary:
                encoding = Encoding.for_sum(
                    Contributors(len(ordinary)),
                    dimension=dimension,
                    clipping_norm=plan.clipping_norm,
                    noise_multiplier=1.0,
                )
                updates = others.updates(prepared.order, start, Cohort(ordinary, encoding))
                avoid = np.concatenate([steps for _, steps in updates]).astype(np.float64)
        directions = random_directions(len(clients), dimension, generator, avoid)
    if not len(clients):
        raise ConfigError(
            f"{plan.num_clients} clients in {len(plan.groups)} groups leave no canary: use more clients, or "
            "a larger share"
        )
    present = generator.random(len(clients)) < 0.5
    return Canaries(clients, groups, present, directions, plan.adjacency)
