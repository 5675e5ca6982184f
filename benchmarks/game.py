"""How long the game of FedPCS takes to be played, by clients: 30 rounds, reward 5, a fifth of all sampled.

python -m benchmarks.game [--clients 100]
"""

import numpy as np

from benchmarks.harness import publish, read_options, seconds, three
from gdpfed.report.table import Table
from gdpfed.systems.fedpcs.game.mean_field import play
from gdpfed.systems.fedpcs.game.rules import Game

ROUNDS, REWARD = 30, 5.0


def row(num_clients: int) -> tuple[str, ...]:
    """Play once."""
    rng = np.random.default_rng(0)
    game = Game(
        aversions=rng.uniform(0, 1, num_clients),
        first_budgets=rng.uniform(0.01, 12, num_clients),
        cohort_sizes=np.full(ROUNDS, max(1, num_clients // 5)),
        least=0.01,
        highest=12.0,
    )
    iterations: list[int] = []
    taken = seconds(lambda: iterations.append(play(game, np.full(ROUNDS, REWARD)).num_iterations))
    return f"{num_clients:,}", str(iterations[0]), three(taken)


def main() -> None:
    """Play with each number of clients and show the seconds."""
    options = read_options(__doc__, overrides=False, clients=0)
    sizes = [options.clients] if options.clients else [100, 1_000, 10_000]
    headings = ("clients", "iterations", "seconds")
    publish([Table("The game of FedPCS, 30 rounds", headings, [row(size) for size in sizes])], options.write)


if __name__ == "__main__":
    main()
