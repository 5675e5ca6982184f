"""The default observers of a run: objects that are told of every round, and log, draw or describe it."""

from gdpfed.files import save_whole
from gdpfed.learning.data_warnings import data_warnings
from gdpfed.learning.models import predicts_nothing
from gdpfed.report.chance import AtChance
from gdpfed.report.chance_causes import ChanceFile
from gdpfed.report.mechanism_reports import CardSubject
from gdpfed.report.metric_display import dataset_label, status_line
from gdpfed.report.model_card import base_rate, labels_beyond, model_card
from gdpfed.report.parts import Parts
from gdpfed.report.parts_file import PartsFile
from gdpfed.report.party_lines import party_lines
from gdpfed.report.plan_lines import plan_details, plan_warnings
from gdpfed.report.plan_table import plan_lines
from gdpfed.report.plots import accuracy_curve, budget_curve
from gdpfed.report.trackers import EventFiles, MlflowRun
from gdpfed.rounds.extensions.held_out import HeldOutResult
from gdpfed.rounds.extensions.norms_result import UpdateNorms
from gdpfed.rounds.extensions.vote_result import VoteResult
from gdpfed.rounds.loop import Announce
from gdpfed.rounds.observers import Observer, RoundEnded, RunConcluded, RunOpened
from gdpfed.rounds.run import PreparedRun
from gdpfed.runs.file_formats import ACCURACY_PICTURE, BUDGET_PICTURE, MODEL_CARD_FILE, WEAK_DATA
from gdpfed.runs.run_end import RunEnd

SHOWN_COHORTS = (
    "run.show_cohorts=true: for whoever reads trackers or these lines no smaller epsilon is proved than that "
    "against the server, {}"
)


def default_observers(run: PreparedRun, announce: Announce) -> list[Observer]:
    """Return the default observers of a run, which log, draw and track it and write the model card.

    They are status lines, trackers, the method's own observers, pictures, results by party, a check whether
    accuracy is at chance level, and the model card. Raises TrackingError if MLflow is not installed or its
    tracker cannot be reached.
    """
    trackers: list[Observer] = []
    if run.config.run.mlflow is not None:
        settings = {
            "dataset": run.config.dataset.name,
            "method": run.method.name,
            "delta": f"{run.method.plan.delta:.6g}",
            "budgets": ", ".join(f"{group.epsilon:g}" for group in run.method.plan.groups),
        }
        uri, cohorts = run.config.run.mlflow, shows_cohorts(run)
        trackers.append(MlflowRun(uri, run.path.name, settings, announce, cohorts=cohorts))
    return [
        StatusLines(run, announce),
        EventFiles(cohorts=shows_cohorts(run)),
        *trackers,
        *run.method.observers(run.path),
        Pictures(run),
        PartsFile(run),
        ChanceFile(run, announce),
        ModelCard(run),
    ]


def shows_cohorts(run: PreparedRun) -> bool:
    """Whether trackers and status lines may show values that reveal which clients were sampled."""
    return run.config.run.show_cohorts or not run.method.plan.sample_is_secret


class StatusLines(Observer):
    """Prints the plan with warnings when a run begins, and a line for every round."""

    def __init__(self, run: PreparedRun, announce: Announce) -> None:
        self._run, self._announce = run, announce
        self._seconds: list[float] = []

    def opened(self, run: RunOpened) -> None:
        method = self._run.method
        config = self._run.config
        known = [detail.value for detail in plan_details(method.plan, config)]
        weak = plan_warnings(method.plan, config, method.least_members(config))
        said = (*party_lines(config, method.plan), *weak, *known)
        weak_data = map(WEAK_DATA.format, data_warnings(self._run.task))
        for line in (*plan_lines(method, config.secagg), *said, *weak_data):
            self._announce(line)
        plan = method.plan
        if self._run.config.run.show_cohorts and plan.sample_is_secret:
            epsilons = ", ".join(f"{group.epsilon_against_server:.3g}" for group in plan.groups)
            self._announce(SHOWN_COHORTS.format(epsilons))

    def round_ended(self, ended: RoundEnded) -> None:
        record, num_rounds = ended.record, self._run.config.run.num_rounds
        self._seconds.append(record.seconds["total"])
        seconds_a_round = sum(self._seconds) / len(self._seconds)
        seconds_left = seconds_a_round * (num_rounds - record.round)
        plan, cohorts = self._run.method.plan, shows_cohorts(self._run)
        budgets = [group.epsilon for group in plan.groups]
        line = status_line(record, budgets, num_rounds, seconds_left, cohorts=cohorts, against=plan.against)
        self._announce(line)


class Pictures(Observer):
    """Draws accuracy and spent budgets by round, after the last round."""

    def __init__(self, run: PreparedRun) -> None:
        self._run = run

    def concluded(self, run: RunConcluded) -> None:
        method, path = self._run.method, self._run.path
        source = self._run.task.source
        title = f"{method.label or method.name} on {dataset_label(source.name, source.path)}"
        budgets = method.plan.budgets
        most_frequent = base_rate(self._run.task)
        share = None if most_frequent is None else most_frequent[1]
        if not predicts_nothing(self._run.task.build_model()):
            accuracy_curve(run.records, method.name, title, path / ACCURACY_PICTURE, share)
        against = f": epsilon against {method.plan.against}" if method.plan.against else ""
        budget_curve(run.records, budgets, f"{title}{against}", path / BUDGET_PICTURE)


class ModelCard(Observer):
    """Writes the model card when the run has ended."""

    def __init__(self, run: PreparedRun) -> None:
        self._run = run

    def concluded(self, run: RunConcluded) -> None:
        subject = CardSubject(
            config=self._run.config,
            plan=self._run.method.plan,
            records=run.records,
            spent=run.spent,
            against_server=run.against_server,
            charged_rounds=run.charged_rounds,
            parts=Parts.read(self._run.path),
            held_out=HeldOutResult.read(self._run.path),
            vote=VoteResult.read(self._run.path),
            norms=UpdateNorms.read(self._run.path),
            parties=self._run.enrolment.parties,
            columns=self._run.enrolment.columns,
            base_rate=base_rate(self._run.task),
            labels_beyond=labels_beyond(self._run.task),
            at_chance=AtChance.read(self._run.path),
            end=RunEnd.read(self._run.path),
            predicts=not predicts_nothing(self._run.task.build_model()),
        )
        save_whole(self._run.path / MODEL_CARD_FILE, model_card(subject).encode())
