"""Audits DP training loops of Flower and Opacus with canaries: unchanged ones, and ones with a planted fault.

    python -m benchmarks.audited_loops [--runs 4] [--write docs/privacy.md]

Flower's strategy runs in this process, Opacus' engine in its own environment (`make opacus-environment`). The
probability that a loop without a fault is blamed is at most one in a million for each row.
"""

from collections.abc import Iterator

from benchmarks.harness import CONSOLE, noted, publish, read_options, three
from benchmarks.records.work import OPACUS_PYTHON
from gdpfed.extras.canaries.loop_audit import audit_loop
from gdpfed.privacy.promised_loop import TrainingLoop
from gdpfed.report.console import Table
from testing.foreign_loops import FLOWER_FAULTS, SGD_FAULTS, flower_loop, opacus_loop

SURELY = 1 - 1e-6
HEADINGS = ("loop", "what is wrong", "runs", "seconds", "found by", "stated", "measured", "own accounting")


def row(fault: str, loop: TrainingLoop, runs: int) -> tuple[str, ...]:
    """Audit a training loop with canaries, and return a table row with the faults that were found."""
    times = list[float]()
    with noted(times):
        found = audit_loop(loop, num_runs=runs, confidence=SURELY)
    by = [each.looked_at for each in found.checks if not each.held]
    by += ["epsilon"] if not all(each.held for each in found.figures) else []
    figure = max(found.figures, key=lambda each: each.measured)
    CONSOLE.print(f"{loop.name}, {fault or 'nothing'}: {by or 'not found'}", soft_wrap=True)
    return (
        loop.name,
        fault or "nothing",
        str(runs),
        three(times[-1]),
        ", ".join(by) or "not found",
        f"{figure.stated:.3g}",
        f"{figure.measured:.3g}",
        "-" if loop.epsilon is None else f"{loop.epsilon:.3g}",
    )


def rows(runs: int) -> Iterator[tuple[str, ...]]:
    """Yield table rows for training loops of Flower and of Opacus, each without and with planted faults."""
    for fault in FLOWER_FAULTS:
        yield row(fault, flower_loop(fault), runs)
    for planted in SGD_FAULTS:
        yield row(planted, opacus_loop(OPACUS_PYTHON, planted), runs)


def main() -> None:
    """Audit every training loop, unchanged and with planted faults, and show the table."""
    options = read_options(__doc__, overrides=False, runs=4)
    note = (
        "Stated and measured: of the view with the largest measured epsilon, by the loop's numbers. "
        "Own accounting: what the loop itself states."
    )
    publish(
        [Table("Loops of other projects, audited", HEADINGS, list(rows(options.runs)), note=note)],
        options.write,
    )


if __name__ == "__main__":
    main()
