"""Operations that are computed differently for many clients at once."""

from collections.abc import Callable
from typing import Any

from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fastgrad.im2col import is_plain, unfolded_conv2d


class BatchedOperations(TorchFunctionMode):
    """While active, plain 2-d convolutions are matrix products and pooling to one value is a mean.

    The values are the same; vmap turns these forms into one operation for all clients, and the others into
    slow ones or a loop. Every other call passes through.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if func is functional.conv2d and is_plain(*args, **given):
            return unfolded_conv2d(*args[:5], **{key: given[key] for key in given.keys() & _USED})
        if func is functional.adaptive_avg_pool2d and _is_global(*args, **given):
            return args[0].mean(dim=(-2, -1), keepdim=True)
        return func(*args, **given)


_USED = {"input", "weight", "bias", "stride", "padding"}


def _is_global(*args: Any, **kwargs: Any) -> bool:
    return len(args) == 2 and not kwargs and args[1] in (1, (1, 1), [1, 1])
