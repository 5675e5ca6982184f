"""Groups of records with budgets of their own: which of a client's records belong to which group."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data import Split

# Keeps these draws apart from those of batches and partitions by the same seed.
_PURPOSE = 0x6EC0


def record_groups(
    split: Split, num_groups: int, shares: Sequence[float], seed: int, client_id: int
) -> npt.NDArray[np.int64]:
    """The group of every record, shape (n,), from 0.

    They are the data's own where it says them. Else a permutation by the seed and the client's number deals
    out shares[k] n records to group k, rounded by largest remainders.

    Args:
        split: the client's records.
        num_groups: how many there are.
        shares: of the groups; they are read as parts of their sum.

    Raises LearningError: a record of a group that there is not, or no share for every group.
    """
    own = split.groups
    if own is not None:
        if len(own) and not 0 <= own.min() <= own.max() < num_groups:
            raise LearningError(
                f"a record of the data is of group {own.min() if own.min() < 0 else own.max()}; the groups "
                f"of records are 0 to {num_groups - 1}, one for every rate"
            )
        return own
    if len(shares) != num_groups:
        raise LearningError(
            f"{len(shares)} shares for {num_groups} groups of records: give a share for every group, or data "
            "that says the group of every record"
        )
    exact = np.asarray(shares, dtype=np.float64) / sum(shares) * len(split)
    counts = np.floor(exact).astype(np.int64)
    missing = len(split) - counts.sum()
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    order = np.random.default_rng([_PURPOSE, seed, client_id]).permutation(len(split))
    groups = np.empty(len(split), dtype=np.int64)
    groups[order] = np.repeat(np.arange(num_groups), counts)
    return groups
