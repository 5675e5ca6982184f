"""A node's privacy budget: checks a run's cost before the run, and the agreed conditions in every round.

The order of events: the server *offers* the terms of the client's group, the client answers yes or no;
once all have said yes it *begins* the run, and each client charges it in full; before an update leaves,
its round is written down. So a crash anywhere leaves more charged than was sent, never less.

A budget is for a client or for each of its records, and a run counts against the one of its own unit.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import dropwhile
from logging import ERROR
from math import ceil, inf, isinf, prod
from pathlib import Path
from typing import TYPE_CHECKING

from gdpfed.clients.messages import RoundOfRun, one_line
from gdpfed.errors import PrivacyError
from gdpfed.federation import log
from gdpfed.federation.node.ledger_file import LedgerFile, locked_ledger
from gdpfed.federation.node.node_config import SETTING_OF
from gdpfed.federation.node.own_budget import Budget, Budgets
from gdpfed.privacy.accountants.longest_draw import require_drawable
from gdpfed.privacy.allocation import AllocatedGaussian
from gdpfed.privacy.events import DPSGDSteps, Gaussian, LocalWindows, Unit
from gdpfed.privacy.ledgers.client import ClientLedger
from gdpfed.privacy.ledgers.terms import Terms
from gdpfed.privacy.ledgers.terms_options import (
    SampledTerms,
    TurnTerms,
    may_be_filled,
    noise_taps,
    num_budgets,
    once_in,
    paid_once,
    private_by_itself,
)
from gdpfed.privacy.sums_once import broken_once, noise_of
from secagg import SumParameters

if TYPE_CHECKING:
    from gdpfed.clients.order import TrainingOrder

VISIBLE_UPDATES = (
    "the server would see single updates (secagg=off), against which no budget holds: use secagg=pairwise, "
    "or start the node with edge-trusted=true if the server is an edge that it trusts with them"
)
_AGAINST = ", against the terms of run "
# Between the server's product of sigma and C and the client's there is rounding.
ROUNDING = 1e-9
# An honest server's round is refused more seldom than that.
LEAST_CHANCE = 1e-6
# Of releases whose epsilon has no closed form. Each takes a tenth of a second, while the ledger is locked.
MOST_LAWS = 100
MOST_WINDOW_STEPS = 1000
# A power of so many releases takes seconds; their number, not their kinds, decides.
MOST_STEPS = 10**7
# Noise in units of what one client or record adds. Beyond it squares leave the floats; a block of rounds
# takes the more memory the more noise it has.
NOISE_RANGE, MOST_BLOCK_NOISE = (1e-9, 1e12), 1e3
# To read a ledger, account and write takes up to half a second for a megabyte, and the ledger is locked.
MOST_TERMS_BYTES = 256_000
MOST_LEDGER_BYTES = 16_000_000


class BudgetRefusedError(PrivacyError):
    """Raised if a server's request exceeds the client's budget or breaks the run's agreed conditions.

    Its text goes to the server, so it tells of no data and not of what other runs have cost this client.
    Those figures are in the node's own log.
    """


def of_unit(budgets: Budgets, unit: Unit) -> Budget:
    """Return the node's budget for runs that protect a client, or for runs that protect a record.

    Raises:
        BudgetRefusedError: the node gave one for the other unit only; the two never stand for each other.
    """
    if unit not in budgets:
        raise BudgetRefusedError(
            f"this run protects a {unit}, and this node has a budget for a {next(iter(budgets))} only: give "
            f'it one for both, as in --node-config "{SETTING_OF[unit]}=2.0 ..."'
        )
    return budgets[unit]


def check_ledger(budget: Budget) -> None:
    """Raise an error if the node's ledger is damaged or lost, so that the node joins no run."""
    with locked_ledger(*budget.places):
        pass


def consider(budgets: Budgets, terms: Terms) -> None:
    """Check that a run under these agreed conditions fits the node's budget, without recording any cost.

    Raises:
        BudgetRefusedError: it does not.
        LedgerError: the ledger cannot be relied on.
    """
    budget = of_unit(budgets, terms.unit)
    _refuse_large(terms)
    _refuse_long_accounting(terms)
    with locked_ledger(*budget.places) as file:
        _refuse_full(file, terms)
        _check_terms(budget, file.ledger, terms)


def begin(budgets: Budgets, terms: Terms, secret: str = "") -> None:
    """Record a run's whole privacy cost in the ledger on disk, unless the run is recorded there already.

    `secret`: what the run's server will show when it tells of the run later; "" for none.
    """
    budget = of_unit(budgets, terms.unit)
    _refuse_large(terms)
    _refuse_long_accounting(terms)
    with locked_ledger(*budget.places) as file:
        _refuse_full(file, terms)
        _check_terms(budget, file.ledger, terms)
        file.ledger.begin(
            terms,
            epsilons=budget.epsilons,
            delta=budget.delta,
            edge_trusted=budget.edge_trusted and not terms.sums_hidden,
            secret=secret,
        )
        if file.ledger.run(terms.run).secret not in ("", secret):
            raise BudgetRefusedError(
                f"run {terms.run} has begun with another secret than this server's: put the server's "
                "client_history.json back beside the run, or begin a new run"
            )
        file.ledger.forget_free()
        file.save()


def check_sum(budgets: Budgets, round_of_run: RoundOfRun, parameters: SumParameters) -> Terms:
    """Return the run's terms; raise an error if a sum breaks them or would exceed this client's limits."""
    with locked_ledger(*places_of(budgets)) as file:
        terms = file.ledger.check_round(round_of_run.run, round_of_run.index)
        budget = of_unit(budgets, terms.unit)
        check_terms_of_sum(terms, round_of_run.index, parameters)
        if not may_be_filled(terms, round_of_run.index):
            _check_limits(budget, file.ledger, round_of_run)
    return terms


def check_in_clear(budgets: Budgets, index: int, terms: Terms) -> None:
    """Raise BudgetRefusedError for an unmasked update without client noise, unless it goes to a trusted edge.

    A trusted edge server may receive such an update if the terms say so, which the ledger records: it owes
    the noise of the terms, which `charge` checks. `index`: of the round.
    """
    edge_trusted = any(budget.edge_trusted for budget in budgets.values())
    noised_here = (edge_trusted or "record" in budgets) and private_by_itself(terms)
    if not (noised_here and not once_in(terms, index)) and (terms.sums_hidden or not edge_trusted):
        raise BudgetRefusedError(VISIBLE_UPDATES)


def charge(
    budgets: Budgets,
    round_of_run: RoundOfRun,
    parameters: SumParameters,
    order: "TrainingOrder",
    check: Callable[[Terms], None] | None = None,
) -> None:
    """Record in the ledger on disk that an update is about to be sent.

    `check`: may refuse it by the run's terms. A run that has cost nothing may be forgotten and begun again on
    other terms, so only the terms that are charged are sure to stay.

    Raises:
        BudgetRefusedError, PrivacyError: it must not be.
        LedgerError: the ledger cannot be relied on or written.
    """
    num_steps = 0 if order.records is None else order.records.num_steps
    with locked_ledger(*places_of(budgets)) as file:
        terms = file.ledger.check_round(round_of_run.run, round_of_run.index)
        budget = of_unit(budgets, terms.unit)
        check_terms_of_sum(terms, round_of_run.index, parameters)
        if broken := _broken_by(terms, round_of_run.index, order, parameters):
            raise BudgetRefusedError(broken)
        if check is not None:
            check(terms)
        if not order.fills:
            _check_limits(budget, file.ledger, round_of_run, num_steps)
        file.ledger.charge(round_of_run.run, round_of_run.index, num_steps, fills=order.fills)
        file.save()


def charge_in_clear(
    budgets: Budgets, round_of_run: RoundOfRun, parameters: SumParameters, order: "TrainingOrder"
) -> None:
    """Record in the ledger that an unmasked update is about to be sent, if the run's terms allow this."""
    charge(budgets, round_of_run, parameters, order, partial(check_in_clear, budgets, round_of_run.index))


def places_of(budgets: Budgets) -> tuple[Path, Path | None]:
    """Return the paths of the node's ledger and of its copy; all budgets of the node share this ledger."""
    return next(iter(budgets.values())).places


def _refuse_large(terms: Terms) -> None:
    """Raise BudgetRefusedError for terms that are too long to keep, or whose noise no accounting can hold.

    It is asked before a run begins, and not of terms in a ledger, which must stay readable.
    """
    size = len(json.dumps(terms.to_scalars()))
    if size > MOST_TERMS_BYTES:
        raise BudgetRefusedError(
            f"the terms of run {terms.run} have {size} bytes, and this node keeps {MOST_TERMS_BYTES} at "
            "most: use fewer rounds, or rounds that are more alike"
        )
    for charge in (*terms.charges, *terms.vote, *terms.norm_histogram, *terms.held_out):
        noise, (least, most) = getattr(charge.event, "noise_multiplier", 1.0), NOISE_RANGE
        if isinstance(charge.event, AllocatedGaussian):
            most = MOST_BLOCK_NOISE
        if charge.event.is_noisy and not least <= noise <= most:
            raise BudgetRefusedError(
                f"run {terms.run} has noise of {noise:.3g} times the largest contribution, and this node "
                f"accounts for {least:g} to {most:g}: use noise within this range"
            )


def _refuse_full(file: LedgerFile, terms: Terms) -> None:
    """Raise BudgetRefusedError for a new run if the ledger has no room for it; its other runs go on."""
    if file.size <= MOST_LEDGER_BYTES or any(run.terms.run == terms.run for run in file.ledger.runs):
        return
    log(
        ERROR,
        "ledger=%s has %d bytes, and takes new runs up to %d: keep it, lower the budget by what is spent "
        "(gdpfed node status), and start the node with another ledger",
        *(file.path, file.size, MOST_LEDGER_BYTES),
    )
    raise BudgetRefusedError("this client's ledger is full: see the node's log")


def _refuse_long_accounting(terms: Terms) -> None:
    """Raise BudgetRefusedError if computing a run's privacy cost would take this node too long.

    Releases that differ in their number of steps alone have one law, but for windows of steps. All of it is
    computed for each group of a client's records.
    """
    groups = num_budgets(terms)
    for_groups = f" for {groups} groups of records" if groups > 1 else ""
    events = {charge.event for charge in terms.charges if not isinstance(charge.event, Gaussian)}
    laws = {replace(each, num_steps=1) if isinstance(each, DPSGDSteps) else each for each in events}
    if len(laws) * groups > MOST_LAWS:
        raise BudgetRefusedError(
            f"the terms of run {terms.run} have {len(laws)} kinds of releases{for_groups}, and this node "
            f"accounts for at most {max(1, MOST_LAWS // groups)}: plan rounds that are more alike"
        )
    releases = (each for each in terms.charges if not isinstance(each.event, Gaussian))
    # For a person at several parties, the steps at each of them count.
    each_step = ("num_steps", "parties")
    steps = sum(each.count * prod(getattr(each.event, name, 1) for name in each_step) for each in releases)
    if steps * groups > MOST_STEPS:
        raise BudgetRefusedError(
            f"run {terms.run} has {steps} steps (of a person, at all parties together){for_groups}, and this "
            f"node accounts for {MOST_STEPS // groups} at most: use fewer"
        )
    longest = max((each.window_steps for each in events if isinstance(each, LocalWindows)), default=0)
    if longest * groups > MOST_WINDOW_STEPS:
        raise BudgetRefusedError(
            f"run {terms.run} takes {longest} local steps from one release to the next{for_groups}, and this "
            f"node accounts for {max(1, MOST_WINDOW_STEPS // groups)} at most: use fewer local steps"
        )


def _check_terms(budget: Budget, ledger: ClientLedger, terms: Terms) -> None:
    if not (terms.sums_hidden or budget.edge_trusted or private_by_itself(terms)):
        raise BudgetRefusedError(VISIBLE_UPDATES)
    if isinstance(terms, TurnTerms):
        turns, apart = terms.turns
        if turns > budget.max_participations:
            raise BudgetRefusedError(f"{_own_most(budget)}, and this run asks for {turns}")
        if apart < budget.min_separation and turns > 1:
            raise BudgetRefusedError(f"{_own_separation(budget)}, and in this run they are {apart} apart")
    raised = _raised(budget, ledger, terms)
    if raised:
        log(ERROR, "%s", raised)
        raise BudgetRefusedError(
            "this client's budget was raised since its last run, and not confirmed: see the node's log"
        )
    reason = _beyond_budget(budget, ledger, terms)
    if reason:
        log(ERROR, "%s", reason)
        raise BudgetRefusedError("this run does not fit this client's own budget")
    if not terms.epsilon < inf:
        raise BudgetRefusedError(f"run {terms.run} promises no epsilon, and its charges have one")


def _raised(budget: Budget, ledger: ClientLedger, terms: Terms) -> str:
    """Return an error text if the budget was raised and the setting raised-from does not confirm it, else "".

    A node that is started anew by another command than before would have its usual budget again. The epsilon
    of any group of records, or delta, may have been raised; the first of these, as it was, confirms it.
    """
    before = ledger.runs_of(terms.unit)
    if not before or any(each.terms.run == terms.run for each in before):
        return ""
    last, now, setting = before[-1], budget.epsilons, SETTING_OF[terms.unit]
    # Where the number of groups is another, no group had more than the least for certain.
    was = last.epsilons if len(last.epsilons) == len(now) else (min(last.epsilons),) * len(now)
    higher = [old for new, old in zip(now, was, strict=True) if new > old][:1]
    raised = [(setting, old, now, last.epsilons) for old in higher]
    if budget.delta > last.delta:
        raised.append((setting.replace("epsilon", "delta"), last.delta, (budget.delta,), (last.delta,)))
    if not raised or budget.raised_from == raised[0][1]:
        return ""
    said = ", ".join(
        f"{name} is {_as_setting(new)}, and in this ledger's last run it was {_as_setting(old)}"
        for name, _, new, old in raised
    )
    as_before = " ".join(f"{name}={_as_setting(old)}" for name, _, _, old in raised)
    return (
        f"{said}: start the node with {as_before} as before, or with raised-from={raised[0][1]:g} beside it "
        "if it was raised"
    )


def _as_setting(numbers: Sequence[float]) -> str:
    """Format a budget as a node's setting: one number, or several numbers in quotes."""
    text = ",".join(f"{number:g}" for number in numbers)
    return f"'{text}'" if len(numbers) > 1 else text


def _limits(
    budget: Budget, ledger: ClientLedger, terms: Terms
) -> Iterator[tuple[str | None, Sequence[float], float]]:
    """Yield the budgets that a run must keep: the last run that counts, and epsilons and delta.

    What this node has promised about earlier runs no later run changes. So a run has to keep its own budget,
    that of every run which began after it, of the runs until then, and the present one, of all (None). Each
    pair of epsilon and delta is a promise by itself. There is one epsilon for each group of this client's
    records, of which one number stands for all, or for the client.

    Raises:
        BudgetRefusedError: the run makes other groups of this client's records than it has budgets.
    """
    since = dropwhile(lambda each: each.terms.run != terms.run, ledger.runs_of(terms.unit))
    promised = [(each.terms.run, each.terms, each.epsilons, each.delta) for each in since]
    for until, last, epsilons, delta in (*promised, (None, terms, budget.epsilons, budget.delta)):
        groups = num_budgets(last)
        if 1 < groups != len(epsilons) > 1:
            raise BudgetRefusedError(
                f"this run makes {groups} groups of a client's records, and this node's "
                f"{SETTING_OF['record']} has {len(epsilons)} budgets: give one each, or one number for all"
            )
        yield until, epsilons if groups == len(epsilons) else (min(epsilons),) * groups, delta


def _beyond_budget(budget: Budget, ledger: ClientLedger, terms: Terms, turn: int | None = None) -> str:
    """Explain, with the epsilons, why a run does not fit a budget that it must keep; "" if it fits all.

    What counts is the run's worst case, or what it has cost with one more `turn`, a round.
    """
    offered = f"round {turn} of run {one_line(terms.run)}"
    if turn is None:
        offered = terms.in_words(budget.max_participations)
    for until, limits, delta in _limits(budget, ledger, terms):
        for group, limit in enumerate(limits):
            paid = partial(ledger.epsilon, delta, unit=terms.unit, until=until, limit=limit)
            try:
                if turn is None:
                    # Not where terms are read from a ledger: what was agreed to earlier counts, however it
                    # was drawn.
                    require_drawable(
                        (*terms.vote, *terms.norm_histogram, *terms.planned_charges()), delta, limit
                    )
                    require_drawable(terms.held_out, delta, limit)
                epsilon = paid(also=terms, turn=turn, record_group=group, at_most=budget.max_participations)
            except PrivacyError as error:
                return f"{offered} cannot be added to this ledger: {error}"
            if epsilon <= limit:
                continue
            records = terms.unit == "record"
            payer = f"group {group} of this client's records" if records else "this client"
            # What one of several groups has paid is known only beside the terms that make the groups.
            before = f"from epsilon {paid():.4g} to" if len(limits) == 1 else "to epsilon"
            own = f"its own budget of {limit:g} (the plan's delta is {terms.delta:.3g})"
            if until is not None:
                own = (
                    f"the budget of {limit:g} that it had when run {one_line(until)} began, which a later "
                    "raise does not change: let this run end, and begin a new one"
                )
            elif turn is not None:
                own = f"its own budget of {limit:g}, which was lowered: raise it, or let this run end"
            return f"{offered} would take {payer} {before} {epsilon:.4g} at delta {delta:g}, above {own}"
    return ""


def _broken_by(terms: Terms, index: int, order: "TrainingOrder", parameters: SumParameters) -> str:
    """Return how the server's instruction breaks the run's agreed conditions, or "" if it breaks none."""
    those = f"the terms of run {terms.run}"
    if terms.task and order.task.digest != terms.task:
        return f"the server asks for another model, number of classes or form of examples than {those}"
    if order.announced != terms.announced:
        return f"the server follows another announcement of the game than {those}"
    once = once_in(terms, index)
    if order.taps != (() if once else noise_taps(terms)):
        return f"later rounds would subtract other parts of this noise than {those} say"
    if (order.may_fill or order.fills) and not may_be_filled(terms, index):
        return f"members may send zeros in a sum without secret Poisson sampling, against {those}"
    if once:
        return broken_once(once, order.work, order.noise, order.weight)
    return terms.broken_by(index, order, parameters.clipping_norm)


def _check_limits(budget: Budget, ledger: ClientLedger, round_of_run: RoundOfRun, num_steps: int = 1) -> None:
    """Raise BudgetRefusedError for an update that would exceed one of this client's limits.

    It is not asked of zeros, which may always be sent.
    """
    terms = ledger.terms(round_of_run.run)
    if not once_in(terms, round_of_run.index):
        taken = set(ledger.run(round_of_run.run).drawn_in) - {round_of_run.index}
        if len(taken) >= budget.max_participations:
            raise BudgetRefusedError(f"{_own_most(budget)}, and has done so")
        nearest = min((abs(round_of_run.index - each) for each in taken), default=inf)
        if nearest < budget.min_separation:
            raise BudgetRefusedError(f"{_own_separation(budget)}, and it took part in one {nearest:g} away")

        if isinstance(terms, SampledTerms):
            chance = ledger.chance_of_round(round_of_run.run, round_of_run.index)
            if not chance >= LEAST_CHANCE:
                log(ERROR, "asked so often at the sampling rates of the terms: with probability %.3g", chance)
                raise BudgetRefusedError(
                    f"round {round_of_run.index} of run {round_of_run.run}: the server asks this client more "
                    f"often than the terms' sampling rates allow, except in one of {1 / LEAST_CHANCE:,.0f} "
                    "runs"
                )

        if terms.pays_by_turn:
            # A path counts by the rounds that were taken, so runs that go on side by side fit or not round by
            # round.
            reason = _beyond_budget(budget, ledger, terms, round_of_run.index)
            if reason:
                log(ERROR, "%s", reason)
                raise BudgetRefusedError("one more round does not fit this client's own budget")

    if isinf(budget.max_epsilon_against_server):
        return
    one_more = round_of_run.run, round_of_run.index
    figure = ledger.epsilon_against_server(
        budget.delta,
        unit=terms.unit,
        one_more_in=one_more,
        more_steps=num_steps,
        limit=budget.max_epsilon_against_server,
    )
    if not figure <= budget.max_epsilon_against_server:
        log(
            ERROR,
            "one more update takes this client to epsilon %.4g against the server, above its own limit of %g",
            figure,
            budget.max_epsilon_against_server,
        )
        raise BudgetRefusedError("one more update does not fit this client's own limit against the server")


def _own_most(budget: Budget) -> str:
    most = f"{budget.max_participations:g} rounds of a run"
    return f"this client takes part in {most} at most (max-participations)"


def _own_separation(budget: Budget) -> str:
    return f"the rounds of this client are {budget.min_separation} apart at least (min-separation)"


def check_terms_of_sum(terms: Terms, round_index: int, parameters: SumParameters) -> None:
    """Raise BudgetRefusedError if a sum's noise or its tolerance of dropouts or colluders breaks the terms.

    Worse is less noise, more dropouts, or fewer corrupt members that are tolerated.
    """
    if broken := _broken_term(terms, round_index, parameters):
        raise BudgetRefusedError(f"{broken}{_AGAINST}{terms.run}")


def _broken_term(terms: Terms, round_index: int, parameters: SumParameters) -> str:
    """Describe the first parameter of a sum (noise, tolerances) that is worse than agreed, or return "".

    A sum of updates that are private by themselves owes no noise.
    """
    once = once_in(terms, round_index)
    if private_by_itself(terms) and not once:
        return ""
    stddev = parameters.noise_stddev
    least = terms.owed_noise(round_index) if once is None else noise_of(paid_once(terms, once))
    dropouts = ceil(terms.dropout_tolerance * parameters.num_updates)
    corrupt = ceil(terms.corrupt_tolerance * parameters.num_clients)
    # Written so that a NaN is refused.
    if not stddev >= least * (1 - ROUNDING):
        return f"noise of standard deviation {stddev:.6g} is below {least:.6g}"
    if parameters.dropout_tolerance > dropouts:
        return f"a tolerance of {parameters.dropout_tolerance} dropouts is above {dropouts}"
    if parameters.corrupt_tolerance < corrupt:
        return f"a tolerance of {parameters.corrupt_tolerance} corrupt members is below {corrupt}"
    return ""
