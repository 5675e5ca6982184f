"""Computes how much noise a trusted edge server or secure aggregation saves in a mean over devices.

The variance is in units of (z Delta)^2, with noise multiplier z and sensitivity Delta. One device in ten may
collude with others; half of the subnets are trusted, or none, or all. A picture of it goes to docs/.

python -m benchmarks.trust
"""

from pathlib import Path
from statistics import fmean

from benchmarks.harness import PROJECT, publish, read_options
from conf.schema import SecAggConfig
from gdpfed.extras.h2fdp.subnet_mechanisms import noise_factor
from gdpfed.extras.h2fdp.subnet_sums import Trust
from gdpfed.report.console import Table
from gdpfed.report.plots import line_style, new_figure, save, shared_legend, styled

SIZES = (5, 10, 25)
MOST_DEVICES = 40
CORRUPT_TOLERANCE = 0.1
MIXES: dict[str, tuple[Trust, Trust]] = {
    "nobody trusted": ("untrusted", "untrusted"),
    "p_c 0.5, the others untrusted": ("trusted", "untrusted"),
    "secagg everywhere": ("secagg", "secagg"),
    "p_c 0.5, the others secagg": ("trusted", "secagg"),
    "all trusted": ("trusted", "trusted"),
}


def mean_variance(mix: tuple[Trust, Trust], size: int) -> float:
    """Return the mean, over two trust levels, of the noise variance of an average over `size` devices."""
    shared, alone = (
        SecAggConfig(dropout_tolerance=0.0, corrupt_tolerance=corrupt) for corrupt in (CORRUPT_TOLERANCE, 0.0)
    )
    factors = [noise_factor(shared if word == "secagg" else alone, word, size) for word in mix]
    return fmean((factor / size) ** 2 for factor in factors)


@styled
def draw(path: Path) -> None:
    """Plot the noise variance against the number of devices in a subnet, for each pair of trust levels."""
    figure = new_figure(6.4, 3.6)
    axes = figure.subplots()
    sizes = range(3, MOST_DEVICES + 1)
    for index, (name, mix) in enumerate(MIXES.items()):
        style = line_style(index) | {"markevery": 6}
        axes.plot(sizes, [mean_variance(mix, size) for size in sizes], label=name, **style)
    axes.set_yscale("log")
    axes.set_xlabel("devices of a subnet")
    axes.set_ylabel("mean variance, (zΔ)²")
    axes.grid(alpha=0.3)
    shared_legend(figure, [axes])
    save(figure, path)


def main() -> None:
    """Compute the noise variances, save a picture of them, and show them in a table."""
    options = read_options(__doc__, overrides=False)
    rows = [(name, *(f"{mean_variance(mix, size):.4f}" for size in SIZES)) for name, mix in MIXES.items()]
    draw(PROJECT / "docs" / "h2fdp_trust.png")
    title = "Mean variance over subnets of the noise in their means, in (z Delta)^2"
    publish([Table(title, ("who is trusted", *(f"{size} devices" for size in SIZES)), rows)], options.write)


if __name__ == "__main__":
    main()
