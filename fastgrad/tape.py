"""A forward pass that records every parameter's input, from which each record's gradient follows.

In a layer ``out = a W^T + b`` the gradient of record i is ``g_i^T a_i`` for W and ``g_i`` for b, with g_i the
gradient of its loss by the layer's output. One pass back gives the g of all records at once (Goodfellow,
arXiv:1510.01799); no gradient by a parameter is computed twice, and none is summed before it is clipped.

The models of several clients run in one pass: parameters have a first dimension of clients, and the records
of all clients lie in one batch, client after client.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from fastgrad.im2col import Pair, columns_of, is_plain, patches_of


class NotOnTapeError(Exception):
    """Raised if a model uses a parameter in a way for which gradients of single records are not known."""


@dataclass(frozen=True, eq=False)
class Product:
    """A recorded use of a weight matrix, out = a W^T: its inputs a (records, places, inputs) and output.

    `places_last`: whether the output has shape (records, outputs, places). `arranged`: brings gradients by W,
    of shape (..., outputs * inputs), into the order of W's entries; None where they are.
    """

    name: str
    inputs: torch.Tensor
    output: torch.Tensor
    arranged: Callable[[torch.Tensor], torch.Tensor] | None = None
    places_last: bool = False


@dataclass(frozen=True, eq=False)
class Addition:
    """A recorded use of a bias, x + b, or of a scale, factor * w; output: (records, places, entries).

    `factor`: of the output's shape; None for 1. `places_last`: as of `Product`.
    """

    name: str
    output: torch.Tensor
    factor: torch.Tensor | None = None
    places_last: bool = False

    def rows(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return every record's gradient with respect to the bias b or scale w, shape (records, entries)."""
        return (gradient if self.factor is None else gradient * self.factor).sum(dim=1)


@dataclass(frozen=True, eq=False)
class Lookup:
    """A recorded look-up out = W[positions] in a table: positions of shape (records, places)."""

    name: str
    positions: torch.Tensor
    output: torch.Tensor
    num_entries: int
    places_last = False

    def rows(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return every record's gradient with respect to the table W, shape (records, entries of W)."""
        records, _, features = gradient.shape
        table = gradient.new_zeros(records, self.num_entries, features)
        return table.scatter_add_(1, self.positions[..., None].expand_as(gradient), gradient).flatten(1)


Note = Product | Addition | Lookup


class RecordTape(TorchFunctionMode):
    """A context that records every use of a model's parameters, and computes all clients' models at once.

    It knows linear layers, plain convolutions of pictures, embeddings and group normalisation.

    `parameters`: by name, of shape (clients, *shape), without gradients. `num_records`: in the batch, of all
    clients together.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor], num_records: int) -> None:
        super().__init__()
        self.notes: list[Note] = []
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._num_records = num_records
        # Outputs of layers that no other comes before: a pass back to these meets all.
        self._first: list[torch.Tensor] = []
        self._gradients: dict[int, torch.Tensor] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if func in _TELL_NO_NUMBER or not any(id(each) in self._names for each in tree_leaves((args, given))):
            return func(*args, **given)
        form = _FORMS.get(func)
        if form is None:
            raise NotOnTapeError(
                "gradients of single records are not known for a parameter in "
                f"{getattr(func, '__name__', func)}"
            )
        return form(self, *args, **given)

    def gradients(self, losses: torch.Tensor) -> list[tuple[Note, torch.Tensor]]:
        """Return each recorded use of a parameter, and the losses' gradient with respect to the use's output.

        Places come before entries in the gradient's shape.

        Raises NotOnTapeError if the losses depend on no noted call.
        """
        if not losses.requires_grad:
            raise NotOnTapeError("the loss depends on none of the parameters whose uses were recorded")
        torch.autograd.grad(losses.sum(), self._first, allow_unused=True)
        zeros = torch.zeros((), device=losses.device)
        found = []
        for note in self.notes:
            gradient = self._gradients.get(id(note.output), zeros.expand_as(note.output))
            found.append((note, gradient.mT if note.places_last else gradient))
        return found

    def _watched(self, output: torch.Tensor) -> torch.Tensor:
        """Keep the gradient with respect to this output, even if the model overwrites the output in place."""
        if not output.requires_grad:
            self._first.append(output.requires_grad_())
        key = id(output)

        def keep(gradient: torch.Tensor) -> None:
            self._gradients[key] = gradient

        output.register_hook(keep)  # type: ignore[no-untyped-call]
        return output

    def _linear(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Apply a linear layer and record it: (records, ..., inputs) to (records, ..., outputs)."""
        inputs = self._of_records(input)
        rows = inputs.reshape(len(inputs), -1, inputs.shape[-1])
        return self._product(rows, weight, bias).view(*inputs.shape[:-1], -1)

    def _conv2d(
        self,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: int | Pair = 1,
        padding: int | Pair | str = 0,
        dilation: int | Pair = 1,
        groups: int = 1,
    ) -> torch.Tensor:
        """Convolve by a matrix product of patches; for one client on a GPU, by torch's own convolution."""
        if isinstance(padding, str) or not is_plain(input, weight, bias, stride, padding, dilation, groups):
            raise NotOnTapeError(
                "gradients of single records are not known for a convolution in groups, with dilation "
                "or with padding in words"
            )
        if goes_by_library(input, weight):
            return self._library_conv2d(self._of_records(input), weight, bias, stride, padding)
        patches = patches_of(self._of_records(input), (weight.shape[-2], weight.shape[-1]), stride, padding)
        inputs, height, width = weight.shape[-3:]
        matrix = weight.permute(0, 1, 3, 4, 2).flatten(2)

        def arranged(gradients: torch.Tensor) -> torch.Tensor:
            apart = gradients.reshape(*gradients.shape[:-1], -1, height, width, inputs)
            return apart.movedim(-1, -3).flatten(-4)

        products = self._product(patches.flatten(1, 2), weight, bias, matrix, arranged)
        return products.view(*patches.shape[:3], -1).permute(0, 3, 1, 2)

    def _library_conv2d(
        self,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        stride: int | Pair,
        padding: int | Pair,
    ) -> torch.Tensor:
        """Convolve one client's pictures by torch's own function; use patches only for record gradients."""
        own = None if bias is None else bias[0]
        pictures = functional.conv2d(input, weight[0], own, stride, padding)
        output = self._watched(pictures.flatten(2))
        inputs = columns_of(input.detach(), (weight.shape[-2], weight.shape[-1]), stride, padding).mT
        self.notes.append(Product(self._named(weight), inputs, output, places_last=True))
        if bias is not None:
            self.notes.append(Addition(self._named(bias), output, places_last=True))
        return output.view(pictures.shape)

    def _embedding(
        self,
        input: torch.Tensor,
        weight: torch.Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> torch.Tensor:
        """Look up an embedding and record it: (records, ...) to (records, ..., features)."""
        if padding_idx is not None or max_norm is not None or scale_grad_by_freq or sparse:
            raise NotOnTapeError("gradients of single records are not known for an embedding with options")
        positions, table = self._of_records(input), weight.flatten(0, 1)
        first_rows = torch.arange(len(weight), device=weight.device)[:, None] * weight.shape[1]
        rows = positions.reshape(len(weight), -1) + first_rows
        output = self._watched(functional.embedding(rows, table).view(len(positions), -1, table.shape[-1]))
        self.notes.append(Lookup(self._named(weight), positions.flatten(1), output, weight.shape[1]))
        return output.view(*positions.shape, -1)

    def _group_norm(
        self,
        input: torch.Tensor,
        num_groups: int,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        eps: float = 1e-5,
    ) -> torch.Tensor:
        """Apply group normalisation with scale and shift; keep what gradients of single records need."""
        normal = functional.group_norm(self._of_records(input), num_groups, eps=eps)
        if weight is None or bias is None:
            raise NotOnTapeError(
                "gradients of single records are not known for a group normalisation with a weight or a "
                "bias alone"
            )
        factor = normal.reshape(*normal.shape[:2], -1).transpose(1, 2)
        output = self._watched(torch.addcmul(self._spread(bias), factor, self._spread(weight)))
        self.notes.append(Addition(self._named(weight), output, factor.detach()))
        self.notes.append(Addition(self._named(bias), output))
        return output.transpose(1, 2).reshape(normal.shape)

    def _product(
        self,
        rows: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        matrix: torch.Tensor | None = None,
        arranged: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Multiply by weights and record it: (records, places, inputs) to (records, places, outputs)."""
        matrix = (weight if matrix is None else matrix).transpose(1, 2)
        together = rows.reshape(len(weight), -1, rows.shape[-1])
        if len(weight) > 1:
            both = together @ matrix if bias is None else torch.baddbmm(bias[:, None], together, matrix)
        else:
            # As views: the way back through a choice of the first one would fill and copy as much again.
            only = together.flatten(0, 1)
            both = only @ matrix[0] if bias is None else torch.addmm(bias[0], only, matrix[0])
        output = self._watched(both.view(*rows.shape[:2], -1))
        self.notes.append(Product(self._named(weight), rows.detach(), output, arranged))
        if bias is not None:
            self.notes.append(Addition(self._named(bias), output))
        return output

    def _spread(self, entries: torch.Tensor) -> torch.Tensor:
        """Repeat each client's entries for all its records: (clients, entries) to (records, 1, entries)."""
        width = self._num_records // len(entries)
        return entries[:, None].expand(-1, width, -1).reshape(self._num_records, 1, -1)

    def _of_records(self, input: torch.Tensor) -> torch.Tensor:
        if input.shape[0] != self._num_records:
            raise NotOnTapeError(
                "gradients of single records are not known for a layer whose input is not one row a record"
            )
        return input

    def _named(self, parameter: torch.Tensor) -> str:
        if id(parameter) not in self._names:
            raise NotOnTapeError(
                "gradients of single records are not known for a layer with a weight that is not a parameter"
            )
        return self._names[id(parameter)]


def goes_by_library(input: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether to use torch's own convolution, which is fast for a single client on a GPU."""
    return input.is_cuda and len(weight) == 1


_TELL_NO_NUMBER = (torch.Tensor.dtype.__get__, torch.Tensor.device.__get__)  # type: ignore[attr-defined]
"""What may be asked of a parameter and depends on none of its numbers."""
_FORMS: dict[Callable[..., Any], Callable[..., torch.Tensor]] = {
    functional.linear: RecordTape._linear,
    functional.conv2d: RecordTape._conv2d,
    functional.embedding: RecordTape._embedding,
    functional.group_norm: RecordTape._group_norm,
}
