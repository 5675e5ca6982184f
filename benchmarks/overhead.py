"""Measures seconds per round: the method gdpfed_plus with and without secure aggregation, and Flower alone.

The echo app sends vectors of the same size to the same number of nodes in the same number of exchanges, and
does nothing with them: no protocol with as many exchanges over Flower can be faster. All is measured one
after the other in this one call, on the demo's setting. The first round of each is left out, since
the workers load their libraries in it.

    python -m benchmarks.overhead [--rounds 12] [OVERRIDE ...]
"""

import statistics
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Measured, follow, steady_seconds, train_over_flower, written_seconds
from conf.load import load
from gdpfed.clients.configured import task_of
from gdpfed.launch.flower_run import Launch
from gdpfed.learning.models import flatten
from gdpfed.methods import make_method

ECHO_APP = Path(__file__).parent / "echo_app"
ECHO = "echo"
# Exchanges of a steady round, and the settings that lead to them.
MODES = {
    "secure aggregation on, `secagg.keys_ahead=false`": (4, ("secagg=pairwise", "secagg.keys_ahead=false")),
    "secure aggregation on, keys agreed ahead (default)": (2, ("secagg=pairwise",)),
    "`secagg=off`": (1, ("secagg=off",)),
}


def training(name: str, exchanges: int, overrides: Sequence[str]) -> Measured:
    """Measure the seconds per round of one training with gdpfed over Flower, and its mean cohort size."""
    records = train_over_flower(overrides)
    cohort = statistics.fmean(sum(record.cohort_sizes) for record in records[1:])
    return Measured(name, steady_seconds(records), (f"{cohort:.0f}", str(exchanges)))


def echo(clients: int, config: dict[str, int]) -> Measured:
    """Measure Flower alone: an app that only sends vectors to this number of clients and back."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "seconds.json"
        with Launch(ECHO_APP, {**config, "seconds": str(file)}, num_supernodes=clients) as launch:
            log = follow(launch)
        seconds = written_seconds(file, config["rounds"], log)
    return Measured(ECHO, seconds, (str(config["nodes"]), str(config["exchanges"])))


def main() -> None:
    """Measure rounds with secure aggregation, without it, and with Flower alone; show a table."""
    options = harness.read_options(__doc__, overrides=True, rounds=12)
    overrides = ["dataset=digits", "method=gdpfed_plus", *options.overrides]
    config = load(overrides)
    dimension = len(flatten(task_of(config).build_model()))
    nodes = round(sum(group.expected_cohort_size for group in make_method(config).plan.groups))
    overrides.append(f"run.num_rounds={options.rounds}")
    sizes = {"nodes": nodes, "rounds": options.rounds, "dimension": dimension}
    measured = harness.measure(
        [
            *(
                partial(training, f"gdpfed_plus, {k}", n, [*overrides, *more])
                for k, (n, more) in MODES.items()
            ),
            *(
                partial(echo, config.dataset.num_clients, {**sizes, "exchanges": n})
                for n, _ in MODES.values()
            ),
        ]
    )
    echoes = {each.facts[1]: each for each in measured if each.name == ECHO}
    title = f"A round, d = {dimension}, median of {len(measured[0].seconds)} rounds (least, most)"
    headings = ("clients a round", "exchanges", "seconds a round", "against the echo of so many")
    harness.publish(
        [harness.comparison(title, measured, lambda each: echoes[each.facts[1]], *headings)], options.write
    )


if __name__ == "__main__":
    main()
