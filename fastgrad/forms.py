"""Choose how to compute gradients of single records: the first way whose results agree with autograd's."""

import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from fastgrad.fitting import UncompiledError, fitted
from fastgrad.lowered import NotLoweredError
from fastgrad.modules import Loss
from fastgrad.one_record import has_known_layers
from fastgrad.record_gradients import RecordGradients, SoftmaxGradients, TapedGradients
from fastgrad.tape import NotOnTapeError

# What rounding may do to a gradient in float32, also of a layer that divides by small numbers; a form that
# is wrong is further off.
MOST_OFF, NEXT_TO_NOTHING = 1e-2, 1e-5
LEAST_NORM = 1e-12
# Of integer sums that are tried, in clipping norms.
TRIED_UNIT = 2.0**-30


def record_gradients(
    model: nn.Module,
    loss: Loss,
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    device: torch.device,
    foreign: nn.Module | None = None,
) -> RecordGradients:
    """Choose how to compute a model's gradients of single records: the first way that agrees with autograd.

    Compared are every record's gradient, and the sums clipped to the middle one of their norms. `model`: the
    architecture, which is copied. `loss`: of shape (n,), one figure a record. `x`, `y`: some records to
    compare by, at least two. `device`: where to compute. `foreign`: the part of the model whose code may
    couple records. Unless its layers are known, it is given one record at a time; programs do not run it.
    """
    parameters = [each.detach().reshape(-1) for each in model.parameters() if each.requires_grad]
    theta = torch.cat(parameters).to(device)[None]
    alone = foreign is not None and not has_known_layers(foreign, _inputs_of(foreign, model, x))
    x, y = x[None].to(device), y[None].to(device)
    plain = RecordGradients(model, loss, device)
    # Layers that draw, such as dropout, draw nothing here.
    plain.model.eval()
    expected = plain.rows(theta, x, y)
    plain.model.train()
    plain.trial = trial = theta, x[:, :1], y[:, :1]
    clipping_norm = expected[0].norm(dim=1).median()[None].clamp(min=LEAST_NORM)
    expected_sum = (expected * (clipping_norm / expected.norm(dim=2, keepdim=True)).clamp(max=1.0)).sum(dim=1)
    unit, without = TRIED_UNIT * float(clipping_norm), ""
    for make in _ways_to_compute(model, loss, x[0].shape[1:], device, alone):
        try:
            form = make()
            form.model.eval()
            with warnings.catch_warnings():
                # torch warns where vmap would loop over the records.
                warnings.simplefilter("error")
                rows = form.rows(theta, x, y)
                records = theta, x, y, torch.ones_like(rows[..., 0], dtype=torch.bool)
                total = form.clipped_sums(*records, clipping_norm)
                truncated = unit * form.truncated_sums(*records, clipping_norm.double(), unit).double()
        except UncompiledError as error:
            without = f", without compiled loops ({error})"
            continue
        except (
            NotLoweredError,
            NotOnTapeError,
            RuntimeError,
            NotImplementedError,
            IndexError,
            ValueError,
            TypeError,
            UserWarning,
        ):
            continue
        form.model.train()
        pairs = (rows, expected), (total, expected_sum), (truncated.to(total.dtype), expected_sum)
        if all(_agree(found, right, form.sizes) for found, right in pairs):
            form.form += without
            form.trial = trial
            return form
    return plain


def _inputs_of(part: nn.Module, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return what a part of a model is given where the model is given some records."""
    given: list[torch.Tensor] = []
    seen = part.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    with torch.no_grad():
        model(x)
    seen.remove()
    return given[0]


def _ways_to_compute(
    model: nn.Module, loss: Loss, input_shape: torch.Size, device: torch.device, alone: bool
) -> Iterator[Callable[[], RecordGradients]]:
    """Yield the ways to compute gradients of single records, in the order in which they are tried."""

    def programmed() -> RecordGradients:
        lowered = fitted(model, tuple(input_shape), device, records=True)
        # It imports numba, which takes a while and is needed for some models only.
        from fastgrad.programmed_gradients import ProgrammedGradients

        return ProgrammedGradients(model, loss, device, lowered)

    if not alone and SoftmaxGradients.fits(model, loss):
        yield lambda: SoftmaxGradients(model, loss, device)
    yield programmed
    if not alone:
        yield lambda: TapedGradients(model, loss, device)
    yield lambda: RecordGradients(model, loss, device, vmapped=True)


def _agree(rows: torch.Tensor, expected: torch.Tensor, sizes: Sequence[int]) -> bool:
    """Whether two ways to compute the same gradients differ only by rounding, for each parameter."""
    least = NEXT_TO_NOTHING * float(expected.norm())
    ours, theirs = (torch.split(each, list(sizes), dim=-1) for each in (rows, expected))
    return all(
        float((one - other).norm()) <= MOST_OFF * float(other.norm()) + least
        for one, other in zip(ours, theirs, strict=True)
    )
