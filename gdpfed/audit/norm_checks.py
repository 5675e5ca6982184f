"""Check adaptive clipping: the quantile was paid for, and the norms followed nothing else."""

import math
from collections.abc import Iterator
from typing import Any

from gdpfed.audit.run_files import RunFiles

AGREES_WITHIN = 1e-6


def check_norms(files: RunFiles) -> Iterator[str]:
    """The plan's shares, and every round's norm from what was released before: a line where they differ.

    C(1) is the configured norm, and C(t + 1) = C(t) exp(- eta (b(t) - gamma)) with the fraction b(t) that the
    sum of round t released; without one C stays.
    """
    privacy, adaptive = files.config["privacy"], files.plan.get("adaptive_clipping")
    # Older runs, whose norms were all fixed, have no such setting.
    asked = privacy.get("clipping", "fixed")
    if (asked == "adaptive") != (adaptive is not None):
        yield f"the configuration has clipping {asked}, plan.json {'adaptive' if adaptive else 'fixed'}"
    elif adaptive is not None:
        yield from _check_plan(privacy, files.plan, adaptive)
        yield from _check_rounds(files, privacy)


def _check_plan(privacy: dict[str, Any], plan: dict[str, Any], adaptive: dict[str, Any]) -> Iterator[str]:
    """Is the indicator as large as the configured noise of the fraction needs, within every norm?"""
    for key in ("quantile", "learning_rate"):
        if adaptive[key] != privacy[f"clipping_{key}"]:
            yield f"plan.json has a clipping {key} {adaptive[key]}, the configuration another"
    # Contributions B_m and the updates in them, C_m, added up over a round's cohort.
    norms = [each["charges"][0]["event"]["clipping_norm"] for each in plan["groups"]]
    contributed = math.fsum(
        each["expected_cohort_size"] * norm for each, norm in zip(plan["groups"], norms, strict=True)
    )
    updates = contributed * math.sqrt(1 - adaptive["indicator_share"] ** 2)
    mean = math.fsum(each["expected_cohort_size"] for each in plan["groups"])
    stddev = max(each["charges"][0]["event"]["noise_stddev"] for each in plan["groups"])
    noise = stddev / (2 * adaptive["indicator_share"] * contributed)
    if not math.isclose(noise, privacy["clipping_noise"], rel_tol=AGREES_WITHIN):
        yield (
            f"plan.json gives the fraction within the norms noise of standard deviation {noise:.4g}, "
            f"the configuration {privacy['clipping_noise']:g}"
        )
    if len(norms) == 1 and not math.isclose(updates / mean, plan["clipping_norm"], rel_tol=AGREES_WITHIN):
        yield (
            f"plan.json has updates of norm {updates / mean:.6g}, the configuration {plan['clipping_norm']:g}"
        )


def _check_rounds(files: RunFiles, privacy: dict[str, Any]) -> Iterator[str]:
    expected = privacy["clipping_norm"]
    for record in files.rounds:
        recorded, fraction = record.get("clipping_norm"), record.get("fraction_within")
        if recorded is None and "round" in record["failures"]:
            continue
        if recorded is None or not math.isclose(recorded, expected, rel_tol=AGREES_WITHIN):
            yield (
                f"round {record['round']} has clipping norm {recorded}, where {expected:.6g} follows from "
                "what was released before"
            )
            return
        if fraction is not None:
            rate, quantile = privacy["clipping_learning_rate"], privacy["clipping_quantile"]
            expected *= math.exp(-rate * (fraction - quantile))
