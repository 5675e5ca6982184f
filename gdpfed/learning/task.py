"""What is learned: data set, model, and how the examples are shared out. Small enough for every message."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gdpfed.learning.datasets import Dataset, Split, load_dataset
from gdpfed.learning.errors import LearningError
from gdpfed.learning.models import build_model
from gdpfed.learning.partition import iid_indices


@dataclass(frozen=True)
class Task:
    """One learning task, the same for server and clients; ``seed`` fixes model and partition."""

    dataset: str
    path: str | None
    model: str
    partition: str
    num_clients: int
    seed: int

    def load(self) -> Dataset:
        """The data set, loaded once a process."""
        return load_dataset(self.dataset, self.path)

    def build_model(self) -> nn.Module:
        """The model at its initial parameters."""
        data = self.load()
        return build_model(self.model, data.input_shape, data.num_classes, seed=self.seed)

    def client_data(self, client_id: int) -> Split:
        """The examples that one client holds; possibly none."""
        return self.load().train.take(self.client_indices(client_id))

    def client_indices(self, client_id: int) -> npt.NDArray[np.int64]:
        """Their positions in the training split."""
        if self.partition != "iid":
            raise LearningError(
                f"dataset.partition={self.partition} does not fit data set '{self.dataset}': use iid"
            )
        return iid_indices(len(self.load().train), self.num_clients, client_id, self.seed)


def choose_device(name: str) -> torch.device:
    """The device to train on; ``auto`` takes CUDA where there is one.

    Raises:
        LearningError: CUDA was asked for and there is none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise LearningError("run.device=cuda but no CUDA device is visible: use run.device=auto")
    return torch.device(name)
