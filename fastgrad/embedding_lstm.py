"""The layers of a program that reads a text, for so many records: their buffers, and calls on them.

Positions come first in every buffer, (positions, records, entries), so that a position is one matrix, and the
last one is what the layers behind it take.
"""

from functools import partial

import torch

from fastgrad import lstm_kernels
from fastgrad.layer import Call, flat
from fastgrad.lowered import LSTM, EmbeddingLSTM


class EmbeddingLSTMLayers:
    """An embedding and LSTM layers, up to the last position.

    Args:
        reading: the layers.
        count: how many records there are.
        parameters, gradient: of the program, shape (d,).

    Attributes:
        characters: for the input, shape (records, positions), int64.
        output: shape (records, 1, 1, units), the states at the last position.
        output_back: the gradient by it, to be filled before the way back.
        forward, backward: the calls of either way.
    """

    def __init__(
        self, reading: EmbeddingLSTM, count: int, parameters: torch.Tensor, gradient: torch.Tensor
    ) -> None:
        self.characters = torch.empty(count, reading.length, dtype=torch.int64)
        where = slice(reading.table, reading.table + reading.vocabulary * reading.width)
        embedded = torch.empty(reading.length, count, reading.width)
        embedded_back = torch.empty_like(embedded)
        characters = self.characters.view(-1).numpy()
        self.forward: list[Call] = [
            partial(
                lstm_kernels.look_up,
                characters,
                flat(parameters[where]),
                count,
                reading.width,
                flat(embedded),
            )
        ]
        self.backward: list[Call] = []
        inputs, inputs_back = embedded, embedded_back
        for layer in reading.recurrences:
            # Only the last position is asked of the last layer: the rest of its gradient stays 0.
            states, states_back = (torch.zeros(reading.length, count, layer.units) for _ in range(2))
            forward, backward = _calls(
                layer, (inputs, inputs_back), (states, states_back), parameters, gradient
            )
            self.forward += forward
            self.backward = backward + self.backward
            inputs, inputs_back = states, states_back
        self.backward.append(
            partial(
                lstm_kernels.look_up_back,
                characters,
                flat(embedded_back),
                count,
                reading.width,
                flat(gradient[where]),
            )
        )
        self.output, self.output_back = (each[-1].view(count, 1, 1, -1) for each in (inputs, inputs_back))


def _calls(
    layer: LSTM,
    inputs: tuple[torch.Tensor, torch.Tensor],
    states: tuple[torch.Tensor, torch.Tensor],
    parameters: torch.Tensor,
    gradient: torch.Tensor,
) -> tuple[list[Call], list[Call]]:
    """Of one LSTM layer, forward and back; inputs and states come with the buffers of their gradients."""
    length, count, units = states[0].shape
    wide = 4 * units
    gates = torch.empty(length, count, wide)
    cells, squashed = torch.empty(2, length, count, units).unbind()
    from_inputs = slice(layer.from_inputs, layer.from_inputs + wide * layer.inputs)
    bias = slice(layer.bias, layer.bias + wide)
    from_states = slice(layer.from_states, layer.from_states + units * wide)
    matrix, rows, entered = (
        parameters[from_inputs].view(wide, -1),
        gates.view(-1, wide),
        inputs[0].flatten(0, 1),
    )
    weights = flat(parameters[from_states])
    kept = flat(cells), flat(squashed)
    forward: list[Call] = [
        partial(torch.mm, entered, matrix.t(), out=rows),
        partial(
            lstm_kernels.recur, flat(gates), flat(parameters[bias]), weights, count, *kept, flat(states[0])
        ),
    ]
    before, later = states[0][:-1].view(-1, units), gates[1:].view(-1, wide)
    backward: list[Call] = [
        partial(lstm_kernels.recur_back, flat(states[1]), flat(gates), weights, *kept, count),
        partial(torch.mm, rows.t(), entered, out=gradient[from_inputs].view_as(matrix)),
        partial(torch.sum, rows, 0, out=gradient[bias]),
        partial(torch.mm, before.t(), later, out=gradient[from_states].view(units, wide)),
        partial(torch.mm, rows, matrix, out=inputs[1].view(-1, layer.inputs)),
    ]
    return forward, backward
