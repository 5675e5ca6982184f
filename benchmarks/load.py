"""A load test: 100 nodes, 20 rounds, a tenth of the nodes lost in each round; are all secure sums right?

All nodes run in this process: the real ServerApp code exchanges real messages with the real ClientApp, each
node with a context and a ledger of its own; only the network between them is missing. Every secure
sum is compared, bit by bit, with the sum of the vectors that its nodes had masked.

    python -m benchmarks.load [--nodes 100] [--rounds 20] [--dropouts 0.1] [--seed 0] [OVERRIDE ...]
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import cast
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import psutil
from flwr.app import Context
from flwr.serverapp import Grid

from benchmarks.harness import publish, read_options
from conf.load import load
from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.audit.run_audit import audit_run
from gdpfed.clients.messages import BEGIN, JOIN, OFFER
from gdpfed.report.console import Table
from gdpfed.runs.directory import RunDirectory
from gdpfed.runs.round_log import RoundLogEntry, read_rounds
from secagg import ClientSession, MaskedSum, ServerSession
from secagg.protocol.client_keys import add_drawn_noise
from server_app.train import train
from testing.local_grid import LocalGrid
from testing.small_runs import grid_of_owners

BUDGET = 8.0
MIB = 2**20
STAGES_A_ROUND = 4
WARM_UP_ROUNDS = 5


@dataclass
class Watch:
    """Records secure sums and memory of a federation that runs in this process.

    Attributes:
        grid: the nodes.
        put_in: residues under the mask of every client in the present round.
        wrong, right: sums that are not, and that are, those of what was put in.
        resident_bytes: resident memory of this process after every round.
        node_bytes: the largest state that a node keeps after every round.
    """

    grid: LocalGrid
    put_in: dict[int, npt.NDArray[np.uint32]] = field(default_factory=dict)
    wrong: int = 0
    right: int = 0
    resident_bytes: list[int] = field(default_factory=list)
    node_bytes: list[int] = field(default_factory=list)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside the ``with`` block, check every secure sum, and record the memory after every round."""
        mask, result, append = ClientSession.mask, ServerSession.result, RunDirectory.append_round

        def mask_and_note(
            session: ClientSession,
            steps: npt.NDArray[np.int64],
            *context: bytes,
            noise: npt.NDArray[np.int64] | None = None,
        ) -> bytes:
            noised = add_drawn_noise(session._state, steps) if noise is None else steps + noise
            self.put_in[session.client_id] = noised.astype(np.uint32)
            return mask(session, steps, *context, noise=noise)

        def result_and_compare(session: ServerSession) -> MaskedSum:
            summed = result(session)
            self.compare(summed.survivors, summed.total, session.parameters.modulus_bits)
            return summed

        def append_and_weigh(files: RunDirectory, record: RoundLogEntry) -> None:
            append(files, record)
            self.put_in.clear()
            self.weigh()

        with (
            patch.object(ClientSession, "mask", mask_and_note),
            patch.object(ServerSession, "result", result_and_compare),
            patch.object(RunDirectory, "append_round", append_and_weigh),
        ):
            yield

    def compare(self, survivors: Sequence[int], total: npt.NDArray[np.uint32], bits: int) -> None:
        """Count a secure sum as right if it equals the survivors' sum modulo 2**bits, and else as wrong."""
        expected = np.zeros(len(total), np.uint32)
        for client_id in survivors:
            expected += self.put_in[client_id]
        right = np.array_equal(expected & np.uint32(2**bits - 1), total)
        self.right += right
        self.wrong += not right

    def weigh(self) -> None:
        """Delete stored messages; record this process's memory and the size of the largest node state."""
        for record in (self.grid.sent, self.grid.replies, self.grid.exchanges):
            record.clear()
        self.resident_bytes.append(psutil.Process().memory_info().rss)
        self.node_bytes.append(max(state_bytes(context) for context in self.grid.contexts.values()))


def state_bytes(context: Context) -> int:
    """Return how many bytes of state a node keeps between messages."""
    return sum(
        len(value) if isinstance(value, bytes | str) else 8
        for record in context.state.values()
        for value in record.values()
    )


def vanishing(fraction: float, seed: int) -> Callable[[str, int], bool]:
    """Return a function that decides at random whether a node drops out in a stage of a secure sum."""
    random, each = np.random.default_rng(seed), 1 - (1 - fraction) ** (1 / STAGES_A_ROUND)

    def vanishes(kind: str, client: int) -> bool:
        return kind not in (JOIN, OFFER, BEGIN) and random.random() < each

    return vanishes


def measure(options: argparse.Namespace, folder: Path) -> tuple[Watch, list[RoundLogEntry], int]:
    """Train, then audit run and ledgers; return the `Watch`, the rounds' log, and how many audits failed."""
    vanishes = vanishing(options.dropouts, options.seed)
    grid = grid_of_owners(folder / "ledgers", [BUDGET] * options.nodes, vanishes=vanishes)
    watch = Watch(grid)
    overrides = (
        f"dataset.num_clients={options.nodes}",
        "method=dp_fedavg",
        "privacy.budgets=clients",
        "privacy.num_groups=1",
        "privacy.sampling_rate=1",
        "secagg.dropout_tolerance=0.2",
        f"run.num_rounds={options.rounds}",
        f"run.directory='{folder / 'run'}'",
        *options.overrides,
    )
    with watch.installed():
        train(cast("Grid", grid), load(overrides), "load")
    broken = sum(not audit_node_ledger(path).passed for path in (folder / "ledgers").glob("*.json"))
    return watch, read_rounds(folder / "run"), broken + (not audit_run(folder / "run").passed)


def figures(options: argparse.Namespace, watch: Watch, records: list[RoundLogEntry], broken: int) -> Table:
    """Make a table of the load test's results, with one result in each row."""
    survivors = [each.survivors[0] for each in records if not each.failures]
    seconds = [each.training_seconds for each in records]
    # The median of each third of what follows the warm-up: one round's garbage is no growth.
    resident = watch.resident_bytes[WARM_UP_ROUNDS:]
    third = len(resident) // 3
    growth = median(resident[-third:]) - median(resident[:third])
    rows = (
        ("rounds completed", f"{len(survivors)} of {options.rounds}"),
        ("nodes in a sum, mean (least)", f"{mean(survivors):.1f} ({min(survivors)})"),
        ("sums compared, wrong ones", f"{watch.right + watch.wrong}, {watch.wrong}"),
        ("seconds a round, median (most)", f"{median(seconds):.2f} ({max(seconds):.2f})"),
        ("memory of server and nodes together", f"{median(resident) / MIB:.0f} MiB"),
        (
            f"its growth after {WARM_UP_ROUNDS} rounds "
            f"(median of the last {third} rounds less that of the first {third})",
            f"{growth / MIB:+.1f} MiB",
        ),
        (
            "most that a node keeps between rounds, in any round and in the last",
            f"{max(watch.node_bytes)}, {watch.node_bytes[-1]} bytes",
        ),
        ("audits of the run and of the nodes' ledgers that failed", str(broken)),
    )
    title = f"{options.nodes} nodes, {options.rounds} rounds, {options.dropouts:.0%} dropouts"
    return Table(title, ("figure", "value"), rows)


def main() -> int:
    """Run the load test and show its results; return 0 if all secure sums were right and no audit failed."""
    options = read_options(__doc__, overrides=True, nodes=100, rounds=20, dropouts=0.1, seed=0)
    if options.rounds < WARM_UP_ROUNDS + 3:
        raise SystemExit(
            f"--rounds {options.rounds}: growth shows after {WARM_UP_ROUNDS} rounds, take 8 or more"
        )
    with tempfile.TemporaryDirectory() as folder:
        watch, records, broken = measure(options, Path(folder))
    publish([figures(options, watch, records, broken)], options.write)
    return int(watch.wrong > 0 or broken > 0)


if __name__ == "__main__":
    raise SystemExit(main())
