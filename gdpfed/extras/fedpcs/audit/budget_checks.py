"""Checks runs whose clients choose their budgets: recomputes each client's total zCDP.

A client adds its own noise at rho_i^t, so its whole cost is one Gaussian of the sum over the rounds that it
took part in, and of class counts where it has released them; or it takes steps of DP-SGD at one noise, and
its cost is that of these steps. Who was sampled is not accounted. In a client's own ledger such a
run is a path.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import dp_accounting as dp
import numpy as np
import numpy.typing as npt

from gdpfed.audit.accounting import Charges, charges_of, epsilon_after
from gdpfed.audit.mechanisms.record_entries import RecordEntry
from gdpfed.audit.node_audit import NodeEntry
from gdpfed.audit.rules import AuditRule, GroupAudit, or_infinite
from gdpfed.audit.run_files import RunFiles
from gdpfed.audit.tolerances import ROUNDING, SAME_FIGURE, TWO_BOUNDS
from gdpfed.extras.fedpcs.audit.draw_checks import check_draws

STEPS = "steps"
"""Of a plan's spending, where it is in steps of DP-SGD."""

NOT_COPIED = {
    "client": ("sampling", "sampling_rate"),
    "record": ("sampling", "sampling_rate", "adjacency"),
}
"""Settings that the plan has of its own, by whom it protects."""


class OwnBudgets(AuditRule):
    """Audits runs whose clients choose their budgets, and reports the largest cost of any client."""

    entries = frozenset({"spending"})
    noised = True
    asked_budgets = None

    @property
    def free_settings(self) -> Collection[str]:
        return NOT_COPIED[self.plan["unit"]]

    def check_plan(self) -> Iterator[str]:
        from gdpfed.extras.fedpcs.audit.total_checks import check_totals

        own = spending_of(self.files)
        yield from check_spending(self.files, own)
        yield from check_draws(self.files, own)
        yield from check_totals(self.files)

    @property
    def asked(self) -> Mapping[str, Any]:
        """The plan's required entries: its kind of client sampling, 1 sum per round, and work on records."""
        draws = spending_of(self.files)["draws"]
        of_records = {"works": ["dp_sgd"]} if self.plan["unit"] == "record" else {}
        sampling = "poisson" if draws == "poisson" else "fixed_size"
        return {"sampling": sampling, "sums_per_round": 1, **of_records}

    def check_figures(self, index: int) -> Iterator[str]:
        """Check that a group's stated epsilons and rates follow from clients' budgets and cohort sizes."""
        plan, group, own = self.plan, self.plan["groups"][index], spending_of(self.files)
        rounds, clients = plan["num_rounds"], group["clients"]
        cost, rate = most_after(self.files, own, rounds), math.fsum(own["cohort_sizes"]) / rounds / clients
        epsilons = ("epsilon_accounted", "epsilon_against_server", "epsilon_against_members")
        expected = dict.fromkeys(epsilons, (cost, _agrees_within(own))) | {
            "participations_p99": (own["most_rounds"], 0.0),
            "sampling_rate": (rate, ROUNDING),
            "expected_cohort_size": (rate * clients, ROUNDING),
            "noise_multiplier": (0.0, 0.0),
            "noise_variance_multiplier": (0.0, 0.0),
        }
        for key, (value, within) in expected.items():
            if group[key] is None or not math.isclose(group[key], value, rel_tol=within):
                yield f"plan.json has {key} {group[key]}, where {value:.6g} follows from its budgets"
        if not math.isclose(plan["sampling_rate"], rate, rel_tol=ROUNDING):
            yield f"plan.json has sampling_rate {plan['sampling_rate']}, and its cohorts {rate:.6g}"

    def groups(self) -> Iterator[GroupAudit]:
        files, group, own = self.files, self.plan["groups"][0], spending_of(self.files)
        spent = largest_spent(files, own)
        yield GroupAudit(
            group=0,
            clients=group["clients"],
            budget=group["epsilon"] * (1 + ROUNDING),
            planned=most_after(files, own, files.plan["num_rounds"]),
            spent=most_after(files, own, files.ledger["charged_rounds"]),
            recorded=or_infinite(files.rounds[-1]["spent_epsilon"][0]) if files.rounds else None,
            against_server=spent,
            against_members=spent,
            most_rounds=max(files.ledger["participations"][0].values(), default=0),
        )


def spending_of(files: RunFiles) -> Mapping[str, Any]:
    """Return the budgets of all clients, as the plan states them."""
    found: Mapping[str, Any] = files.plan["groups"][0]["spending"]
    return found


def epsilon_of(rho: float, delta: float) -> float:
    """Return epsilon at delta of one Gaussian mechanism with rho zCDP."""
    return float(dp.get_epsilon_gaussian(1 / math.sqrt(2 * rho), delta)) if rho else 0.0


def most_after(files: RunFiles, own: Mapping[str, Any], rounds: int) -> float:
    """Return the largest epsilon that any client can have spent after this number of rounds."""
    if not rounds:
        return epsilon_of(_before(own), files.plan["delta"])
    if STEPS in own:
        least = min(own[STEPS]["noise_multipliers"])
        return _of_steps(files, own, least, min(rounds, own["most_rounds"]))
    return epsilon_of(float(worst_totals(own, rounds).max()), files.plan["delta"])


def worst_totals(own: Mapping[str, Any], rounds: int) -> npt.NDArray[np.float64]:
    """Return the largest zCDP that each client can spend in this number of rounds, shape (n,)."""
    most_expensive = np.sort(_budgets(own)[:rounds], axis=0)[-own["most_rounds"] :]
    return np.asarray(most_expensive.sum(axis=0) + _before(own))


def largest_spent(files: RunFiles, own: Mapping[str, Any]) -> float:
    """Return the largest epsilon of any client, for the rounds that the ledger lists."""
    taken = {int(client): rounds for client, rounds in files.ledger["taken"].items()}
    if STEPS in own:
        noise, most = own[STEPS]["noise_multipliers"], dict[float, int]()
        for client, rounds in taken.items():
            most[noise[client]] = max(most.get(noise[client], 0), len(rounds))
        return max((_of_steps(files, own, *each) for each in most.items()), default=0.0)
    budgets = _budgets(own)
    totals = (float(budgets[rounds, client].sum()) for client, rounds in taken.items())
    return epsilon_of(max(totals, default=0.0) + _before(own), files.plan["delta"])


def _before(own: Mapping[str, Any]) -> float:
    """Return each client's zCDP cost of the class counts released before round 1; 0 if none are released."""
    return float(own.get("counts_rho", 0.0))


def _of_steps(files: RunFiles, own: Mapping[str, Any], noise: float, rounds: int) -> float:
    """Return epsilon of this many rounds of DP-SGD steps, all with the same noise."""
    charges = charges_of([{"event": steps_event(own, noise), "count": rounds}])
    return epsilon_after(charges, files.plan["delta"], at_most=files.plan["groups"][0]["epsilon"])


def steps_event(own: Mapping[str, Any], noise: float) -> dict[str, Any]:
    """Return the accounting event of one round of DP-SGD steps with this noise multiplier."""
    steps = own[STEPS]
    return {
        "kind": "dp_sgd_steps",
        "batch_rate": steps["batch_rate"],
        "noise_multiplier": noise,
        "num_steps": steps["num_steps"],
    }


def _agrees_within(own: Mapping[str, Any]) -> float:
    """Return the relative difference allowed between two computations of a cost: larger for DP-SGD steps."""
    return TWO_BOUNDS if STEPS in own else SAME_FIGURE


def check_spending(files: RunFiles, own: Mapping[str, Any]) -> Iterator[str]:
    """Check clients' budgets, sampling probabilities and rounds; yield a line for each contradiction."""
    plan, ledger = files.plan, files.ledger
    budgets, chances = _budgets(own), np.asarray(own["draw_probabilities"])
    shape = (plan["num_rounds"], plan["groups"][0]["clients"])
    if budgets.shape != shape or chances.shape != shape:
        yield f"plan.json has budgets of shape {budgets.shape}, for {shape[0]} rounds of {shape[1]} clients"
        return
    if not (budgets > 0).all():
        yield "plan.json has a budget that is not above 0"
    if not _before(own) >= 0 or ("rule" not in own and _before(own)):
        yield f"plan.json has class counts at {_before(own)} zCDP, of which no rule makes use"
    if np.abs(chances.sum(axis=1) - 1).max() > SAME_FIGURE:
        yield "plan.json has chances of one draw that do not sum to one"
    if STEPS in own:
        yield from _check_steps(files, own)
    promised = most_after(files, own, plan["num_rounds"])
    if abs(promised - plan["groups"][0]["epsilon"]) > _agrees_within(own) * promised:
        stated = plan["groups"][0]["epsilon"]
        yield f"plan.json promises epsilon {stated:.6g}, its budgets cost {promised:.6g}"
    yield from _check_taken(ledger, own)
    yield from _check_cohorts(files)
    yield from _check_recorded(files, own)


def _check_steps(files: RunFiles, own: Mapping[str, Any]) -> Iterator[str]:
    """Check that DP-SGD steps follow from the configuration, and that noise suffices for each epsilon."""
    steps, config = own[STEPS], files.config
    asked = {
        "num_steps": config["training"]["local_steps"],
        "batch_rate": config["privacy"]["batch_rate"],
    }
    for key, value in asked.items():
        if steps[key] != value:
            yield f"plan.json has {key} {steps[key]}, the configuration {value}"
    clients = files.plan["groups"][0]["clients"]
    if {len(steps["noise_multipliers"]), len(steps["epsilons"])} != {clients}:
        yield f"plan.json has not one noise and one epsilon for each of {clients} clients"
        return
    if not all(noise > 0 for noise in steps["noise_multipliers"]):
        yield "plan.json has steps without noise"
        return
    promises = dict[float, float]()
    for noise, epsilon in zip(steps["noise_multipliers"], steps["epsilons"], strict=True):
        promises[noise] = min(epsilon, promises.get(noise, epsilon))
    for noise, epsilon in promises.items():
        cost = _of_steps(files, own, noise, own["most_rounds"])
        if cost > epsilon * (1 + TWO_BOUNDS):
            yield f"plan.json promises epsilon {epsilon:.6g} at noise {noise:.6g}, which costs {cost:.6g}"


def _check_taken(ledger: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    """Check that each client's rounds are distinct, not too many, and paid for in the ledger."""
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
    """Check that the log's number of clients asked in each round equals the number in the ledger."""
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
    """Check that the epsilon recorded after a round is the most that a client can have spent by then."""
    for record in files.rounds:
        recorded = record["spent_epsilon"][0]
        computed = most_after(files, own, record["round"])
        if abs(recorded - computed) > _agrees_within(own) * computed:
            yield f"round {record['round']} records epsilon {recorded:.6g}, where {computed:.6g} may be spent"
            return
    if files.rounds and len(files.rounds) == files.ledger["charged_rounds"]:
        claimed = files.rounds[-1]["epsilon_against_server"][0]
        computed = largest_spent(files, own)
        if claimed < computed * (1 - _agrees_within(own)):
            yield (
                f"the last round records epsilon {claimed:.6g} against the server, where {computed:.6g} is "
                "spent"
            )


def _budgets(own: Mapping[str, Any]) -> npt.NDArray[np.float64]:
    return np.asarray(own["budgets"], dtype=np.float64)


class PathEntry(RecordEntry):
    """A run in a client's ledger in which each round is a step on all records, with noise by the client."""

    kinds = frozenset({"gaussian"})

    @property
    def most_steps(self) -> int:
        return min(int(self.terms["most_rounds"]), len(self.rounds))

    def planned(self, last: NodeEntry, group: int) -> Charges:
        """Return the privacy cost of the rounds so far, not of the whole run: budgets are checked each round.

        A record that is replaced moves a sum twice as far as one that is left out: that is half the noise.
        """
        taken = charges_of([{"event": self.event(index), "count": 1} for index in self.saved["rounds"]])
        return [
            (replace(sums, adjacency="zero_out", noise_multiplier=sums.noise_multiplier / sums.distance), n)
            for sums, n in taken
        ]

    def taken(self, last: NodeEntry, group: int) -> Charges:
        return self.planned(last, group) if self.saved["steps"] else []

    def check_charges(self) -> Iterator[str]:
        events = [charge["event"] for charge in self.charges]
        if any(each["adjacency"] != "replace_one" for each in events):
            yield (
                f"the path of run {self.terms['run']} is not Gaussian noise under replace_one in every round"
            )
