"""Measures the traffic between edge servers and the central server, compared with having no edge servers.

All programs run in this process, with the real server and the real nodes. The size of a message is that of
its content as Flower serialises it, without frames and TLS. In a flat federation every message between the
central server and a device counts; with edge servers (layers) only those to and from edge servers count.

    python -m benchmarks.backhaul [--edges 2] [--nodes 6] [--rounds 1] [OVERRIDE ...]
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from flwr.app import Context, Message
from flwr.common.serde import recorddict_to_proto

from benchmarks import harness
from gdpfed.errors import RunError
from gdpfed.report.console import Table
from gdpfed.runs.round_log import read_rounds
from testing.layered_runs import cloud_grid, run_layers
from testing.local_grid import LocalGrid
from testing.small_runs import run

SHARED = ("dataset.model=mlp", "training.local_steps=4", "secagg.dropout_tolerance=0")
DEVICES = ("method=h2fdp", "privacy=client_level", "privacy.budgets=[8]", "privacy.sampling_rate=1")


class Counted:
    """Counts messages between the central server and its simulated nodes, and the bytes in each direction.

    `messages`, `down`, `up`: how many messages, and bytes to and from nodes.
    """

    def __init__(self, grid: LocalGrid) -> None:
        self.messages = self.down = self.up = 0
        self._app = grid.app
        grid.app = self  # type: ignore[assignment]

    def __call__(self, message: Message, context: Context) -> Message:
        self.messages += 1
        self.down += recorddict_to_proto(message.content).ByteSize()
        reply = self._app(message, context)
        self.up += recorddict_to_proto(reply.content).ByteSize()
        return reply


def counted(design: str, windows: int, rounds: int, edges: int, nodes: int, words: Sequence[str]) -> Counted:
    """Count the messages and bytes of the central server in one run; raise RunError if a secure sum fails."""
    devices = [*DEVICES, *words, f"method.local_aggregations={windows}"]
    with tempfile.TemporaryDirectory() as parent:
        root = Path(parent)
        if design == "flat":
            grid = LocalGrid(nodes)
            crossing = Counted(grid)
            own = [f"dataset.num_clients={nodes}", f"method.num_subnets={edges}"]
            run(root / "cloud", [*devices, *own], grid=grid)
        else:
            grid = cloud_grid([root / f"mailbox-{edge}" for edge in range(edges)], 600.0)
            crossing = Counted(grid)
            below = [LocalGrid(nodes // edges) for _ in range(edges)]
            run_layers(root, below, [*devices, "method.num_subnets=1"], words, grid)
        records = read_rounds(root / "cloud")
    if len(records) != rounds or any(record.failures for record in records):
        raise RunError(f"{design}: a sum failed, so measure again")
    return crossing


def main() -> None:
    """Count messages and bytes with and without edge servers, and show the table."""
    options = harness.read_options(__doc__, overrides=True, edges=2, nodes=6, rounds=1)
    words = [*SHARED, *options.overrides, f"run.num_rounds={options.rounds}"]
    rows = []
    for windows in (1, 4):
        for design, name in (("flat", "one flat federation (C)"), ("layers", "layers (L)")):
            crossed = counted(design, windows, options.rounds, options.edges, options.nodes, words)
            messages, down, up = (
                value / options.rounds for value in (crossed.messages, crossed.down, crossed.up)
            )
            rows.append((name, str(windows), f"{messages:.0f}", f"{down / 1e6:.2f}", f"{up / 1e6:.2f}"))
    columns = ("design", "J", "messages a round", "MB down", "MB up")
    title = f"{options.edges} edges, {options.nodes} devices"
    harness.publish([Table(title, columns, rows)], options.write)


if __name__ == "__main__":
    main()
