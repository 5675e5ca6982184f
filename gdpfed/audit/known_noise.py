"""Compute the noise that hides a client from colluding members of a secure sum, who know their own noise.

A sum of r survivors, each with noise of standard deviation s in it, hides a client from c of its members
behind s sqrt(r - c). Nobody needs a colluder to know its own share, so c is 1 at least; of n members, those
without an update included, as large a part may collude as the configuration tolerates.
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from gdpfed.audit.run_files import RunFiles
from gdpfed.audit.tolerances import SAME_FIGURE


def noised_by_members(files: RunFiles, record: dict[str, Any]) -> Iterator[tuple[int, int, float]]:
    """Yield for each sum noised by its members: index, number of members, noise stddev of one member."""
    for number, (members, share) in enumerate(record.get("noise_shares", ())):
        groups = [files.plan["groups"][index] for index in record["groups_in_sums"][number]]
        # An edge that is trusted adds all of the noise, of which no member knows a share.
        by_edge = all(group.get("trust") == "trusted" for group in groups)
        if record["survivors"][number] and record["noise_stddevs"][number] and not by_edge:
            yield number, members, share


def sums_with_shares(files: RunFiles, record: dict[str, Any]) -> Iterator[tuple[int, float, float]]:
    """Yield for each sum noised by its members: index, noise stddev unknown to colluders, planned stddev."""
    tolerated = Fraction(str(files.config["secagg"]["corrupt_tolerance"]))
    for number, members, share in noised_by_members(files, record):
        known = max(1, math.ceil(tolerated * members))
        left = share * math.sqrt(max(0, record["survivors"][number] - known))
        yield number, left, record["noise_stddevs"][number]


def part_left(files: RunFiles, index: int) -> float:
    """Return the fraction of a group's planned noise that colluding members do not know, in the worst round.

    It is 1 if no round has noticeably less than the planned noise.
    """
    parts = [
        left / owed
        for record in files.rounds
        for number, left, owed in sums_with_shares(files, record)
        if index in record["groups_in_sums"][number]
    ]
    return min(1.0, *parts) if parts and min(parts) < 1 - SAME_FIGURE else 1.0


def check_known_noise(files: RunFiles, record: dict[str, Any]) -> Iterator[str]:
    """Check that, in each sum of a round, the noise unknown to colluding members is as large as planned."""
    if not files.plan["private"]:
        return
    logged = len(record.get("noise_shares", ()))
    # Of a subnet its devices add the noise, or an edge does, where the log of another run tells.
    at_edges = any("trust" in group for group in files.plan["groups"])
    shared = files.plan["sums_hidden"] and not at_edges and any(each > 0 for each in record["noise_stddevs"])
    if shared and any(record["survivors"]) and logged != len(record["noise_stddevs"]):
        yield f"round {record['round']} does not say what noise the members of its sums have added"
        return
    for number, members, _ in noised_by_members(files, record):
        asked = sum(record["cohort_sizes"][index] for index in record["groups_in_sums"][number])
        if members < asked:
            yield (
                f"round {record['round']} has {members} members in sum {number}, of whom some may collude, "
                f"and {asked} clients were asked for it"
            )
        if members > (everybody := sum(group["clients"] for group in files.plan["groups"])):
            yield (
                f"round {record['round']} has {members} members in sum {number}, and there are {everybody} "
                "clients"
            )
    for number, left, owed in sums_with_shares(files, record):
        if left < owed * (1 - SAME_FIGURE):
            yield (
                f"round {record['round']} leaves members of sum {number}, who know their own noise, "
                f"{left:.6g} of the {owed:.6g} that was planned"
            )
