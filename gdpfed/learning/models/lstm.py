"""A stacked LSTM that predicts the next character (LEAF's model for Shakespeare, Caldas et al., 2018)."""

from itertools import pairwise

import torch
from torch import nn


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


class LSTMLayer(nn.Module):
    """One LSTM layer (Hochreiter and Schmidhuber, 1997), written in operations that torch.func can vmap.

    ``torch.nn.LSTM`` cannot be vmapped over its parameters. As there, the gates are input, forget, cell
    and output; there is one bias where cuDNN has two, and the forget gate's starts at 1 (Jozefowicz et
    al., 2015).
    """

    def __init__(self, input_size: int, hidden_units: int) -> None:
        super().__init__()
        self.hidden_units = hidden_units
        self.input_map = nn.Linear(input_size, 4 * hidden_units)
        self.hidden_map = nn.Linear(hidden_units, 4 * hidden_units, bias=False)
        bound = hidden_units**-0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)
        nn.init.ones_(self.input_map.bias[hidden_units : 2 * hidden_units])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(B, L, inputs) to (B, L, hidden units)."""
        from_inputs = self.input_map(inputs)
        state = inputs.new_zeros(inputs.shape[0], self.hidden_units)
        cell, states = state, []
        for position in range(inputs.shape[1]):
            gates = from_inputs[:, position] + self.hidden_map(state)
            into, forget, new, out = gates.chunk(4, dim=1)
            cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
            state = out.sigmoid() * cell.tanh()
            states.append(state)
        return torch.stack(states, dim=1)


class LastPosition(nn.Module):
    """(B, L, features) to (B, features)."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the features after the last character."""
        return states[:, -1]
