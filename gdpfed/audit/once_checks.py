"""Check what a run pays for sums beside its rounds, counts and a vote: plan, ledger and result."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from gdpfed.audit.accounting import charges_of, epsilon_after, parties_in
from gdpfed.audit.run_files import RunFiles

SAME = 1e-6
MOVED = math.sqrt(2)
"""A record is in one cell of a matrix and in one bin of a histogram, or turns one vote into another."""


@dataclass(frozen=True)
class _Sum:
    """A kind of sum, in words: its entry in the plan, its file, who pays, and what is counted.

    `client_moves`: how far a whole client moves it that is zeroed. `first`: whether it comes before rounds.
    """

    entry: str
    file: str
    payers: str
    counted: str
    client_moves: float = MOVED
    first: bool = False


COUNTS = _Sum("held_out", "held_out.json", "held-out records", "counts")
# A client that is zeroed takes back a vote of norm 1, and may change nothing else.
VOTE = _Sum("vote", "vote.json", "everybody", "votes", client_moves=1.0, first=True)


def check_once(files: RunFiles) -> Iterator[str]:
    """Yield one line for every contradiction."""
    plan, asked = files.plan, files.config["run"].get("evaluation", "server")
    said = "held_out" in plan or "held_out_rates" in plan["works"]
    if said != (asked != "server"):
        has = "has" if said else "lacks"
        yield f"plan.json {has} counts on held-out records, with run.evaluation={asked}"
    blocks = plan.get("held_out", {}).get("blocks", 1) > 1
    if blocks != (wanted := files.config["run"].get("evaluation_by_party", False)):
        has = "has" if blocks else "lacks"
        yield f"plan.json {has} counts by party, with run.evaluation_by_party={wanted}"
    events = [charge["event"] for group in plan["groups"] for charge in group["charges"]]
    if "held_out" in plan and any(parties_in(event) > 1 for event in events):
        yield "plan.json has counts on held-out persons, who may be trained on at another party"
    grid = files.config["training"].get("vote")
    if ("vote" in plan) != (grid is not None):
        yield f"plan.json {'has' if 'vote' in plan else 'lacks'} a vote, with training.vote={grid}"
    for kind, found, known in (
        (COUNTS, files.held_out, said),
        (VOTE, files.vote, "vote" in plan),
    ):
        if found is not None and not known:
            yield f"{kind.file} has {kind.counted} that no plan pays for"
        if kind.entry in plan:
            yield from _check_charge(files, kind)
            yield from _check_result(files, kind, found)
    if "vote" in plan and grid is not None:
        yield from _check_options(plan["vote"], grid, files.vote)


def _check_charge(files: RunFiles, kind: _Sum) -> Iterator[str]:
    """The charge is one noised sum, of the unit of the plan, within every budget."""
    plan, planned = files.plan, files.plan[kind.entry]
    charge = planned["charge"]
    event = charge["event"]
    if (charge["unit"], charge["count"], event["kind"]) != (plan["unit"], 1, "gaussian"):
        yield f"plan.json charges {kind.payers} for something else than one noised sum"
        return
    zeroed = (plan["unit"], plan["adjacency"]) == ("client", "zero_out")
    moves = kind.client_moves if zeroed else MOVED
    if not math.isclose(event["clipping_norm"], moves, rel_tol=SAME) or event["adjacency"] != "zero_out":
        yield (
            f"plan.json has a {plan['unit']} move {kind.counted} by {event['clipping_norm']}, where "
            f"{moves:.6g} follows"
        )
    cost = epsilon_after(charges_of([charge]), plan["delta"])
    if not math.isclose(cost, planned["epsilon"], rel_tol=SAME):
        yield f"plan.json has epsilon {planned['epsilon']} of {kind.payers}, where {cost:.6g} follows"
    least = min(_budgets(plan))
    if cost > least * (1 + SAME):
        yield f"{kind.counted} cost {kind.payers} epsilon {cost:.4g}, above the budget of {least:g}"
    if planned["noise_stddev"] != event["noise_stddev"]:
        yield f"plan.json states another noise of {kind.counted} than it charges"


def _budgets(plan: Mapping[str, Any]) -> Iterator[float]:
    for group in plan["groups"]:
        own = group["records"]["groups"] if "records" in group else [group]
        yield from (each["epsilon"] for each in own)


def _check_result(files: RunFiles, kind: _Sum, found: Mapping[str, Any] | None) -> Iterator[str]:
    """What was released was charged, and carries the noise; no round comes before a vote."""
    charged = files.ledger.get(f"{kind.entry}_charged") is True
    if kind.first and files.ledger["charged_rounds"] and not charged:
        yield "the ledger has rounds, and not the vote before them"
    if found is None:
        return
    if not charged:
        yield f"{kind.file} has {kind.counted} that the ledger has not charged"
    least, carried = files.plan[kind.entry]["noise_stddev"], found["noise_stddev"]
    if own := found.get("parties"):
        # Noise of every block is that of the sum, and the counts of all are those of the blocks.
        least *= math.sqrt(len(own))
        added = [math.fsum(each) for each in zip(*(each["counts"] for each in own), strict=True)]
        if not all(map(partial(math.isclose, abs_tol=SAME), added, found["counts"])):
            yield f"the {kind.counted} of all in {kind.file} are not those of its parties"
    if carried < least * (1 - SAME):
        yield f"{kind.file} has noise of standard deviation {carried:.6g}, below the plan's {least:.6g}"


def _check_options(
    planned: Mapping[str, Any], grid: Mapping[str, Any], found: Mapping[str, Any] | None
) -> Iterator[str]:
    """The settings are those that were configured."""
    number = math.prod(len(values) for values in grid.values())
    if planned["options"] != number:
        yield f"plan.json has a vote on {planned['options']} settings, the configuration {number}"
    if found is not None and not len(found["settings"]) == len(found["votes"]) == number:
        yield f"vote.json has {len(found['votes'])} votes on {len(found['settings'])} of {number} settings"
