"""The recurrence of an LSTM layer as two GPU kernels for each position, for many clients' models.

With z_t = a_t + W h_(t-1), where a_t comes from the layer's inputs, in the order input, forget, new, out::

    i, f, o = sigmoid(z)    n = tanh(z)    c_t = f c_(t-1) + i n    h_t = o tanh(c_t)

Autograd of these lines is some thirty kernels a position, each for a few thousand numbers: a GPU spends its
time in starting them. Here one kernel is the product with W, and one the rest of a position. (cuDNN has
another form, which knows the weights of one model only.) The gradient by W is one product over all positions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

Scan = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(B, L, 4 H) from a layer's inputs and W of shape (4 H, H) to its states (B, L, H)."""

Forward = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]
]
Backward = Callable[
    [torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor, torch.Tensor],
    tuple[torch.Tensor, torch.Tensor],
]
# float32 sums in another order; a scan that is wrong is further off.
MOST_OFF = 1e-4
_TRIED = (2, 3, 5, 7)


def states_of(from_inputs: torch.Tensor, hidden_map: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Compute an LSTM's states by operations that torch.func can vmap: (B, L, 4 H) to (B, L, H).

    `hidden_map`: (B, H) to (B, 4 H).
    """
    state = from_inputs.new_zeros(from_inputs.shape[0], from_inputs.shape[2] // 4)
    cell, states = state, []
    for position in range(from_inputs.shape[1]):
        gates = from_inputs[:, position] + hidden_map(state)
        into, forget, new, out = gates.chunk(4, dim=1)
        cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
        state = out.sigmoid() * cell.tanh()
        states.append(state)
    return torch.stack(states, dim=1)


def plain_scan(from_inputs: torch.Tensor, hidden_weight: torch.Tensor) -> torch.Tensor:
    """Compute an LSTM's states by plain torch operations, as a reference for the fused kernels."""
    return states_of(from_inputs, partial(linear, weight=hidden_weight))


@dataclass(frozen=True)
class CellKernels:
    """The kernels that compute one position of an LSTM layer, forward and backward, for all records at once.

    `forward`: a_t and W h_(t-1), (rows, 4 H) each, and c_(t-1), (rows, H), to h_t, c_t and the gates after
    their functions. `backward`: gradients by h_t and c_t (None for zero), c_(t-1), c_t and the gates to the
    gradients by z_t, (rows, 4 H), and by c_(t-1).
    """

    forward: Forward
    backward: Backward


def _written_forward(
    given: torch.Tensor, recurrent: torch.Tensor, cell: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    into, forget, new, out = (given + recurrent).chunk(4, dim=1)
    gates = torch.cat([into.sigmoid(), forget.sigmoid(), new.tanh(), out.sigmoid()], dim=1)
    into, forget, new, out = gates.chunk(4, dim=1)
    cell = forget * cell + into * new
    return out * cell.tanh(), cell, gates


def _written_backward(
    by_state: torch.Tensor,
    by_cell: torch.Tensor | None,
    before: torch.Tensor,
    cell: torch.Tensor,
    gates: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    into, forget, new, out = gates.chunk(4, dim=1)
    bent = cell.tanh()
    through = by_state * out * (1 - bent * bent)
    if by_cell is not None:
        through = through + by_cell
    by_gates = [
        through * new * into * (1 - into),
        through * before * forget * (1 - forget),
        through * into * (1 - new * new),
        by_state * bent * out * (1 - out),
    ]
    return torch.cat(by_gates, dim=1), through * forget


WRITTEN = CellKernels(_written_forward, _written_backward)
"""In operations of torch, for any device."""


def _fused_forward(
    given: torch.Tensor, recurrent: torch.Tensor, cell: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    state, after, gates = torch.ops.aten._thnn_fused_lstm_cell(given, recurrent, cell)
    return state, after, gates


def _fused_backward(
    by_state: torch.Tensor,
    by_cell: torch.Tensor | None,
    before: torch.Tensor,
    cell: torch.Tensor,
    gates: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    by_gates, by_before, _ = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(
        by_state, by_cell, before, cell, gates, False
    )
    return by_gates, by_before


FUSED = CellKernels(_fused_forward, _fused_backward)
"""torch's own kernels for one position, which it has for CUDA alone."""


def scan_by(kernels: CellKernels) -> Scan:
    """Return a function that computes an LSTM's states by ``kernels``; `vmap` runs it for many clients."""

    def scan(from_inputs: torch.Tensor, hidden_weight: torch.Tensor) -> torch.Tensor:
        # A layer of one client is one of many: vmap comes before this function and hands all of them over.
        given = from_inputs.to(hidden_weight.dtype)
        states: torch.Tensor = _Recurrence.apply(given[None], hidden_weight[None], kernels)[0][0]
        return states

    return scan


class _Recurrence(torch.autograd.Function):
    """Computes LSTM states (K, B, L, H) from gate inputs (K, B, L, 4 H) and recurrent weights (K, 4 H, H).

    The latter are cells and gates of all positions, (L, K B, H) and (L, K B, 4 H).
    """

    @staticmethod
    def forward(
        from_inputs: torch.Tensor, hidden_weight: torch.Tensor, kernels: CellKernels
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        clients, records, length, four = from_inputs.shape
        given = from_inputs.movedim(2, 0).reshape(length, clients * records, four).contiguous()
        turned = hidden_weight.mT.contiguous()
        state = given.new_zeros(clients * records, four // 4)
        cell, states, cells, gates = state, [], [], []
        for position in given:
            # Autocast may compute the product in lower precision.
            recurrent = torch.bmm(state.view(clients, records, -1), turned).flatten(0, 1).to(given.dtype)
            state, cell, after = kernels.forward(position, recurrent, cell)
            states.append(state)
            cells.append(cell)
            gates.append(after)
        stacked = torch.stack(states).view(length, clients, records, -1)
        return stacked.movedim(0, 2), torch.stack(cells), torch.stack(gates)

    @staticmethod
    def setup_context(
        ctx: Any,
        inputs: tuple[torch.Tensor, torch.Tensor, CellKernels],
        output: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    ) -> None:
        ctx.kernels = inputs[2]
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(inputs[1], *output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        weight, states, cells, gates = ctx.saved_tensors
        clients, records, length = states.shape[:3]
        by_states = gradients[0].movedim(2, 0).contiguous()
        by_state, by_cell = by_states[-1].flatten(0, 1), None
        by_gates: list[torch.Tensor] = []
        for at in reversed(range(length)):
            before = cells[at - 1] if at else torch.zeros_like(cells[0])
            by_gate, by_cell = ctx.kernels.backward(by_state, by_cell, before, cells[at], gates[at])
            by_gates.append(by_gate)
            if at:
                by_gate = by_gate.view(clients, records, -1)
                by_state = torch.baddbmm(by_states[at - 1], by_gate, weight).flatten(0, 1)
        all_gates = torch.stack(by_gates[::-1]).view(length, clients, records, -1)
        of_client = all_gates.movedim(0, 2)
        # The first position has no state before it.
        later, earlier = of_client[:, :, 1:].flatten(1, 2), states[:, :, :-1].flatten(1, 2)
        return of_client, torch.bmm(later.mT, earlier), None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, int | None, None],
        from_inputs: torch.Tensor,
        hidden_weight: torch.Tensor,
        kernels: CellKernels,
    ) -> tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor], tuple[int, None, None]]:
        """Compute the LSTM layers of all clients in one call; the first dimension is the client."""
        given, weight = (
            each.expand(info.batch_size, *each.shape) if dim is None else each.movedim(dim, 0)
            for each, dim in zip((from_inputs, hidden_weight), in_dims[:2], strict=True)
        )
        states, cells, gates = _Recurrence.apply(given.flatten(0, 1), weight.flatten(0, 1), kernels)
        return (states.view(*given.shape[:2], *states.shape[1:]), cells, gates), (0, None, None)


def checked_scan(device: torch.device) -> Scan | None:
    """Return the LSTM recurrence by a device's fused kernels, or None if they are missing or wrong."""
    scan = scan_by(FUSED)
    generator = torch.Generator().manual_seed(0)
    clients, records, length, units = _TRIED
    drawn = (
        torch.randn(*size, generator=generator).to(device).requires_grad_()
        for size in ((clients, records, length, 4 * units), (clients, 4 * units, units))
    )
    leaves = list(drawn)
    results = []
    try:
        for each in (scan, plain_scan):
            states = torch.func.vmap(each)(*leaves)
            results.append([states.detach(), *torch.autograd.grad(states.square().sum(), leaves)])
    except (RuntimeError, AttributeError):
        return None
    close = all((one - other).abs().max() <= MOST_OFF for one, other in zip(*results, strict=True))
    return scan if close else None
