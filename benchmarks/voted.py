"""Measures the accuracy if clients vote privately on the learning rate, beside fixed learning rates.

The last column says what the parties would have voted for without noise, over all seeds. It looks at data, as
do the columns of the listed step sizes, so no budget covers them.

    python -m benchmarks.voted [OVERRIDE ...] [--seeds 10]
"""

import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.progress import track

from benchmarks.harness import CONSOLE, publish, read_options
from benchmarks.option import gain, gain_heading
from conf.load import load
from conf.schema import Config
from gdpfed.clients.configured import order_of, task_of
from gdpfed.clients.update import update_steps
from gdpfed.clients.works import Job
from gdpfed.learning.models import flatten
from gdpfed.methods import make_method, resolve
from gdpfed.methods.vote import chance_of_agreement, vote_request
from gdpfed.report.console import Table
from gdpfed.rounds.extensions.vote_result import VoteResult
from gdpfed.rounds.prepared import client_parts, order_of_sum
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation.in_process_fleet import simulate
from secagg import Contributors, Encoding

RUN = ("privacy=record_level", "method=dp_sum", "run.num_rounds=100")
EPSILONS = (1, 3, 8)
RATES = (0.03, 0.1, 0.3, 1.0)
VOTE = f"training.vote={{learning_rate:[{','.join(map(str, RATES))}]}}"


def trained(overrides: Sequence[str]) -> tuple[float, VoteResult | None]:
    """Train once; return the accuracy in percent, and the vote on the learning rate (None without a vote)."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run"
        simulate(load([*overrides, f"run.directory={path}"]), make_observers=lambda run, announce: [])
        accuracy = read_rounds(path)[-1].accuracy
        return 100 * (0.0 if accuracy is None else accuracy), VoteResult.read(path)


def wishes(config: Config) -> Iterator[int]:
    """Yield, for each client, the index of the learning rate for which it would vote without noise."""
    config = resolve(config)
    method, task = make_method(config), task_of(config)
    theta, clients = flatten(task.build_model()), range(config.dataset.num_clients)
    request = vote_request(method, theta, clients, config)
    order, parts = order_of_sum(request, order_of(config, task)), client_parts(request)
    encoding = Encoding.for_sum(
        Contributors(len(clients)), dimension=request.dimension, clipping_norm=1.0, noise_multiplier=0.0
    )
    for client in clients:
        yield int(update_steps(Job(order.for_part(parts[client]), theta, encoding, client)).argmax())


def row(epsilon: float, overrides: Sequence[str], seeds: int) -> tuple[str, ...]:
    """Return a table row for one budget: mean accuracies over the seeds, and results of the votes."""
    common = [*RUN, *overrides, f"privacy.budgets=[{epsilon}]"]
    found: dict[str, list[float]] = {}
    winners, wanted = Counter[float](), Counter[float]()
    for seed in range(seeds):
        told = [*common, f"run.seed={seed}"]
        found.setdefault("default", []).append(trained(told)[0])
        accuracy, vote = trained([*told, VOTE])
        found.setdefault("vote", []).append(accuracy)
        winners.update([vote.chosen[0]] if vote is not None else [])
        wanted.update(RATES[number] for number in wishes(load([*told, VOTE])))
        for rate in RATES:
            fixed = [*told, f"training.learning_rate={rate}"]
            found.setdefault(f"{rate:g}", []).append(trained(fixed)[0])
    plan = make_method(load([*common, VOTE])).plan
    chance = (
        0.0
        if plan.vote is None
        else chance_of_agreement(plan.num_clients, plan.vote.noise_stddev, len(RATES))
    )
    cells = [f"{statistics.fmean(each):.1f} ± {statistics.stdev(each):.1f}" for each in found.values()]
    counted = [", ".join(f"{rate:g}: {by[rate]}" for rate in RATES if by[rate]) for by in (winners, wanted)]
    gained = gain(found["default"], found["vote"])
    return f"{epsilon:g}", *cells[:2], gained, *cells[2:], f"{100 * chance:.0f}", *counted


def main() -> None:
    """Train with the vote and with every fixed learning rate at every budget, and show the table."""
    options = read_options(__doc__, overrides=True, seeds=10)
    rows = []
    for epsilon in track(EPSILONS, "budgets", console=CONSOLE):
        rows.append(row(epsilon, options.overrides, options.seeds))
        CONSOLE.print(rows[-1])
    headings = (
        *("epsilon", "chosen publicly (%)", "voted (%)", gain_heading(options.seeds)),
        *(f"{rate:g} (%)" for rate in RATES),
        *("all agree and win (%)", "won", "votes without noise"),
    )
    name = load(options.overrides).dataset.name
    publish([Table(f"Step sizes by vote ({name})", headings, rows)], options.write)


if __name__ == "__main__":
    main()
