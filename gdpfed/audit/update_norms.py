"""Check a histogram of update norms: fractions, intervals and model card must follow from its counts.

Clients are in bins that end at multiples of their clipping norms, and one more bin. Counts are estimated by
least squares under the constraint that all bins together hold all clients.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gdpfed.audit.card_forms import Fields
from gdpfed.audit.run_files import RunFiles
from gdpfed.audit.tolerances import SAME_FIGURE

MULTIPLES = (0.125, 0.25, 0.5, 1.0)
WORDS = {0.125: "an eighth of", 0.25: "a quarter of", 0.5: "half of", 1.0: ""}
MOST = 0.9
NORMAL_QUANTILE = 1.959963984540054


def check_norms(files: RunFiles) -> Iterator[str]:
    """Yield one line for each contradiction in a run's histogram of update norms, if it has one."""
    found, planned = files.norms, files.plan.get("norm_histogram")
    if planned is not None and planned["bins"] != len(MULTIPLES) + 1:
        yield f"plan.json has norms in {planned['bins']} bins, and a histogram has {len(MULTIPLES) + 1}"
    if found is None:
        return
    if tuple(found["multiples"]) != MULTIPLES or len(found["counts"]) != len(MULTIPLES) + 1:
        yield f"norm_histogram.json has {len(found['counts'])} counts of bins up to {found['multiples']}"
        return
    norm = files.config["privacy"]["clipping_norm"]
    if not math.isclose(found["clipping_norm"], norm, rel_tol=SAME_FIGURE):
        yield f"norm_histogram.json has the clipping norm {found['clipping_norm']}, the configuration {norm}"
    follows = shares_of(found)
    if not np.allclose(found["within"], follows, rtol=0, atol=SAME_FIGURE):
        yield f"norm_histogram.json has the shares {found['within']}, where {follows} follow from its counts"


def shares_of(found: Mapping[str, Any]) -> list[list[float]]:
    """Compute for each multiple of the clipping norm the fraction of updates within it, with an interval.

    Under the constraint, estimates are the counts' projection, and so is their noise: of a sum over the bins
    in a, its variance is s^2 |P a|^2 with P = I - 1 1^T / k.
    """
    counts, clients = np.asarray(found["counts"], dtype=np.float64), found["clients"]
    bins = len(counts)
    onto = np.eye(bins) - 1 / bins
    estimated = onto @ counts + clients / bins
    shares = []
    for last in range(1, bins):
        up_to = (np.arange(bins) < last).astype(np.float64)
        spread = NORMAL_QUANTILE * found["noise_stddev"] * float(np.linalg.norm(onto @ up_to))
        middle = float(up_to @ estimated)
        ends = (middle, middle - spread, middle + spread)
        shares.append([min(1.0, max(0.0, each / clients)) for each in ends])
    return shares


def norm_sections(files: RunFiles) -> set[str]:
    """Return the conditions on update norms that a run meets, to select the model card lines that apply."""
    if "norm_histogram" not in files.plan:
        return set()
    if files.norms is None:
        return {"norms", "not-normed"}
    return {"norms", "normed"} | ({"clipped-far"} if _fitting(files.norms) is not None else set())


def norm_fields(files: RunFiles) -> Fields:
    """Return the values that the model card's lines about update norms must state."""
    found: Mapping[str, Any] = files.norms or {}
    fitting = _fitting(found) or 1.0
    return {
        "normed": str(found.get("clients")),
        "norm_noise": f"{found.get('noise_stddev', 0.0):.3g}",
        "norm_epsilon": f"{files.plan.get('norm_histogram', {}).get('epsilon', 0.0):.3g}",
        "norm_fitting": f"{fitting * found.get('clipping_norm', 1.0):g}",
        "norm_part": WORDS[fitting].removesuffix(" of"),
    }


def norm_rows(files: RunFiles) -> list[Fields]:
    """Return the rows of the model card's table of update norms: one for each multiple of clipping norm."""
    if files.norms is None:
        return []
    return [
        {
            "norm_multiple": f"{WORDS[multiple]} the clipping norm".strip(),
            "norm_share": f"{100 * share:.1f} % ({100 * low:.1f} to {100 * high:.1f})",
        }
        for multiple, (share, low, high) in zip(MULTIPLES, shares_of(files.norms), strict=False)
    ]


def _fitting(found: Mapping[str, Any]) -> float | None:
    """Return the smallest multiple of the norm that bounds over 90 % of updates with confidence, or None."""
    if not found:
        return None
    within: Sequence[Sequence[float]] = shares_of(found)
    sure = [multiple for multiple, each in zip(MULTIPLES[:-1], within, strict=False) if each[1] > MOST]
    return min(sure, default=None)
