"""Give each node without data a part of the digits that come with scikit-learn."""

from pathlib import Path

import numpy as np

import gdpfed.methods  # noqa: F401 - hands the methods to conf
from conf.load import load
from deploy.topology import DATA, EXAMPLES_FILE, Federation
from gdpfed.clients.configured import task_of


def provide_demo_data(root: Path, federation: Federation) -> None:
    """Write a file of examples for every node whose data folder is empty; existing files stay.

    Args:
        root: holds one directory a service, see `deploy.credentials`.
        federation: its nodes share the data set, as in a simulation of as many clients.
    """
    missing = [node for node in federation.nodes if _is_empty(root / node.superexec / DATA)]
    if not missing:
        return
    task = task_of(load(["dataset=digits", f"dataset.num_clients={len(federation.nodes)}"]))
    for node in missing:
        examples = task.client_data(node.client_id)
        folder = root / node.superexec / DATA
        np.savez(folder / EXAMPLES_FILE, x_train=examples.x, y_train=examples.y)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())
