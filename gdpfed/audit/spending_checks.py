"""Runs whose clients spend what each has chosen: totals of zCDP, computed again from the files.

A client adds its own noise at rho_i^t, so its whole cost is one Gaussian of the sum over the rounds that it
took part in; who was sampled is not accounted.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import dp_accounting as dp
import numpy as np
import numpy.typing as npt

from gdpfed.audit.run_files import RunFiles

AGREES_WITHIN = 1e-6


def spending(files: RunFiles) -> Mapping[str, Any] | None:
    """What the plan says that clients spend; None where they do not choose."""
    found: Mapping[str, Any] | None = files.plan["groups"][0].get("spending")
    return found


def epsilon_of(rho: float, delta: float) -> float:
    """Epsilon at delta of one Gaussian mechanism of rho zCDP."""
    return float(dp.get_epsilon_gaussian(1 / math.sqrt(2 * rho), delta)) if rho else 0.0


def most_after(own: Mapping[str, Any], rounds: int) -> float:
    """The zCDP of the client that can have spent most in so many rounds."""
    budgets = _budgets(own)[:rounds]
    if not rounds:
        return 0.0
    dearest = np.sort(budgets, axis=0)[-own["most_rounds"] :]
    return float(dearest.sum(axis=0).max())


def spent_by(files: RunFiles, own: Mapping[str, Any]) -> dict[int, float]:
    """The zCDP of every client over the rounds that the ledger has it in."""
    budgets = _budgets(own)
    taken = files.ledger["taken"]
    return {int(client): float(budgets[rounds, int(client)].sum()) for client, rounds in taken.items()}


def check_spending(files: RunFiles, own: Mapping[str, Any]) -> Iterator[str]:
    """Budgets, chances and rounds taken: a line for every contradiction."""
    plan, ledger = files.plan, files.ledger
    budgets, chances = _budgets(own), np.asarray(own["draw_probabilities"])
    shape = (plan["num_rounds"], plan["groups"][0]["clients"])
    if budgets.shape != shape or chances.shape != shape:
        yield f"plan.json has budgets of shape {budgets.shape}, for {shape[0]} rounds of {shape[1]} clients"
        return
    if not (budgets > 0).all():
        yield "plan.json has a budget that is not above 0"
    if np.abs(chances.sum(axis=1) - 1).max() > AGREES_WITHIN:
        yield "plan.json has chances of one draw that do not sum to one"
    promised = epsilon_of(most_after(own, plan["num_rounds"]), plan["delta"])
    if abs(promised - plan["groups"][0]["epsilon"]) > AGREES_WITHIN * promised:
        stated = plan["groups"][0]["epsilon"]
        yield f"plan.json promises epsilon {stated:.6g}, its budgets cost {promised:.6g}"
    yield from _check_taken(ledger, own)
    yield from _check_cohorts(files)
    yield from _check_recorded(files, own)


def _check_taken(ledger: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    """Rounds that are charged, each once, as often as the ledger counts them, and no more than may be."""
    (counts,) = ledger["participations"]
    taken = ledger["taken"]
    if {client: len(rounds) for client, rounds in taken.items()} != counts:
        yield "the ledger's rounds taken are not as many as its counts of participations"
    charged = set(range(ledger["charged_rounds"]))
    for client, rounds in taken.items():
        if len(set(rounds)) != len(rounds) or not charged.issuperset(rounds):
            yield f"the ledger has client {client} in rounds {rounds}, which are not charged, each once"
            return
        if len(rounds) > own["most_rounds"]:
            yield f"client {client} took part in {len(rounds)} rounds, and may in {own['most_rounds']}"
            return


def _check_cohorts(files: RunFiles) -> Iterator[str]:
    """Every round's cohort is as large as the ledger has clients in it."""
    sizes = [0] * files.ledger["charged_rounds"]
    for rounds in files.ledger["taken"].values():
        for index in rounds:
            sizes[index] += 1
    for record in files.rounds:
        (asked,), drawn = record["cohort_sizes"], sizes[record["round"] - 1]
        if asked != drawn:
            yield f"round {record['round']} asked {asked} clients, and the ledger charged {drawn}"
            return


def _check_recorded(files: RunFiles, own: Mapping[str, Any]) -> Iterator[str]:
    """Every round's figure is what so many rounds can have cost."""
    for record in files.rounds:
        recorded = record["spent_epsilon"][0]
        computed = epsilon_of(most_after(own, record["round"]), files.plan["delta"])
        if abs(recorded - computed) > AGREES_WITHIN * computed:
            yield f"round {record['round']} records epsilon {recorded:.6g}, where {computed:.6g} may be spent"
            return
    if files.rounds and len(files.rounds) == files.ledger["charged_rounds"]:
        claimed = files.rounds[-1]["epsilon_against_server"][0]
        largest = max(spent_by(files, own).values(), default=0.0)
        computed = epsilon_of(largest, files.plan["delta"])
        if claimed < computed * (1 - AGREES_WITHIN):
            yield (
                f"the last round records epsilon {claimed:.6g} against the server, where {computed:.6g} is "
                "spent"
            )


def _budgets(own: Mapping[str, Any]) -> npt.NDArray[np.float64]:
    return np.asarray(own["budgets"], dtype=np.float64)
