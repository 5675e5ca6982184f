"""Computes how much noise a sum can have above the plan, and how far a client can shift it undetected."""

from math import ceil

from benchmarks.secagg.ours import parameters_for
from gdpfed.report.console import Table
from secagg import largest_undetected_push
from secagg.arithmetic.noise_levels import MAX_LEVELS, Contributors, NoiseLevels
from secagg.arithmetic.packing import FULL_BITS

LEVELS = (4, 5, 6, 7, 8)
WANTED = 0.06


def levels_of(num_clients: int, corrupt: int, most_levels: int) -> NoiseLevels:
    """Return the removable parts (levels) of a client's noise for sigma = 1, if up to 20 % may drop out."""
    contributors = Contributors(num_clients, num_clients // 5, corrupt, most_levels)
    return contributors.fitting_levels(1.0, 2 ** (FULL_BITS - 1))


def excess_table() -> Table:
    """Make a table of how far the noise in a sum can exceed the plan, by number of a client's noise parts."""
    rows = []
    for n in (120, 300, 1000):
        for percent in (0, 10):
            corrupt = ceil(percent * n / 100)
            found = {
                most: float(levels_of(n, corrupt, most).largest_excess(n - corrupt))
                for most in range(1, MAX_LEVELS + 1)
            }
            fewest = min(most for most, excess in found.items() if excess <= WANTED)
            steps = f"{levels_of(n, corrupt, LEVELS[0]).base_stddev:.0f}"
            shown = (f"{100 * found[most]:.2f} %" for most in LEVELS)
            rows.append((str(n), f"{percent} %", steps, *shown, str(fewest)))
    headings = ("n", "c", "steps", *(f"{most} levels" for most in LEVELS), "at most 6 % from")
    return Table("Largest excess of noise at D = 20 %, sigma = 1", headings, rows)


def push_table() -> Table:
    """Make a table of the largest vector that a client can add to a sum with a 50 % chance of detection."""
    rows = []
    for n, dimension in ((30, 26_000), (120, 26_000), (30, 1_000_000), (120, 11_000_000)):
        pushes = (
            largest_undetected_push(parameters_for(n, dimension, noise_multiplier=sigma).encoding(n))
            for sigma in (0.5, 1.0, 2.0)
        )
        rows.append((str(n), f"{dimension:,}", *(f"{push:,.0f} C" for push in pushes)))
    return Table(
        "Largest push of one member that passes every second time, D = 10 %",
        ("n", "d", "sigma = 0.5", "sigma = 1", "sigma = 2"),
        rows,
    )
