"""Detects that a node's ledger was restored from an old copy, by the rounds that the server remembers.

A server that lies can bring about a refusal, and no more: in how many rounds of a run the client was is
compared only for the server that shows the run's secret, which the ledger has had since the run began. Any
other server could read from the refusals in how many rounds a secret sample had this client. So other servers
are refused the run's sums, too: whether a round may have an update tells whether it has had one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hmac import compare_digest
from logging import ERROR
from typing import Any

from gdpfed.clients.messages import (
    MOST_TOLD_RUNS,
    SECRET,
    TOLD_ROUNDS,
    TOLD_RUNS,
    TOLD_SECRETS,
    one_line,
)
from gdpfed.errors import PrivacyError
from gdpfed.federation import log
from gdpfed.federation.node.budget import BudgetRefusedError, places_of
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.federation.node.own_budget import Budget, Budgets
from gdpfed.privacy.ledgers.client import ClientLedger

LONGEST_SECRET = 64


@dataclass(frozen=True)
class ToldRun:
    """What a server remembers of a client in a run: how many rounds have its update, and a shared secret."""

    rounds: int
    secret: str


def check_history(budget: Budget, told: Mapping[str, Any] | None) -> None:
    """Raise BudgetRefusedError if the ledger lacks too many of the rounds that the server remembers.

    Args:
        budget: of the node; all of its budgets have one ledger.
        told: names of runs on this server, in how many rounds of each it has received an update, and the
            secret of each.

    Raises:
        BudgetRefusedError: the ledger lacks more than `Budget.lost_rounds`, or what is told is not a history.
        LedgerError: the ledger cannot be relied on.
    """
    if told is None:
        return
    runs, rounds, secrets = (told.get(name) for name in (TOLD_RUNS, TOLD_ROUNDS, TOLD_SECRETS))
    if (
        not isinstance(runs, list)
        or not isinstance(rounds, list)
        or not isinstance(secrets, list)
        or not len(set(map(str, runs))) == len(runs) == len(rounds) == len(secrets) <= MOST_TOLD_RUNS
        or not all(isinstance(text, str) for text in (*runs, *secrets))
        or not all(type(count) is int and 0 <= count < 2**31 for count in rounds)
    ):
        raise BudgetRefusedError(
            "the server's list of earlier runs has a form that this node cannot read: run one version on both"
        )
    earlier = dict(zip(runs, map(ToldRun, rounds, secrets), strict=True))
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


def secret_in(told: Mapping[str, Any] | None) -> str:
    """Return the secret that the server shares with this client for the offered run; "" if it sent none.

    Raises BudgetRefusedError: it is not a short text.
    """
    secret = (told or {}).get(SECRET, "")
    if not isinstance(secret, str) or len(secret) > LONGEST_SECRET:
        raise BudgetRefusedError("the run's secret is not a short text: run one version on server and nodes")
    return secret


def check_server(budgets: Budgets, run: str, secret: str) -> None:
    """Raise PrivacyError unless `secret` is the one with which this run began on the node.

    The line is the same for a run that never began. A run of before there were secrets has none.
    """
    with locked_ledger(*places_of(budgets)) as file:
        begun = next((each for each in file.ledger.runs if each.terms.run == run), None)
    if begun is None or (begun.secret and not compare_digest(begun.secret.encode(), secret.encode())):
        raise PrivacyError(f"run {run} was never begun with this client: begin it first")


def missing_rounds(ledger: ClientLedger, earlier: Mapping[str, ToldRun]) -> dict[str, int]:
    """Return, for each run, how many rounds the server remembers that the client's ledger lacks.

    At least 1 for a run that the ledger does not know, and none for a run of which the server does not show
    the secret.
    """
    known = {run.terms.run: run for run in ledger.runs}
    short = {}
    for name, told in earlier.items():
        run = known.get(name)
        if run is None:
            short[name] = max(told.rounds, 1)
        elif run.secret and compare_digest(run.secret.encode(), told.secret.encode()):
            short[name] = told.rounds - len(set(run.rounds)) - len(run.sent)
    return {name: rounds for name, rounds in short.items() if rounds > 0}
