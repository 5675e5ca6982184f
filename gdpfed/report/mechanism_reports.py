"""Reports: for each DP mechanism, a class that describes the mechanism's plans in tables and model cards."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gdpfed.decimal_numbers import counted
from gdpfed.errors import ConfigError
from gdpfed.mechanism_table import by_mechanism
from gdpfed.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from conf.schema import Config
    from gdpfed.learning.data.columns import Columns
    from gdpfed.methods.base import Method
    from gdpfed.privacy.plan import PrivacyPlan
    from gdpfed.report.chance import AtChance
    from gdpfed.report.facts import Fact
    from gdpfed.report.parts import Parts
    from gdpfed.rounds.extensions.held_out import HeldOutResult
    from gdpfed.rounds.extensions.norms_result import UpdateNorms
    from gdpfed.rounds.extensions.vote_result import VoteResult
    from gdpfed.runs.round_log import RoundLogEntry
    from gdpfed.runs.run_end import RunEnd


@dataclass(frozen=True, kw_only=True)
class CardSubject:
    """The content of a model card: configuration, privacy plan, log entries and spent epsilon.

    Attributes:
        records: of the rounds so far.
        spent: epsilon of every group.
        against_server: epsilon against the server of every group, of the client that took part most often. It
            follows from the cohorts, and is shown where these are not secret.
        charged_rounds: how many rounds the ledger was charged.
        parts: results by party and by budget; None where test examples have no owners.
        held_out: results on records that clients hold out; None where none were counted.
        vote: what clients have voted; None where there was no vote.
        norms: how long updates were before the first round; None where that was not counted.
        parties: what every client is called; empty where they have no names.
        columns: how tables were read; None where the data are none.
        base_rate: the most frequent class of the test examples, with its share; None where there is none.
        labels_beyond: how many labels of test examples that are numbers lie beyond their declared range, and
            how many there are; None where labels are none.
        at_chance: what there is to say of a result at chance; None of another.
        end: why the run ended early, and figures of a released model that is not the last round's; None of a
            run that has not ended.
        predicts: whether the model says anything of a case; one of statistics is its numbers, and no more.
    """

    config: "Config"
    plan: "PrivacyPlan"
    records: "Sequence[RoundLogEntry]"
    spent: Sequence[float]
    against_server: Sequence[float]
    charged_rounds: int
    parts: "Parts | None" = None
    held_out: "HeldOutResult | None" = None
    vote: "VoteResult | None" = None
    norms: "UpdateNorms | None" = None
    parties: Sequence[str] = ()
    columns: "Columns | None" = None
    base_rate: tuple[str, float] | None = None
    labels_beyond: tuple[int, int] | None = None
    at_chance: "AtChance | None" = None
    end: "RunEnd | None" = None
    predicts: bool = True


class MechanismReport(ABC):
    """Base class of reports: each describes the plans of one DP mechanism in tables and model cards.

    `smaller_budgets`: how budgets are made smaller, as an advice.
    """

    smaller_budgets: ClassVar[str] = "choose smaller privacy.budgets"

    @abstractmethod
    def promise(self, subject: CardSubject) -> list[str]:
        """Return Markdown lines for the model card: the privacy guarantee, and against whom it holds."""

    @abstractmethod
    def not_covered(self, subject: CardSubject) -> list[str]:
        """Return lines for the model card that say what the privacy guarantee does not cover."""

    @abstractmethod
    def table(self, method: "Method", *, details: bool = False) -> "Table":
        """Return the table that describes a method's plan; not called if the method makes its own tables."""

    def facts(self, method: "Method") -> "Sequence[Fact]":
        """Return names and values that are shown below the table of a plan; by default there are none."""
        return ()

    def budgets(self, plan: "PrivacyPlan") -> Counter[float]:
        """Return how many clients have each budget."""
        counts = Counter[float]()
        for group in plan.groups:
            counts[group.epsilon] += len(group.clients)
        return counts

    def spent(self, record: "RoundLogEntry") -> "Sequence[float | None]":
        """Return what each group had spent after a round; None without a promise."""
        return record.spent_epsilon

    def spent_in_short(self, spent: float, budget: float, clients: int) -> str:
        """Return a text that says who has spent this much of a group's budget."""
        return f"{spent:.2f} of {budget:g}, {counted(clients, 'client')}"

    def promise_in_short(self, plan: "PrivacyPlan") -> str:
        """Return one line with the privacy guarantee of a plan and against whom it holds."""
        against = f" against {plan.against}" if plan.against else ""
        return f"{plan.protected}-level DP (delta {plan.delta:.3g}){against}"

    def cost_in_short(self, method: "Method", messages: float) -> str:
        """Return one line on what the privacy guarantee costs: messages per round, and rounds."""
        return f"{messages:.1f} messages a round; {counted(method.plan.num_rounds, 'round')}"

    def draw(self, plan: "PrivacyPlan", names: Sequence[str], path: "Path") -> bool:
        """Draw a plan into the file `path`; return False, as this base class does, if there is no picture."""
        return False

    def warnings(self, plan: "PrivacyPlan") -> Iterator[str]:
        """Yield warnings about a plan, one line each."""
        yield from ()


MECHANISM_REPORTS: Registry[type[MechanismReport]] = Registry(
    "report on a mechanism",
    "gdpfed.mechanism_reports",
    built_in=by_mechanism("gdpfed.mechanism_reports"),
    error=ConfigError,
)
"""Reports by the kind of mechanism that they are about."""


def report_of(plan: "PrivacyPlan") -> MechanismReport:
    """Return the report for a plan's mechanism; raise ConfigError if none is registered."""
    return MECHANISM_REPORTS.get(plan.mechanism.kind)()
