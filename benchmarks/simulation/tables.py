"""What was measured, as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table

from benchmarks.simulation.work import Measured, Work


def race_table(measured: Sequence[Measured], work: Work) -> Table:
    """Seconds a round and how many times as long as ``gdpfed simulate``, which comes first."""
    ours = measured[0].median
    title = f"{work.model}, {work.num_clients:,} clients, {work.cohort} a round, on {work.device}"
    result = _table(title, "", "seconds a round: median (least, most)", "rounds", "times ours")
    for each in measured:
        spread = f"{each.median:.3f} ({min(each.seconds):.3f}, {max(each.seconds):.3f})"
        result.add_row(each.name, spread, str(len(each.seconds)), f"{each.median / ours:.2f}")
    return result


def growth_table(axis: str, points: Sequence[tuple[int, Measured]]) -> Table:
    """Seconds a round and memory over a size."""
    result = _table(None, axis, "seconds a round", "peak memory, MB")
    for size, each in points:
        result.add_row(f"{size:,}", f"{each.median:.3f}", f"{each.peak_mb:.0f}")
    return result


def limit_table(result: Mapping[str, Any]) -> Group:
    """The step beside the least time that its products, and its bytes, would take by themselves."""
    rates, steps = result["rates"], result["client_steps"]
    ms = 1e3 * result["seconds"] / steps
    mflop, mbytes = (result[key] / steps / 1e6 for key in ("flops", "bytes"))
    step = _table(
        "one step of one client, one core or GPU", "", "amount", "device's rate", "ms", "of the step"
    )
    step.add_row("the step as measured", "", "", f"{ms:.3f}", "100 %")
    for name, amount, unit, rate_name in (
        ("its products", mflop, "MFLOP", "GFLOP/s"),
        ("its tensors, read and written in cache", mbytes, "MB", "GB/s in cache"),
        ("its tensors, read and written in memory", mbytes, "MB", "GB/s in memory"),
    ):
        least = amount / rates[rate_name]
        rate = f"{rates[rate_name]:.0f} {rate_name.split()[0]}"
        step.add_row(name, f"{amount:.2f} {unit}", rate, f"{least:.3f}", f"{least / ms:.0%}")
    where = _table("where its time goes", "operations", "share")
    for name, share in sorted(result["shares"].items(), key=lambda pair: -pair[1]):
        where.add_row(name, f"{share:.0%}")
    return Group(step, where)


def _table(title: str | None, *headings: str) -> Table:
    result = Table(title=title)
    for index, heading in enumerate(headings):
        result.add_column(heading, justify="right" if index else "left")
    return result
