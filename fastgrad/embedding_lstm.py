"""An embedding and LSTM layers as compiled loops (numba), with buffers for a fixed number of records.

Arrays are float32, flat, in the order (positions, records, entries), so that a position is one matrix, and
the last one is what the layers behind it take. The four gates of a unit are input, forget, cell and output.
Weights from state to gates have the shape (units, 4 units), which is what the way forward multiplies by.
"""

# Holds code of vectors.py efd52ae30c96, tiles.py cd26fac18d51, products.py 68accf0609ed.

from functools import partial

import numba
import numpy as np
import torch
from numba.types import float32, int64

from fastgrad.kernels import Integers, compiled
from fastgrad.layer import Call, flat
from fastgrad.lowered import LSTM, EmbeddingLSTM
from fastgrad.products import multiply_in_turn, pack_columns, pack_rows, panel_size, product
from fastgrad.vectors import Floats

_F, _I = float32[::1], int64[::1]
_ZERO, _HALF, _ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)
# tanh is 1 beyond it, and x P(x^2) / Q(x^2) up to it, to about 3e-7: Eigen's coefficients.
_FAR = np.float32(7.90531110763549805)
_P = tuple(
    np.float32(each)
    for each in (
        -2.76076847742355e-16,
        2.00018790482477e-13,
        -8.60467152213735e-11,
        5.12229709037114e-08,
        1.48572235717979e-05,
        6.37261928875436e-04,
        4.89352455891786e-03,
    )
)
_Q = tuple(
    np.float32(each)
    for each in (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
)
_FUSED = {"contract"}


@numba.njit(float32(float32), cache=True, error_model="numpy", fastmath=_FUSED)  # type: ignore[untyped-decorator]
def _tanh(value: np.float32) -> np.float32:
    near = _FAR if value > _FAR else value
    x = -_FAR if near < -_FAR else near
    y = x * x
    above = _P[0] * y + _P[1]
    above = above * y + _P[2]
    above = above * y + _P[3]
    above = above * y + _P[4]
    above = above * y + _P[5]
    above = above * y + _P[6]
    below = _Q[0] * y + _Q[1]
    below = below * y + _Q[2]
    below = below * y + _Q[3]
    result: np.float32 = x * above / below
    return result


@compiled(_F, _F, int64, fastmath=_FUSED)
def _activate(gates: Floats, bias: Floats, units: int) -> None:
    """Activate one record's LSTM gates in place: tanh(g + b) for the third gate, sigmoid(g + b) otherwise."""
    # numba makes vectors of a loop that counts from 0, so the gates are slices.
    into_and_forget, added = gates[: 2 * units], bias[: 2 * units]
    for t in range(len(into_and_forget)):
        into_and_forget[t] = _HALF + _HALF * _tanh(_HALF * (into_and_forget[t] + added[t]))
    new, added = gates[2 * units : 3 * units], bias[2 * units : 3 * units]
    for t in range(len(new)):
        new[t] = _tanh(new[t] + added[t])
    out, added = gates[3 * units :], bias[3 * units :]
    for t in range(len(out)):
        out[t] = _HALF + _HALF * _tanh(_HALF * (out[t] + added[t]))


@compiled(_F, _F, _F, _F, int64, _F, _F, _F, fastmath=_FUSED)
def recur(
    gates: Floats,
    bias: Floats,
    weights: Floats,
    panels: Floats,
    count: int,
    cells: Floats,
    squashed: Floats,
    states: Floats,
) -> None:
    """Run an LSTM over a text: c_t = f c_{t-1} + i g and h_t = o tanh(c_t), from c_0 = h_0 = 0.

    Args:
        gates: (positions, count, 4 units), what the inputs bring; the gates when it returns.
        bias: (4 units,).
        weights: (units, 4 units).
        panels: of `products.panel_size` entries, for the weights in another order.
        count: of records.
        cells, squashed, states: (positions, count, units), for c_t, tanh(c_t) and h_t.
    """
    wide = len(bias)
    units = wide // 4
    size = count * units
    pack_rows(weights, wide, units, wide, panels)
    for begin in range(0, len(states), max(1, size)):
        now = gates[4 * begin : 4 * (begin + size)]
        if begin > 0:
            before = states[begin - size : begin]
            turned = begin // size % 2 == 1
            multiply_in_turn(before, units, 1, panels, now, wide, count, wide, units, True, turned)
        for n in range(count):
            gate, at = now[n * wide : (n + 1) * wide], begin + n * units
            _activate(gate, bias, units)
            into, forget = gate[:units], gate[units : 2 * units]
            new, out = gate[2 * units : 3 * units], gate[3 * units :]
            cell, squash, state = cells[at : at + units], squashed[at : at + units], states[at : at + units]
            if begin > 0:
                last = cells[at - size : at - size + units]
                for u in range(units):
                    cell[u] = forget[u] * last[u] + into[u] * new[u]
            else:
                for u in range(units):
                    cell[u] = into[u] * new[u]
            for u in range(units):
                squash[u] = _tanh(cell[u])
            for u in range(units):
                state[u] = out[u] * squash[u]


@compiled(_F, _F, _F, _F, _F, _F, int64, fastmath=_FUSED)
def recur_back(
    states_back: Floats,
    gates: Floats,
    weights: Floats,
    panels: Floats,
    cells: Floats,
    squashed: Floats,
    count: int,
) -> None:
    """Compute the loss's gradient with respect to the inputs of an LSTM's gates, and write it over ``gates``.

    `states_back`: (positions, count, units), the gradient by every h_t from outside of the layer. `gates`,
    `weights`, `cells`, `squashed`, `count`: as in `recur`. `panels`: as there, for the weights' transpose.
    """
    units = int64(np.sqrt(len(weights) // 4))
    wide, size = 4 * units, count * units
    from_later, cell_back = np.zeros(size, np.float32), np.zeros(size, np.float32)
    pack_columns(weights, units, wide, wide, panels)
    for begin in range(len(cells) - max(1, size), -1, -max(1, size)):
        now = gates[4 * begin : 4 * (begin + size)]
        for n in range(count):
            gate, own, at = now[n * wide : (n + 1) * wide], n * units, begin + n * units
            into, forget = gate[:units], gate[units : 2 * units]
            new, out = gate[2 * units : 3 * units], gate[3 * units :]
            given, later = states_back[at : at + units], from_later[own : own + units]
            squash, carried = squashed[at : at + units], cell_back[own : own + units]
            for u in range(units):
                state_back = given[u] + later[u]
                carried[u] += state_back * out[u] * (_ONE - squash[u] * squash[u])
                out[u] = state_back * squash[u] * out[u] * (_ONE - out[u])
            before = cells[at - size : at - size + units] if begin > 0 else cells[:0]
            for u in range(units):
                by, kept, fresh, entered = carried[u], forget[u], new[u], into[u]
                carried[u] = by * kept
                forget[u] = by * before[u] * kept * (_ONE - kept) if begin > 0 else _ZERO
                into[u] = by * fresh * entered * (_ONE - entered)
                new[u] = by * entered * (_ONE - fresh * fresh)
        if begin > 0:
            turned = begin // size % 2 == 1
            multiply_in_turn(now, wide, 1, panels, from_later, units, count, units, wide, False, turned)


@compiled(_I, _F, int64, int64, _F)
def look_up(characters: Integers, table: Floats, count: int, width: int, out: Floats) -> None:
    """Copy the rows of an embedding table for the given tokens.

    Args:
        characters: (count, positions).
        table: (vocabulary, width).
        count: of records.
        width: of a row.
        out: (positions, count, width).

    Raises IndexError for a character that is not in the vocabulary.
    """
    length = len(characters) // count if count else 0
    vocabulary = len(table) // width
    for n in range(count):
        for p in range(length):
            character = characters[n * length + p]
            if character < 0 or character >= vocabulary:
                raise IndexError("a character of the text is not in the model's vocabulary")
            to, start = (p * count + n) * width, character * width
            for t in range(width):
                out[to + t] = table[start + t]


@compiled(_I, _F, int64, int64, _F)
def look_up_back(characters: Integers, gradient: Floats, count: int, width: int, out: Floats) -> None:
    """Add the gradients of all rows that were looked up into ``out``, the gradient of the embedding table.

    Shapes are as in `look_up`, with inputs and outputs exchanged.
    """
    length = len(characters) // count if count else 0
    for t in range(len(out)):
        out[t] = _ZERO
    for n in range(count):
        for p in range(length):
            start, to = (p * count + n) * width, characters[n * length + p] * width
            for t in range(width):
                out[to + t] += gradient[start + t]


class EmbeddingLSTMLayers:
    """An embedding and LSTM layers as compiled loops (numba); they output the states at the last position.

    `reading`: the layers. `count`: how many records there are. `parameters`, `gradient`: of the program,
    shape (d,). `characters`: for the input, shape (records, positions), int64. `output`: shape (records, 1,
    1, units), the states at the last position. `output_back`: the gradient by it, to be filled before the way
    back. `forward`, `backward`: the calls of either way.
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
            partial(look_up, characters, flat(parameters[where]), count, reading.width, flat(embedded))
        ]
        self.backward: list[Call] = []
        inputs, inputs_back = embedded, embedded_back
        # One place for the weights in another order, which stays in the cache: every call fills it anew.
        panels = np.empty(max(map(_room_of, reading.recurrences), default=0), np.float32)
        for layer in reading.recurrences:
            # Only the last position is asked of the last layer: the rest of its gradient stays 0.
            states, states_back = (torch.zeros(reading.length, count, layer.units) for _ in range(2))
            forward, backward = _calls_of_layer(
                layer, (inputs, inputs_back), (states, states_back), parameters, gradient, panels
            )
            self.forward += forward
            self.backward = backward + self.backward
            inputs, inputs_back = states, states_back
        self.backward.append(
            partial(
                look_up_back, characters, flat(embedded_back), count, reading.width, flat(gradient[where])
            )
        )
        self.output, self.output_back = (each[-1].view(count, 1, 1, -1) for each in (inputs, inputs_back))


def _room_of(layer: LSTM) -> int:
    """Return how many entries there are in the largest of a layer's matrices in panels."""
    wide = 4 * layer.units
    return max(panel_size(*each) for each in ((wide, layer.units), (layer.units, wide), (wide, layer.inputs)))


def _calls_of_layer(
    layer: LSTM,
    inputs: tuple[torch.Tensor, torch.Tensor],
    states: tuple[torch.Tensor, torch.Tensor],
    parameters: torch.Tensor,
    gradient: torch.Tensor,
    panels: Floats,
) -> tuple[list[Call], list[Call]]:
    """Return the calls that run one LSTM layer forward, and those that run its backward pass."""
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
        product(entered, matrix.t(), rows, panels),
        partial(recur, flat(gates), flat(parameters[bias]), weights, panels, count, *kept, flat(states[0])),
    ]
    before, later = states[0][:-1].view(-1, units), gates[1:].view(-1, wide)
    backward: list[Call] = [
        partial(recur_back, flat(states[1]), flat(gates), weights, panels, *kept, count),
        product(rows.t(), entered, gradient[from_inputs].view_as(matrix)),
        partial(torch.sum, rows, 0, out=gradient[bias]),
        product(before.t(), later, gradient[from_states].view(units, wide)),
        product(rows, matrix, inputs[1].view(-1, layer.inputs)),
    ]
    return forward, backward
