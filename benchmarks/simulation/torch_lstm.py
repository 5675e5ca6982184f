"""The project's LSTM by torch's own layer, which is fastest where one client trains after the other."""

import torch
from torch import nn


class TorchLSTM(nn.Module):
    """An embedding, ``nn.LSTM``, and a linear layer on the last position, in the sizes of ``lstm``.

    Args:
        vocabulary: how many characters there are.
    """

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 8)
        self.layers = nn.LSTM(8, 256, num_layers=2, batch_first=True)
        self.last = nn.Linear(256, vocabulary)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """(B, L) to (B, vocabulary)."""
        scores: torch.Tensor = self.last(self.layers(self.embedding(characters))[0][:, -1])
        return scores
