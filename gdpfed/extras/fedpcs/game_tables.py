"""Tables of budgets that clients choose, by round and by quantile of clients, and a file of rewards."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gdpfed.decimal_numbers import counted
from gdpfed.extras.fedpcs.client_budgets import epsilon_of_total
from gdpfed.extras.fedpcs.own_spending import OwnSpending
from gdpfed.extras.fedpcs.spending_plan import StepBudgets
from gdpfed.files import save_whole
from gdpfed.json_files import read_json
from gdpfed.methods.base import PlanTable
from gdpfed.privacy.ledgers.participations import TURNS
from gdpfed.privacy.mechanism_options import sampling_rule
from gdpfed.rounds.observers import Observer, RoundEnded
from gdpfed.runs.file_formats import LEDGER_FILE, REWARDS_FILE, versioned

if TYPE_CHECKING:
    from gdpfed.extras.fedpcs.fedpcs import FedPCS

QUANTILES = {"least": 0.0, "quarter": 0.25, "median": 0.5, "3 quarters": 0.75, "most": 1.0}
MOST_ROWS = 8


def spending_tables(method: "FedPCS") -> tuple[PlanTable, ...]:
    """Return tables of the game's result, by round and by client."""
    return _table_by_round(method), _table_by_client(method)


def _table_by_round(method: "FedPCS") -> PlanTable:
    game, spending = method.equilibrium, method.spending
    rows = []
    last = spending.num_rounds - 1
    shown = sorted({round(last * part / (MOST_ROWS - 1)) for part in range(MOST_ROWS)} | {min(1, last)})
    for t in shown:
        chances, drawn, budgets = method.inclusions[t], spending.draw_probabilities[t], spending.budgets[t]
        rows.append(
            (
                str(t + 1),
                f"{game.rewards[t]:g}",
                f"{budgets.mean():.4g}",
                f"{budgets.min():.4g}",
                f"{budgets.max():.4g}",
                str(spending.cohort_sizes[t]),
                f"{100 * chances.min():.1f} %",
                f"{100 * chances.max():.1f} %",
                f"{drawn.std() / drawn.mean():.3f}",
            )
        )
    return PlanTable(
        title=f"{method.name}: {method.plan.unit}-level DP, {counted(spending.num_rounds, 'round')}",
        headings=("round", "reward", "mean budget", "least", "most", "K", "least pi", "most pi", "cv of x"),
        rows=rows,
    )


def _table_by_client(method: "FedPCS") -> PlanTable:
    spending, delta = method.spending, method.plan.delta
    if isinstance(spending, StepBudgets):
        return _table_of_steps(method, spending)
    rows = []
    expected, most = spending.expected_totals(), spending.worst_totals(spending.num_rounds)
    for name, quantile in QUANTILES.items():
        totals = [float(np.quantile(each, quantile)) for each in (expected, most)]
        cells = [text for rho in totals for text in (f"{rho:.5g}", f"{epsilon_of_total(rho, delta):.4g}")]
        rows.append((name, *cells))
    return PlanTable(
        title="zCDP and epsilon of a whole run, by client",
        headings=("client", "expected zCDP", "epsilon", "at most zCDP", "epsilon"),
        rows=rows,
        notes=_notes(method),
    )


def _table_of_steps(method: "FedPCS", spending: StepBudgets) -> PlanTable:
    expected = spending.steps * spending.inclusions().sum(axis=0)
    rows = [
        (
            name,
            f"{np.quantile(spending.noise, 1 - quantile):.4g}",
            f"{np.quantile(expected, quantile):.5g}",
            str(spending.steps * spending.most_rounds),
            f"{np.quantile(spending.epsilons, quantile):.4g}",
        )
        for name, quantile in QUANTILES.items()
    ]
    return PlanTable(
        title="Steps and epsilon of a whole run, by client",
        headings=("client", "noise", "expected steps", "at most steps", "epsilon"),
        rows=rows,
        notes=_notes(method),
    )


def _notes(method: "FedPCS") -> tuple[str, ...]:
    found, plan, rule = method.equilibrium, method.plan, sampling_rule(method.plan.mechanism)
    ended = "converged" if found.converged else "did not converge"
    most = method.spending.most_rounds
    asked = "every round" if most >= plan.num_rounds else f"{most} rounds, the most expensive"
    public = "All budgets are public."
    if plan.about_records:
        public = "How many records each client has, and all budgets, are public."
        if isinstance(method.spending, StepBudgets):
            public += (
                f" A round is {method.spending.steps} steps of DP-SGD at batch rate "
                f"{method.spending.rate:g}; rounds have no cost of their own."
            )
    notes = (
        f"delta {plan.delta:.3g}, {plan.adjacency} adjacency of one {plan.unit}, C {plan.clipping_norm:g}, "
        f"{rule or method.spending.draws} draws, weights {method.config.method.weights}. The mean field "
        f"{ended} in {found.num_iterations} iterations; expected payments "
        f"{method.expected_payments.sum():.5g}.",
        f"At most: a client that is asked in {asked}. Its noise is its own, so the figures hold against "
        f"everybody, with secure aggregation or without. {public}",
    )
    if rule is None:
        return notes
    known = "Chances are not known before: what is expected here is as if each were K / n."
    mechanism = plan.made_by(OwnSpending)
    if mechanism.rule == "delta":
        draws = f"Samples follow from noised gradients that clients have released, each read alone. {known}"
    else:
        draws = (
            "Samples follow from class counts that every client releases once, at "
            f"{mechanism.counts_rho:g} zCDP: noise of standard deviation {mechanism.counts_noise:.4g} in "
            f"each. All totals have it in. {known}"
        )
    return (*notes, draws)


class RewardsFile(Observer):
    """Writes each client's reward, sum R_t rho_i^t over the rounds that it took part in, to a file.

    They come from the ledger's file, which says who took part: it is its owner's to read only.
    """

    def __init__(self, directory: Path, method: "FedPCS") -> None:
        self._path, self._method = directory, method

    def round_ended(self, ended: RoundEnded) -> None:
        ledger = read_json((self._path / LEDGER_FILE).read_text(encoding="utf-8"))
        taken = {int(client): rounds for client, rounds in ledger[TURNS].items()}
        earned = {str(client): value for client, value in rewards_of(self._method, taken).items()}
        values = versioned({"rewards": self._method.equilibrium.rewards.tolist(), "clients": earned})
        save_whole(self._path / REWARDS_FILE, json.dumps(values, indent=2).encode())


def rewards_of(method: "FedPCS", taken: Mapping[int, Sequence[int]]) -> dict[int, float]:
    """Return each client's reward, r_i = sum R_t rho_i^t over the rounds that it took part in."""
    rewards, budgets = method.equilibrium.rewards, method.played_budgets
    return {
        client: float(sum(rewards[t] * budgets[t, client] for t in rounds))
        for client, rounds in taken.items()
    }
