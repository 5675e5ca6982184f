"""What a server says to a client of a run beside its mechanism, of which a mechanism makes the terms."""

from dataclasses import dataclass
from typing import Any

from gdpfed.privacy.charges import Charge


@dataclass(frozen=True, kw_only=True)
class PromisedRun:
    """What is said to a client of a run beside its mechanism.

    Attributes:
        run: names the run, the same when it is resumed.
        group: index of the client's group in the plan.
        client: whose terms they are; None where all clients of a group have the same.
        num_rounds: T.
        delta: of every epsilon.
        accountant: by which the plan computes.
        sums_hidden: whether the server sees sums alone.
        clipping_norm: C of the plan.
        first_round: from which on the client is among those sampled from.
        dropout_tolerance: the largest fraction of a cohort that may vanish from a sum.
        corrupt_tolerance: the fraction of a cohort whose noise is not relied on.
        seed: of the run.
        task: digest of what is trained.
        announced: digest of what clients were told before; empty where nothing was.
        held_out: what a record that is held out pays for; nothing where none is asked about.
        vote: what everybody pays for a vote over settings; nothing where there is none.
    """

    run: str
    group: int
    client: int | None
    num_rounds: int
    delta: float
    accountant: str
    sums_hidden: bool
    clipping_norm: float
    first_round: int = 0
    dropout_tolerance: float
    corrupt_tolerance: float
    seed: int = 0
    task: str = ""
    announced: str = ""
    held_out: tuple[Charge, ...] = ()
    vote: tuple[Charge, ...] = ()

    def common(self) -> dict[str, Any]:
        """Return the entries that the terms of every mechanism have."""
        return {
            name: getattr(self, name)
            for name in (
                "run",
                "group",
                "delta",
                "accountant",
                "sums_hidden",
                "first_round",
                "dropout_tolerance",
                "corrupt_tolerance",
                "task",
                "announced",
                "held_out",
                "vote",
            )
        }
