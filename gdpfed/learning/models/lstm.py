"""A stacked LSTM that predicts the next character (LEAF's model for Shakespeare, Caldas et al., 2018)."""

from itertools import pairwise

from torch import nn

from fastgrad.modules import LastPosition, LSTMLayer


def lstm(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    embedding_size: int = 8,
    hidden_units: int = 256,
    num_layers: int = 2,
) -> nn.Module:
    """Characters to an embedding, LSTM layers, and a linear layer on the last position.

    Inputs are positions in a vocabulary that is also what is predicted: shape (B, sequence length), int64.
    """
    sizes = [embedding_size] + [hidden_units] * num_layers
    return nn.Sequential(
        nn.Embedding(num_classes, embedding_size),
        *(LSTMLayer(inputs, outputs) for inputs, outputs in pairwise(sizes)),
        LastPosition(),
        nn.Linear(hidden_units, num_classes),
    )
