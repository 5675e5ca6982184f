"""Check what a run pays for counts over records that are held out, by its plan, its ledger and its result."""

import math
from collections.abc import Iterator

from gdpfed.audit.accounting import charges_of, epsilon_after
from gdpfed.audit.run_files import RunFiles

SAME = 1e-6
MOVED = math.sqrt(2)
"""A record is in one cell of a matrix and in one bin of a histogram."""


def check_held_out(files: RunFiles) -> Iterator[str]:
    """Yield one line for every contradiction."""
    plan, asked = files.plan, files.config["run"].get("evaluation", "server")
    said = "held_out" in plan or "held_out_rates" in plan["works"]
    if said != (asked != "server"):
        has = "has" if said else "lacks"
        yield f"plan.json {has} counts on held-out records, with run.evaluation={asked}"
    if files.held_out is not None and not said:
        yield "held_out.json has counts that no plan pays for"
    if "held_out" in plan:
        yield from _check_charge(files)
        yield from _check_result(files)


def _check_charge(files: RunFiles) -> Iterator[str]:
    """The charge is one noised sum, which a record moves by sqrt(2), within every budget."""
    planned, delta = files.plan["held_out"], files.plan["delta"]
    charge = planned["charge"]
    event = charge["event"]
    if (charge["unit"], charge["count"], event["kind"]) != ("record", 1, "gaussian"):
        yield "plan.json charges held-out records for something else than one noised sum"
        return
    if not math.isclose(event["clipping_norm"], MOVED, rel_tol=SAME):
        yield f"plan.json has a record move counts by {event['clipping_norm']}, where {MOVED:.6g} follows"
    cost = epsilon_after(charges_of([charge]), delta)
    if not math.isclose(cost, planned["epsilon"], rel_tol=SAME):
        yield f"plan.json has epsilon {planned['epsilon']} of held-out records, where {cost:.6g} follows"
    least = min(own["epsilon"] for group in files.plan["groups"] for own in group["records"]["groups"])
    if cost > least * (1 + SAME):
        yield f"counts cost held-out records epsilon {cost:.4g}, above the budget of {least:g}"
    if planned["noise_stddev"] != event["noise_stddev"]:
        yield "plan.json states another noise of counts than it charges"


def _check_result(files: RunFiles) -> Iterator[str]:
    """What was released was charged, and carries the noise."""
    if files.held_out is None:
        return
    if files.ledger.get("held_out_charged") is not True:
        yield "held_out.json has counts that the ledger has not charged"
    least, carried = files.plan["held_out"]["noise_stddev"], files.held_out["noise_stddev"]
    if carried < least * (1 - SAME):
        yield f"held_out.json has noise of standard deviation {carried:.6g}, below the plan's {least:.6g}"
