"""All records' gradients with respect to one parameter: their norms, and their sums weighted by record.

They are held in the form in which norm and sum cost least. A gradient by a matrix is a sum of outer products
g_t^T a_t over the places at which a record uses it. Of one place its norm is ||g|| ||a||. Of T places it is
written out as a row of p q entries, or not: with the inner products of all pairs of places,

    || sum_t g_t^T a_t ||^2 = sum_{s,t} (g_s . g_t) (a_s . a_t)

(Bu, Mao and Xu, "Scalable and Efficient Training of Large Convolutional Neural Networks with Differential
Privacy", arXiv:2205.10683). A row takes T p q multiplications and the inner products T^2 (p + q) of numbers
twice as long; whichever is less is taken. The sum over records is then a product of two matrices over all
places of all records.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from fastgrad.tape import Product

UNIT = 2.0**-24
"""By what float32 rounds, relative to a number."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Gradients with respect to one parameter, as full rows: shape (records, entries).

    `arranged`: brings them into the order of the parameter's entries; None where they are.
    """

    values: torch.Tensor
    arranged: Callable[[torch.Tensor], torch.Tensor] | None = None

    def squares(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the records' squared gradient norms, and None, since full rows need no norms of inputs.

        Of shape (records,) each. A factor scales the whole row, so there is nothing else: None.
        """
        return norms_of(self.values).square(), None

    def sums(self, factors: torch.Tensor) -> torch.Tensor:
        """Return every client's sum of its records' gradients times factors, shape (clients, entries)."""
        clients, width = factors.shape
        if clients == 1:
            sums = (factors[0] @ self.values)[None]
        else:
            sums = (factors[:, None] @ self.values.view(clients, width, -1))[:, 0]
        return sums if self.arranged is None else self.arranged(sums)

    def add_squares(self, squares: torch.Tensor) -> None:
        """Add each record's squared gradient norm to `squares`, float64, by loops that treat rows alike."""
        from fastgrad.layer import add_squares, flat

        add_squares(flat(self.values.detach().contiguous()), squares.numpy())

    def truncated(self, factors: torch.Tensor, units: Sequence[float]) -> torch.Tensor:
        """Return every client's sum of its records' gradients times factors, each truncated to units, int64.

        On a CPU; `factors`: float64, shape (clients, records). A record of factor 0 is skipped.
        """
        from fastgrad.layer import add_truncated, flat

        total = torch.zeros(len(factors), self.values.shape[1], dtype=torch.int64)
        values = self.values.detach().contiguous().view(*factors.shape, -1)
        for own, rows, given, unit in zip(total, values, factors, units, strict=True):
            add_truncated(flat(rows), given.numpy(), unit, own.numpy())
        return total if self.arranged is None else self.arranged(total)

    def without(self, records: torch.Tensor) -> "Rows":
        """Return the gradients, with zeros in place of those of the given records."""
        return Rows(self.values.masked_fill(records[:, None], 0.0), self.arranged)

    def written_out(self) -> torch.Tensor:
        """Return the gradients written out as full rows, shape (records, entries)."""
        return self.values if self.arranged is None else self.arranged(self.values)

    def bytes(self) -> int:
        """Return how many bytes of memory these gradients take."""
        return self.values.nbytes


@dataclass(frozen=True, eq=False)
class Outer:
    """Gradients g_i^T a_i with respect to a matrix, as g (records, outputs) and a (records, inputs)."""

    outputs: torch.Tensor
    inputs: torch.Tensor

    def squares(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return squared gradient norms of records, ||g_i||^2 ||a_i||^2, and the norms ||a_i|| of inputs."""
        inputs = norms_of(self.inputs)
        return (norms_of(self.outputs) * inputs).square(), inputs

    def sums(self, factors: torch.Tensor) -> torch.Tensor:
        """Return every client's sum of f_i g_i^T a_i over its records i, where f_i are given factors."""
        clients, width = factors.shape
        outputs = self.outputs * factors.reshape(-1, 1)
        if clients == 1:
            return (outputs.T @ self.inputs).reshape(1, -1)
        together = outputs.view(clients, width, -1).transpose(1, 2) @ self.inputs.view(clients, width, -1)
        return together.flatten(1)

    def add_squares(self, squares: torch.Tensor) -> None:
        """Add each record's squared gradient norm to `squares`, as `Rows.add_squares` does."""
        from fastgrad.layer import add_outer_squares, flat

        outputs, inputs = (each.detach().contiguous() for each in (self.outputs, self.inputs))
        add_outer_squares(flat(outputs), flat(inputs), squares.numpy(), torch.zeros_like(squares).numpy())

    def truncated(self, factors: torch.Tensor, units: Sequence[float]) -> torch.Tensor:
        """Return the sums that `Rows.truncated` returns; no gradient is written out."""
        from fastgrad.layer import add_truncated_outer, flat

        both = (self.outputs, self.inputs)
        outputs, inputs = (each.detach().contiguous().view(*factors.shape, -1) for each in both)
        total = torch.zeros(len(factors), outputs.shape[2] * inputs.shape[2], dtype=torch.int64)
        for own, left, right, given, unit in zip(total, outputs, inputs, factors, units, strict=True):
            add_truncated_outer(flat(left), flat(right), given.numpy(), unit, own.numpy())
        return total

    def without(self, records: torch.Tensor) -> "Outer":
        zeroed = (each.masked_fill(records[:, None], 0.0) for each in (self.outputs, self.inputs))
        return Outer(*zeroed)

    def written_out(self) -> torch.Tensor:
        """Return the gradients written out as full rows, shape (records, outputs * inputs)."""
        return (self.outputs[:, :, None] * self.inputs[:, None]).flatten(1)

    def bytes(self) -> int:
        """Return how many bytes of memory these gradients take."""
        return self.outputs.nbytes + self.inputs.nbytes


@dataclass(frozen=True, eq=False)
class OuterSum:
    """Gradients sum_t g_t^T a_t with respect to a matrix used at places t, stored as the factors g and a.
    Their shapes are (records, places, outputs) and (records, places, inputs).

    `arranged`: as of `Rows`.
    """

    outputs: torch.Tensor
    inputs: torch.Tensor
    arranged: Callable[[torch.Tensor], torch.Tensor] | None = None

    @staticmethod
    def costs_less(places: int, outputs: int, inputs: int) -> bool:
        """Whether gradient norms cost less by inner products in float64 than by full rows in float32."""
        return 2 * places * (outputs + inputs) < outputs * inputs

    def squares(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return upper bounds on squared gradient norms, and sum_t ||a_t|| over each record's inputs a_t.

        The terms of the sum cancel each other, so they are computed in float64. Where they nearly vanish the
        numbers that are summed do not, since float32 rounds them: by u (T + 2) sum_t ||g_t|| ||a_t|| at
        most, u = 2**-24, which is added to the norm.
        """
        outputs, inputs = self.outputs.double(), self.inputs.double()
        squares = ((outputs @ outputs.mT) * (inputs @ inputs.mT)).sum(dim=(1, 2)).clamp(min=0.0)
        lengths = torch.linalg.vector_norm(inputs, dim=2)
        each = torch.linalg.vector_norm(outputs, dim=2) * lengths
        rounded = UNIT * (each.shape[1] + 2) * each.sum(dim=1)
        norms: torch.Tensor = squares.sqrt() + rounded
        return norms.square(), lengths.sum(dim=1)

    def sums(self, factors: torch.Tensor) -> torch.Tensor:
        """Return every client's sum of its records' gradients times factors, by one matrix product."""
        clients = len(factors)
        outputs = (self.outputs * factors.reshape(-1, 1, 1)).reshape(clients, -1, self.outputs.shape[2])
        inputs = self.inputs.reshape(clients, -1, self.inputs.shape[2])
        together = outputs[0].T @ inputs[0] if clients == 1 else outputs.mT @ inputs
        sums = together.reshape(clients, -1)
        return sums if self.arranged is None else self.arranged(sums)

    def without(self, records: torch.Tensor) -> "OuterSum":
        """Return the gradients, with zeros in place of those of the given records."""
        gone = records[:, None, None]
        return OuterSum(
            self.outputs.masked_fill(gone, 0.0), self.inputs.masked_fill(gone, 0.0), self.arranged
        )

    def written_out(self) -> torch.Tensor:
        """Return the gradients written out as full rows, shape (records, outputs * inputs)."""
        return Rows((self.outputs.mT @ self.inputs).flatten(1), self.arranged).written_out()

    def bytes(self) -> int:
        """Return how many bytes of memory it takes to compute with these gradients in float64."""
        pairs = 8 * len(self.inputs) * self.inputs.shape[1] ** 2
        return 3 * (self.outputs.nbytes + self.inputs.nbytes) + 3 * pairs


def norms_of(values: torch.Tensor) -> torch.Tensor:
    """Return L2 norms of rows in float64, in which no square of a float32 entry underflows."""
    norms: torch.Tensor = torch.linalg.vector_norm(values, dim=1, dtype=torch.float64)
    return norms


Part = Rows | Outer | OuterSum
"""The gradients of all records by one parameter."""


def part_of_products(uses: Sequence[tuple[Product, torch.Tensor]]) -> Part:
    """Return all records' gradients for a weight matrix, from its recorded uses, in the cheapest form."""
    first, gradient = uses[0]
    inputs = first.inputs
    if len(uses) > 1:
        gradient = torch.cat([each for _, each in uses], dim=1)
        inputs = torch.cat([note.inputs for note, _ in uses], dim=1)
    if gradient.shape[1] == 1 and first.arranged is None:
        return Outer(gradient[:, 0], inputs[:, 0])
    if OuterSum.costs_less(gradient.shape[1], gradient.shape[2], inputs.shape[2]):
        return OuterSum(gradient, inputs, first.arranged)
    return Rows((gradient.mT @ inputs).flatten(1), first.arranged)
