"""Gradients of single records, clipped and summed, as a DP-SGD step needs them.

The gradient of a record is one vector over all trainable parameters. It is clipped to L2 norm C as a whole
(Abadi et al., arXiv:1607.00133, Algorithm 1), and only the sum over a batch is noised.

Three ways compute it, and `forms.py` chooses: programs (`programmed_gradients.py`); one pass with a tape,
which logistic regression shortens to its closed form; autograd of one record's loss, by `torch.func.vmap`
where it knows the model, else one record after the other. Where the gradient is a product of two vectors, it
is neither written out nor summed one by one.
"""

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from functools import reduce

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from fastgrad import ENDS
from fastgrad.fitting import can_compile
from fastgrad.modules import Loss, UnitInputs, cross_entropy
from fastgrad.precision import float32_products, one_thread
from fastgrad.record_parts import Outer, OuterSum, Part, Rows, part_of_products
from fastgrad.tape import Product, RecordTape

# Outweighs the rounding of factors and products in float32, so that no clipped gradient is longer than C.
SLACK = 1 - 2.0**-18
# Outweighs the rounding of float64 in the norm, the factor and the product.
EXACT_SLACK = 1 - 2.0**-30
# In clipping norms: what is longer adds nothing, since float32 has too few bits for its factor or product.
LONGEST = 2.0**90
MEMORY_SHARE = 1 / 8
# A CPU gains nothing from more at once: the overhead of a call is spread, and caches overflow.
CPU_BYTES = 32 * 2**20
# A batch has at least about this many passes of a steady width, so that few places of the last one are empty.
PASSES_A_BATCH = 4
# At how many drawn records and models a width is tried, and about how many numbers are computed for that.
LEAST_TRIED, MOST_TRIED, TRIED_NUMBERS = 25, 200, 2**23
# Fewer parameters are not worth the time that numba takes to load.
LEAST_COMPILED = 1_000
# Rows of as many float32 numbers begin at addresses alike for vector units.
ALIGNED = 16

Trial = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Parameters (1, d), and inputs (1, 1, ...) and target (1, 1, ...) of a drawn record, to try a form with."""


class RecordGradients:
    """Gradients of a model's loss, record by record, for the models of one or several clients.

    Arguments of its functions: ``thetas`` of shape (clients, d), float32, or float64 as ``x``
    then is; ``x`` and ``y`` of shape (clients, width, ...); ``present`` of shape (clients, width), false
    where a client has no record in that place; norms of shape (clients,).

    This class computes them by autograd of one record's loss, and is what every other way is compared with.
    `model`: the architecture, which is copied. `loss`: one figure a record. `device`: where to compute.
    `vmapped`: whether torch goes through the records at once, or Python through one after the other.

    Attributes:
        form: how it computes them, in words.
        stacks: whether the models of several clients go together, or one after the other.
        most_clients: of how many clients a pass should have records; None for as many as fit.
        trial: a record, by whose form records are drawn to try widths; None: records go one by one.
    """

    form = "one record after the other"
    stacks = False
    most_clients: int | None = None
    trial: Trial | None = None

    def __init__(self, model: nn.Module, loss: Loss, device: torch.device, *, vmapped: bool = False) -> None:
        self.device = device
        # torch's kernels on a CPU compute an entry in other ways by its place; cross-entropy goes row by row.
        self._loss_is_steady = loss is cross_entropy or device.type != "cpu"
        self.loss = loss if self._loss_is_steady else loss_of_each(loss)
        self._vmapped = vmapped
        if vmapped:
            self.form = "many records at once by vmap"
        self._given = deepcopy(model).to(device).train()
        self._own = threading.local()
        self._widths: dict[tuple[float, int, int], int] = {}
        trainable = ((name, each) for name, each in self._given.named_parameters() if each.requires_grad)
        self.names, parameters = zip(*trainable, strict=True)
        self.shapes = [parameter.shape for parameter in parameters]
        self.sizes = [parameter.numel() for parameter in parameters]
        self.record_bytes: int = 3 * 4 * sum(self.sizes)

    @property
    def model(self) -> nn.Module:
        """This thread's copy of the model; during a call, it holds the parameters that the call was given."""
        if not hasattr(self._own, "model"):
            self._own.model = deepcopy(self._given)
        own: nn.Module = self._own.model
        return own

    def clipped_sums(
        self,
        thetas: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        present: torch.Tensor,
        clipping_norms: torch.Tensor,
    ) -> torch.Tensor:
        """Return every client's sum of clipped gradients, sum_i min(1, C / ||g_i||) g_i.

        It is thetas float[clients, d], x array[clients, width, ...], y array[clients, width, ...],
        present bool[clients, width], clipping_norms float[clients] -> float[clients, d].

        A gradient that is not finite counts as zero: no record stands out, and none breaks the sum.
        The sum itself is rounded, in an order that a library chooses. So a record can move it by more than C,
        and by many times C with records that are chosen for it: noise for C needs :meth:`truncated_sums`.

        No clipped gradient is longer than C. With the factor f it is computed as (f g)^T a in float32, where
        g has p entries and g^T a has d. f, f g and the product are rounded by 2**-24 each, relative to
        their size. But a number below 2**-126 has fewer bits, or none: entries of f g and of the product are
        off by 2**-126 at most (2**-150 where a device keeps the bits that are left). So the error is

            3 * 2**-24 f ||g|| ||a|| + 2**-126 (sqrt(p) ||a|| + T sqrt(d)),

        where ||a|| of T places is the sum of ||a_t||, and a is 1 in a row that is written out. A gradient
        counts as zero, too, unless ||g|| ||a||, ||a|| and 1 are less than 2**90 C. Then f is above 2**-91,
        and the error is below C (2**-22 + 2**-35 T sqrt(d)), which `SLACK` outweighs while T sqrt(d) is up
        to 2**16 (2**40 where the bits are kept).
        """
        with self._float32():
            return self._clipped_sums(self._all_parts(thetas, x, y), present, clipping_norms)

    def _clipped_sums(
        self, parts: Sequence[Part], present: torch.Tensor, clipping_norms: torch.Tensor
    ) -> torch.Tensor:
        with torch.no_grad():
            # In float64: the square of an entry below 1e-23 is 0 in float32, and a norm of 0 clips nothing.
            squares, unscaled = zip(*(part.squares() for part in parts), strict=True)
            norms = reduce(torch.add, squares).sqrt()
            longest = reduce(torch.maximum, (each for each in unscaled if each is not None), norms)
            most = SLACK * clipping_norms[:, None]
            # (1 + longest) / LONGEST < most, in float64.
            usable = torch.add(1 / LONGEST, longest, alpha=1 / LONGEST).view(present.shape) < most
            # To look whether there is one, a GPU would be waited for.
            if self.device.type != "cpu" or not usable.all():
                parts = [part.without(~usable.flatten()) for part in parts]
            factors = (most / norms.view(present.shape)).clamp(max=1.0)
            factors = factors.masked_fill(~(present & usable), 0.0).to(clipping_norms.dtype)
            return torch.cat([part.sums(factors) for part in parts], dim=1)

    def truncated_sums(
        self,
        thetas: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        present: torch.Tensor,
        bounds: torch.Tensor,
        unit: float | torch.Tensor,
    ) -> torch.Tensor:
        """Return every client's sum of truncated gradients: sum_i trunc(g_i min(1, bound / ||g_i||) / unit).

        It is thetas float[clients, d], x array[clients, width, ...], y array[clients, width, ...],
        present bool[clients, width], bounds float64[clients] -> int64[clients, d]. `unit`: one for all
        clients, or float64[clients].

        By coordinate and towards zero; the norm is taken in float64, of the numbers that are truncated. A
        gradient that is not finite counts as zero. Integers add up exactly in any order, so two sums that
        differ by one record differ by its truncated gradient, whose norm is at most bound / unit.
        """
        if self.device.type == "cpu" and sum(self.sizes) >= LEAST_COMPILED and can_compile():
            each = [unit] * len(y) if isinstance(unit, float) else unit.tolist()
            return self._compiled_sums(self._all_parts(thetas, x, y), present, bounds, each)
        rows = self.rows(thetas, x, y).double()
        with torch.no_grad():
            norms = torch.linalg.vector_norm(rows, dim=2)
            rows.masked_fill_(~norms.isfinite()[..., None], 0.0)
            factors = _exact_factors(norms, present, bounds)
            units = unit if isinstance(unit, float) else unit[:, None]
            # To integers, which cuts off what is behind the point.
            return rows.mul_((factors / units)[..., None]).long().sum(dim=1)

    def _compiled_sums(
        self, parts: Sequence[Part], present: torch.Tensor, bounds: torch.Tensor, units: Sequence[float]
    ) -> torch.Tensor:
        """Return the sums of :meth:`truncated_sums` by compiled loops, with products exact in float64."""
        with torch.no_grad():
            exact = [Rows(part.written_out()) if isinstance(part, OuterSum) else part for part in parts]
            squares = torch.zeros(present.numel(), dtype=torch.float64)
            for part in exact:
                part.add_squares(squares)
            norms = squares.sqrt().view(present.shape)
            factors = _exact_factors(norms, present, bounds)
            return torch.cat([part.truncated(factors, units) for part in exact], dim=1)

    def rows(self, thetas: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return every record's gradient without clipping.

        It is thetas float[clients, d], x array[clients, width, ...], y array[clients, width, ...]
        -> float[clients, width, d].
        """
        with self._float32():
            parts = self._all_parts(thetas, x, y)
            return torch.cat([part.written_out() for part in parts], dim=1).view(*y.shape[:2], -1)

    def records_at_once(self, least_bytes: int = 0) -> int:
        """Return how many records fit into memory at once, counted over all clients.

        ``least_bytes`` is what a record takes at least.
        """
        return max(1, self.memory_budget() // max(self.record_bytes, least_bytes))

    def steady_width(self, expected: float, least_bytes: int = 0, rows: int = 0) -> int:
        """Return how many records a pass may have so that no record's gradient depends on the other records.

        A library multiplies matrices of one row, of three and of four with other kernels, whose float32 sums
        differ in their last bits. Under a model whose large terms cancel, these bits are the whole gradient.
        So with passes as large as the batch, a record would change the gradients of the others by being
        there. At a steady width a record's gradient has the same bits in every place, whatever the other
        records are. That is tried with up to 200 drawn records, each under a drawn model, since one record of
        few outputs often has the same bits in all places by chance. A width that fails is halved, and a width
        of 1 always holds. `expected`: expected size of a batch, which is public. `least_bytes`: as of
        :meth:`records_at_once`. `rows`: of each person, where a record is a person; else 0.
        """
        key = (expected, least_bytes, rows)
        if key not in self._widths:
            self._widths[key] = self._tried_width(*key)
        return self._widths[key]

    def _tried_width(self, expected: float, least_bytes: int, rows: int) -> int:
        if self.trial is None or expected < 2 * PASSES_A_BATCH:
            return 1
        theta, x, y = self.trial
        if rows:
            x, y = (each[:, :, :1].expand(-1, -1, rows, *each.shape[3:]) for each in (x, y))
        self.model.eval()
        try:
            # As in the passes, each of which is one thread's.
            with one_thread(self.device):
                self._rows_of_copies(theta, x, y, 2)  # Tells how much memory a record takes.
                most = min(self.records_at_once(least_bytes), int(expected / PASSES_A_BATCH))
                width = 1 << (max(1, most).bit_length() - 1)
                while width > 1 and not self._is_steady(theta, x, y, width):
                    width //= 2
                return width
        except ENDS:
            raise
        except BaseException:
            return 1  # The loss raises, or memory ends, for a drawn record, which says nothing of any other.
        finally:
            self.model.train()

    def _is_steady(self, theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor, width: int) -> bool:
        """Whether copies of a record get bitwise equal gradients and norms, for each of the drawn records."""
        generator = torch.Generator().manual_seed(0)
        spread = float(theta.std().nan_to_num()) or 1.0
        count = TRIED_NUMBERS // (width * theta.numel())
        # vmap computes the losses of all records at once, whatever the loss does.
        least = MOST_TRIED if self._vmapped and not self._loss_is_steady else LEAST_TRIED
        for number in range(min(MOST_TRIED, max(least, count))):
            # Large parameters saturate some models, and small ones show nothing in others.
            scale = spread if number % 2 else 1.0
            drawn = scale * torch.randn(theta.shape, generator=generator)
            if x.is_floating_point():
                inputs = torch.randn(x.shape, generator=generator).to(x)
            else:
                least, largest = int(x.min()), int(x.max())
                inputs = torch.randint(least, largest + 1, x.shape, generator=generator).to(x)
            rows = self._rows_of_copies(drawn.to(theta), inputs, y, width)
            norms = torch.linalg.vector_norm(rows.double(), dim=2)
            if not torch.equal(rows, rows[:, :1].expand_as(rows)) or not bool((norms == norms[:, :1]).all()):
                return False
        return True

    def _rows_of_copies(
        self, theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor, width: int
    ) -> torch.Tensor:
        return self.rows(theta, *(each.expand(1, width, *each.shape[2:]).contiguous() for each in (x, y)))

    def memory_budget(self) -> int:
        """Return how many bytes to use at once: an eighth of a GPU's memory, or what fits a CPU's caches."""
        if self.device.type == "cpu":
            return int(CPU_BYTES)
        # Not of what is free: that depends on other records, and the width of a pass must not.
        _, memory = torch.cuda.mem_get_info(self.device)
        return int(MEMORY_SHARE * memory)

    def _float32(self) -> AbstractContextManager[None]:
        """Return a context in which torch computes in float32, also where a GPU would use less precision."""
        return nullcontext() if self.device.type == "cpu" else float32_products()

    def _all_parts(self, thetas: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Sequence[Part]:
        if self.stacks or len(thetas) == 1:
            return self.parts(thetas, x.flatten(0, 1), y.flatten(0, 1))
        each = [self.parts(theta[None], *xy) for theta, *xy in zip(thetas, x, y, strict=True)]
        return [Rows(torch.cat([part.written_out() for part in same])) for same in zip(*each, strict=True)]

    def parts(self, thetas: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Sequence[Part]:
        """Return all records' gradients for each parameter; the first dimension is all clients' records."""
        if self._vmapped:
            # A layer that draws, such as dropout, draws anew for every record.
            each_record = vmap(grad(self._loss_of_one), in_dims=(None, 0, 0), randomness="different")
            gradients = each_record(self.parameters(thetas[0]), x, y)
            return [Rows(gradients[name].flatten(1)) for name in self.names]
        parameters = self.parameters(thetas[0].detach().requires_grad_())
        leaves = list(parameters.values())
        each = [
            torch.autograd.grad(self._loss_of_one(parameters, *xy), leaves, materialize_grads=True)
            for xy in zip(x, y, strict=True)
        ]
        return [Rows(torch.stack([one.flatten() for one in same])) for same in zip(*each, strict=True)]

    def parameters(self, theta: torch.Tensor) -> dict[str, torch.Tensor]:
        """Split parameter vectors, shape (..., d), into the model's named parameters, shape (..., *shape)."""
        split = torch.split(theta, self.sizes, dim=-1)
        leading = theta.shape[:-1]
        return {
            name: part.reshape(*leading, *shape)
            for name, part, shape in zip(self.names, split, self.shapes, strict=True)
        }

    def _loss_of_one(
        self, parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        outputs = functional_call(self.model, parameters, (x[None],))
        return self.loss(outputs, y[None])[0]


def loss_of_each(loss: Loss) -> Loss:
    """Return the same loss, computed for one record after the other.

    Computed for several, the last bits of a record's loss and of its gradient may depend on its place and on
    how many records there are.
    """

    def of_each(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if len(targets) == 0:
            return loss(outputs, targets)
        each = zip(torch.split(outputs, 1), torch.split(targets, 1), strict=True)
        return torch.cat([loss(*own) for own in each])

    return of_each


def _exact_factors(norms: torch.Tensor, present: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
    """Return float64 factors that shorten gradients to their client's bound; 0 where absent or not finite."""
    factors = (EXACT_SLACK * bounds[:, None] / norms).clamp(max=1.0)
    return factors.masked_fill(~(present & norms.isfinite()), 0.0)


class TapedGradients(RecordGradients):
    """Gradients of single records by one pass forward and back, which is recorded on a tape."""

    form = "many records at once by one pass"
    stacks = True

    def parts(self, thetas: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Sequence[Part]:
        """Return all records' gradients for each parameter in turn, from the recorded pass.

        Raises NotOnTapeError: the model uses a parameter in a way that the tape does not know.
        """
        parameters = self.parameters(thetas)
        with RecordTape(parameters, len(x)) as tape:
            outputs = functional_call(self.model, parameters, (x,))
        noted = tape.gradients(self.loss(outputs, y))
        found: dict[str, list[Part]] = {name: [] for name in self.names}
        products: dict[str, list[tuple[Product, torch.Tensor]]] = {}
        with torch.no_grad():
            for note, gradient in noted:
                if isinstance(note, Product):
                    products.setdefault(note.name, []).append((note, gradient))
                else:
                    found[note.name].append(Rows(note.rows(gradient)))
            for name, uses in products.items():
                found[name].append(part_of_products(uses))
            held = sum(note.output.nbytes for note in tape.notes)
            held += sum(note.inputs.nbytes for note in tape.notes if isinstance(note, Product))
            parts = [
                self._together(parts, len(x), size)
                for parts, size in zip(found.values(), self.sizes, strict=True)
            ]
            self.record_bytes = 2 * (held + sum(part.bytes() for part in parts)) // len(x)
            return parts

    def _together(self, parts: list[Part], num_records: int, size: int) -> Part:
        if len(parts) == 1:
            return parts[0]
        rows = torch.zeros(num_records, size, device=self.device)
        for part in parts:
            rows += part.written_out()
        return Rows(rows)


class SoftmaxGradients(RecordGradients):
    """Closed-form gradients of a linear layer under cross-entropy: softmax minus one-hot label, times input.

    With softmax p and one-hot y, a record's gradient has the norm ||p - y|| ||(x, 1)||.
    """

    form = "many records at once in closed form"
    stacks = True

    def __init__(self, model: nn.Module, loss: Loss, device: torch.device) -> None:
        super().__init__(model, loss, device)
        # All but the linear layer has no parameters.
        self._inputs = nn.Sequential(*list(model.children())[:-1])

    def parts(self, thetas: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Sequence[Part]:
        weight, *bias = self.parameters(thetas).values()
        inputs: torch.Tensor = self._inputs(x)
        # Zeros fill rows up: where rows begin at odd addresses, a product's bits depend on the place.
        filled = nn.functional.pad(inputs, (0, -inputs.shape[1] % ALIGNED))
        weight = nn.functional.pad(weight, (0, -weight.shape[-1] % ALIGNED))
        rows = filled.view(len(thetas), -1, filled.shape[1])
        scores = torch.baddbmm(bias[0][:, None], rows, weight.mT) if bias else rows @ weight.mT
        outputs = scores.flatten(0, 1).softmax(dim=1)
        outputs.scatter_add_(1, y[:, None], outputs.new_full((1, 1), -1.0).expand(len(y), 1))
        self.record_bytes = 4 * (inputs.shape[1] + 4 * outputs.shape[1])
        return [Outer(outputs, inputs), *[Rows(outputs)] * len(bias)]

    @staticmethod
    def fits(model: nn.Module, loss: Loss) -> bool:
        """Whether the model is one linear layer on the flattened input, and the loss cross-entropy."""
        layers = [type(layer) for layer in model] if type(model) is nn.Sequential else []
        known = layers in ([nn.Flatten, nn.Linear], [nn.Flatten, UnitInputs, nn.Linear])
        return loss is cross_entropy and known
