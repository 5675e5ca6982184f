"""Detects that a node's ledger was restored from an old copy, by the rounds that the server remembers.

A server that lies can bring about a refusal, and no more.
"""

from collections.abc import Mapping
from logging import ERROR
from typing import Any

from gdpfed.clients.messages import MOST_TOLD_RUNS, TOLD_ROUNDS, TOLD_RUNS, one_line
from gdpfed.federation import log
from gdpfed.federation.node.budget import BudgetRefusedError
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.federation.node.own_budget import Budget
from gdpfed.privacy.ledgers.client import ClientLedger


def check_history(budget: Budget, told: Mapping[str, Any] | None) -> None:
    """Raise BudgetRefusedError if the ledger lacks rounds that the server remembers, unless the operator
    allows it.

    Args:
        budget: of the node; all of its budgets have one ledger.
        told: names of runs on this server, and in how many rounds of each it has received an update.

    Raises:
        BudgetRefusedError: the ledger lacks more than `Budget.lost_rounds`, or what is told is not a history.
        LedgerError: the ledger cannot be relied on.
    """
    if told is None:
        return
    earlier = _earlier(told)
    with locked_ledger(*budget.places) as file:
        lacking = missing_rounds(file.ledger, earlier)
    lost = sum(lacking.values())
    if lost <= budget.lost_rounds:
        return
    log(
        ERROR,
        "ledger=%s lacks %d rounds in which the server has received updates (%s): bring back the newest %s; "
        "where that is lost for good, lower the budget by what they cost, and start the node with %s=%d",
        *(budget.ledger, lost),
        ", ".join(f"{one_line(run)}: {rounds}" for run, rounds in lacking.items()),
        *("ledger", "lost-rounds", lost),
    )
    raise BudgetRefusedError("this client's ledger lacks runs that it has taken part in: see its log")


def missing_rounds(ledger: ClientLedger, earlier: Mapping[str, int]) -> dict[str, int]:
    """Compare a ledger with the server's memory: return how many rounds of each run the ledger lacks.

    At least 1 for a run that the ledger does not know.
    """
    known = {run.terms.run: len(set(run.rounds)) + len(run.sent) for run in ledger.runs}
    short = {
        name: rounds - known[name] if name in known else max(rounds, 1) for name, rounds in earlier.items()
    }
    return {name: rounds for name, rounds in short.items() if rounds > 0}


def _earlier(told: Mapping[str, Any]) -> dict[str, int]:
    runs, rounds = told.get(TOLD_RUNS), told.get(TOLD_ROUNDS)
    if (
        not isinstance(runs, list)
        or not isinstance(rounds, list)
        or not len(set(map(str, runs))) == len(runs) == len(rounds) <= MOST_TOLD_RUNS
        or not all(isinstance(name, str) for name in runs)
        or not all(type(count) is int and 0 <= count < 2**31 for count in rounds)
    ):
        raise BudgetRefusedError(
            "the server's list of earlier runs has a form that this node cannot read: run one version on both"
        )
    return dict(zip(runs, rounds, strict=True))
