"""Check noised sums that happen once in a run (vote, norms, held-out counts): cost, noise and results."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from gdpfed.audit.accounting import charges_of, epsilon_after, parties_in
from gdpfed.audit.counted_metrics import (
    check_counted_twice,
    check_metrics,
    metrics_of_clients,
    metrics_of_records,
)
from gdpfed.audit.rules import or_infinite
from gdpfed.audit.run_files import RunFiles
from gdpfed.audit.tolerances import SAME_FIGURE
from gdpfed.audit.update_norms import check_norms

VOTED = ("learning_rate", "momentum", "learning_rate_decay")
"""The training settings that clients vote on, in the order of their values in vote.json."""
MOVED = math.sqrt(2)
"""The L2 distance by which one record moves a sum: two entries change, by one each."""


@dataclass(frozen=True)
class _Sum:
    """A kind of sum that is made once in a run, such as a vote, with its file and its names in messages.

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
NORMS = _Sum(
    "norm_histogram", "norm_histogram.json", "everybody", "norms of updates", client_moves=1.0, first=True
)

FIRST = (
    ("training", "vote", "vote", "a vote"),
    ("privacy", "norm_histogram_share", "norm_histogram", "a histogram of norms"),
)
"""One-time sums before the first round: configuration section and key, plan entry, and name in messages."""


def _check_blocks(files: RunFiles) -> Iterator[str]:
    """Yield a line if counts on held-out records are not by party, or of all together, as configured."""
    blocks = files.plan.get("held_out", {}).get("blocks", 1)
    wanted = files.config["run"].get("evaluation_by_party", False)
    if (blocks > 1) != wanted:
        has = "has" if blocks > 1 else "lacks"
        yield f"plan.json {has} counts by party, with run.evaluation_by_party={wanted}"
    if blocks not in (1, parties := files.config["dataset"]["num_clients"]):
        yield f"plan.json has counts on held-out records of {blocks} parties, and there are {parties}"


def check_once(files: RunFiles) -> Iterator[str]:
    """Yield one line for each contradiction about noised sums outside the rounds, such as a vote."""
    plan, asked = files.plan, files.config["run"].get("evaluation", "server")
    said = "held_out" in plan or "held_out_rates" in plan["works"]
    if said != (asked != "server"):
        has = "has" if said else "lacks"
        yield f"plan.json {has} counts on held-out records, with run.evaluation={asked}"
    yield from _check_blocks(files)
    events = [charge["event"] for group in plan["groups"] for charge in group["charges"]]
    if "held_out" in plan and any(parties_in(event) > 1 for event in events):
        yield "plan.json has counts on held-out persons, who may be trained on at another party"
    for section, key, entry, what in FIRST:
        wanted = files.config[section].get(key)
        if (entry in plan) != (wanted is not None):
            yield f"plan.json {'has' if entry in plan else 'lacks'} {what}, with {section}.{key}={wanted}"
    for kind, found, known in (
        (COUNTS, files.held_out, said),
        (VOTE, files.vote, "vote" in plan),
        (NORMS, files.norms, "norm_histogram" in plan),
    ):
        if found is not None and not known:
            yield f"{kind.file} has {kind.counted} that no plan pays for"
        if kind.entry in plan:
            yield from _check_charge(files, kind)
            yield from _check_result(files, kind, found)
    yield from _check_options(files, files.vote)
    yield from check_norms(files)
    if files.held_out is not None:
        yield from _check_held_out(files, files.held_out)


def _check_charge(files: RunFiles, kind: _Sum) -> Iterator[str]:
    """Check that a one-time sum is charged as one noised sum, with epsilon within the smallest budget."""
    plan, planned = files.plan, files.plan[kind.entry]
    charge = planned["charge"]
    event = charge["event"]
    if (charge["unit"], charge["count"], event["kind"]) != (plan["unit"], 1, "gaussian"):
        yield f"plan.json charges {kind.payers} for something else than one noised sum"
        return
    zeroed = (plan["unit"], plan["adjacency"]) == ("client", "zero_out")
    moves = kind.client_moves if zeroed else MOVED
    if (
        not math.isclose(event["clipping_norm"], moves, rel_tol=SAME_FIGURE)
        or event["adjacency"] != "zero_out"
    ):
        yield (
            f"plan.json has a {plan['unit']} move {kind.counted} by {event['clipping_norm']}, where "
            f"{moves:.6g} follows"
        )
    cost = epsilon_after(charges_of([charge]), plan["delta"])
    if not math.isclose(cost, planned["epsilon"], rel_tol=SAME_FIGURE):
        yield f"plan.json has epsilon {planned['epsilon']} of {kind.payers}, where {cost:.6g} follows"
    least = min(
        each["epsilon"]
        for group in plan["groups"]
        for each in (group["records"]["groups"] if "records" in group else [group])
    )
    if cost > least * (1 + SAME_FIGURE):
        yield f"{kind.counted} cost {kind.payers} epsilon {cost:.4g}, above the budget of {least:g}"
    if planned["noise_stddev"] != event["noise_stddev"]:
        yield f"plan.json states another noise of {kind.counted} than it charges"


def _check_result(files: RunFiles, kind: _Sum, found: Mapping[str, Any] | None) -> Iterator[str]:
    """Check that a released one-time sum was charged in the ledger, and has the planned noise."""
    charged = files.ledger.get(f"{kind.entry}_charged") is True
    if kind.first and files.ledger["charged_rounds"] and not charged:
        yield f"the ledger has rounds, and not the {kind.entry.replace('_', ' ')} before them"
    if found is None:
        return
    if not charged:
        yield f"{kind.file} has {kind.counted} that the ledger has not charged"
    clients = sum(group["clients"] for group in files.plan["groups"])
    if not 1 <= found["clients"] <= clients:
        yield f"{kind.file} has {kind.counted} of {found['clients']} clients, and there are {clients}"
    owed = files.plan[kind.entry]["noise_stddev"]
    if own := found.get("parties"):
        # Noise of every block is that of the sum, and the counts of all are those of the blocks.
        owed *= math.sqrt(len(own))
        added = [math.fsum(each) for each in zip(*(each["counts"] for each in own), strict=True)]
        if not all(map(partial(math.isclose, abs_tol=SAME_FIGURE), added, found["counts"])):
            yield f"the {kind.counted} of all in {kind.file} are not those of its parties"
        if len(own) != found["clients"]:
            yield f"{kind.file} has {kind.counted} of {found['clients']} clients, and of {len(own)} parties"
    yield from _check_noise(found, kind.file, owed)


def _check_noise(found: Mapping[str, Any], file: str, owed: float) -> Iterator[str]:
    carried = found["noise_stddev"]
    if not math.isclose(carried, owed, rel_tol=SAME_FIGURE, abs_tol=SAME_FIGURE * SAME_FIGURE):
        side = "below" if carried < owed else "above"
        yield f"{file} has noise of standard deviation {carried:.6g}, {side} the plan's {owed:.6g}"


def _check_held_out(files: RunFiles, found: Mapping[str, Any]) -> Iterator[str]:
    """Check that metrics on held-out records follow from the released counts and their noise."""
    counts, noise = np.asarray(found["counts"], dtype=np.float64), found["noise_stddev"]
    rates = "held_out_rates" in files.plan["works"]
    if found["weighs"] != ("clients" if rates else "records"):
        yield f"held_out.json counts {found['weighs']} alike, and the plan does not"
        return
    if rates:
        yield from check_metrics(found["metrics"], metrics_of_clients(counts, noise), "held_out.json")
        # The file states the noise and the clients of the last round's sums.
        last, groups, owed, clients = files.rounds[-1], files.plan["groups"], 0.0, 0
        sums = zip(last["noise_stddevs"], last["groups_in_sums"], last["survivors"], strict=True)
        for stddev, of_groups, survivors in sums:
            norms = [groups[index].get("clipping_norm", files.plan["clipping_norm"]) for index in of_groups]
            if survivors:
                # A run that promises nothing has neither a clipping norm nor noise.
                owed, clients = math.hypot(owed, stddev / min(map(or_infinite, norms))), clients + survivors
        if found["clients"] != clients:
            yield f"held_out.json has {found['clients']} clients, and the last round's sums {clients}"
        yield from _check_noise(found, "held_out.json", owed)
        return
    yield from check_metrics(found["metrics"], metrics_of_records(counts, noise), "held_out.json")
    yield from check_counted_twice(counts, noise, "held_out.json")
    own = found.get("parties", [])
    for each in own:
        whose, block = f"client {each['client']} in held_out.json", np.asarray(each["counts"], dtype=float)
        # What one client's own counts carry is the sum's noise.
        of_one = noise / math.sqrt(len(own))
        yield from check_metrics(each["metrics"], metrics_of_records(block, of_one), whose)
        yield from check_counted_twice(block, of_one, whose)


def _check_options(files: RunFiles, found: Mapping[str, Any] | None) -> Iterator[str]:
    """Check that clients voted on all configured combinations of settings, in order."""
    planned, training = files.plan.get("vote"), files.config["training"]
    if planned is None or (grid := training.get("vote")) is None:
        return
    settings = [
        list(map(float, values)) for values in product(*(grid.get(key, [training[key]]) for key in VOTED))
    ]
    number = len(settings)
    if planned["options"] != number:
        yield f"plan.json has a vote on {planned['options']} settings, the configuration {number}"
    if found is None:
        return
    if not len(found["settings"]) == len(found["votes"]) == number:
        yield f"vote.json has {len(found['votes'])} votes on {len(found['settings'])} of {number} settings"
    elif found["settings"] != settings:
        yield f"vote.json has votes on {found['settings']}, the configuration settings {settings}"
