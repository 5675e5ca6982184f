"""How the cost of a round grows with the cohort: complete graph and sparse, client and server."""

from pathlib import Path

import matplotlib
from secagg_rounds import RoundCost, parameters_for, run_round

from secagg import COMPLETE_BELOW, sparse_degree

DIMENSION = 100_000


def plot_growth(path: Path, sizes: tuple[int, ...]) -> None:
    """Measure rounds with a tenth dropped, print the numbers, save the plot."""
    print(f"\n{'n':>6}{'client, complete':>18}{'sparse':>10}{'server, complete':>18}{'sparse':>10}   (s)")
    complete, sparse = [], []
    for n in sizes:
        full = run_round(parameters_for(n, DIMENSION), n // 10)
        few = sparse_round(n) if n >= COMPLETE_BELOW else full
        print(
            f"{n:>6}{full.client_total:>18.4f}{few.client_total:>10.4f}"
            f"{full.server_seconds:>18.3f}{few.server_seconds:>10.3f}",
            flush=True,
        )
        complete.append(full)
        sparse.append(few)
    _save(path, sizes, complete, sparse)


def sparse_round(num_clients: int) -> RoundCost:
    degree, threshold = sparse_degree(num_clients, 0.1, 0.1)
    parameters = parameters_for(num_clients, DIMENSION, num_neighbours=degree, threshold=threshold)
    return run_round(parameters, num_clients // 10)


def _save(path: Path, sizes: tuple[int, ...], complete: list[RoundCost], sparse: list[RoundCost]) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for label, costs, style in (("complete graph", complete, "--"), ("sparse graph", sparse, "-")):
        axes.plot(
            sizes, [c.client_total for c in costs], style, marker="o", color="C0", label=f"client, {label}"
        )
        axes.plot(
            sizes, [c.server_seconds for c in costs], style, marker="s", color="C1", label=f"server, {label}"
        )
    axes.set(xscale="log", yscale="log", xlabel="members n", ylabel="seconds a round")
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.minorticks_off()
    axes.set_title(f"d = {DIMENSION:,}, a tenth dropped; sparse for shares of 0.1")
    axes.legend()
    axes.grid(visible=True, alpha=0.3)
    figure.savefig(path, dpi=130)
