"""Models that predict the next character of a text."""

from itertools import pairwise

import torch
from torch import nn

from fastgrad.modules import LastPosition, LSTMLayer
from gdpfed.learning.models.feedforward import named_layers


def lstm(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    embedding_size: int = 8,
    hidden_units: int = 256,
    num_layers: int = 2,
) -> nn.Module:
    """LEAF's model for Shakespeare (Caldas et al., 2018): an embedding, LSTM layers, and a linear layer.

    The linear layer takes the last position.

    Inputs are positions in a vocabulary that is also what is predicted: shape (B, sequence length), int64.
    """
    sizes = [embedding_size] + [hidden_units] * num_layers
    embedding = nn.Embedding(num_classes, embedding_size)
    layers = [LSTMLayer(inputs, outputs) for inputs, outputs in pairwise(sizes)]
    return named_layers(
        embedding=embedding,
        **{f"lstm{number}": layer for number, layer in enumerate(layers, start=1)},
        last_position=LastPosition(),
        output=nn.Linear(hidden_units, num_classes),
    )


def ngram(input_shape: tuple[int, ...], num_classes: int, *, characters: int = 3) -> nn.Module:
    """Logistic regression on the last characters, which is convex and so learns in few rounds.

    Each of the last characters adds a row of scores of its own: d = characters classes^2.
    Inputs are positions in a vocabulary that is also what is predicted: shape (B, sequence length), int64.
    All scores begin at 0.
    """
    if not 1 <= characters <= input_shape[0]:
        raise ValueError(f"characters={characters} must be from 1 to {input_shape[0]}, the sequence length")
    rows = nn.Embedding(characters * num_classes, num_classes)
    nn.init.zeros_(rows.weight)
    return named_layers(characters=LastCharacters(characters, num_classes), scores=rows, added=Added())


class LastCharacters(nn.Module):
    """(B, L) to (B, n): the last n characters, each place with numbers of its own."""

    def __init__(self, characters: int, vocabulary: int) -> None:
        super().__init__()
        self.characters, self.vocabulary = characters, vocabulary

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return position in the vocabulary + vocabulary size * place."""
        last = inputs[:, -self.characters :]
        return last + self.vocabulary * torch.arange(self.characters, device=inputs.device)


class Added(nn.Module):
    """(B, n, classes) to (B, classes)."""

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the sum over the characters."""
        return scores.sum(dim=1)
