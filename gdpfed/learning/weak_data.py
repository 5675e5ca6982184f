"""Warnings about weak points of a task's data, one line each; the run goes on."""

from collections.abc import Iterator

import numpy as np

from gdpfed.learning.data import Windows
from gdpfed.learning.task import Task

MOST_NAMED = 5


def data_warnings(task: Task) -> Iterator[str]:
    """One line for clients without examples, and one for classes that no training example has."""
    data, num_clients = task.load(), task.num_clients
    if task.partition == "iid" and num_clients > len(data.train):
        yield (
            f"dataset.num_clients={num_clients} for {len(data.train)} training examples: "
            f"{num_clients - len(data.train)} clients hold none, and send nothing but noise unless their "
            f"nodes have data of their own. Set dataset.num_clients={len(data.train)} or fewer"
        )
    if isinstance(data.train, Windows):
        return  # Characters, of which a text need not have all.
    if data.num_classes == 1:
        return  # Numbers.
    missing = np.setdiff1d(np.unique(data.test.y), np.unique(data.train.y))
    if len(missing):
        named = ", ".join(map(str, missing[:MOST_NAMED].tolist())) + (
            " ..." if len(missing) > MOST_NAMED else ""
        )
        yield (
            f"class {named} is in the test split and in no training example of it: it is not learnt unless "
            "nodes have data of their own, and counts as wrong. Add training examples, or take it out of "
            "the test split"
        )
