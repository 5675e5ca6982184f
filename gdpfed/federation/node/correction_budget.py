"""What a node with a budget lets itself be asked to take back: a part of each turn's noise, once.

Nothing is charged for it. A sum in which noise is taken back must have all the new noise of the terms: then
whoever sees it learns no more than the turns have paid for, whatever part of it is lost (docs/privacy.md).
"""

from collections.abc import Sequence

from gdpfed.clients.messages import RoundOfRun
from gdpfed.federation.node.budget import BudgetRefusedError, check_terms_of_sum, places_of
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.federation.node.own_budget import Budgets
from secagg import SumParameters


def check_correction(budgets: Budgets, round_of_run: RoundOfRun, parameters: SumParameters) -> None:
    """Refuse a sum in which this client has nothing to take back, or that breaks the terms of its run."""
    with locked_ledger(*places_of(budgets)) as file:
        run = file.ledger.run(round_of_run.run)
        if not run.turns_to_take_back(round_of_run.index):
            raise BudgetRefusedError(
                f"this client has no noise to take back in round {round_of_run.index} of {round_of_run.run}"
            )
        check_terms_of_sum(run.terms, round_of_run.index, parameters)


def take_back(
    budgets: Budgets, round_of_run: RoundOfRun, parameters: SumParameters, turns: Sequence[int]
) -> None:
    """Write down that noise of these turns is about to be taken back, on the disk before this returns.

    The ledger is where it is noted that each part is sent once: an old copy of the session file, in which
    the share still lies, does not undo it.

    Raises:
        BudgetRefusedError, PrivacyError: it must not be.
        LedgerError: the ledger cannot be relied on or written.
    """
    if not turns:
        return
    with locked_ledger(*places_of(budgets)) as file:
        run = file.ledger.run(round_of_run.run)
        check_terms_of_sum(run.terms, round_of_run.index, parameters)
        for turn in turns:
            run.take_back(turn, round_of_run.index)
        file.save()
