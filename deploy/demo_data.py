"""Examples for nodes that have brought none: each gets its part of the digits that come with scikit-learn."""

from functools import lru_cache
from pathlib import Path

import numpy as np

from conf.load import load
from deploy.topology import DATA, EXAMPLES_FILE, Federation
from gdpfed.learning.task import Task
from gdpfed.rounds.run import task_of


def provide_demo_data(root: Path, federation: Federation) -> None:
    """Write a file of examples beside every node whose folder of data is empty; what is there stays.

    Args:
        root: holds one directory a service, see `deploy.credentials`.
        federation: whose nodes share the data set out, as a simulation of as many clients would.
    """
    missing = [node for node in federation.nodes if _is_empty(root / node.superexec / DATA)]
    if not missing:
        return
    task = _digits(len(federation.nodes))
    for node in missing:
        examples = task.client_data(node.client_id)
        folder = root / node.superexec / DATA
        np.savez(folder / EXAMPLES_FILE, x_train=examples.x, y_train=examples.y)


@lru_cache(maxsize=1)
def _digits(num_clients: int) -> Task:
    return task_of(load(["dataset=digits", f"dataset.num_clients={num_clients}"]))


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())
