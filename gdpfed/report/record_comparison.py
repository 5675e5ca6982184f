"""Compares methods that protect records, by how much noise remains in the model."""

import math
from collections.abc import Iterable, Sequence

from rich.console import Group

from gdpfed.methods.base import Method
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import DPSGDSteps
from gdpfed.privacy.mechanisms.records.mechanism import records_of
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.report.console import Fitted, rich_table

NOISE_IN_WORDS = (
    "noise: the standard deviation of a whole run's noise over the steps that it makes, in units of a sum of "
    "gradients over one client's records, for clients with equally many"
)


def record_comparison(rows: Iterable[tuple[str, str, Method | str]]) -> Group:
    """Return a table of methods that protect records, and below it why some methods cannot be planned."""
    reasons: list[str] = []
    shown: list[Sequence[str]] = []
    for name, differs, planned in rows:
        if isinstance(planned, str):
            if planned not in reasons:
                reasons.append(planned)
            shown.append((name, differs, f"refused ({reasons.index(planned) + 1})"))
            continue
        plan = planned.plan
        # Most cells have one line for each privacy budget.
        budgets = [
            (records, group, steps_in(plan.charges(index)))
            for index, records in enumerate(records_of(plan))
            for group in records.groups
        ]
        cells = (
            "\n".join(f"{each.epsilon:g}" for _, each, _ in budgets),
            "\n".join(f"{100 * each.batch_rate:.3g} %" for _, each, _ in budgets),
            "\n".join(f"{records.clipping_norm:.3g}" for records, _, _ in budgets),
            "\n".join(f"{records.noise_multiplier:.3f}" for records, _, _ in budgets),
            "\n".join(str(steps) for _, _, steps in budgets),
            f"{noise_of_learning(plan, by_batch=planned.weighs_by_batch):.3f}",
        )
        shown.append((name, differs, *cells))
    headings = ("method", "differs", "epsilon", "batch rate", "norm C", "sigma", "steps", "noise")
    table = rich_table("plans side by side", headings, shown, left=headings[:2], show_lines=True)
    notes = [f"({number}) {reason}" for number, reason in enumerate(reasons, start=1)]
    return Group(Fitted(table), *notes, NOISE_IN_WORDS)


def noise_of_learning(plan: PrivacyPlan, *, by_batch: bool = False) -> float:
    """Return a run's noise-to-signal ratio: the noise in a model parameter, relative to the gradient steps.

    In units of a gradient's sum over one client's records, for clients of equally many:
    sqrt(sum_r sum_i tau_i (p_i sigma_i C_i / q_i)^2) / sum_r sum_i p_i tau_i over the clients that take steps
    in round r, with equal p_i or, `by_batch`, p_i in proportion to q_i; where all clients share one noise s,
    round r counts (s / sum_i q_i)^2.
    """
    variance = learnt = 0.0
    for index in range(plan.num_rounds):
        active = [
            (group, records, steps)
            for group, records in zip(plan.groups, records_of(plan), strict=True)
            if (steps := group.at(index).record_steps)
        ]
        if not active:
            continue
        rates = [records.mean_rate for _, records, _ in active]
        sizes = [len(group.clients) for group, _, _ in active]
        together = math.fsum(size * rate for size, rate in zip(sizes, rates, strict=True))
        if plan.works == ("gradient_sum",):
            variance += (max(group.at(index).noise_stddev for group, _, _ in active) / together) ** 2
            learnt += 1
            continue
        for (_, records, steps), size, rate in zip(active, sizes, rates, strict=True):
            weight = rate / together if by_batch else 1 / sum(sizes)
            noise = records.noise_multiplier * records.clipping_norm / rate
            variance += size * steps * (weight * noise) ** 2
            learnt += size * steps * weight
    return math.sqrt(variance) / learnt if learnt else math.inf


def steps_in(charges: Sequence[Charge]) -> int:
    """Return how many DP-SGD steps these privacy costs (charges) cover."""
    return sum(
        charge.count * charge.event.num_steps for charge in charges if isinstance(charge.event, DPSGDSteps)
    )
