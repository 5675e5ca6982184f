"""The client checks what a run would cost it, and in every round whether the server keeps the terms.

The order of events: the server *offers* the terms of the client's group, the client answers yes or no;
once all have said yes it *begins* the run, and each client charges it in full; before an update leaves,
its round is written down. So a crash anywhere leaves more charged than was sent, never less.
"""

from logging import ERROR
from math import ceil, isinf
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord, RecordDict
from flwr.common.logger import log

from client_app.ledger_file import locked_ledger
from client_app.request import RoundOfRun
from client_app.settings import Budget
from gdpfed.clients.messages import TERMS_RECORD
from gdpfed.errors import PrivacyError
from gdpfed.privacy.ledgers.client import ClientLedger
from gdpfed.privacy.ledgers.terms import Terms
from secagg import SumParameters

if TYPE_CHECKING:
    from gdpfed.clients.order import TrainingOrder

VISIBLE_UPDATES = (
    "the server would see single updates (secagg=off), against which no budget holds: use secagg=pairwise"
)
# Between the server's product of sigma and C and the client's there is rounding.
ROUNDING = 1e-9


class BudgetRefusedError(PrivacyError):
    """A request of the server would break the client's budget or the terms.

    Its text goes to the server, so it tells of no data and not of what other runs have cost this client.
    Those figures are in the node's own log.
    """


def terms_in(content: RecordDict) -> Terms:
    """The terms that a message offers; BudgetRefusedError where it holds none."""
    record = content.get(TERMS_RECORD)
    if not isinstance(record, ConfigRecord):
        raise BudgetRefusedError(
            f"the message lacks the record {TERMS_RECORD}, without which nothing is sent"
        )
    return Terms.from_scalars(dict(record))


def check_ledger(budget: Budget) -> None:
    """Refuse to join with a ledger that cannot be relied on."""
    with locked_ledger(budget.ledger):
        pass


def consider(budget: Budget, terms: Terms) -> None:
    """Say whether a run under these terms fits the budget; changes nothing.

    Raises:
        BudgetRefusedError: it does not.
        LedgerError: the ledger cannot be relied on.
    """
    with locked_ledger(budget.ledger) as file:
        _check_terms(budget, file.ledger, terms)


def begin(budget: Budget, terms: Terms) -> None:
    """Charge a run in full, on the disk before this returns; one that has begun is not charged again."""
    with locked_ledger(budget.ledger) as file:
        _check_terms(budget, file.ledger, terms)
        file.ledger.begin(terms, epsilon=budget.epsilon, delta=budget.delta)
        file.save()


def check_sum(budget: Budget, round_of_run: RoundOfRun, parameters: SumParameters) -> None:
    """Refuse a sum that breaks the terms of its run or this client's limit against the server."""
    with locked_ledger(budget.ledger) as file:
        _check_sum(budget, file.ledger, round_of_run, parameters)


def charge(
    budget: Budget, round_of_run: RoundOfRun, parameters: SumParameters, order: "TrainingOrder"
) -> None:
    """Write down that an update is about to be sent, on the disk before this returns.

    Raises:
        BudgetRefusedError, PrivacyError: it must not be.
        LedgerError: the ledger cannot be relied on or written.
    """
    with locked_ledger(budget.ledger) as file:
        terms = _check_sum(budget, file.ledger, round_of_run, parameters)
        event = terms.event(round_of_run.index)
        norm = min(order.clipping_norm, parameters.clipping_norm)
        if norm > event.clipping_norm * (1 + ROUNDING):
            raise BudgetRefusedError(
                f"clipping norm {norm:.6g} is above the {event.clipping_norm:.6g} of the terms"
            )
        if order.noise != event.noise:
            raise BudgetRefusedError(f"{order.noise} noise was ordered where the terms say {event.noise}")
        if order.work != "update":
            raise BudgetRefusedError(f"{order.work} was ordered, which the terms do not charge")
        file.ledger.charge(round_of_run.run, round_of_run.index)
        file.save()


def _check_terms(budget: Budget, ledger: ClientLedger, terms: Terms) -> None:
    if terms.unit != "client":
        raise BudgetRefusedError(
            f"the terms are about a {terms.unit}, and this node has a budget for a client only"
        )
    if not terms.sums_hidden:
        raise BudgetRefusedError(VISIBLE_UPDATES)
    reason = _beyond_budget(budget, ledger, terms)
    if reason:
        log(ERROR, "%s", reason)
        raise BudgetRefusedError("this run does not fit this client's own budget")


def _beyond_budget(budget: Budget, ledger: ClientLedger, terms: Terms) -> str:
    """Say with its figures why a run does not fit the budget; an empty string if it does."""
    try:
        alone = ledger.epsilon(budget.delta)
        epsilon = ledger.epsilon(budget.delta, also=terms)
    except PrivacyError as error:
        return f"{_in_words(terms)} cannot be added to this ledger: {error}"
    if epsilon <= budget.epsilon:
        return ""
    return (
        f"{_in_words(terms)} would take this client from epsilon {alone:.4g} to "
        f"{epsilon:.4g} at delta {budget.delta:g}, above its own budget of {budget.epsilon:g} "
        f"(the plan's delta is {terms.delta:.3g})"
    )


def _in_words(terms: Terms) -> str:
    """Describe in words what the terms charge."""
    event = terms.event(terms.first_round)
    return (
        f"{terms.num_rounds - terms.first_round} rounds at rate {event.sampling_rate:.4g} with noise "
        f"multiplier {event.noise_multiplier:.4g}"
    )


def _check_sum(
    budget: Budget, ledger: ClientLedger, round_of_run: RoundOfRun, parameters: SumParameters
) -> Terms:
    terms = ledger.check_round(round_of_run.run, round_of_run.index)
    broken = _broken_term(terms, round_of_run.index, parameters)
    if broken:
        raise BudgetRefusedError(f"{broken}, against the terms of run {terms.run}")
    if isinf(budget.max_epsilon_against_server):
        return terms
    figure = ledger.epsilon_against_server(budget.delta, one_more_in=(round_of_run.run, round_of_run.index))
    if figure > budget.max_epsilon_against_server:
        log(
            ERROR,
            "one more update takes this client to epsilon %.4g against the server, above its own limit of %g",
            figure,
            budget.max_epsilon_against_server,
        )
        raise BudgetRefusedError("one more update does not fit this client's own limit against the server")
    return terms


def _broken_term(terms: Terms, round_index: int, parameters: SumParameters) -> str:
    """Say how a sum breaks the terms; an empty string if it keeps them."""
    stddev = parameters.noise_multiplier * parameters.clipping_norm
    least = terms.event(round_index).noise_stddev
    dropouts = ceil(terms.dropout_tolerance * parameters.num_clients)
    corrupt = ceil(terms.corrupt_tolerance * parameters.num_clients)
    if stddev < least * (1 - ROUNDING):
        return f"noise of standard deviation {stddev:.6g} is below {least:.6g}"
    if parameters.dropout_tolerance > dropouts:
        return f"a tolerance of {parameters.dropout_tolerance} dropouts is above {dropouts}"
    if parameters.corrupt_tolerance < corrupt:
        return f"a tolerance of {parameters.corrupt_tolerance} corrupt members is below {corrupt}"
    return ""
